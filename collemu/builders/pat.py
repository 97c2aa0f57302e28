"""PAT: parallel aggregated trees, Bruck's algorithm with the far ranks first.

A binomial tree from every rank, all at once. In the first step of an all_gather a rank sends its own region to the
farthest partner, in the last one half of all regions to its neighbour, so that most bytes stay near; a reduce_scatter
goes the other way. The fewest steps and the least bytes at any rank count, for short and middling messages on large
fabrics; for long ones the copies through scratch cost more than the steps of a ring.

Source: S. Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025; NCCL 2.23. Trees
are aggregated in full here; NCCL goes on in linear steps where its buffers are full.
"""

from __future__ import annotations

from collemu.builders import circulant
from collemu.schedule import Schedule


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) messages a rank, piece and channel, n - 1 regions in all: one to the farthest rank first."""
    return circulant.all_gather("pat", ranks, _far_first(ranks), channels, chunks)


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) messages a rank, piece and channel, n - 1 regions in all: one to the farthest rank last."""
    return circulant.reduce_scatter("pat", ranks, _far_first(ranks), channels, chunks)


def _far_first(ranks: int) -> list[int]:
    return [1 << k for k in reversed(range((ranks - 1).bit_length()))]
