"""Bidirectional ring: two rings, one in each direction, each with half the data.

As many steps and bytes as a ring, but half of the bytes in each direction: it wins on rings and tori of two-way
links, where a ring leaves one direction of every link idle. Behind a switch, where a chip has one port each way
whoever the peer is, it gains nothing.

Source: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009, for the
ring; both directions at once as on the tori of TPUs.
"""

from __future__ import annotations

import numpy as np

from collemu.builders.assembly import Assembler
from collemu.builders.ring import turn
from collemu.builders.single import single_rank
from collemu.schedule import Schedule


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """2(n - 1) messages a rank, round and direction, 2(n - 1) / n of the data; a lane is a pair of channels."""
    if ranks == 1:
        return single_rank("all_reduce", "bidirectional_ring")
    rounds = chunks or 1
    lanes = 2 * channels
    rank = np.arange(ranks)
    assembler = Assembler()
    for lane in range(lanes):
        direction = -1 if lane % 2 else 1
        bases = (lane * rounds + np.arange(rounds)) * ranks
        after, before = (rank + direction) % ranks, (rank - direction) % ranks
        place = (rank * direction % ranks)[:, None]
        program = [part for base in bases for part in turn(place, ranks, base)]
        assembler.add(rank, lane, *program, send_peer=after, recv_peer=before, channel=lane)
    total = lanes * rounds * ranks
    return assembler.schedule(
        "all_reduce", "bidirectional_ring", ranks, channels=lanes, input_chunks=total, output_chunks=total
    )
