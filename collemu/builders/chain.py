"""Chain: ranks stand in a line that ends at the root, and pass on what is not theirs, one block after the other.

The root has one neighbour, so that one link carries all of its data; `direct` and `binomial` need as many as there are.
What a rank passes on lies in its output meanwhile.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

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
