"""Recursive halving: in every step a rank gives away half of what it adds up, and adds the other half.

The partner of the first step is half of the ranks away, and each step sends half as much as the one before: as few
bytes as a ring, in log2 of the ranks steps, with the partial sums of all regions in scratch. It wins for short and
middling messages on fabrics that reach every partner equally well. Ranks beyond a power of two are folded in, which
makes their hosts send and receive twice: there `pat` does better.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, Steps, interleave, steps
from collemu.builders.folding import fold, region_steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """log2(p) messages a rank, p the largest power of two; n - 1 regions of every rank, beyond p in two messages more.

    With several channels or chunks a message a region, as those of one lane do not lie side by side.
    """
    if ranks == 1:
        return single_rank("reduce_scatter", "recursive_halving")
    pieces = chunks or 1
    total = channels * pieces
    folding = fold(ranks)
    place, turn = np.arange(len(folding.rank)), np.arange(pieces)
    hosts = place < len(folding.host)
    host, guest = folding.host, folding.host + 1
    others = folding.regions_of_others(ranks)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (folding.doublings + 1)
        own_thread = first + folding.doublings
        chunk = channel * pieces + turn
        theirs = guest[:, None] * total + chunk
        taken = [steps(kinds.COPY, src=(IN, theirs), dst=(SCRATCH, theirs))]
        given: list[Steps] = []
        for piece in turn:
            for run in others:
                taken.append(region_steps(kinds.RECV_REDUCE_COPY, run, total, chunk[piece], src=IN, dst=SCRATCH))
                given.append(region_steps(kinds.SEND, run, total, chunk[piece], src=IN))
        before, skipped = np.where(hosts, own_thread, -1)[:, None], pieces
        length = sum(part.shape[1] for part in given) // pieces
        for k in range(folding.doublings):
            distance = 1 << (folding.doublings - k - 1)
            kept, away = folding.regions(distance), folding.regions(distance, partner=True)
            # Only where nothing has been added yet are the terms in the input.
            fresh = (~hosts & (k == 0))[:, None]
            held, add = np.where(fresh, IN, SCRATCH), np.where(fresh, kinds.RECV_REDUCE_COPY, kinds.RECV_REDUCE)
            program: list[Steps] = []
            for piece in turn:
                dep = before, skipped + length * (piece + 1) - 1
                give = region_steps(kinds.SEND, away, total, chunk[piece], src=held, dep=dep)
                take = region_steps(add, kept, total, chunk[piece], src=held, dst=SCRATCH)
                program.append(interleave(give, take))
            partner = folding.rank[place ^ distance]
            assembler.add(folding.rank, first + k, *program, send_peer=partner, recv_peer=partner, channel=channel)
            before, skipped, length = first + k, 0, program[0].shape[1]
        dep = before, length * (turn + 1) - 1
        own = steps(kinds.COPY, src=(SCRATCH, folding.rank[:, None] * total + chunk), dst=(OUT, chunk), dep=dep)
        assembler.add(folding.rank[~hosts], own_thread, own[~hosts], channel=channel)
        taken += [own[hosts], steps(kinds.SEND, src=(SCRATCH, theirs))]
        given.append(steps(kinds.RECV_REDUCE_COPY, src=(IN, theirs), dst=(OUT, chunk)))
        for here, there, program in ((host, guest, taken), (guest, host, given)):
            assembler.add(here, own_thread, *program, send_peer=there, recv_peer=there, channel=channel)
    return assembler.schedule(
        "reduce_scatter",
        "recursive_halving",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=total,
        scratch_chunks=ranks * total,
    )
