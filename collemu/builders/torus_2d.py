"""2-D torus: rings along the rows and the columns of a rectangle of ranks, a quarter of the data each way.

A quarter is summed up along its rows (reduce_scatter), then along the columns (all_reduce, each rank with its part of
the quarter), and collected along the rows (all_gather). Of the four quarters two begin with the columns, and two go
backwards, so that all links of a torus work at once. As many bytes as a ring, 2(n - 1)/n of the data a rank, in
2(columns + rows - 2) steps instead of 2(n - 1): it wins on tori, and over a ring wherever steps are dear.

The rectangle is the most nearly square one; of a prime number of ranks it is a single row. Rows are ranks one after the
other, every second one backwards, which is how ranks are numbered along a path through a torus (`collemu.wiring`): so
ranks above each other are neighbours, too, where a row is a whole walk through the last dimensions of the torus.

Source: H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama, Massively distributed SGD: ImageNet/ResNet-50
training in a flash, 2018; all directions at once as in N. Jain, Y. Sabharwal, Optimal bucket algorithms for large MPI
collectives on torus interconnects, 2010.
"""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.builders.assembly import Assembler, Steps, one_ahead, steps
from collemu.builders.domains import nearly_square
from collemu.builders.ring import turn
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT
Ranks = NDArray[np.int64]


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """2(columns + rows - 2) messages a rank, round and quarter, 2(n - 1) / n of the data; a lane is four channels.

    Chunk ``(quarter, round) * n + block``. The next round begins before the last is collected.
    """
    if ranks == 1:
        return single_rank("all_reduce", "torus_2d")
    rounds = chunks or 1
    rows = nearly_square(ranks)
    columns = ranks // rows
    rank = np.arange(ranks).reshape(rows, columns)
    rank[1::2] = rank[1::2, ::-1]
    assembler = Assembler()
    for quarter in range(4 * channels):
        columns_first = quarter % 2 == 1 or rows == 1
        backwards = quarter // 2 % 2 == 1
        grid = rank.T if columns_first else rank  # the first ring is along the last axis
        grid = grid[::-1, ::-1] if backwards else grid
        _add_quarter(assembler, grid, quarter, rounds)
    total = 4 * channels * rounds * ranks
    return assembler.schedule(
        "all_reduce", "torus_2d", ranks, channels=4 * channels, input_chunks=total, output_chunks=total
    )


def _add_quarter(assembler: Assembler, grid: Ranks, lane: int, rounds: int) -> None:
    """A thread a rank in each ring: along the last axis of the grid, if that is more than one rank, and the first."""
    others, size = (int(side) for side in grid.shape)
    other, place = divmod(np.arange(grid.size)[:, None], size)
    near, far = (2 * lane, 2 * lane + 1) if size > 1 else (-1, lane)
    scattered: list[list[Steps]] = []
    collected: list[list[Steps]] = []
    summed: list[Steps] = []
    for number in range(rounds):
        base = (lane * rounds + number) * grid.size
        own, after, before = (base + (place + hop) % size * others for hop in (0, 1, -1))
        reduced = base + (place - np.arange(2, size)) % size * others
        gathered = base + (place - np.arange(1, size - 1)) % size * others
        scattered.append(
            [
                steps(kinds.SEND, src=(IN, before), count=others),
                steps(kinds.RECV_REDUCE_SEND, src=(IN, reduced), count=others),
                steps(kinds.RECV_REDUCE_COPY, src=(IN, own), dst=(OUT, own), count=others),
            ]
        )
        added = (near, max(2 * number, 1) * size - 1)
        summed += turn(other, others, base + place * others, held=OUT if size > 1 else IN, ready=added)
        done = (far, (2 * others - 1) * (number + 1) - 1)
        collected.append(
            [
                steps(kinds.SEND, src=(OUT, own), count=others, dep=done),
                steps(kinds.RECV_COPY_SEND, dst=(OUT, gathered), count=others),
                steps(kinds.RECV, dst=(OUT, after), count=others),
            ]
        )
    for thread, axis, program in ((near, 1, one_ahead(scattered, collected)), (far, 0, summed)):
        if grid.shape[axis] > 1:
            rank, after, before = (np.roll(grid, -hop, axis).reshape(-1) for hop in (0, 1, -1))
            assembler.add(rank, thread, *program, send_peer=after, recv_peer=before, channel=lane)
