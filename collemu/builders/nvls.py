"""NVLS: the switch adds what it reads from all ranks, and copies what it writes to all of them.

A rank's links carry S(1 + 1/n) bytes each way in an all_reduce instead of 2S(n-1)/n, and no rank adds anything. One
piece is added before it is stored: to do both at once, which large sizes need, takes several pieces (``chunks``). The
ranks whose memory is read and written do nothing themselves, so ranks tell each other with empty messages from when on,
and until when, their memory may be touched. It wins for all but the smallest messages, whose signals take longer, where
the switches of one stage can do it (`collemu.in_switch`); over several domains there is `nvls_tree`.

Source: B. Klenk, N. Jiang, G. Thorson, L. Dennison, An in-network architecture for accelerating shared-memory
multiprocessor collectives, 2020; NVLS of NCCL 2.17.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from collemu_kernels import kinds
from numpy.typing import ArrayLike, NDArray

from collemu.builders.assembly import Assembler, steps
from collemu.builders.peers import Peers, peers
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT
REDUCE, STORE = kinds.MULTIMEM_REDUCE, kinds.MULTIMEM_STORE
TELL, HEAR = steps(kinds.SEND, count=0), steps(kinds.RECV, count=0)

Chunks = NDArray[np.int64]
#: What a rank has the switch do for a piece, one after the other: kind, first chunks read and written.
Work = list[tuple[int, tuple[int, Chunks], tuple[int, Chunks]]]


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """2 in-switch operations a rank, piece and channel; chunk ``piece * n + block``, each rank cares for one block."""

    def work(rank: Chunks, piece: Chunks) -> Work:
        block = piece * ranks + rank
        return [(REDUCE, (IN, block), (OUT, block)), (STORE, (OUT, block), (OUT, block))]

    return _schedule("all_reduce", work, ranks, channels, chunks, (ranks, ranks))


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """1 multimem_reduce a rank, piece and channel; a region has ``channels * pieces`` chunks."""
    total = channels * (chunks or 1)

    def work(rank: Chunks, piece: Chunks) -> Work:
        return [(REDUCE, (IN, rank * total + piece), (OUT, piece))]

    return _schedule("reduce_scatter", work, ranks, channels, chunks, (ranks, 1))


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """1 multimem_store a rank, piece and channel; a region has ``channels * pieces`` chunks."""
    total = channels * (chunks or 1)

    def work(rank: Chunks, piece: Chunks) -> Work:
        return [(STORE, (IN, piece), (OUT, rank * total + piece))]

    return _schedule("all_gather", work, ranks, channels, chunks, (1, ranks))


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """1 multimem_store a piece and channel, of the root."""
    return _schedule(
        "broadcast", lambda _, piece: [(STORE, (IN, piece), (OUT, piece))], ranks, channels, chunks, (1, 1), root
    )


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """1 multimem_reduce a piece and channel, of the root."""
    return _schedule(
        "reduce", lambda _, piece: [(REDUCE, (IN, piece), (OUT, piece))], ranks, channels, chunks, (1, 1), root
    )


def add_signals(assembler: Assembler, to: Peers, ended: tuple[ArrayLike, ArrayLike]) -> None:
    """Thread t of a rank tells its t-th peer, and hears from it, before and after.

    After step 1 of the last of these threads a rank has heard from all peers.

    Parameters
    ----------
    to : Peers
        Of channel 0.
    ended : (thread id, step)
        After which the rank does not touch the memory of others any more; columns, or one for all.
    """
    rank, thread, peer = to.rank[:, 0], to.thread[:, 0], to.peer[:, 0]
    hear_in_turn = steps(kinds.RECV, count=0, dep=(to.thread - 1, 1))
    program = TELL, hear_in_turn, steps(kinds.SEND, count=0, dep=ended), HEAR
    assembler.add(rank, thread, *program, send_peer=peer, recv_peer=peer)


def _schedule(
    collective: str,
    work: Callable[[Chunks, Chunks], Work],
    ranks: int,
    channels: int,
    chunks: int | None,
    regions: tuple[int, int],
    root: int | None = None,
) -> Schedule:
    """All ranks work, or the root alone.

    Thread t of a rank that works tells its t-th peer, and hears from it, before and after; then follow, channel by
    channel, a thread for each thing that the switch is to do.
    """
    if ranks == 1:
        return single_rank(collective, "nvls")
    pieces = chunks or 1
    workers = np.arange(ranks) if root is None else np.array([root])
    assembler = Assembler()
    thread = ranks - 1
    all_told = (ranks - 2, 1 if root is None else 0)
    ended = (-1, 0)  # after which all channels so far have ended
    for channel in range(channels):
        step = np.arange(pieces)
        before = (np.where(step == 0, all_told[0], -1), all_told[1])
        deeds = work(workers[:, None], channel * pieces + step)
        for number, (kind, src, dst) in enumerate(deeds):
            parts = [steps(kind, src=src, dst=dst, dep=before)]
            if number == len(deeds) - 1 and channel > 0:
                parts.append(steps(kinds.NOP, dep=ended))
            assembler.add(workers, thread, *parts, channel=channel)
            before = (np.full(pieces, thread), step)
            thread += 1
        ended = (thread - 1, pieces if channel > 0 else pieces - 1)

    if root is None:
        add_signals(assembler, peers(ranks, 0), ended)
    else:
        offset = np.arange(ranks - 1)
        peer = (root + 1 + offset) % ranks
        hear_in_turn = steps(kinds.RECV, count=0, dep=(offset[:, None] - 1, 0))
        program = hear_in_turn, steps(kinds.SEND, count=0, dep=ended)
        assembler.add(root, offset, *program, send_peer=peer, recv_peer=peer)
        assembler.add(peer, 0, TELL, HEAR, send_peer=root, recv_peer=root)
    total = channels * pieces
    return assembler.schedule(
        collective,
        "nvls",
        ranks,
        root=root or 0,
        channels=channels,
        input_chunks=total * regions[0],
        output_chunks=total * regions[1],
    )
