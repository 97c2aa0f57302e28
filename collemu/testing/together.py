"""Pieces of tests that all processes run together: how one ends in one process, all learn."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from collemu.ranks.alone import Alone
from collemu.ranks.part import Communicator
from collemu.ranks.watchdog import Watchdog

PATIENCE_S = 20.0  # that a process which has failed waits for the others
PASSED, FAILED, SKIPPED, REJECTED = "passed", "failed", "skipped", "rejected"
_BY_NAME = {"Skipped": SKIPPED, "SkipTest": SKIPPED, "UnsatisfiedAssumption": REJECTED}


class RankError(AssertionError):
    """Something failed in another process; the text says in which, and what."""


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended: ``how``, the reason in words, and the place where it was raised."""

    how: str = PASSED
    text: str = ""
    place: str = ""


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of work that has raised something, or nothing."""
    if error is None:
        return Outcome()
    how = _BY_NAME.get(type(error).__name__, FAILED)
    if how != FAILED:
        return Outcome(how, str(error))
    place = _place(error)
    if isinstance(error, RankError):  # which says where and what itself
        return Outcome(FAILED, "\n".join([str(error), *getattr(error, "__notes__", ())]), place)
    return Outcome(FAILED, f"{place}: {''.join(traceback.format_exception_only(error)).strip()}", place)


def _place(error: BaseException) -> str:
    """The innermost line of code that is the user's, as near as one can tell: outside packages and this library."""
    steps = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    theirs = [step for step in steps if "site-packages" not in step.filename and not step.filename.startswith(ours)]
    last = [*steps[-1:], *theirs[-1:]]
    return f"{last[-1].filename}:{last[-1].lineno}" if last else "elsewhere"


class Together:
    """Shares the outcomes of work between all processes; use as a context, which all enter.

    It has a communicator of its own, so that nothing mixes with what the work itself sends. A process that has failed
    waits for the others; if they do not come, because they wait for what it was to send, the job ends and says so.

    Parameters
    ----------
    comm : communicator
        Of all processes; the work may use it.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._own = comm if isinstance(comm, Alone) else comm.Dup()
        self._watchdog = Watchdog(self._own, PATIENCE_S, "collemu.testing")

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.Barrier()  # who left before the others would seem not to answer
        self._watchdog.__exit__()
        if not isinstance(self._own, Alone):
            self._own.Free()

    def share(self, own: Outcome, what: str = "a test") -> list[Outcome]:
        """Tell the others how one's own work ended, and learn how theirs did, by rank."""
        if own.how != PASSED:
            line = " ".join(own.text.split())
            self._watchdog.begin(
                lambda: (
                    f"{own.how} in {what} ({line}), and the others have not come to its end: if they wait for it, "
                    f"communicate first and assert afterwards"
                )
            )
        everybody = self._own.allgather(own)
        self._watchdog.end()
        return everybody

    def allgather(self, given: Any) -> list[Any]:
        """What each rank gives."""
        return self._own.allgather(given)

    def bcast(self, given: Any = None) -> Any:
        """What rank 0 gives."""
        return self._own.bcast(given)


def attempt(work: Callable[[], object]) -> BaseException | None:
    """Do something and return what it raises, if anything; an interrupt is left to go its way."""
    __tracebackhide__ = True
    try:
        work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's own outcomes are no Exceptions
        return error
    return None


def failures(everybody: list[Outcome]) -> str:
    """Which ranks failed, and of what: a line for all that failed of the same."""
    by_text: dict[str, list[int]] = {}
    for rank, outcome in enumerate(everybody):
        if outcome.how == FAILED:
            by_text.setdefault(outcome.text, []).append(rank)
    said: list[str] = []
    for text, ranks in by_text.items():
        who = "all ranks" if len(ranks) == len(everybody) else "rank " + ", ".join(map(str, ranks))
        said.append(f"{who} of {len(everybody)}: {text}" if who != "all ranks" else f"all {len(ranks)} ranks: {text}")
    return "\n".join(said)
