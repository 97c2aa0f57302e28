"""Recursive doubling: in step k every rank exchanges all it has with the rank whose number differs in bit k.

The fewest steps there are, log2 of the ranks; those beyond a power of two are folded in. An all_reduce sends all of
its data in every step: it wins for short messages, where `halving_doubling` sends less in twice the steps. An
all_gather sends no more than a ring, in fewer steps: it wins on fabrics that reach every partner equally well.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, Steps, interleave, steps
from collemu.builders.folding import fold, region_steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """log2(p) messages a rank, piece and channel with all of its data, p the largest power of two.

    Ranks beyond p, and their hosts, send one more. Partners add the same two terms, each as the other sees it, so that
    they agree to the bit.
    """
    if ranks == 1:
        return single_rank("all_reduce", "recursive_doubling")
    pieces = chunks or 1
    folding = fold(ranks)
    guests = len(folding.host) > 0
    alone = folding.rank[len(folding.host) :]
    place, turn = np.arange(len(folding.rank)), np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (folding.doublings + 1)
        chunk = channel * pieces + turn
        terms = (IN, chunk), (OUT, chunk)
        for k in range(folding.doublings):
            partner = folding.rank[place ^ (1 << k)]
            last = k == folding.doublings - 1
            before = (first + k - 1, 2 * turn + 1) if k else (first + folding.doublings, turn)
            publish = (kinds.PUBLISH_FINAL if guests else kinds.KEEP) if last else kinds.PUBLISH_OWN
            exchange = interleave(
                steps(kinds.SEND, src=(OUT, chunk), dep=before),
                steps(kinds.RECV_REDUCE, dst=(OUT, chunk), publish=publish),
            )
            assembler.add(folding.rank, first + k, exchange, send_peer=partner, recv_peer=partner, channel=channel)
        own = steps(kinds.COPY, src=terms[0], dst=terms[1], publish=kinds.PUBLISH_OWN)
        assembler.add(alone, first + folding.doublings, own, channel=channel)
        host = (
            steps(kinds.RECV_REDUCE_COPY, src=terms[0], dst=terms[1], publish=kinds.PUBLISH_OWN),
            steps(kinds.SEND, src=terms[1], dep=(first + folding.doublings - 1, 2 * turn + 1)),
        )
        guest = steps(kinds.SEND, src=terms[0]), steps(kinds.RECV, dst=terms[1])
        for here, there, program in ((folding.host, folding.host + 1, host), (folding.host + 1, folding.host, guest)):
            assembler.add(here, first + folding.doublings, *program, send_peer=there, recv_peer=there, channel=channel)
    total = channels * pieces
    return assembler.schedule(
        "all_reduce", "recursive_doubling", ranks, channels=channels, input_chunks=total, output_chunks=total
    )


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """log2(p) messages a rank, p the largest power of two; n - 1 regions to every rank, beyond p in two messages more.

    With several channels or chunks a message a region, as those of one lane do not lie side by side.
    """
    if ranks == 1:
        return single_rank("all_gather", "recursive_doubling")
    pieces = chunks or 1
    total = channels * pieces
    folding = fold(ranks)
    place, turn = np.arange(len(folding.rank)), np.arange(pieces)
    hosts = place < len(folding.host)
    host, guest = folding.host, folding.host + 1
    everyone = np.arange(ranks)[:, None]
    others = folding.regions_of_others(ranks)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (folding.doublings + 1)
        own_thread = first + folding.doublings
        chunk = channel * pieces + turn
        before, length = own_thread, 1
        for k in range(folding.doublings):
            mine, theirs = folding.regions(1 << k), folding.regions(1 << k, partner=True)
            program: list[Steps] = []
            for piece in turn:
                # At first a host waits for its guest's piece, the others for the copy of their own.
                done = length * (piece + 1) - 1 if k else np.where(hosts, pieces + piece, piece)[:, None]
                send = region_steps(kinds.SEND, mine, total, chunk[piece], src=OUT, dep=(before, done))
                program.append(interleave(send, region_steps(kinds.RECV, theirs, total, chunk[piece], dst=OUT)))
            partner = folding.rank[place ^ (1 << k)]
            assembler.add(folding.rank, first + k, *program, send_peer=partner, recv_peer=partner, channel=channel)
            before, length = first + k, program[0].shape[1]
        own = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, everyone * total + chunk), publish=kinds.PUBLISH_FINAL)
        assembler.add(folding.rank[~hosts], own_thread, own[folding.rank[~hosts]], channel=channel)
        theirs = (OUT, guest[:, None] * total + chunk)
        taken, given = [own[host], steps(kinds.RECV, dst=theirs)], [own[guest], steps(kinds.SEND, src=theirs)]
        for piece in turn:
            ready = (before, length * (piece + 1) - 1), None  # what comes after follows what comes before
            taken += [
                region_steps(kinds.SEND, run, total, chunk[piece], src=OUT, dep=dep)
                for run, dep in zip(others, ready, strict=True)
            ]
            given += [region_steps(kinds.RECV, run, total, chunk[piece], dst=OUT) for run in others]
        for here, there, program in ((host, guest, taken), (guest, host, given)):
            assembler.add(here, own_thread, *program, send_peer=there, recv_peer=there, channel=channel)
    return assembler.schedule(
        "all_gather", "recursive_doubling", ranks, channels=channels, input_chunks=total, output_chunks=ranks * total
    )
