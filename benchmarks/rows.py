"""What a benchmark returns, and how it is timed and printed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement beside its peer.

    ``ratio`` is ours over the peer's, more is better; a published figure was measured on another machine, and says so.
    """

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None


def best_seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """Least time of several runs after one that compiles and warms up: the machine is shared, and noise only adds."""
    run()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def show(title: str, rows: Iterable[Row]) -> None:
    """Print rows as a table."""
    print(f"\n{title}")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:8.2f}x"
        print(f"  {row.what:58s} {row.ours:>22s}  {ratio:9s} {row.peer}", flush=True)
