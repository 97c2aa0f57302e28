"""What must stand in every output chunk when a collective is over."""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.schedule import Schedule

#: In place of a rank: the sum over all ranks; or anything at all.
ALL_RANKS = -1
ANYTHING = -2


def required_outputs(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which input chunk of which rank, or of all ranks, each output chunk must be.

    Returns
    -------
    rank : ndarray of int64, shape (ranks, output chunks)
        The rank whose input it is, `ALL_RANKS` for the sum over all, `ANYTHING` where nothing is promised.
    chunk : ndarray of int64, same shape
        The chunk of that input.
    """
    n, k = schedule.ranks, schedule.region_chunks
    shape = (n, schedule.output_chunks)
    here = np.arange(n)[:, None]
    place = np.arange(schedule.output_chunks)[None, :]
    match schedule.collective:
        case "all_reduce":
            rank, chunk = ALL_RANKS, place
        case "reduce":
            rank, chunk = np.where(here == schedule.root, ALL_RANKS, ANYTHING), place
        case "reduce_scatter":
            rank, chunk = ALL_RANKS, here * k + place
        case "broadcast":
            rank, chunk = schedule.root, place
        case "all_gather":
            rank, chunk = place // k, place % k
        case "gather":
            rank, chunk = np.where(here == schedule.root, place // k, ANYTHING), place % k
        case "scatter":
            rank, chunk = schedule.root, here * k + place
        case "alltoall" | "alltoallv":
            rank, chunk = place // k, here * k + place % k
        case "sendrecv":
            rank, chunk = (here - 1) % n, place
        case other:
            raise ValueError(f"no rule says what {other!r} must deliver")
    if schedule.counts is not None:
        empty = np.diff(schedule.chunk_starts(kinds.OUTPUT, 0)) == 0
        rank = np.where(empty, ANYTHING, rank)
    return np.broadcast_to(rank, shape), np.broadcast_to(chunk, shape)
