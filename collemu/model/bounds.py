"""Lower bounds: no schedule, however clever, ends sooner.

The bandwidth bound counts the bytes that one port of some chip must carry in one direction. Let S be the
wire bytes of ``count`` elements and n the ranks.

- broadcast, sendrecv: a receiver takes in S. reduce: the root takes in a partial sum of every element, S.
- all_gather, alltoall: every rank takes in n-1 blocks of S; gather: the root does; scatter: the root gives
  them out. reduce_scatter: every rank gives out n-1, its terms of the others' results, whether or not a
  switch adds.
- alltoallv: the rank that sends most to others, or receives most from them, must.
- all_reduce: n-1 messages of an element must arrive before any rank can know its sum, since each joins at
  most two partial sums, and n-1 more before all the others know it. That is 2S(n-1)/n a rank on average, so
  some rank takes in as much. A switch that adds spares that, but every rank still gives out its terms and
  takes in the sum: S.

Time is launch + bytes / rate + two link hops, for n > 1 and any byte at all. It holds as a sum because the
three follow each other. No byte leaves before the launch is over. The links of a chip together carry one
direction at ``rate``, so the last of B bytes given out leaves no sooner than B / rate after that, and then
has two links to cross; likewise the first of B bytes taken in arrives no sooner than two hops after the
launch, and the last of them B / rate later. Without switches there is one hop. Packet headers, protocol lines,
credits, step latencies and copies only add.

Where ranks lie in several domains, a chip's rate is that of its links and its rails together, and the latency the
shorter of the two. A second bound counts what must enter or leave a domain, which only the rails of its chips carry,
and which has the network to cross: the larger of the two holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import System
from collemu.catalogue.quantity import FEMTOSECONDS_PER_SECOND, exact

Counts: TypeAlias = Sequence[Sequence[int]] | NDArray[Any]

HOPS = 2  # chip to switch, switch to chip


@dataclass(frozen=True)
class Bounds:
    """The least time of a collective and what it is made of.

    Attributes
    ----------
    name : str
        Which bound it is, for tables: ``2S(n-1)/n``, ``S``, ...
    port_bytes : float
        Wire bytes that one chip must carry in one direction.
    bandwidth_s, latency_s, total_s : float
        Their time at the chip's rate; launch and hops; the sum.
    total_fs : int
        The sum in femtoseconds, rounded down. No result may lie below it.
    """

    name: str
    port_bytes: float
    bandwidth_s: float
    latency_s: float
    total_s: float
    total_fs: int


def port_elements(
    collective: str,
    ranks: int,
    count: int,
    *,
    in_switch_reduction: bool = False,
    counts: Counts | None = None,
) -> tuple[Fraction, str]:
    """Elements that some chip must carry in one direction, and the name of that bound.

    Parameters
    ----------
    collective : str
    ranks, count : int
        As ``emulate`` takes them: ``count`` per rank, or per block where there are n blocks.
    in_switch_reduction : bool
        Whether the switch adds.
    counts : n x n integers, optional
        For alltoallv: elements from each rank (row) to each rank (column), in place of ``count``.

    Raises
    ------
    ValueError
        Unknown collective, no rank, negative count, or a missing or misshapen ``counts``.
    """
    if ranks < 1 or count < 0:
        raise ValueError(f"bound of {collective}: {ranks} ranks, count {count}; needs ranks >= 1, count >= 0")
    if collective == "alltoallv":
        return Fraction(_largest_port(ranks, counts)), "largest row or column"
    if collective in ("broadcast", "reduce", "sendrecv"):
        return Fraction(count if ranks > 1 else 0), "S"
    if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return Fraction(count * (ranks - 1)), "S(n-1)"
    if collective == "all_reduce" and in_switch_reduction:
        return Fraction(count if ranks > 1 else 0), "S"
    if collective == "all_reduce":
        return Fraction(2 * count * (ranks - 1), ranks), "2S(n-1)/n"
    raise ValueError(f"bound of {collective!r}: no such collective")


def crossing_elements(collective: str, ranks: int, count: int, chips: int, *, counts: Counts | None = None) -> Fraction:
    """Elements that some chip must carry over the network in one direction, where domains have ``chips`` chips.

    What must enter, or leave, a domain is shared by its chips: the last domain, which may have few, decides.
    """
    last = ranks % chips or chips
    if collective == "alltoallv":
        return Fraction(0) if counts is None else _largest_crossing(ranks, counts, chips)
    if collective in ("all_reduce", "broadcast", "reduce"):
        return Fraction(count, chips if collective != "all_reduce" else last)
    if collective == "sendrecv":
        return Fraction(0)  # neighbours: most of them stay inside
    if collective in ("gather", "scatter"):
        return Fraction(count * (ranks - chips), chips)
    if collective == "alltoall":
        return Fraction(count * (ranks - last))
    return Fraction(count * (ranks - last), last)  # all_gather, reduce_scatter


def _largest_crossing(ranks: int, counts: Counts, chips: int) -> Fraction:
    """Most elements a chip that a domain's chips send to, or receive from, other domains."""
    table, most = np.asarray(counts), Fraction(0)
    for first in range(0, ranks, chips):
        inside = slice(first, first + chips)
        stays = table[inside, inside].sum()
        busiest = int(max(table[inside].sum(), table[:, inside].sum()) - stays)
        most = max(most, Fraction(busiest, min(chips, ranks - first)))
    return most


def lower_bound(
    collective: str,
    ranks: int,
    count: int,
    itemsize_bits: int | Fraction,
    system: System,
    *,
    switch_adds: bool | None = None,
    counts: Counts | None = None,
) -> Bounds:
    """The least time of a collective on a system.

    Parameters
    ----------
    collective : str
    ranks, count : int
        As ``emulate`` takes them.
    itemsize_bits : int or Fraction
        Bits of an element on the wire, scales of full blocks included: 32 for float32, 17/4 for mxfp4.
    system : System
    switch_adds : bool, optional
        Whether its switches add what travels; without it, whether they add at all.
    counts : n x n integers, optional
        For alltoallv.

    Raises
    ------
    ValueError
        As ``port_elements``; no bits.
    """
    domain = system.domain
    if itemsize_bits <= 0:
        raise ValueError(f"bound of {collective}: itemsize_bits must be above zero, not {itemsize_bits}")
    adds = domain.in_switch_reduction if switch_adds is None else switch_adds
    elements, name = port_elements(collective, ranks, count, in_switch_reduction=adds, counts=counts)
    port_bytes = elements * Fraction(itemsize_bits) / 8
    rate = domain.links * exact(domain.link_bytes_per_s)
    hops = 1 if domain.topology in ("mesh", "torus") else HOPS
    hop_fs = hops * domain.hop_latency_fs
    network_fs = system.scaleout.latency_fs
    several = ranks > domain.chips
    if several:
        rate += exact(system.scaleout.bytes_per_s)
        hop_fs = min(hop_fs, network_fs)  # bytes inside a domain move while others cross
    latency_fs = system.endpoint.launch_fs + (hop_fs if port_bytes else 0)
    bandwidth_fs = port_bytes * FEMTOSECONDS_PER_SECOND / rate
    if several and port_bytes:
        crossing = (
            crossing_elements(collective, ranks, count, domain.chips, counts=counts) * Fraction(itemsize_bits) / 8
        )
        crossing_fs = crossing * FEMTOSECONDS_PER_SECOND / exact(system.scaleout.bytes_per_s)
        across_fs = system.endpoint.launch_fs + network_fs
        if across_fs + crossing_fs > latency_fs + bandwidth_fs:
            name, port_bytes, bandwidth_fs, latency_fs = "crossing domains", crossing, crossing_fs, across_fs
    return Bounds(
        name=name,
        port_bytes=float(port_bytes),
        bandwidth_s=float(bandwidth_fs / FEMTOSECONDS_PER_SECOND),
        latency_s=latency_fs / FEMTOSECONDS_PER_SECOND,
        total_s=float((latency_fs + bandwidth_fs) / FEMTOSECONDS_PER_SECOND),
        total_fs=latency_fs + int(bandwidth_fs),
    )


def _largest_port(ranks: int, counts: Counts | None) -> int:
    """Most elements that a rank sends to, or receives from, the others."""
    if counts is None or len(counts) != ranks or any(len(row) != ranks for row in counts):
        raise ValueError(f"bound of alltoallv: counts must be {ranks} rows of {ranks} element counts")
    others = np.array(counts, np.int64)
    if (others < 0).any():
        raise ValueError("bound of alltoallv: counts must not be negative")
    np.fill_diagonal(others, 0)
    return int(max(others.sum(axis=0).max(), others.sum(axis=1).max()))
