"""Pairwise: n - 1 steps, in step k to the rank k further on and from the rank k before.

In every step each rank has one partner to send to and one to receive from, so no two messages share a port: n - 1
regions a rank, as in `direct`. It wins for long messages where those of many senders would get in each other's way.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, interleave, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def alltoall(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a rank, piece and channel; a step begins when the rank has finished the one before."""
    if ranks == 1:
        return single_rank("alltoall", "pairwise")
    pieces = chunks or 1
    total = channels * pieces
    # Step k is thread k, because a thread has one peer each way; thread 0 keeps the rank's own region.
    rank, hop = np.divmod(np.arange(ranks * (ranks - 1))[:, None], ranks - 1)
    hop += 1
    after, before = (rank + hop) % ranks, (rank - hop) % ranks
    lone = np.arange(ranks)[:, None]
    piece = np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * ranks
        chunk = channel * pieces + piece
        own = lone * total + chunk
        assembler.add(lone[:, 0], first, steps(kinds.COPY, src=(IN, own), dst=(OUT, own)), channel=channel)
        waits_for = np.where((hop > 1) & (piece == 0), first + hop - 1, -1)
        send = steps(kinds.SEND, src=(IN, after * total + chunk), dep=(waits_for, 2 * pieces - 1))
        recv = steps(kinds.RECV, dst=(OUT, before * total + chunk))
        assembler.add(
            rank[:, 0],
            first + hop[:, 0],
            interleave(send, recv),
            send_peer=after[:, 0],
            recv_peer=before[:, 0],
            channel=channel,
        )
    return assembler.schedule(
        "alltoall",
        "pairwise",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=ranks * total,
    )


def alltoallv(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """As alltoall, but ranks with nothing for each other exchange no message, and pass over the step."""
    return replace(alltoall(ranks, root=root, channels=channels, chunks=chunks), collective="alltoallv")
