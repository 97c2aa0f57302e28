"""NCCL's rings on a direct mesh as the emulator runs them: through all orders of the ranks, that all links carry."""

from itertools import permutations

import numpy as np

from collemu.fidelity import mesh, nccl
from collemu.fidelity.form import Floats, Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.nccl_runs import SIMPLE_CHUNK_BYTES, SLICES
from collemu.fidelity.runs import NO_TAIL, ON_TOP, Run, Runs

CHIPS = 4


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row; None for broadcasts, whose calls overlap."""
    protocol = mesh.chosen(rows)
    rings = rows.collective != "broadcast"
    found: list[Run | None] = [None] * len(rows)
    for number, shape in ((nccl.LL, _ll), (nccl.LL128, _ll128), (nccl.SIMPLE, _simple)):
        for ranks in sorted(set(rows.ranks.tolist())):
            mine = np.flatnonzero(rings & (protocol == number) & (rows.ranks == ranks))
            if len(mine) and ranks > 1:
                part = {name: each[mine] for name, each in values.items()}
                orders = tuple((0, *order) for order in permutations(range(1, int(ranks))))
                for place, run in zip(
                    mine.tolist(), shape(part, rows.where(mine), orders).each(part["tail_us"]), strict=True
                ):
                    found[place] = run
    return found


def _ll(values: Values, rows: Measured, orders: tuple[tuple[int, ...], ...]) -> Runs:
    channels = mesh.ll_channels(rows)
    wait, data, move = nccl.ll_step(values, rows, channels, values["link_GBps"] * (rows.ranks - 1))
    rate = values["ll_channel_GBps"] * channels / len(orders)
    return Runs(
        "ring",
        "ll",
        NO_TAIL,
        channels=np.full(1, len(orders)),
        chunks=np.ones(1),
        launch_us=values["launch_us"] + values["cta_us"] * np.log2(channels) / 3 + data - move,
        step_us=wait - move,
        thread_rate=rate,
        add_rate=rate,
        link_rate=values["link_GBps"] * (CHIPS - 1),
        orders=orders,
    )


def _ll128(values: Values, rows: Measured, orders: tuple[tuple[int, ...], ...]) -> Runs:
    one, launch = np.ones(1), values["launch_us"]
    return _of_ring("ll128", one, one, launch, values["ll128_step_us"], values, rows, orders)


def _simple(values: Values, rows: Measured, orders: tuple[tuple[int, ...], ...]) -> Runs:
    """Of several chunks one after the other, the slices hide the step."""
    share = rows.size / rows.ranks / (mesh.CHANNELS * rows.ranks)
    rounds = np.ceil(np.maximum(1, share / SIMPLE_CHUNK_BYTES))
    slices = np.where(rounds > 1, 1.0, SLICES)
    step = np.where(rounds > 1, 0, values["simple_step_us"])
    return _of_ring("simple", slices, rounds, values["launch_us"] + 1, step, values, rows, orders)


def _of_ring(
    protocol: str,
    slices: Floats,
    rounds: Floats,
    launch_us: Floats,
    step_us: Floats,
    values: Values,
    rows: Measured,
    orders: tuple[tuple[int, ...], ...],
) -> Runs:
    threads = slices * len(orders)
    rate = values["copy_GBps"] * mesh.CHANNELS * rows.ranks / mesh.ALL_CHANNELS / threads
    return Runs(
        "ring",
        protocol,
        ON_TOP,
        channels=threads,
        chunks=rounds,
        launch_us=launch_us,
        step_us=step_us,
        thread_rate=rate,
        add_rate=rate,
        link_rate=values["link_GBps"] * (CHIPS - 1),
        orders=orders,
    )
