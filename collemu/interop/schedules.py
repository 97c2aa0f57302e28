"""Schedules in files; the ending says which format."""

from __future__ import annotations

from os import PathLike, fspath

from collemu.schedule import Schedule

ENDING = ".xml"


def load_schedule(path: str | PathLike[str], *, collective: str | None = None) -> Schedule:
    """Read a schedule from a file; `collemu.interop.msccl.read_msccl` says how.

    Parameters
    ----------
    path : path of a file
        MSCCL XML, by its ending ``.xml``.
    collective : str, optional
        What it does, where the file does not say (``coll="custom"``).

    Raises
    ------
    ValueError
        For another ending, or a file that is wrong; the text names the place.
    OSError
        If it cannot be read.
    """
    return load_layouts(path, collective=collective)[0]


def load_layouts(path: str | PathLike[str], *, collective: str | None = None) -> list[Schedule]:
    """Read a schedule as `load_schedule` does, in every layout that the file allows: out of place first."""
    from collemu.interop.msccl import read_layouts

    _refuse_other_endings(path)
    return read_layouts(path, collective=collective)


def save_schedule(schedule: Schedule, path: str | PathLike[str]) -> None:
    """Write a schedule to a file; `collemu.interop.msccl.write_msccl` says how.

    Raises
    ------
    ValueError
        For another ending than ``.xml``, or what MSCCL cannot say.
    OSError
        If it cannot be written.
    """
    from collemu.interop.msccl import write_msccl

    _refuse_other_endings(path)
    write_msccl(schedule, path)


def _refuse_other_endings(path: str | PathLike[str]) -> None:
    if not fspath(path).lower().endswith(ENDING):
        raise ValueError(f"{fspath(path)}: schedules are MSCCL XML, in files that end in {ENDING}")
