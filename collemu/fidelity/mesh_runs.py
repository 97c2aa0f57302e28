"""NCCL's rings on a direct mesh as the emulator runs them: through all orders of the ranks, that all links carry."""

from itertools import permutations

import numpy as np

from collemu.fidelity import mesh
from collemu.fidelity.form import Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.ring_runs import SHAPES, Rings
from collemu.fidelity.runs import Run

CHIPS = 4


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row; None for broadcasts, whose calls overlap."""
    protocol = mesh.chosen(rows)
    rings = (rows.collective != "broadcast") & (rows.ranks > 1)
    found: list[Run | None] = [None] * len(rows)
    for number, shape in SHAPES.items():
        for ranks in sorted(set(rows.ranks[rings].tolist())):
            mine = np.flatnonzero(rings & (protocol == number) & (rows.ranks == ranks))
            part, own = rows.where(mine), {name: each[mine] for name, each in values.items()}
            each = shape(own, part, _rings(own, part, int(ranks))).each(own["tail_us"])
            for place, run in zip(mine.tolist(), each, strict=True):
                found[place] = run
    return found


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
