"""NVLS trees: switches add and copy inside domains, two binary trees between them.

In each domain a rank has the switch add up its shard, which takes a pair of trees (`tree`) to the other domains and
back, and then has the switch store it at all members. A rank's links carry S(1 + 1/g) each way, where S is the size and
g the ranks of a domain, and its network port at most twice S/g each way, in logarithmically many steps through the
domains: for many domains, whose switches can do it. In one domain it is `nvls`.

Source: NVLSTree of NCCL 2.18.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import ABSENT, Steps, steps
from collemu.builders.domains import domains
from collemu.builders.nvls import add_signals
from collemu.builders.peers import peers
from collemu.builders.single import single_rank
from collemu.builders.tree import Lanes, double_tree, tree_of, up_and_down
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None) -> Schedule:
    """2 in-switch operations a shard, piece and tree, and 2(D - 1) messages through D domains.

    Chunk ``(tree, piece) * g + shard``. Each member of a full domain owns a shard, those of a short one several.
    Default one piece for every hop from the root to the farthest domain and back.
    """
    if ranks == 1:
        return single_rank("all_reduce", "nvls_tree")
    here = domains(ranks, group)
    first, owned, owner = here.shards()
    trees = double_tree(here.count)
    pieces = chunks or max(2 * trees[0].height, 1)
    lanes = Lanes(ranks, trees, channels, pieces, taken=here.size - 1)
    everyone, turn, number = np.arange(ranks), np.arange(pieces), np.arange(int(owned.max()))
    to = peers(ranks, 0, here.size)
    told = np.where(turn == 0, to.size(everyone[:, None]) - 2, -1), 1
    ended = np.full((ranks, 1), -1), 0  # after which all lanes so far have ended
    for lane, tree in lanes:
        base = lanes.chunk(lane) * here.size
        terms, sums = ((buffer, base + first[:, None]) for buffer in (IN, OUT))
        lanes.add(lane, everyone, steps(kinds.MULTIMEM_REDUCE, src=terms, dst=sums, count=owned[:, None], dep=told))
        added = lanes.threads - 1
        done = np.empty((ranks, len(number)), np.int64)
        for shard in range(here.size):
            owners = owner[:, shard]
            parent = np.full(ranks, -1)
            parent[owners] = np.where(tree.parent < 0, -1, owners[tree.parent])
            up_and_down(lanes, lane, tree_of(parent), base + shard, held=OUT, ready=added)
            done[owners, shard - first[owners]] = lanes.threads[owners] - 1
        program: list[Steps] = []
        for piece in turn:
            sums = OUT, base[piece] + first[:, None] + number
            store = np.where(number < owned[:, None], kinds.MULTIMEM_STORE, ABSENT)
            program.append(steps(store, src=sums, dst=sums, dep=(done, piece)))
        if lane > 0:
            program.append(steps(kinds.NOP, dep=ended))
        lanes.add(lane, everyone, *program)
        ended = lanes.threads[:, None] - 1, sum(part.shape[1] for part in program) - 1
    add_signals(lanes.assembler, to, (ended[0][to.rank[:, 0]], ended[1]))
    total = len(trees) * channels * pieces * here.size
    schedule = lanes.assembler.schedule(
        "all_reduce",
        "nvls_tree",
        ranks,
        channels=len(trees) * channels,
        input_chunks=total,
        output_chunks=total,
    )
    return replace(schedule, group_ranks=here.size)
