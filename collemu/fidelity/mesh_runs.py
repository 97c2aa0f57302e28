"""NCCL's rings on a direct mesh as the emulator runs them: through all orders of the ranks, that all links carry."""

from itertools import permutations

import numpy as np

from collemu.fidelity import mesh
from collemu.fidelity.form import Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.ring_runs import SHAPES, Rings, alone
from collemu.fidelity.runs import Run

CHIPS = 4


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row; None for broadcasts, whose calls overlap."""
    found: list[Run | None] = [None] * len(rows)
    for ranks in sorted(set(rows.ranks.tolist())):
        mine = np.flatnonzero((rows.ranks == ranks) & ((rows.collective != "broadcast") | (ranks == 1)))
        part, own = rows.where(mine), {name: each[mine] for name, each in values.items()}
        for place, run in zip(mine.tolist(), _of_so_many(own, part, int(ranks)), strict=True):
            found[place] = run
    return found


def _of_so_many(values: Values, rows: Measured, ranks: int) -> list[Run]:
    if ranks == 1 or not len(rows):
        return alone(values, rows).each(values["tail_us"])
    rings, tail_us = _rings(values, rows, ranks), values["tail_us"]
    by_protocol = {number: shape(values, rows, rings).each(tail_us) for number, shape in SHAPES.items()}
    return [by_protocol[number][place] for place, number in enumerate(mesh.chosen(rows).tolist())]


def _rings(values: Values, rows: Measured, ranks: int) -> Rings:
    channels = mesh.CHANNELS * rows.ranks
    return Rings(
        channels=channels,
        ll_channels=mesh.ll_channels(rows),
        copy=values["copy_GBps"] * channels / mesh.ALL_CHANNELS,
        link=values["link_GBps"] * (rows.ranks - 1),
        chip=values["link_GBps"] * (CHIPS - 1),
        orders=tuple((0, *order) for order in permutations(range(1, ranks))),
    )
