"""Neuron's collectives on Trainium1: a start and a rate, for each number of ranks; shown, as few tables are known."""

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, us_of
from collemu.fidelity.measured import Measured


class Trainium:
    """A start, and bytes at a rate."""

    name = "trainium"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The network and the number of ranks."""
        kinds = [f"{network} {ranks:.0f}" for network, ranks in zip(rows.network, rows.ranks, strict=True)]
        return np.where(rows.system == "trainium1", kinds, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of so many ranks."""
        return (
            Constant("start_us", "us", "launch and steps", 60.0),
            Constant("bus_GBps", "GB/s", "bus bandwidth", 40.0),
        )

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """Start and bytes."""
        steps = np.where(rows.collective == "all_reduce", 2.0, 1.0) * (rows.ranks - 1) / rows.ranks
        steps = np.where(rows.collective == "sendrecv", 1.0, steps)
        return values["start_us"] + us_of(steps * rows.size, values["bus_GBps"])
