"""What the processes of a launch agree on before they work: how they were started, and whether input is bad."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from collemu import __version__
from collemu.provenance import sources_fingerprint
from collemu.ranks.part import Communicator

Done = TypeVar("Done")


class AgreedError(ValueError):
    """Bad input that every process has found or been told of, so that all can leave in peace."""


def agree(comm: Communicator, work: Callable[[], Done]) -> Done:
    """Do local work that may find bad input; if it does in any process, all raise it.

    Raises
    ------
    AgreedError
        The first fault, by rank.
    """
    done: list[Done] = []
    fault = None
    try:
        done.append(work())
    except (ValueError, OSError) as error:
        fault = str(error) or type(error).__name__
    for each in comm.allgather(fault):
        if each is not None:
            raise AgreedError(each)
    return done[0]


def agree_on_start(comm: Communicator, words: Sequence[str]) -> None:
    """Check that every process was started with the same words and runs the same sources.

    Raises
    ------
    AgreedError
        With what the first process has, and the first that has something else.
    """
    everybody = comm.allgather((" ".join(words), f"collemu {__version__}", f"sources {sources_fingerprint()}"))
    for rank, each in enumerate(everybody):
        for mine, theirs in zip(everybody[0], each, strict=True):
            if mine != theirs:
                raise AgreedError(f"all ranks must run the same: rank 0 has '{mine}', rank {rank} has '{theirs}'")
