"""What a point needs before it runs: its system, its schedule, an algorithm by name, and an affordable size."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from collemu.cli.files import find_python, is_file, is_python, load_for, run_python
from collemu.cli.options import AUTO, Point
from collemu.collectives import INPUT_PER_RANK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collemu.catalogue import System
    from collemu.program import Algorithm
    from collemu.schedule import Schedule
    from collemu.tensors import Tensor

MOST_SLOTS = 2**20  # whether those of a system are enough is told by the run
MOST_OVERHEAD = 4  # bytes on a link for a byte of the size, with protocol lines and scales: a generous bound


@lru_cache
def load(name: str) -> "System":
    """A system, read once."""
    from collemu import load_system

    return load_system(name)


def build(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int,
    channels: int,
    chunks: int | None,
    *,
    group: int | None = None,
    count: int = 0,
    file: str | None = None,
) -> "Schedule":
    """A schedule, built or read once for all sizes, dtypes and wire formats; an alltoallv for its `counts_of` alone."""
    if is_python(algorithm):
        return _proved(find_python(algorithm, collective), ranks, root, channels, chunks)
    return _built(collective, algorithm, ranks, root, channels, chunks, group, count, file)


@lru_cache(maxsize=8)
def _proved(algorithm: "Algorithm", ranks: int, root: int, channels: int, chunks: int | None) -> "Schedule":
    """What a user's algorithm writes, once it is verified."""
    from collemu import ScheduleError, verify
    from collemu.program import ProgramError

    schedule = run_python(algorithm, ranks, root=root, channels=channels, chunks=chunks)
    try:
        verify(schedule, slots=MOST_SLOTS)
    except ScheduleError as error:
        raise ProgramError(f"{error} ({ranks} ranks)") from error
    return schedule


@lru_cache(maxsize=8)
def _built(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int,
    channels: int,
    chunks: int | None,
    group: int | None,
    count: int,
    file: str | None,
) -> "Schedule":
    from collemu import build_schedule

    if is_file(algorithm):
        return load_for(algorithm, [collective])
    counts = counts_of(collective, ranks, count, file)
    return build_schedule(
        collective, algorithm, ranks, root=root, channels=channels, chunks=chunks, counts=counts, group=group
    )


def counts_of(collective: str, ranks: int, count: int, file: str | None = None) -> "NDArray[np.int64] | None":
    """Of an alltoallv the counts of a file, or those of rccl-tests for a count; None of others."""
    from collemu.counts import load_counts, staircase

    if collective != "alltoallv":
        return None
    return load_counts(file) if file else staircase(ranks, count)


def count_of(point: Point, schedule: "Schedule") -> int:
    """The count with which `emulate` runs a point."""
    from collemu.rows import settled_count

    return settled_count(schedule, point.count if schedule.counts is None else None)


def dealt(point: Point, tensor: "Tensor") -> tuple[Any, int, str]:
    """The user's tensor as `emulate` takes it, the count that follows from it, and a sentence on how it was dealt out.

    Raises
    ------
    ValueError
        If it has too few elements, or is for an alltoallv.
    """
    import numpy as np

    from collemu.dtypes import find_dtype, to_values
    from collemu.tensors import deal

    if point.collective == "alltoallv":
        raise ValueError("--data does not say what goes to which rank; use alltoall, or leave --data out")
    regions = point.ranks if point.collective in INPUT_PER_RANK else 1
    data, how = deal(tensor, point.collective, point.ranks, regions)
    held, count = find_dtype(point.dtype), data.shape[1] // regions
    if held.is_codes and data.dtype == held.storage:
        data = to_values(np.array(data), held)  # a copy: kernels are compiled for arrays that can be written
    if point.collective == "scatter":
        return [row if rank == point.root else row[:0] for rank, row in enumerate(data)], count, how
    return data, count, how


def settled(point: Point, system: "System") -> Point:
    """The point with an algorithm in place of ``auto``."""
    if point.algorithm != AUTO:
        return point
    from collemu.model.choose import Choice, Task, fastest
    from collemu.model.libraries import LIBRARIES, names_of

    task = Task(
        point.collective,
        point.ranks,
        system,
        dtype=point.dtype,
        op=point.op,
        recipe=point.recipe,
        root=point.root,
        counts=counts_of(point.collective, point.ranks, point.count, point.counts),
    )
    names = _of_recipe(point) or names_of(LIBRARIES[point.like], point.collective, system)
    if not names:
        raise ValueError(f"{point.like} has no algorithm for {point.collective} on {system.name}; try --like all")
    choices = [Choice(name, point.protocol, point.channels, point.chunks) for name in names]
    name = fastest(task, choices, point.count).algorithm
    return replace(point, algorithm=name)


def _of_recipe(point: Point) -> "tuple[str, ...] | None":
    """The algorithms that a published recipe belongs to, if it is one, and has any for the collective."""
    from collemu.published import find_published

    return find_published(point.recipe.name).algorithms.get(point.collective) if point.recipe.name else None


def refuse_oversized(points: Iterable[Point]) -> None:
    """Find the points that are too large to emulate packet by packet before any of them runs.

    Raises
    ------
    ValueError
        For the first; the text names it.
    """
    from collemu.fabric import MAX_PACKETS, routes_of
    from collemu.lower import lower
    from collemu.payload import payload_of

    for asked in points:
        if asked.fidelity != "packet":
            continue  # what is too large for packets flows
        system = load(asked.system)
        most_bytes = MOST_OVERHEAD * asked.ranks**2 * asked.size
        if most_bytes <= MAX_PACKETS * system.domain.packet_payload_bytes:
            continue
        try:
            point = settled(asked, system)
            schedule = point.schedule()
            payload = payload_of(point.collective, point.dtype, point.recipe, point.op)
            lowered = lower(schedule, count_of(point, schedule), item_bytes=payload.held.item_bytes, wire=payload.wire)
            routes_of(lowered.messages, system, system.protocols[point.protocol])
        except ValueError as error:
            raise ValueError(f"{asked}: {error}") from None
