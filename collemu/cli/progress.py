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
    done : int
        How many of them were done before.
    """

    def __init__(self, total: int, what: str = "points", done: int = 0) -> None:
        self._total, self._what = total, what
        self._before = self._done = done
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
        """Say that another one is about to run, and the one before it is done."""
        self._done = self._before + self._begun
        self._begun += 1
        self.say(text)

    def count(self) -> None:
        """Say that one is done, where several run at once."""
        self._begun += 1
        self._done += 1

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
                    times = f"{seconds:.0f} s{self._left(seconds)}"
                    line = f"{self._done} of {self._total} {self._what}, {times}, {self._text}"
                    print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
                    self._width = len(line)

    def _left(self, seconds: float) -> str:
        """How long the rest will take if it goes on like this."""
        done = self._done - self._before
        return f", about {seconds * (self._total - self._done) / done:.0f} s left" if 0 < done < self._total else ""


def kernels_are_cold() -> bool:
    """Whether no kernel has been compiled into the cache yet."""
    from collemu_kernels._jit import PLAIN_PYTHON

    return not PLAIN_PYTHON and not any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbc"))
