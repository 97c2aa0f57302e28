"""Schedules from files, where a command takes the name of an algorithm."""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from collemu.cli.outputs import reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collemu.catalogue import System
    from collemu.schedule import Schedule


def is_file(word: str) -> bool:
    """Whether a word is the path of a schedule; algorithms have neither dots nor slashes in their names."""
    return "." in word or os.sep in word


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
