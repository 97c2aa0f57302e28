"""Ends a job in which nothing happens any more, and says who waits for whom.

Every process keeps a small file in a folder that they share: what it does, and for how long. A thread writes it and
reads those of the others, so that a process that was stopped is seen by its silence. On several machines each sees the
processes of its own.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from collemu.ranks.alone import Alone
from collemu.ranks.launch import abort

LOOKS = 5  # in the time that nothing may happen
GRACE_S = 1.0  # for the first process that can to speak for all


class Watchdog:
    """Watches the processes of a communicator; use as a context, which all enter.

    Parameters
    ----------
    comm : communicator
    timeout : float or None
        Seconds without progress after which the job ends; None watches nothing.
    command : str
        What the message begins with.
    each : str
        What the message calls a process.
    """

    def __init__(self, comm: Any, timeout: float | None, command: str = "collemu", each: str = "rank") -> None:
        self._comm, self._timeout, self._command, self._each = comm, timeout, command, each
        self._folder: Path | None = None
        self._tell: Callable[[], str] | None = None
        self._last = time.monotonic()
        self._end = Event()

    def __enter__(self) -> Self:
        if self._timeout is None or isinstance(self._comm, Alone):
            return self
        name = tempfile.mkdtemp(prefix="collemu-") if self._comm.rank == 0 else None
        self._folder = Path(self._comm.bcast(name))
        self._folder.mkdir(exist_ok=True)  # of another machine
        self._write()
        self._comm.Barrier()
        Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._folder is not None and self._comm.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def begin(self, tell: Callable[[], str]) -> None:
        """From now on every `beat` is progress; ``tell`` says what is done, or waited for."""
        self._last, self._tell = time.monotonic(), tell

    def beat(self) -> None:
        """Something happened."""
        self._last = time.monotonic()

    def end(self) -> None:
        """What comes now may take as long as it does, as long as the process is there."""
        self._tell = None

    def _watch(self) -> None:
        timeout = self._timeout or 0.0
        while not self._end.wait(timeout / LOOKS):
            self._write()
            late = [state for state in self._states().values() if max(state["idle"], state["silent"]) > timeout]
            if late and not self._end.is_set():
                self._stop(timeout)

    def _stop(self, timeout: float) -> None:
        """Let the first process that is not silent speak, and end all."""
        states = self._states()
        speaking = [rank for rank, state in states.items() if state["silent"] <= timeout]
        if speaking and self._comm.rank != min(speaking):
            time.sleep(GRACE_S * (1 + speaking.index(self._comm.rank) if self._comm.rank in speaking else 1))
        abort(self._comm, f"{self._command}: no progress for {timeout:g} s: {'; '.join(self._sentences(states))}")

    def _sentences(self, states: dict[int, dict[str, Any]]) -> list[str]:
        """Those who do not answer first, then those who do something, then those who wait."""
        timeout = self._timeout or 0.0
        silent: list[str] = []
        told: list[str] = []
        for rank, state in states.items():
            who, doing = f"{self._each} {rank}", state["doing"]
            if state["silent"] > timeout:
                silent.append(f"{who} does not answer" + (f" (last seen: {doing})" if doing else ""))
            elif doing:
                told.append(f"{who} {doing}")
        return silent + sorted(told, key=lambda text: " waits for " in text)

    def _write(self) -> None:
        if self._folder is None:
            return
        tell = self._tell
        idle = time.monotonic() - self._last if tell else 0.0
        state = {"idle": idle, "doing": tell() if tell else ""}
        part = self._folder / f".{self._comm.rank}"
        try:
            part.write_text(json.dumps(state))
            os.replace(part, self._folder / str(self._comm.rank))
        except OSError:
            self._end.set()  # the folder is gone: the job has ended

    def _states(self) -> dict[int, dict[str, Any]]:
        """What each process of this machine said last, and for how long it has been silent."""
        states: dict[int, dict[str, Any]] = {}
        now = time.time()
        for rank in range(self._comm.size):
            path = Path(self._folder or "") / str(rank)
            try:
                states[rank] = {**json.loads(path.read_text()), "silent": now - path.stat().st_mtime}
            except (OSError, ValueError):
                continue
        return states
