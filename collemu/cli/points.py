"""What a point needs before it runs: its system, its schedule, an algorithm by name, and an affordable size."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from collemu.cli.files import is_file, load_for
from collemu.cli.options import AUTO, Point

if TYPE_CHECKING:
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
    collective: str, algorithm: str, ranks: int, root: int, channels: int, chunks: int | None, group: int | None
) -> "Schedule":
    """A schedule, built or read once for all sizes, dtypes and wire formats."""
    from collemu import build_schedule

    if is_file(algorithm):
        return load_for(algorithm, [collective])
    return build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks, group=group)


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
            lowered = lower(schedule, point.count, item_bytes=payload.held.item_bytes, wire=payload.wire)
            routes_of(lowered.messages, system, system.protocols[point.protocol])
        except ValueError as error:
            raise ValueError(f"{asked}: {error}") from None
