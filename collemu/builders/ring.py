"""Ring: every rank sends to the next and receives from the one before.

all_reduce, reduce_scatter and all_gather start with another chunk on each rank, so that every link works all
the time: the least bytes, but as many steps as ranks. broadcast and reduce are pipelined chains that begin or
end at the root (elsewhere an algorithm of its own, chain). The order of the chunks is that of NCCL's ring. The
turns need two FIFO slots a connection: with one, every rank would wait for the next to take what it has sent.

It wins for long messages over few ranks, and where only neighbours are joined.

Source: P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009; NCCL.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds
from numpy.typing import ArrayLike, NDArray

from collemu.builders.assembly import Assembler, Steps, interleave, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT
Places = NDArray[np.int64]


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """Reduce-scatter, then all-gather: 2(n - 1) messages a rank, round and channel.

    Chunk ``(channel * rounds + round) * n + block``; a round is a whole turn of one piece.
    """
    if ranks == 1:
        return single_rank("all_reduce", "ring")
    rounds = chunks or 1
    assembler = Assembler()
    place = np.arange(ranks)[:, None]
    for channel in range(channels):
        bases = (channel * rounds + np.arange(rounds)) * ranks
        _add_ring(assembler, ranks, channel, [part for base in bases for part in turn(place, ranks, base)])
    total = channels * rounds * ranks
    return assembler.schedule("all_reduce", "ring", ranks, channels=channels, input_chunks=total, output_chunks=total)


def turn(
    place: Places,
    ranks: int,
    base: Places | np.int_ | int,
    *,
    held: ArrayLike = IN,
    ready: tuple[ArrayLike, ArrayLike] | None = None,
    before_end: tuple[ArrayLike, ArrayLike] | None = None,
) -> list[Steps]:
    """What ranks at these places of a ring do in an all_reduce of a block a rank: 2(n - 1) messages each.

    Parameters
    ----------
    place, base : column of int
        A rank's place, and the chunk of block 0.
    held : int
        Buffer that has the rank's terms.
    ready, before_end : (thread id, step), optional
        What must have finished before the first step, and before the last of the 2n - 1 steps.
    """
    reduced = base + (place - np.arange(2, ranks)) % ranks
    own = base + place
    gathered = base + (place - np.arange(1, ranks - 1)) % ranks
    return [
        steps(kinds.SEND, src=(held, base + (place - 1) % ranks), dep=ready),
        steps(kinds.RECV_REDUCE_SEND, src=(held, reduced)),
        steps(kinds.RECV_REDUCE_COPY_SEND, src=(held, own), dst=(OUT, own), publish=kinds.PUBLISH_FINAL),
        steps(kinds.RECV_COPY_SEND, dst=(OUT, gathered)),
        steps(kinds.RECV, dst=(OUT, base + (place + 1) % ranks), dep=before_end),
    ]


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """One turn: n - 1 messages a rank, round and channel; a region has ``channels * rounds`` chunks."""
    if ranks == 1:
        return single_rank("reduce_scatter", "ring")
    rounds = chunks or 1
    pieces = channels * rounds
    rank = np.arange(ranks)[:, None]
    assembler = Assembler()
    for channel in range(channels):
        program: list[Steps] = []
        for piece in channel * rounds + np.arange(rounds):
            reduced = (rank - np.arange(2, ranks)) % ranks * pieces + piece
            program += [
                steps(kinds.SEND, src=(IN, (rank - 1) % ranks * pieces + piece)),
                steps(kinds.RECV_REDUCE_SEND, src=(IN, reduced)),
                steps(kinds.RECV_REDUCE_COPY, src=(IN, rank * pieces + piece), dst=(OUT, piece)),
            ]
        _add_ring(assembler, ranks, channel, program)
    return assembler.schedule(
        "reduce_scatter", "ring", ranks, channels=channels, input_chunks=ranks * pieces, output_chunks=pieces
    )


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """One turn: n - 1 messages a rank, round and channel; a region has ``channels * rounds`` chunks."""
    if ranks == 1:
        return single_rank("all_gather", "ring")
    rounds = chunks or 1
    pieces = channels * rounds
    rank = np.arange(ranks)[:, None]
    assembler = Assembler()
    for channel in range(channels):
        program: list[Steps] = []
        for piece in channel * rounds + np.arange(rounds):
            own = rank * pieces + piece
            gathered = (rank - np.arange(1, ranks - 1)) % ranks * pieces + piece
            program += [
                steps(kinds.COPY, src=(IN, piece), dst=(OUT, own), publish=kinds.PUBLISH_FINAL),
                steps(kinds.SEND, src=(OUT, own)),
                steps(kinds.RECV_COPY_SEND, dst=(OUT, gathered)),
                steps(kinds.RECV, dst=(OUT, (rank + 1) % ranks * pieces + piece)),
            ]
        _add_ring(assembler, ranks, channel, program)
    return assembler.schedule(
        "all_gather", "ring", ranks, channels=channels, input_chunks=pieces, output_chunks=ranks * pieces
    )


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """A chain from the root to the rank before it; default one piece a hop, so 2(n - 1) - 1 steps."""
    if ranks == 1:
        return single_rank("broadcast", "ring")
    pieces = chunks or ranks - 1
    middle, last = (root + np.arange(1, ranks - 1)) % ranks, (root - 1) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        copy = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, chunk), publish=kinds.PUBLISH_FINAL)
        begin = interleave(copy, steps(kinds.SEND, src=(OUT, chunk)))
        _add_chain(assembler, ranks, channel, root, begin, receives=False)
        _add_chain(assembler, ranks, channel, middle, steps(kinds.RECV_COPY_SEND, dst=(OUT, chunk)))
        _add_chain(assembler, ranks, channel, last, steps(kinds.RECV, dst=(OUT, chunk)), sends=False)
    total = channels * pieces
    return assembler.schedule(
        "broadcast", "ring", ranks, root=root, channels=channels, input_chunks=total, output_chunks=total
    )


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """A chain from the rank after the root to the root; default one piece a hop."""
    if ranks == 1:
        return single_rank("reduce", "ring")
    pieces = chunks or ranks - 1
    begin, middle = (root + 1) % ranks, (root + np.arange(2, ranks)) % ranks
    assembler = Assembler()
    for channel in range(channels):
        chunk = channel * pieces + np.arange(pieces)
        end = steps(kinds.RECV_REDUCE_COPY, src=(IN, chunk), dst=(OUT, chunk))
        _add_chain(assembler, ranks, channel, begin, steps(kinds.SEND, src=(IN, chunk)), receives=False)
        _add_chain(assembler, ranks, channel, middle, steps(kinds.RECV_REDUCE_SEND, src=(IN, chunk)))
        _add_chain(assembler, ranks, channel, root, end, sends=False)
    total = channels * pieces
    return assembler.schedule(
        "reduce", "ring", ranks, root=root, channels=channels, input_chunks=total, output_chunks=total
    )


def _add_ring(assembler: Assembler, ranks: int, channel: int, program: list[Steps]) -> None:
    rank = np.arange(ranks)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    assembler.add(rank, channel, *program, send_peer=after, recv_peer=before, channel=channel)


def _add_chain(
    assembler: Assembler,
    ranks: int,
    channel: int,
    rank: ArrayLike,
    program: Steps,
    *,
    sends: bool = True,
    receives: bool = True,
) -> None:
    here = np.asarray(rank)
    after = (here + 1) % ranks if sends else -1
    before = (here - 1) % ranks if receives else -1
    assembler.add(here, channel, program, send_peer=after, recv_peer=before, channel=channel)
