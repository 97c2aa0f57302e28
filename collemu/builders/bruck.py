"""Bruck: log2 of the ranks steps at any rank count, in step k between ranks 2^k apart.

An all_gather doubles what each rank holds, in the order of the ranks after it, and puts it into its place at the end.
A reduce_scatter is that backwards. In an alltoall, a region that goes i ranks on takes the steps of the bits of i:
each is sent log2(n) / 2 times on average, in log2(n) messages instead of n - 1. All three win for short messages.

Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, Efficient algorithms for all-to-all communications in
multiport message-passing systems, 1997; MPICH takes both for short messages.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.builders import circulant
from collemu.builders.assembly import Assembler, Steps, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH
Chunks = NDArray[np.int64]


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) messages a rank, piece and channel, n - 1 regions in all: one to the next rank first."""
    return circulant.all_gather("bruck", ranks, _near_first(ranks), channels, chunks)


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) messages a rank, piece and channel, n - 1 regions in all: one to the next rank last."""
    return circulant.reduce_scatter("bruck", ranks, _near_first(ranks), channels, chunks)


def alltoall(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) messages a rank, piece and channel, each with about half of the regions, packed into one.

    What arrives stays where it is until it is sent on, or has made its last step and is copied to its place.
    """
    if ranks == 1:
        return single_rank("alltoall", "bruck")
    pieces = chunks or 1
    total = channels * pieces
    rank, ahead, turn = np.arange(ranks)[:, None], np.arange(ranks), np.arange(pieces)
    distances = _near_first(ranks)
    moving = [ahead[(ahead & distance) > 0] for distance in distances]
    packed = len(moving[0])  # the most; after that, in scratch, lies what each step has brought
    arrived = [packed + sum(len(regions) for regions in moving[:k]) for k in range(len(moving) + 1)]
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (len(distances) + 1)
        chunk = channel * pieces + turn
        base = chunk * arrived[-1]
        place = np.full(ranks, -1, np.int64)
        for k, (distance, regions) in enumerate(zip(distances, moving, strict=True)):
            here, fresh = place[regions], place[regions] < 0
            place[regions] = arrived[k] + np.arange(len(regions))
            done = regions[regions < 2 * distance]
            packing = np.arange(len(regions))
            before = len(moving[k - 1]) + 2  # steps a piece in the thread before
            program: list[Steps] = []
            for piece in turn:
                own: Chunks = (rank + regions) % ranks * total + chunk[piece]
                kept: Chunks = base[piece] + here
                origin = np.where(fresh, own, kept)
                ready = (np.where(packing == 0, first + k - 1, -1), before * (piece + 1) - 1) if k else None
                program += [
                    steps(
                        kinds.COPY,
                        src=(np.where(fresh, IN, SCRATCH), origin),
                        dst=(SCRATCH, base[piece] + packing),
                        dep=ready,
                    ),
                    steps(kinds.SEND, src=(SCRATCH, base[piece]), count=len(regions)),
                    steps(kinds.RECV, dst=(SCRATCH, base[piece] + arrived[k]), count=len(regions)),
                ]
            for piece in turn:
                target = (OUT, (rank - done) % ranks * total + chunk[piece])
                program.append(steps(kinds.COPY, src=(SCRATCH, base[piece] + place[done]), dst=target))
            after, behind = (rank[:, 0] + distance) % ranks, (rank[:, 0] - distance) % ranks
            assembler.add(rank[:, 0], first + k, *program, send_peer=after, recv_peer=behind, channel=channel)
        own = rank * total + chunk
        assembler.add(
            rank[:, 0], first + len(distances), steps(kinds.COPY, src=(IN, own), dst=(OUT, own)), channel=channel
        )
    return assembler.schedule(
        "alltoall",
        "bruck",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=ranks * total,
        scratch_chunks=total * arrived[-1],
    )


def _near_first(ranks: int) -> list[int]:
    return [1 << k for k in range((ranks - 1).bit_length())]
