"""One shot: every rank sends all it has to all others, and each adds all of it up in rank order.

One step, n - 1 times the bytes: for small messages. The order is the same everywhere, so ranks agree
to the bit.

Source: the one-shot kernels of TensorRT-LLM and vLLM, which take it for the smallest messages.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, interleave, steps
from collemu.builders.peers import peers
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a rank, piece and channel; scratch holds the rank's own term as the others see it."""
    if ranks == 1:
        return single_rank("all_reduce", "one_shot")
    pieces = chunks or 1
    total = channels * pieces
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel)
        step = np.arange(pieces)
        chunk = channel * pieces + step

        # Rank 0's own term opens the sum; elsewhere it waits in scratch for its turn.
        own = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, chunk), publish=kinds.PUBLISH_OWN)
        assembler.add(to.lone_rank[:1, 0], to.lone_thread[:1, 0], own, channel=channel)
        rank = to.lone_rank[1:]
        own = steps(kinds.COPY, src=(IN, chunk), dst=(SCRATCH, chunk), publish=kinds.PUBLISH_OWN)
        before = to.adding(rank, rank - 1, step=2 * step + 1, lone_step=0)
        add = steps(kinds.REDUCE, src=(SCRATCH, chunk), dst=(OUT, chunk), dep=before)
        assembler.add(rank[:, 0], to.lone_thread[1:, 0], interleave(own, add), channel=channel)

        lone_step = np.where(to.rank == 0, step, 2 * step + 1)
        program = interleave(
            steps(kinds.SEND, src=(IN, chunk)),
            steps(
                np.where(to.peer == 0, kinds.RECV, kinds.RECV_REDUCE),
                dst=(OUT, chunk),
                dep=to.adding(to.rank, to.peer - 1, step=2 * step + 1, lone_step=lone_step),
            ),
        )
        peer = to.peer[:, 0]
        assembler.add(to.rank[:, 0], to.thread[:, 0], program, send_peer=peer, recv_peer=peer, channel=channel)
    return assembler.schedule(
        "all_reduce",
        "one_shot",
        ranks,
        channels=channels,
        input_chunks=total,
        output_chunks=total,
        scratch_chunks=total,
    )
