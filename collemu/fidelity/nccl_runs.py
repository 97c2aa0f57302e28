"""NCCL on one domain of an NVSwitch as the emulator runs it: the choices and constants of the closed forms, no others.

What closed forms say of steps and of what hides behind what, comes here of the schedule. What is no property of a
thread or a link is put where it comes nearest: a chunk of NVLS makes bytes slower, pieces of a message share its step.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity import nccl
from collemu.fidelity.form import Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.ring_runs import SHAPES, Rings, alone
from collemu.fidelity.runs import BESIDE, NO_LIMIT, NO_TAIL, ON_TOP, Run, Runs

P2P_PIECE_BYTES = 16 * 1024
P2P_MOST_PIECES = 16


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row; None where switches would have to add, and cannot."""
    several = rows.ranks > 1
    p2p, ring = several & nccl.is_p2p(rows), several & ~nccl.is_p2p(rows)
    protocol, small = nccl.chosen(rows), nccl.point_to_point(values, rows).small
    found: list[Run | None] = [None] * len(rows)

    def put(mask: NDArray[np.bool_], shape: Callable[[Values, Measured], Runs]) -> None:
        mine = np.flatnonzero(mask)
        if len(mine):
            own = {name: each[mine] for name, each in values.items()}
            for place, run in zip(mine.tolist(), shape(own, rows.where(mine)).each(own["tail_us"]), strict=True):
                found[place] = run

    for number, shape in SHAPES.items():
        put(ring & (protocol == number), lambda own, part, shape=shape: shape(own, part, _rings(own, part)))
    if "nvls_us" in values:
        put(ring & (protocol == nccl.NVLS), _nvls)
    put(~several, alone)
    put(p2p & small, _small)
    put(p2p & ~small, _large)
    return found


def _rings(values: Values, rows: Measured) -> Rings:
    return Rings(
        channels=np.full(len(rows), nccl.CHANNELS),
        ll_channels=nccl.ll_channels(rows),
        copy=values["copy_GBps"],
        link=values["link_GBps"],
        chip=values["link_GBps"],
    )


def _nvls(values: Values, rows: Measured) -> Runs:
    channels, chunk = nccl.nvls_chunks(rows)
    pause = values["nvls_chunk_us"] * 1e3 / (8 * channels * chunk) / (1 + 1 / rows.ranks)  # ns of a byte on a link
    return Runs(
        "nvls",
        "simple",
        ON_TOP,
        channels=channels,
        chunks=np.ceil(np.maximum(1, rows.size / (rows.ranks * channels * chunk))),
        launch_us=values["launch_us"] + nccl.nvls_start_and_move(values, rows)[0],
        step_us=np.zeros(1),
        thread_rate=np.full(1, NO_LIMIT),
        add_rate=np.full(1, NO_LIMIT),
        link_rate=1 / (1 / values["nvls_GBps"] + pause),
        with_latency=True,
    )


def _small(values: Values, rows: Measured) -> Runs:
    """Point to point in LL: a thread writes, and reads, at twice the rate at which it does both."""
    each = nccl.point_to_point(values, rows)
    rate = 2 * values["p2p_ll_GBps"]
    return Runs(
        "direct",
        "ll",
        NO_TAIL,
        channels=np.ones(1),
        chunks=np.ones(1),
        launch_us=each.start_us,
        step_us=np.zeros(1),
        thread_rate=rate,
        add_rate=rate,
        link_rate=values["link_GBps"],
        with_latency=True,
    )


def _large(values: Values, rows: Measured) -> Runs:
    """Point to point in Simple: pieces of a message, one after the other in each of its channels."""
    each = nccl.point_to_point(values, rows)
    threads = np.maximum(1, each.busy // each.messages)
    pieces = np.clip(each.share / threads // P2P_PIECE_BYTES, 1, P2P_MOST_PIECES)
    rate = values["p2p_channel_GBps"] * each.busy / (each.messages * threads)
    return Runs(
        "direct",
        "simple",
        BESIDE,
        channels=threads,
        chunks=pieces,
        launch_us=each.start_us,
        step_us=each.step_us / pieces,
        thread_rate=rate,
        add_rate=rate,
        link_rate=nccl.P2P_LINK_SHARE * values["link_GBps"],
        with_latency=True,
    )
