"""A line of progress on stderr: only on a terminal, and only when something takes longer than a second."""

import sys
import time
from typing import Self


class Progress:
    """Counts points as they are done; use as a context.

    Parameters
    ----------
    total : int
    what : str
        Of what, in plural.
    """

    def __init__(self, total: int, what: str = "points") -> None:
        self._total, self._what = total, what
        self._done = 0
        self._start = self._shown = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def step(self, text: str = "") -> None:
        """Say that another one is about to run."""
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._start > 1 and now - self._shown > 0.2:
            line = f"{self._done} of {self._total} {self._what}, {now - self._start:.0f} s {text}"
            print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width, self._shown = len(line), now
        self._done += 1

    def clear(self) -> None:
        """Take the line away, so that results can be printed."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
