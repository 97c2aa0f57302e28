"""Direct: every message goes straight from its first owner to its last, to all peers at once.

One step with the least bytes, n - 1 regions a rank. Sums are taken in rank order. sendrecv is nccl-tests' shift: to the
next rank, from the one before. It wins behind one stage of switches, where all are equally near.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005, who
post all messages of an alltoall at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, Steps, interleave, steps
from collemu.builders.peers import Peers, peers
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a rank, piece and channel; a region has ``channels * pieces`` chunks."""
    if ranks == 1:
        return single_rank("reduce_scatter", "direct")
    pieces = chunks or 1
    total = channels * pieces
    step = np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel)
        rank, peer, lone = to.rank, to.peer, to.lone_rank
        chunk = channel * pieces + step
        own = steps(
            np.where(lone == 0, kinds.COPY, kinds.REDUCE),
            src=(IN, lone * total + chunk),
            dst=(OUT, chunk),
            dep=to.adding(lone, lone - 1, step=2 * step + 1, lone_step=step),
        )
        others = steps(
            np.where(peer == 0, kinds.RECV, kinds.RECV_REDUCE),
            dst=(OUT, chunk),
            dep=to.adding(rank, peer - 1, step=2 * step + 1, lone_step=step),
        )
        send = steps(kinds.SEND, src=(IN, peer * total + chunk))
        _add(assembler, to, channel, interleave(send, others), own)
    return assembler.schedule(
        "reduce_scatter", "direct", ranks, channels=channels, input_chunks=ranks * total, output_chunks=total
    )


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a rank, piece and channel, sent from the rank's own region of its output."""
    if ranks == 1:
        return single_rank("all_gather", "direct")
    pieces = chunks or 1
    total = channels * pieces
    step = np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel)
        rank, peer, lone = to.rank, to.peer, to.lone_rank
        chunk = channel * pieces + step
        own = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, lone * total + chunk), publish=kinds.PUBLISH_FINAL)
        send = steps(kinds.SEND, src=(OUT, rank * total + chunk), dep=to.adding(rank, rank, step=0, lone_step=step))
        recv = steps(kinds.RECV, dst=(OUT, peer * total + chunk))
        _add(assembler, to, channel, interleave(send, recv), own)
    return assembler.schedule(
        "all_gather", "direct", ranks, channels=channels, input_chunks=total, output_chunks=ranks * total
    )


def alltoall(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a rank, piece and channel; a region has ``channels * pieces`` chunks."""
    if ranks == 1:
        return single_rank("alltoall", "direct")
    pieces = chunks or 1
    total = channels * pieces
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel)
        chunk = channel * pieces + np.arange(pieces)
        theirs, own = to.peer * total + chunk, to.lone_rank * total + chunk
        exchange = interleave(steps(kinds.SEND, src=(IN, theirs)), steps(kinds.RECV, dst=(OUT, theirs)))
        _add(assembler, to, channel, exchange, steps(kinds.COPY, src=(IN, own), dst=(OUT, own)))
    return assembler.schedule(
        "alltoall",
        "direct",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=ranks * total,
    )


def alltoallv(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """As alltoall, but ranks with nothing for each other exchange no message."""
    return replace(alltoall(ranks, root=root, channels=channels, chunks=chunks), collective="alltoallv")


def gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """One message a piece and channel from every rank to the root, which takes all at once."""
    if ranks == 1:
        return single_rank("gather", "direct")
    pieces = chunks or 1
    total = channels * pieces
    others = (root + 1 + np.arange(ranks - 1)) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        thread = channel * ranks + np.arange(ranks)
        take = steps(kinds.RECV, dst=(OUT, others[:, None] * total + chunk))
        own = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, root * total + chunk))
        assembler.add(others, channel, steps(kinds.SEND, src=(IN, chunk)), send_peer=root, channel=channel)
        assembler.add(root, thread[:-1], take, recv_peer=others, channel=channel)
        assembler.add(root, thread[-1], own, channel=channel)
    return assembler.schedule(
        "gather", "direct", ranks, root=root, channels=channels, input_chunks=total, output_chunks=ranks * total
    )


def scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """One message a piece and channel from the root to every rank, all at once."""
    if ranks == 1:
        return single_rank("scatter", "direct")
    pieces = chunks or 1
    total = channels * pieces
    others = (root + 1 + np.arange(ranks - 1)) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        thread = channel * ranks + np.arange(ranks)
        give = steps(kinds.SEND, src=(IN, others[:, None] * total + chunk))
        own = steps(kinds.COPY, src=(IN, root * total + chunk), dst=(OUT, chunk))
        assembler.add(others, channel, steps(kinds.RECV, dst=(OUT, chunk)), recv_peer=root, channel=channel)
        assembler.add(root, thread[:-1], give, send_peer=others, channel=channel)
        assembler.add(root, thread[-1], own, channel=channel)
    return assembler.schedule(
        "scatter", "direct", ranks, root=root, channels=channels, input_chunks=ranks * total, output_chunks=total
    )


def sendrecv(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """One message a rank, piece and channel: rank r sends to r + 1 and receives from r - 1."""
    if ranks == 1:
        return single_rank("sendrecv", "direct")
    pieces = chunks or 1
    rank = np.arange(ranks)
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        shift = interleave(steps(kinds.SEND, src=(IN, chunk)), steps(kinds.RECV, dst=(OUT, chunk)))
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        assembler.add(rank, channel, shift, send_peer=after, recv_peer=before, channel=channel)
    total = channels * pieces
    return assembler.schedule("sendrecv", "direct", ranks, channels=channels, input_chunks=total, output_chunks=total)


def _add(assembler: Assembler, to: Peers, channel: int, exchange: Steps, own: Steps) -> None:
    rank, thread, peer = to.rank[:, 0], to.thread[:, 0], to.peer[:, 0]
    assembler.add(rank, thread, exchange, send_peer=peer, recv_peer=peer, channel=channel)
    assembler.add(to.lone_rank[:, 0], to.lone_thread[:, 0], own, channel=channel)
