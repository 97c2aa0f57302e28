"""What a point needs before it runs: its system, its schedule, an algorithm by name, and an affordable size."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from collemu.cli.files import is_file, load_for
from collemu.cli.options import AUTO, Point

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collemu.catalogue import System
    from collemu.schedule import Schedule

MOST_OVERHEAD = 4  # bytes on a link for a byte of the size, with protocol lines and scales: a generous bound


@lru_cache
def load(name: str) -> "System":
    """A system, read once."""
    from collemu import load_system

    return load_system(name)


@lru_cache(maxsize=8)
def build(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int,
    channels: int,
    chunks: int | None,
    count: int = 0,
    file: str | None = None,
) -> "Schedule":
    """A schedule, built or read once for all sizes, dtypes and wire formats; an alltoallv for its `counts_of` alone."""
    from collemu import build_schedule

    if is_file(algorithm):
        return load_for(algorithm, [collective])
    counts = counts_of(collective, ranks, count, file)
    return build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks, counts=counts)


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


def settled(point: Point, system: "System") -> Point:
    """The point with an algorithm in place of ``auto``."""
    if point.algorithm != AUTO:
        return point
    from collemu.model.choose import choose_algorithm

    name = choose_algorithm(
        point.collective,
        point.ranks,
        system,
        count=point.count,
        dtype=point.dtype,
        op=point.op,
        wire=point.wire,
        root=point.root,
        channels=point.channels,
        chunks=point.chunks,
        protocol=point.protocol,
        counts=counts_of(point.collective, point.ranks, point.count, point.counts),
    )
    return replace(point, algorithm=name)


def refuse_oversized(points: Iterable[Point]) -> None:
    """Find the points that are too large to emulate packet by packet before any of them runs.

    Raises
    ------
    ValueError
        For the first; the text names it.
    """
    from collemu.fabric import MAX_PACKETS, routes_of
    from collemu.lower import lower
    from collemu.memory import payload_of
    from collemu.recipe import Recipe

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
            payload = payload_of(point.collective, point.dtype, Recipe(wire=point.wire), point.op)
            lowered = lower(schedule, count_of(point, schedule), item_bytes=payload.held.item_bytes, wire=payload.wire)
            routes_of(lowered.messages, system, system.protocols[point.protocol])
        except ValueError as error:
            raise ValueError(f"{asked}: {error}") from None
