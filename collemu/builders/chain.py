"""Chain: from rank to rank, piece by piece, so that all links of the way work at once.

What `ring` is in broadcast and reduce, by the name that the textbooks have for it. Every rank but the ends receives and
sends all of the data once, S / B for size S at rate B, in (pieces + n - 2) / pieces times that: for long messages, over
few ranks. A `tree` needs fewer pieces to fill its shorter ways, `binomial` the fewest steps. In gather and scatter the
line ends at the root, whose one neighbour's link carries all of its data; ranks pass on what is not theirs, one block
after the other, and it lies in their output meanwhile.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005, who
compare it with the binomial tree; NCCL calls it ring.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.builders import ring
from collemu.builders.assembly import Assembler, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """The rank p places from the root sends n - p blocks: its own, then those behind it, from the nearest on."""
    if ranks == 1:
        return single_rank("gather", "chain")
    pieces = chunks or 1
    total = channels * pieces
    line = (root + np.arange(ranks)) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        for place, rank in enumerate(line):
            behind = (line[place + 1 :, None] * total + chunk).reshape(-1)
            if place:
                own, take = steps(kinds.SEND, src=(IN, chunk)), kinds.RECV_COPY_SEND
            else:
                own, take = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, rank * total + chunk)), kinds.RECV
            assembler.add(
                rank,
                channel,
                own,
                steps(take, dst=(OUT, behind)),
                send_peer=line[place - 1] if place else -1,
                recv_peer=line[place + 1] if place < ranks - 1 else -1,
                channel=channel,
            )
    return assembler.schedule(
        "gather", "chain", ranks, root=root, channels=channels, input_chunks=total, output_chunks=ranks * total
    )


def scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """The rank p places from the root receives n - p blocks, that for the end of the line first, its own last."""
    if ranks == 1:
        return single_rank("scatter", "chain")
    pieces = chunks or 1
    total = channels * pieces
    line = (root + np.arange(ranks)) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        for place, rank in enumerate(line):
            behind = line[:place:-1, None]
            if place:
                # each block overwrites the one before, which has gone on
                passed = steps(kinds.RECV_COPY_SEND, dst=(OUT, np.tile(chunk, len(behind))))
                own = steps(kinds.RECV, dst=(OUT, chunk))
            else:
                passed = steps(kinds.SEND, src=(IN, (behind * total + chunk).reshape(-1)))
                own = steps(kinds.COPY, src=(IN, rank * total + chunk), dst=(OUT, chunk))
            assembler.add(
                rank,
                channel,
                passed,
                own,
                send_peer=line[place + 1] if place < ranks - 1 else -1,
                recv_peer=line[place - 1] if place else -1,
                channel=channel,
            )
    return assembler.schedule(
        "scatter", "chain", ranks, root=root, channels=channels, input_chunks=ranks * total, output_chunks=total
    )


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, from the root on; default one piece a hop."""
    return replace(ring.broadcast(ranks, root=root, channels=channels, chunks=chunks), algorithm="chain")


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, to the root; default one piece a hop."""
    return replace(ring.reduce(ranks, root=root, channels=channels, chunks=chunks), algorithm="chain")
