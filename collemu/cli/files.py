"""Schedules from files, where a command takes the name of an algorithm."""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from collemu.cli.outputs import reason
from collemu.cli.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collemu.catalogue import System
    from collemu.program import Algorithm
    from collemu.schedule import Schedule


def is_file(word: str) -> bool:
    """Whether a word is the path of a schedule; algorithms have neither dots nor slashes in their names."""
    return "." in word or os.sep in word


def is_python(word: str) -> bool:
    """Whether a word is ``FILE.py`` or ``FILE.py:NAME``."""
    from collemu.program.files import split_name

    return split_name(word) is not None


def _algorithms(path: str) -> "dict[str, Algorithm]":
    """What is in a Python file, which runs once as long as it stays as it is; what it prints is no result."""
    try:
        state = Path(path).stat()
        return _load_algorithms(path, str(Path(path).resolve()), state.st_mtime_ns, state.st_size)
    except FileNotFoundError:
        raise ValueError(
            f"{path} is not there; give the path of a schedule, or a name that collemu algorithms lists"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {reason(error)}") from None


@lru_cache
def _load_algorithms(path: str, *_: str | int) -> "dict[str, Algorithm]":
    from collemu.program.files import load_algorithms

    with Progress(1, "files") as progress, redirect_stdout(sys.stderr):
        progress.say(f"running {path}")
        return load_algorithms(path)


def collectives_of(word: str) -> list[str]:
    """What the algorithms of ``FILE.py`` do, or the one of ``FILE.py:NAME``."""
    from collemu.program.files import choose_algorithm, split_name

    path, name = split_name(word) or (word, None)
    found = _algorithms(path)
    return [each.collective for each in ([choose_algorithm(word, found)] if name is not None else found.values())]


def find_python(word: str, collective: str) -> "Algorithm":
    """The algorithm that ``FILE.py`` or ``FILE.py:NAME`` has for a collective.

    Raises
    ------
    ValueError
        If there is none or a choice, or for whatever is wrong in the file; the text begins with file and line.
    """
    from collemu.program.files import choose_algorithm, split_name

    path, _ = split_name(word) or (word, None)
    return choose_algorithm(word, _algorithms(path), collective)


def run_python(
    algorithm: "Algorithm",
    ranks: int,
    *,
    root: int = 0,
    channels: int = 1,
    chunks: int | None = None,
    in_place: bool | None = None,
) -> "Schedule":
    """The schedule that a user's algorithm writes; what it prints is no result."""
    lanes = None if channels == 1 else channels
    with redirect_stdout(sys.stderr):
        return algorithm.schedule(ranks, root=root, channels=lanes, chunks=chunks, in_place=in_place)


@lru_cache
def load_layouts(path: str, collective: str | None = None) -> "list[Schedule]":
    """The schedule of a file, out of place and in place as the file allows, read once.

    Parameters
    ----------
    path : str
    collective : str, optional
        What it does, where the file does not say.

    Raises
    ------
    ValueError
        If it cannot be read, is none, or does something else.
    """
    from collemu.interop.schedules import load_layouts

    if not Path(path).exists():
        raise ValueError(f"{path} is not there; give the path of a schedule, or a name that collemu algorithms lists")
    try:
        return load_layouts(path, collective=collective)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {reason(error)}") from None


def load_for(path: str, chosen: Sequence[str]) -> "Schedule":
    """The schedule of a file, which must do one of some collectives.

    Raises
    ------
    ValueError
        If it does another; or does not say what it does, and there is a choice.
    """
    schedule = load_layouts(path, chosen[0] if len(chosen) == 1 else None)[0]
    if schedule.collective not in chosen:
        raise ValueError(f"{path}: it does {schedule.collective}, not {', '.join(chosen)}")
    return schedule


def load_for_flags(
    path: str, collective: str, root: int, lanes: tuple[int, int | None], system: "System"
) -> "Schedule":
    """The schedule of a file; flags that it has no use for are refused.

    Raises
    ------
    ValueError
        As `load_for`; or if the system has too few chips, or root, channels or chunks were given and are others.
    """
    schedule = load_for(path, [collective])
    if schedule.ranks > system.max_ranks:
        raise ValueError(
            f"{path} is for {schedule.ranks} ranks, more than the {system.max_ranks} chips of {system.name}"
        )
    if root not in (0, schedule.root):
        raise ValueError(f"-r is {root}, and the root of {path} is {schedule.root}")
    if lanes != (1, None):
        raise ValueError(f"--channels and --chunks are for algorithms by name; {path} has its own")
    return schedule


def load_counts_for(path: str | None, chosen: Sequence[str]) -> "NDArray[np.int64] | None":
    """The counts of a file, if there is one, which are for alltoallv alone.

    Raises
    ------
    ValueError
        If they cannot be read, or none of the collectives is alltoallv.
    """
    from collemu.counts import load_counts

    if path is not None and "alltoallv" not in chosen:
        raise ValueError(f"--counts is for alltoallv; {', '.join(chosen)} would not use {path}")
    return None if path is None else load_counts(path)


def refuse_other_ranks(path: str, ranks: int, asked: list[int]) -> None:
    """Raise if a file is for a number of ranks that was not asked for."""
    if ranks not in asked:
        raise ValueError(f"{path} is for {ranks} ranks, not {', '.join(map(str, asked))}")
