"""What a sweep has done so far: a line for each finished point, on disk as soon as it is finished."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from collemu.cli.outputs import reason

VERSION = 1


@dataclass(frozen=True)
class Finished:
    """A point that has run: its columns, or why it failed."""

    columns: dict[str, Any]
    error: str | None


class Journal:
    """Lines of JSON beside the table: the first says of which sweep they are.

    Whoever is killed leaves whole lines and perhaps part of one; that point runs again.

    Parameters
    ----------
    path : Path
    head : dict
        What the numbers depend on: another sweep's journal has another.
    restart : bool
        Whether what is there is thrown away.

    Attributes
    ----------
    finished : dict of int to Finished
        By the number of the point.

    Raises
    ------
    ValueError
        If it cannot be written, belongs to another sweep, or another process writes it.
    """

    def __init__(self, path: Path, head: dict[str, Any], *, restart: bool = False) -> None:
        self.path = path
        self.finished: dict[int, Finished] = {}
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise ValueError(f"cannot write {path}: {reason(error)}") from None
        try:
            _lock(self._file, path)
            if restart:
                self._file.truncate(0)
            self._read(head)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Write no more: others may."""
        self._file.close()

    def add(self, number: int, finished: Finished) -> None:
        """Note a point, so that it survives whatever happens to this process."""
        self.finished[number] = finished
        self._write({"point": number, "columns": finished.columns, "error": finished.error})

    def forget_failures(self) -> None:
        """Take failed points for points that have not run."""
        self.finished = {number: each for number, each in self.finished.items() if each.error is None}

    def remove(self) -> None:
        """It has served."""
        self.path.unlink(missing_ok=True)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def _read(self, head: dict[str, Any]) -> None:
        """Take over what is there, up to the first line that is not whole."""
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                entry: dict[str, Any] = json.loads(line)
                if whole == 0:
                    self._refuse_other(entry, head)
                else:
                    point: Any = entry["point"]
                    columns: Any = entry["columns"]
                    if type(point) is not int or point < 0 or not isinstance(columns, dict):
                        raise TypeError("not what is written here")
                    self.finished[point] = Finished(cast("dict[str, Any]", columns), entry["error"])
            except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError):
                break
            whole += len(line)
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        if whole == 0:
            self._write(head)

    def _refuse_other(self, entry: dict[str, Any], head: dict[str, Any]) -> None:
        for name, value in head.items():
            if entry.get(name) != value:
                raise ValueError(
                    f"{self.path} was begun with {name} {entry.get(name)}, and now it is {value}: go on as then, "
                    "or throw away what is done with --restart"
                )


def _lock(file: IO[bytes], path: Path) -> None:
    """Keep other processes of this machine from writing it, for as long as it is open."""
    try:
        import fcntl
    except ImportError:  # not on every system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{path}: another process is at this sweep; wait for it, or give another -o") from None
    except OSError:
        return  # some file systems have no locks
