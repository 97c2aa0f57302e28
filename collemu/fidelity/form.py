"""What a closed form is: constants with a meaning, and times from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.measured import Measured

Floats = NDArray[np.float64]
Values = Mapping[str, Floats]  # of every constant, an entry a row


@dataclass(frozen=True)
class Constant:
    """A constant of a closed form.

    Attributes
    ----------
    name, unit, meaning : str
    start : float
        Where fits start.
    most : float
        No more: a link's line rate.
    spread : float
        How far, as a logarithm, the values of owners are from what is usual; 0: all share one.
    """

    name: str
    unit: str
    meaning: str
    start: float
    most: float = np.inf
    spread: float = 0.0


class Form(Protocol):
    """Times of a family of cases in closed form."""

    name: str

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """Which set of constants each row belongs to; empty where the form is not for it."""
        ...

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """Whose constants each row takes, of those that are not shared: a system or a network."""
        ...

    def constants(self, group: str) -> tuple[Constant, ...]:
        """The constants of a set."""
        ...

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """Microseconds of each row."""
        ...


def tail(bulk_us: Floats, tail_us: Floats) -> Floats:
    """What long transfers take longer than their bytes say: empirical, the geometric mean with a constant."""
    return np.sqrt(bulk_us * tail_us)


def us_of(nbytes: Floats, gb_per_s: Floats | float) -> Floats:
    """Microseconds of so many bytes at a rate in decimal GB/s."""
    return nbytes / gb_per_s * 1e-3
