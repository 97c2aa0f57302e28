"""All ranks do the same, each relative to itself: in a step, all receive from the rank a distance further on.

An all_gather is n trees at once, one from every rank. What a rank holds lies side by side in scratch, in such an
order that what it sends in a step does too, so that a step is one message at any number of ranks, channels and
chunks. The distances, each once and log2 of the ranks in all, make the algorithm. A reduce_scatter is an all_gather
backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.builders.assembly import Assembler, interleave, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH


@dataclass(frozen=True)
class Hop:
    """A step of an all_gather: ``count`` regions from place ``sent`` on go ``distance`` ranks back, to ``received``."""

    distance: int
    count: int
    sent: int
    received: int


def hops(ranks: int, distances: Iterable[int]) -> tuple[list[Hop], NDArray[np.int64]]:
    """The steps of an all_gather, and the region at every place of scratch, in ranks further on than one's own."""
    held, first = np.zeros(1, np.int64), 0
    found: list[tuple[int, int, int, int]] = []
    for distance in distances:
        count = int(np.count_nonzero(held + distance < ranks))
        new = held[:count] + distance
        # Those that would go all the way round stay at the end, so that what is sent is the beginning.
        whole = count == len(held)
        received = first + len(held) if whole else first - count
        found.append((distance, count, first, received))
        held = np.concatenate([held, new] if whole else [new, held])
        first = min(first, received)
    return [Hop(distance, count, sent - first, received - first) for distance, count, sent, received in found], held


def all_gather(algorithm: str, ranks: int, distances: Iterable[int], channels: int, chunks: int | None) -> Schedule:
    """A message a hop, piece and channel; the copies into scratch, and from there to the output, take memory alone."""
    if ranks == 1:
        return single_rank("all_gather", algorithm)
    pieces = chunks or 1
    total = channels * pieces
    program, ahead = hops(ranks, distances)
    rank, turn = np.arange(ranks)[:, None], np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (len(program) + 1)
        chunk = channel * pieces + turn
        scratch = chunk * ranks
        before = own_thread = first + len(program)
        own = rank * total + chunk
        publish = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, own), publish=kinds.PUBLISH_FINAL)
        keep = steps(kinds.COPY, src=(OUT, own), dst=(SCRATCH, scratch + program[0].sent))
        assembler.add(rank[:, 0], own_thread, interleave(publish, keep), channel=channel)
        for number, hop in enumerate(program):
            send = steps(kinds.SEND, src=(SCRATCH, scratch + hop.sent), count=hop.count, dep=(before, 2 * turn + 1))
            take = steps(kinds.RECV, dst=(SCRATCH, scratch + hop.received), count=hop.count)
            place = hop.received + np.arange(hop.count)
            region = (rank + ahead[place]) % ranks
            spread = [
                steps(kinds.COPY, src=(SCRATCH, scratch[piece] + place), dst=(OUT, region * total + chunk[piece]))
                for piece in turn
            ]
            after, behind = (rank[:, 0] + hop.distance) % ranks, (rank[:, 0] - hop.distance) % ranks
            exchange = interleave(send, take)
            assembler.add(
                rank[:, 0], first + number, exchange, *spread, send_peer=behind, recv_peer=after, channel=channel
            )
            before = first + number
    return assembler.schedule(
        "all_gather",
        algorithm,
        ranks,
        channels=channels,
        input_chunks=total,
        output_chunks=ranks * total,
        scratch_chunks=ranks * total,
    )


def reduce_scatter(algorithm: str, ranks: int, distances: Iterable[int], channels: int, chunks: int | None) -> Schedule:
    """A message a hop, piece and channel; partial sums lie in scratch, where the rank's terms are copied first.

    Parameters
    ----------
    distances : iterable of int
        Those of the all_gather, which are taken in reverse.
    """
    if ranks == 1:
        return single_rank("reduce_scatter", algorithm)
    pieces = chunks or 1
    total = channels * pieces
    program, ahead = hops(ranks, distances)
    program.reverse()
    rank, turn = np.arange(ranks)[:, None], np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * (len(program) + 1)
        chunk = channel * pieces + turn
        scratch = chunk * ranks
        terms = [
            steps(
                kinds.COPY,
                src=(IN, (rank + ahead) % ranks * total + chunk[piece]),
                dst=(SCRATCH, scratch[piece] + np.arange(ranks)),
            )
            for piece in turn
        ]
        assembler.add(rank[:, 0], first + len(program), *terms, channel=channel)
        ready = (first + len(program), ranks * (turn + 1) - 1)
        for number, hop in enumerate(program):
            last = number == len(program) - 1
            send = steps(kinds.SEND, src=(SCRATCH, scratch + hop.received), count=hop.count, dep=ready)
            add = steps(
                kinds.RECV_REDUCE_COPY if last else kinds.RECV_REDUCE,
                src=(SCRATCH, scratch + hop.sent),
                dst=(OUT, chunk) if last else (SCRATCH, scratch + hop.sent),
                count=hop.count,
            )
            after, behind = (rank[:, 0] + hop.distance) % ranks, (rank[:, 0] - hop.distance) % ranks
            assembler.add(
                rank[:, 0], first + number, interleave(send, add), send_peer=after, recv_peer=behind, channel=channel
            )
            ready = (first + number, 2 * turn + 1)
    return assembler.schedule(
        "reduce_scatter",
        algorithm,
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=total,
        scratch_chunks=ranks * total,
    )
