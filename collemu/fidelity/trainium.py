"""Neuron's collectives on Trainium1: a start and a rate, for each number of ranks; shown, as few tables are known."""

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, us_of
from collemu.fidelity.measured import Measured

GROUP = "neuron"


class Trainium:
    """A start, and bytes at a rate."""

    name = "trainium"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """One."""
        return np.where(rows.system == "trainium1", GROUP, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The network and the number of ranks."""
        kinds = [f"{network} {ranks:.0f}" for network, ranks in zip(rows.network, rows.ranks, strict=True)]
        return np.array(kinds, object)

    def constants(self, group: str) -> tuple[Constant, ...]:
        """A start and a rate."""
        return (
            Constant("start_us", "us", "launch and steps", 60.0, spread=1.0),
            Constant("bus_GBps", "GB/s", "bus bandwidth", 40.0, spread=0.5),
        )

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """Start and bytes."""
        steps = np.where(rows.collective == "all_reduce", 2.0, 1.0) * (rows.ranks - 1) / rows.ranks
        steps = np.where(rows.collective == "sendrecv", 1.0, steps)
        return values["start_us"] + us_of(steps * rows.size, values["bus_GBps"])
