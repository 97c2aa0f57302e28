"""NCCL's rings as the emulator runs them, on whatever links they go through.

Channels that are in step are one here, whose thread is as fast as all of theirs: their packets take turns, so that they
end together. The slices of Simple are two: one moves while the other waits.
"""

from dataclasses import dataclass

import numpy as np

from collemu.fidelity import nccl
from collemu.fidelity.form import Floats, Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.runs import NO_TAIL, ON_TOP, Runs

SLICES = 2
SIMPLE_CHUNK_BYTES = 2 * 2**20  # of a channel: half of a buffer of 4 MiB


@dataclass(frozen=True)
class Rings:
    """What rings go through: arrays, an entry a row.

    Attributes
    ----------
    channels, ll_channels : float arrays
        Of NCCL in all, and in LL.
    copy, link : float arrays
        GB/s that all channels copy, and that a rank's links to others take.
    chip : float array
        GB/s of all links of a chip, whether or not they lead to a rank.
    orders : tuple of tuple of int
        As `collemu.fidelity.runs.Run` has them.
    """

    channels: Floats
    ll_channels: Floats
    copy: Floats
    link: Floats
    chip: Floats
    orders: tuple[tuple[int, ...], ...] = ()

    @property
    def lanes(self) -> int:
        """Rings that differ by their order."""
        return max(1, len(self.orders))


def ll(values: Values, rows: Measured, rings: Rings) -> Runs:
    """A step waits for what its data do not hide."""
    wait, data, move = nccl.ll_step(values, rows, rings.ll_channels, rings.link)
    rate = values["ll_channel_GBps"] * rings.ll_channels / rings.lanes
    return Runs(
        "ring",
        "ll",
        NO_TAIL,
        channels=np.full(1, rings.lanes),
        chunks=np.ones(1),
        launch_us=values["launch_us"] + values["cta_us"] * np.log2(rings.ll_channels) / 3 + data - move,
        step_us=wait - move,
        thread_rate=rate,
        add_rate=rate,
        link_rate=rings.chip,
        orders=rings.orders,
    )


def ll128(values: Values, rows: Measured, rings: Rings) -> Runs:
    """One chunk, one step after the other."""
    one = np.ones(len(rows))
    return _bulky("ll128", one, one, values["launch_us"], values["ll128_step_us"], values, rows, rings)


def simple(values: Values, rows: Measured, rings: Rings) -> Runs:
    """Of several chunks one after the other, the slices hide the step."""
    rounds = np.ceil(np.maximum(1, rows.size / rows.ranks / rings.channels / SIMPLE_CHUNK_BYTES))
    slices = np.where(rounds > 1, 1.0, SLICES)
    step = np.where(rounds > 1, 0, values["simple_step_us"])
    return _bulky("simple", slices, rounds, values["launch_us"] + 1, step, values, rows, rings)


def alone(values: Values, rows: Measured) -> Runs:
    """One rank: a copy."""
    return Runs(
        "",
        "simple",
        NO_TAIL,
        channels=np.ones(1),
        chunks=np.ones(1),
        launch_us=values["launch_us"],
        step_us=np.zeros(1),
        thread_rate=values["copy_GBps"],
        add_rate=values["copy_GBps"],
        link_rate=values["link_GBps"],
    )


def _bulky(
    protocol: str,
    slices: Floats,
    rounds: Floats,
    launch_us: Floats,
    step_us: Floats,
    values: Values,
    rows: Measured,
    rings: Rings,
) -> Runs:
    """Threads together copy, and add, as the closed forms' last step does."""
    threads = slices * rings.lanes
    sums = np.isin(rows.dtype, nccl.NARROW) & ("narrow_GBps" in values)
    second = 1 / rings.copy + np.where(sums, 1 / values.get("narrow_GBps", np.ones(1)), 0)
    return Runs(
        "ring",
        protocol,
        ON_TOP,
        channels=threads,
        chunks=rounds,
        launch_us=launch_us,
        step_us=step_us,
        thread_rate=rings.copy / threads,
        add_rate=1 / second / threads,
        link_rate=rings.chip,
        orders=rings.orders,
    )


#: By number of the protocol that NCCL chooses.
SHAPES = {nccl.LL: ll, nccl.LL128: ll128, nccl.SIMPLE: simple}
