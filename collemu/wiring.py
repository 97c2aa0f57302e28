"""How the chips of a domain are joined: which links a message may take, whatever the engine.

A *lane* is one link of every chip. Lanes that lead to the same chips are a *group*; a message travels on the lanes of
one group. Behind one switch stage there is one group; in a mesh or a torus every neighbour is a group of its own; where
switches are nested, every level is.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import Domain

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Wiring:
    """Groups of lanes.

    Attributes
    ----------
    widths : tuple of int
        Lanes of each group.
    latencies_fs : tuple of int
        Of one link of each group.
    direct : bool
        Whether a link leads to a chip, and not to a switch.
    """

    widths: tuple[int, ...]
    latencies_fs: tuple[int, ...]
    direct: bool

    @property
    def hops(self) -> int:
        """Links of a path."""
        return 1 if self.direct else 2


def wiring_of(domain: Domain) -> Wiring:
    """The lanes of a domain."""
    latency = domain.hop_latency_fs
    if domain.topology == "mesh":
        groups = domain.chips - 1
        return Wiring((domain.links_per_peer,) * groups, (latency,) * groups, direct=True)
    if domain.topology == "torus":
        widths = [
            links
            for size, links in zip(domain.shape, domain.links_per_direction, strict=True)
            for _ in _directions(size)
        ]
        return Wiring(tuple(widths), (latency,) * len(widths), direct=True)
    if domain.topology == "nested":
        return Wiring(domain.links_per_level, tuple(latency * hops for hops in domain.hops_per_level), direct=False)
    return Wiring((domain.links,), (latency,), direct=False)


def group_of(domain: Domain, source: Int64, destination: Int64) -> Int64:
    """Group of the lanes between chips of one domain, by their numbers in it; -1 where a torus has none."""
    if domain.topology == "mesh":
        return (destination - source - 1) % domain.chips
    if domain.topology == "torus":
        return _torus_groups(domain, source, destination)
    if domain.topology == "nested":
        group = np.zeros(len(source), np.int64)
        for level, chips in enumerate(domain.chips_per_level[:-1]):
            group[source // chips != destination // chips] = level + 1
        return group
    return np.zeros(len(source), np.int64)


def _directions(size: int) -> tuple[int, ...]:
    """Ways out of a chip along a dimension of a torus; two chips are neighbours once."""
    return () if size == 1 else (1,) if size == 2 else (1, -1)


def places(domain: Domain) -> Int64:
    """Coordinates of the chips of a torus, (chips, dimensions): a path that turns back at every end.

    So consecutive ranks are neighbours, and where the first dimension is even, so are the last and the first.
    """
    grid = np.indices(domain.shape).reshape(len(domain.shape), -1).T
    turned = grid.copy()
    row = np.zeros(len(grid), np.int64)  # which walk along an axis it is
    for axis in range(1, len(domain.shape)):
        row = row * domain.shape[axis - 1] + grid[:, axis - 1]
        backwards = row % 2 == 1
        turned[backwards, axis] = domain.shape[axis] - 1 - grid[backwards, axis]
    return turned


def _torus_groups(domain: Domain, source: Int64, destination: Int64) -> Int64:
    where = places(domain)
    step = where[destination] - where[source]
    group = np.full(len(source), -1, np.int64)
    number = 0
    for axis, size in enumerate(domain.shape):
        others_equal = np.delete(step, axis, axis=1) == 0
        for direction in _directions(size):
            there = ((step[:, axis] - direction) % size == 0) & others_equal.all(axis=1)
            group[there] = number
            number += 1
    return group


def neighbours(domain: Domain) -> Int64:
    """The chip to which each group of each chip's links leads, (chips, groups), where there are no switches."""
    chips = np.arange(domain.chips)
    if domain.topology == "mesh":
        return (chips[:, None] + np.arange(1, domain.chips)) % domain.chips
    where = places(domain)
    number = np.ravel_multi_index(tuple(where.T), domain.shape)
    chip_at = np.empty(domain.chips, np.int64)
    chip_at[number] = chips
    columns: list[Int64] = []
    for axis, size in enumerate(domain.shape):
        for direction in _directions(size):
            there = where.copy()
            there[:, axis] = (there[:, axis] + direction) % size
            columns.append(chip_at[np.ravel_multi_index(tuple(there.T), domain.shape)])
    return np.stack(columns, axis=1)


@lru_cache(maxsize=8)
def _atlas(domain: Domain) -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    """Coordinates of every chip, and the chip at every place."""
    where = [tuple(place) for place in places(domain).tolist()]
    return where, {place: chip for chip, place in enumerate(where)}


def path_of(domain: Domain, source: int, destination: int) -> list[tuple[int, int]]:
    """Links from chip to chip of a torus, dimension by dimension and the shorter way round: (chip, group) each."""
    where, chips = _atlas(domain)
    here, target = list(where[source]), where[destination]
    path: list[tuple[int, int]] = []
    number = 0
    for axis, size in enumerate(domain.shape):
        ways = _directions(size)
        ahead = (target[axis] - here[axis]) % size
        backwards = len(ways) == 2 and 2 * ahead > size
        for _ in range(size - ahead if backwards else ahead):
            path.append((chips[tuple(here)], number + int(backwards)))
            here[axis] = (here[axis] + (-1 if backwards else 1)) % size
        number += len(ways)
    return path
