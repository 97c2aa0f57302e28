"""Two shot: every rank sums one block in rank order, straight from all others, then sends it to all others.

Two steps with the least bytes, 2(n - 1)/n of the data a rank: a direct reduce_scatter and a direct all_gather in one.
It wins behind one stage of switches, for all but the smallest messages; over a network, which it crosses with most of
its bytes, `hierarchical` does.

Source: the two-shot kernels of TensorRT-LLM and vLLM.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, Steps, steps
from collemu.builders.peers import peers
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """2(n - 1) messages a rank, round and channel; chunk ``(channel * rounds + round) * n + block``."""
    if ranks == 1:
        return single_rank("all_reduce", "two_shot")
    rounds = chunks or 1
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel)
        rank, peer, lone = to.rank, to.peer, to.lone_rank
        last = np.full_like(rank, ranks - 1)
        served: list[Steps] = []
        alone: list[Steps] = []
        for turn in range(rounds):
            base = (channel * rounds + turn) * ranks
            add = {"step": 4 * turn + 1, "lone_step": turn}
            # The thread that adds the last term knows that the sum is complete; the others wait for it.
            complete = to.adding(rank, np.where(peer == last, -1, last), **add)
            served += [
                steps(kinds.SEND, src=(IN, base + peer)),
                steps(
                    np.where(peer == 0, kinds.RECV, kinds.RECV_REDUCE),
                    dst=(OUT, base + rank),
                    dep=to.adding(rank, peer - 1, **add),
                    publish=np.where(peer == last, kinds.PUBLISH_FINAL, kinds.KEEP),
                ),
                steps(kinds.SEND, src=(OUT, base + rank), dep=complete),
                steps(kinds.RECV, dst=(OUT, base + peer)),
            ]
            alone.append(
                steps(
                    np.where(lone == 0, kinds.COPY, kinds.REDUCE),
                    src=(IN, base + lone),
                    dst=(OUT, base + lone),
                    dep=to.adding(lone, lone - 1, **add),
                    publish=np.where(lone == ranks - 1, kinds.PUBLISH_FINAL, kinds.KEEP),
                )
            )
        assembler.add(lone[:, 0], to.lone_thread[:, 0], *alone, channel=channel)
        assembler.add(
            rank[:, 0],
            to.thread[:, 0],
            *served,
            send_peer=peer[:, 0],
            recv_peer=peer[:, 0],
            channel=channel,
        )
    total = channels * rounds * ranks
    return assembler.schedule(
        "all_reduce", "two_shot", ranks, channels=channels, input_chunks=total, output_chunks=total
    )
