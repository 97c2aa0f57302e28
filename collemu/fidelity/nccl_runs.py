"""NCCL on one domain of an NVSwitch as the emulator runs it: the choices and constants of the closed forms, no others.

What closed forms say of steps and of what hides behind what, comes here of the schedule. Channels that are in step
are one here, whose thread is as fast as all of theirs: their packets take turns, so that they end together. The slices
of Simple are two: one moves while the other waits. What is no property of a thread or a link is put where it comes
nearest: a chunk of NVLS makes its bytes slower, and the pieces of a message share its step.
"""

import numpy as np

from collemu.fidelity import nccl
from collemu.fidelity.form import Floats, Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.runs import BESIDE, NO_LIMIT, NO_TAIL, ON_TOP, Run, Runs

SLICES = 2
SIMPLE_CHUNK_BYTES = 2 * 2**20  # of a channel: half of a buffer of 4 MiB
P2P_PIECE_BYTES = 16 * 1024
P2P_MOST_PIECES = 16


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row; None where switches would have to add, and cannot."""
    small = nccl.point_to_point(values, rows).small
    shapes = np.where(nccl.is_p2p(rows), len(_SHAPES) - np.where(small, 2, 1), nccl.chosen(rows))
    found: list[Run | None] = [None] * len(rows)
    for number, shape in enumerate(_SHAPES):
        mine = np.flatnonzero(shapes == number)
        if not len(mine) or (shape is _nvls and "nvls_us" not in values):
            continue
        part = {name: each[mine] for name, each in values.items()}
        for place, run in zip(mine.tolist(), shape(part, rows.where(mine)).each(part["tail_us"]), strict=True):
            found[place] = run
    return found


def _ll(values: Values, rows: Measured) -> Runs:
    """A step waits for what its data do not hide."""
    channels = nccl.ll_channels(rows)
    wait, data, move = nccl.ll_step(values, rows, channels, values["link_GBps"])
    return Runs(
        "ring",
        "ll",
        NO_TAIL,
        channels=np.ones(1),
        chunks=np.ones(1),
        launch_us=values["launch_us"] + values["cta_us"] * np.log2(channels) / 3 + data - move,
        step_us=wait - move,
        thread_rate=values["ll_channel_GBps"] * channels,
        add_rate=values["ll_channel_GBps"] * channels,
        link_rate=values["link_GBps"],
    )


def _ll128(values: Values, rows: Measured) -> Runs:
    return _of_ring("ll128", np.ones(1), np.ones(1), values["launch_us"], values["ll128_step_us"], values, rows)


def _simple(values: Values, rows: Measured) -> Runs:
    """Of several chunks one after the other, the slices hide the step."""
    rounds = np.ceil(np.maximum(1, rows.size / rows.ranks / nccl.CHANNELS / SIMPLE_CHUNK_BYTES))
    slices = np.where(rounds > 1, 1.0, SLICES)
    step = np.where(rounds > 1, 0, values["simple_step_us"])
    return _of_ring("simple", slices, rounds, values["launch_us"] + 1, step, values, rows)


def _of_ring(
    protocol: str, threads: Floats, rounds: Floats, launch_us: Floats, step_us: Floats, values: Values, rows: Measured
) -> Runs:
    """Rings whose threads together copy, and add, as the closed forms' last step does."""
    narrow = np.isin(rows.dtype, nccl.NARROW)
    second = 1 / values["copy_GBps"] + np.where(narrow, 1 / values["narrow_GBps"], 0)
    return Runs(
        "ring",
        protocol,
        ON_TOP,
        channels=threads,
        chunks=rounds,
        launch_us=launch_us,
        step_us=step_us,
        thread_rate=values["copy_GBps"] / threads,
        add_rate=1 / second / threads,
        link_rate=values["link_GBps"],
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


#: By number of the protocol that NCCL chooses; then what goes point to point.
_SHAPES = (_ll, _ll128, _simple, _nvls, _small, _large)
