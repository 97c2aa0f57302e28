"""What a benchmark returns, and how it is timed and printed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement beside its peer.

    ``ratio`` is ours over the peer's, more is better; a published figure was measured on another machine, and says so.
    ``bar`` is what is promised of this row, as `bar` writes it; ``limit`` the share of what the machine can do.
    """

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None
    bar: str = ""
    limit: str = ""


def bar(value: float | None, least: float | None, unit: str = "x") -> str:
    """What a row promises, and whether it is missed; nothing where nothing is promised."""
    if least is None:
        return ""
    missed = value is not None and value < least
    return f"bar {least:g}{unit}" + (", MISSED" if missed else "")


def best_seconds(run: Callable[[], object], repeats: int = 7, seconds: float = 0.0) -> float:
    """Least time of several runs after one that compiles and warms up: the machine is shared, and noise only adds.

    Runs at least ``repeats`` times, and on until ``seconds`` have passed.
    """
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < repeats or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def race(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 3) -> tuple[float, float]:
    """Least times of both, run in turns, so that what else the machine does meets both."""
    pairs = [(best_seconds(ours, 5, 0.1), best_seconds(theirs, 2, 0.1)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def show(title: str, rows: Iterable[Row]) -> None:
    """Print rows as a table."""
    print(f"\n{title}")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        line = f"  {row.what:58s} {row.ours:>22s} {row.limit:>5s} {ratio:>9s}  {row.bar:24s} {row.peer}"
        print(line.rstrip(), flush=True)
