"""Schedules in files; the ending says which format."""

from __future__ import annotations

from os import PathLike, fspath

from collemu.schedule import Schedule

ENDING = ".xml"  # of MSCCL XML
PLAN = ".json"  # of an execution plan of MSCCL++


def load_schedule(path: str | PathLike[str], *, collective: str | None = None) -> Schedule:
    """Read a schedule from a file; `collemu.interop.msccl.read_msccl` and `collemu.interop.mscclpp` say how.

    Parameters
    ----------
    path : path of a file
        MSCCL XML by its ending ``.xml``, an execution plan of MSCCL++ by ``.json``.
    collective : str, optional
        What it does, where the file does not say (``custom``).

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
    if fspath(path).lower().endswith(PLAN):
        from collemu.interop.mscclpp import read_mscclpp

        return [read_mscclpp(path, collective=collective)]
    from collemu.interop.msccl import read_layouts

    if not _is_xml(path):
        raise ValueError(
            f"{fspath(path)}: schedules are MSCCL XML, in files that end in {ENDING}, or execution plans of MSCCL++, "
            f"in files that end in {PLAN}"
        )
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

    if not _is_xml(path):
        plans = "; plans of MSCCL++ are read, not written" * fspath(path).lower().endswith(PLAN)
        raise ValueError(f"{fspath(path)}: schedules are written as MSCCL XML, in files that end in {ENDING}{plans}")
    write_msccl(schedule, path)


def _is_xml(path: str | PathLike[str]) -> bool:
    return fspath(path).lower().endswith(ENDING)
