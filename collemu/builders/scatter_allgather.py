"""Scatter and allgather (van de Geijn): the root deals out blocks down a binomial tree, then a ring passes them on.

Every rank has a block. The tree brings it that, and those of all ranks below it, and the ring the rest: everything
once. The root sends less than twice the data, and no other rank more than the data and half of it: for long messages,
in a few steps more than a `chain` has hops, and without its many pieces.

Source: M. Barnett, L. Shuler, R. van de Geijn, S. Gupta, D. Payne, J. Watts, Interprocessor collective communication
library, 1994; MPICH for long messages. A ring in which nobody is sent what it has: H. Zhou, V. Marjanovic,
C. Niethammer, J. Gracia, A bandwidth-saving optimization for MPI broadcast collective operation, 2015.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import ABSENT, Assembler, Steps, steps
from collemu.builders.binomial import binomial_tree
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """ceil(log2 n) + n - 1 messages of the root a round; chunk ``(channel * rounds + round) * n + block``."""
    if ranks == 1:
        return single_rank("broadcast", "scatter_allgather")
    rounds = chunks or 1
    tree = binomial_tree(ranks, root)
    place, turn, hop = np.arange(ranks)[:, None], np.arange(rounds), np.arange(ranks)
    # In hop h of the ring a rank takes the block h places before its own, and sends it on: those that they do not have.
    missing = ranks - tree.reach[:, None]
    takes, sends = (hop > 0) & (hop <= missing), hop < np.roll(missing, -1)
    taking = np.where(sends, kinds.RECV_COPY_SEND, kinds.RECV)
    ring = np.where(takes, taking, np.where(sends, kinds.SEND, ABSENT))
    near = np.where(place % 2 > 0, kinds.RECV, np.where(place + 1 < ranks, kinds.SEND, ABSENT))
    assembler = Assembler()
    for channel in range(channels):
        # Thread t is for the child, and the parent, 2^t places away; thread 0 also for the ring, among neighbours.
        first = channel * (tree.steps + 1)
        given = first + tree.level  # by which thread a rank has what it was dealt; the root by one of its own
        base = (channel * rounds + turn) * ranks
        copy = steps(kinds.COPY, src=(IN, base), dst=(OUT, base), count=ranks, publish=kinds.PUBLISH_FINAL)
        assembler.add(root, given[0], copy, channel=channel)
        for number in range(1, tree.steps):
            parent = np.flatnonzero(tree.children > number)
            child = parent + (1 << number)
            block, count = (OUT, base + child[:, None]), tree.reach[child][:, None]
            deal = steps(kinds.SEND, src=block, count=count, dep=(given[parent][:, None], turn))
            take = steps(kinds.RECV, dst=block, count=count)
            above, below = tree.rank[parent], tree.rank[child]
            assembler.add(above, first + number, deal, send_peer=below, channel=channel)
            assembler.add(below, first + number, take, recv_peer=above, channel=channel)
        program: list[Steps] = []
        ready = np.where(near == kinds.SEND, given[:, None], -1)
        for start in base:
            leaf, block = start + (place | 1), start + (place - hop) % ranks
            program.append(steps(near, src=(OUT, leaf), dst=(OUT, leaf), dep=(ready, len(program) // 2)))
            program.append(steps(ring, src=(OUT, block), dst=(OUT, block)))
        after, before = np.roll(tree.rank, -1), np.roll(tree.rank, 1)
        assembler.add(tree.rank, first, *program, send_peer=after, recv_peer=before, channel=channel)
    total = channels * rounds * ranks
    return assembler.schedule(
        "broadcast", "scatter_allgather", ranks, root=root, channels=channels, input_chunks=total, output_chunks=total
    )
