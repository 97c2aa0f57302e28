"""An execution plan as it is in memory, whichever of its two formats the file has."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

#: What an operation does.
MOVE = "move"  # every read to the write beside it
SUM = "sum"  # all reads together, to every write
SWITCH_SUM, SWITCH_STORE = "switch_sum", "switch_store"  # in the memory of a switch group
SIGNAL, WAIT = "signal", "wait"  # of a channel
RELEASE, ACQUIRE = "release", "acquire"  # a semaphore of a GPU
BARRIER = "barrier"  # of thread blocks of a GPU
AFTER = "after"  # steps of other thread blocks

NEVER = 2**31

Mailbox = tuple[int, str, int]  # a channel at the rank that hears: rank, type, number


class Chunks(NamedTuple):
    """A run of chunks in a buffer of a rank."""

    rank: int
    buffer: int
    first: int
    length: int


class Op(NamedTuple):
    """An operation of a thread block.

    Attributes
    ----------
    place : str
        For errors: GPU, thread block, number and name.
    verb : str
    reads, writes : tuple of Chunks
    packets_read, packets_written : int
        From which of the reads, and of the writes, on data travel as packets, whose flags tell that they are there.
    keys : tuple
        The mailboxes of a wait, the semaphores of an acquire or release, or the barrier.
    signals : tuple of (rank, mailbox)
        Of a signal; None for a channel whose other end has no mailbox.
    steps : tuple of (thread block, step)
        Of an `AFTER`.
    blocks : int
        Thread blocks that meet at a barrier.
    step : int
        Its number in its thread block, as an `AFTER` counts.
    """

    place: str
    verb: str
    reads: tuple[Chunks, ...] = ()
    writes: tuple[Chunks, ...] = ()
    packets_read: int = NEVER
    packets_written: int = NEVER
    keys: tuple[Hashable, ...] = ()
    signals: tuple[tuple[int, Mailbox | None], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    blocks: int = 0
    step: int = 0


class Words(NamedTuple):
    """What the name of an operation says."""

    verb: str
    packets_read: int = NEVER
    packets_written: int = NEVER
    signals: bool = False  # its channels, when it is done


@dataclass
class Gpu:
    """A GPU of a plan."""

    rank: int
    chunks: tuple[int, int, int]  # input, output, scratch
    peers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # of each channel, by its type
    blocks: list[list[Op]] = field(default_factory=list[list[Op]])
    semaphores: list[int] = field(default_factory=list[int])  # initial values


def mailboxes(gpus: list[Gpu]) -> dict[Mailbox, Mailbox]:
    """Where the signals of every channel (rank, type, number) arrive.

    The n-th channel from one rank to another pairs with the n-th back; one without a partner is not in the table.
    """
    ends: dict[tuple[int, int, str], list[int]] = {}
    for gpu in gpus:
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                ends.setdefault((gpu.rank, peer, kind), []).append(number)
    return {
        (here, kind, mine): (there, kind, its)
        for (here, there, kind), numbers in ends.items()
        for mine, its in zip(numbers, ends.get((there, here, kind), ()), strict=False)
    }
