"""A line of progress on stderr: only on a terminal, and only when something takes longer than a second."""

import os
import sys
import time
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

PATIENCE_S = 1.0
REFRESH_S = 0.25


class Progress:
    """Counts points as they are done; use as a context.

    A thread keeps the line up to date while a single point runs: kernels let go of the interpreter's lock.

    Parameters
    ----------
    total : int
    what : str
        Of what, in plural.
    """

    def __init__(self, total: int, what: str = "points") -> None:
        self._total, self._what = total, what
        self._begun = 0
        self._start = time.monotonic()
        self._text: str | None = None
        self._width = 0
        self._lock, self._ended = Lock(), Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._thread = Thread(target=self._keep_showing, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
        self.clear()

    def step(self, text: str = "") -> None:
        """Say that another one is about to run."""
        self._begun += 1
        self.say(text)

    def say(self, text: str) -> None:
        """Say what runs now."""
        cold = self._thread is not None and self._begun < 2 and kernels_are_cold()
        with self._lock:
            self._text = f"compiling kernels, once: {text}" if cold else text

    def clear(self) -> None:
        """Take the line away, so that results can be printed."""
        with self._lock:
            self._text = None
            if self._width:
                print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
                self._width = 0

    def _keep_showing(self) -> None:
        while not self._ended.wait(REFRESH_S):
            seconds = time.monotonic() - self._start
            with self._lock:
                if self._text is not None and seconds > PATIENCE_S:
                    done = max(0, self._begun - 1)
                    line = f"{done} of {self._total} {self._what}, {seconds:.0f} s, {self._text}"
                    print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
                    self._width = len(line)


def kernels_are_cold() -> bool:
    """Whether no kernel has been compiled into the cache yet."""
    from collemu_kernels._jit import PLAIN_PYTHON

    return not PLAIN_PYTHON and not any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbc"))
