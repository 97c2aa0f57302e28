"""Any number of ranks for algorithms that halve and double: the ranks beyond a power of two are folded in.

The first ranks go in pairs: the even one is *host* and has a place among the power of two, the odd one is its
*guest*. A guest's data goes to its host first, and the host gives it the result at the end (R. Thakur, R.
Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005). As pairs are neighbours,
places next to each other have the regions of neighbouring ranks, and what they exchange lies in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from numpy.typing import ArrayLike, NDArray

from collemu.builders.assembly import ABSENT, Steps, steps

Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Folding:
    """Which ranks exchange, and which of them are hosts.

    Attributes
    ----------
    doublings : int
        log2 of the number of places.
    rank : ndarray, shape (places,)
        The rank at every place; the first ``len(host)`` of them are hosts.
    host : ndarray
        Each has the rank after it as its guest.
    """

    doublings: int
    rank: Ranks
    host: Ranks

    def regions(self, distance: int, *, partner: bool = False) -> tuple[Ranks, Ranks]:
        """First region and number of regions of the ``distance`` places among which every place, or its partner, is.

        Columns, shape (places, 1).
        """
        place = np.arange(len(self.rank)) ^ (distance if partner else 0)
        begin = place // distance * distance
        first, end = (at + np.minimum(at, len(self.host)) for at in (begin, begin + distance))
        return first[:, None], (end - first)[:, None]

    def regions_of_others(self, ranks: int) -> list[tuple[Ranks, Ranks]]:
        """First region and number of regions before those of the guests, and after them; columns, shape (hosts, 1)."""
        guest = self.host[:, None] + 1
        return [(np.zeros_like(guest), guest), (guest + 1, ranks - 1 - guest)]


def fold(ranks: int) -> Folding:
    """Places for the largest power of two that is not above the number of ranks."""
    doublings = ranks.bit_length() - 1
    extra = ranks - (1 << doublings)
    place = np.arange(1 << doublings)
    return Folding(doublings, place + np.minimum(place, extra), 2 * np.arange(extra))


def region_steps(
    kind: ArrayLike,
    run: tuple[Ranks, Ranks],
    total: int,
    chunk: int,
    *,
    src: ArrayLike = kinds.INPUT,
    dst: ArrayLike = kinds.INPUT,
    dep: tuple[ArrayLike, ArrayLike] | None = None,
) -> Steps:
    """Steps on a run of regions (first, number) between the same places of two buffers, or of a buffer and a message.

    One step if a region is one chunk. Where lanes and pieces share the regions, their chunks do not lie side by side,
    and it is a step a region.
    """
    first, number = run
    if total == 1:
        return steps(kind, src=(src, first), dst=(dst, first), count=number, dep=dep)
    within = np.arange(int(number.max(initial=0)))
    at = (first + within) * total + chunk
    if dep is not None:  # the others follow the first
        dep = np.where(within == 0, dep[0], -1), dep[1]
    return steps(np.where(within < number, kind, ABSENT), src=(src, at), dst=(dst, at), dep=dep)
