"""Halving and doubling (Rabenseifner): the least bytes in the fewest steps, for any rank count.

In step k of the first half a rank sends half of what it still adds up to the partner whose number differs in one bit,
and adds the other half; after log2 of the ranks every one has the sum of one block. In the second half the same
partners, in reverse order, exchange what they have. Ranks beyond the largest power of two hand their data to a partner
first, and get the result from it.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005. It
wins where steps are dear and messages long, on fabrics that reach every partner equally well.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, Steps, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT

# Steps of a partner's thread in each round.
GIVE, ADD, SPREAD, COLLECT = range(4)
ROUND = 4


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """2 log2(p) messages a rank, round and channel, p the largest power of two; chunk ``(channel, round) * p + block``.

    2(p - 1) / p of the data a rank; ranks beyond p, and their partners, all of it twice more.
    """
    if ranks == 1:
        return single_rank("all_reduce", "halving_doubling")
    rounds = chunks or 1
    halvings = ranks.bit_length() - 1
    blocks = 1 << halvings
    extra = ranks - blocks
    assembler = Assembler()
    for channel in range(channels):
        for hosts in (True, False):
            rank = np.arange(extra) if hosts else np.arange(extra, blocks)
            first = channel * (halvings + hosts)
            guest = first + halvings  # thread between a host and the rank beyond
            for k in range(halvings):
                partner = rank ^ (blocks >> (k + 1))
                turns = [
                    _exchange(rank[:, None], k, halvings, (channel * rounds + turn) * blocks, turn, first, guest, hosts)
                    for turn in range(rounds)
                ]
                assembler.add(rank, first + k, *turns, send_peer=partner, recv_peer=partner, channel=channel)
        host = np.arange(extra)
        first = channel * (halvings + 1)
        bases = [(channel * rounds + turn) * blocks for turn in range(rounds)]
        for turn_of in ("host", "guest"):
            parts: list[Steps] = []
            for turn, base in enumerate(bases):
                if turn_of == "host":
                    done = (first, ROUND * turn + COLLECT)  # the last exchange is with the farthest partner
                    parts += [
                        steps(kinds.RECV_REDUCE_COPY, src=(IN, base), dst=(OUT, base), count=blocks),
                        steps(kinds.SEND, src=(OUT, base), dep=done, count=blocks),
                    ]
                else:
                    parts += [
                        steps(kinds.SEND, src=(IN, base), count=blocks),
                        steps(kinds.RECV, dst=(OUT, base), count=blocks),
                    ]
            here, there = (host, host + blocks) if turn_of == "host" else (host + blocks, host)
            thread = first + halvings if turn_of == "host" else channel
            assembler.add(here, thread, *parts, send_peer=there, recv_peer=there, channel=channel)
    total = channels * rounds * blocks
    return assembler.schedule(
        "all_reduce", "halving_doubling", ranks, channels=channels, input_chunks=total, output_chunks=total
    )


def _exchange(
    rank: np.ndarray, k: int, halvings: int, base: int, turn: int, first: int, guest: int, hosts: bool
) -> Steps:
    """The four steps with the partner of halving k, of the blocks from chunk ``base`` on."""
    distance = 1 << (halvings - k - 1)
    mine = base + rank // distance * distance
    theirs = base + (rank ^ distance) // distance * distance
    start = ROUND * turn
    fresh = k == 0 and not hosts  # nothing has been added yet: the terms are still in the input
    added = (first + k - 1, start + ADD) if k else (guest, 2 * turn) if hosts else None
    last = k == halvings - 1
    give = steps(kinds.SEND, src=(IN if fresh else OUT, theirs), count=distance, dep=added)
    add = steps(
        kinds.RECV_REDUCE_COPY if fresh else kinds.RECV_REDUCE,
        src=(IN, mine) if fresh else None,
        dst=(OUT, mine),
        count=distance,
        publish=kinds.PUBLISH_FINAL if last else kinds.KEEP,
    )
    spread = steps(kinds.SEND, src=(OUT, mine), count=distance, dep=None if last else (first + k + 1, start + COLLECT))
    collect = steps(kinds.RECV, dst=(OUT, theirs), count=distance)
    return np.concatenate(np.broadcast_arrays(give, add, spread, collect), axis=1)
