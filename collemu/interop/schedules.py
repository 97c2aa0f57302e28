"""Schedules in files; the ending says which format."""

from __future__ import annotations

from os import PathLike, fspath

from collemu.arguments import whole
from collemu.schedule import Schedule

ENDING = ".xml"  # of MSCCL XML
PLAN = ".json"  # of an execution plan of MSCCL++


def load_schedule(
    path: str | PathLike[str],
    *,
    collective: str | None = None,
    ranks: int | None = None,
    root: int = 0,
    channels: int | None = None,
    chunks: int | None = None,
) -> Schedule:
    """Read a schedule from a file of MSCCL XML or a plan of MSCCL++, or run a Python file that writes one.

    `collemu.interop.msccl.read_msccl` and `collemu.interop.mscclpp` say how these are read, ``docs/own-algorithms.md``
    what Python files have.

    Parameters
    ----------
    path : path of a file
        By its ending MSCCL XML, ``.xml``, an execution plan of MSCCL++, ``.json``, or a Python file, ``.py``;
        ``FILE.py:NAME`` is one of several algorithms. Python files are code: they can do whatever Python can.
    collective : str, optional
        What it does, where the file does not say (``custom``), or has a choice.
    ranks : int
        For Python files; of others it is only checked.
    root, channels, chunks : int, optional
        For Python files, as in `build_schedule`.

    Raises
    ------
    ValueError
        For another ending, or a file that is wrong; the text names the place.
    OSError
        If it cannot be read.
    """
    from collemu.program.files import choose_algorithm, load_algorithms, split_name

    word = fspath(path)
    if python := split_name(word):
        if ranks is None:
            raise ValueError(f"{word}: for how many ranks? Give ranks=")
        found = choose_algorithm(word, load_algorithms(python[0]), collective)
        return found.schedule(ranks, root=root, channels=channels, chunks=chunks)
    if (root, channels, chunks) != (0, None, None):
        raise ValueError(f"{word}: root, channels and chunks are for Python files; a schedule in XML has its own")
    schedule = load_layouts(path, collective=collective)[0]
    if ranks is not None and whole(ranks, "ranks", least=1) != schedule.ranks:
        raise ValueError(f"{word} is for {schedule.ranks} ranks, not {ranks}")
    return schedule


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
