"""What each rank contributes to a cross-check: the same numbers in every process that asks for them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.dtypes import INTEGER, Dtype, to_storage

VALUES = "values"  # as hard as the dtype allows
INTEGERS = "integers"  # small: every sum is exact in any order, so that MPI's own collective must agree

PERIOD = 16381  # after so many the numbers repeat; a prime, so that no chunk or block looks like another

# Of floats every 13th number is one of these: signed zeros, subnormals, large, small.
ODD_FLOATS = np.array([-0.0, 0.0, 1e-45, -1e-40, 3e30, -1e-30, 448.0, 6.0, 0.5])
# One infinity only: the NaN of inf - inf, or of 0 * inf, has a sign of the processor's choice.
NOT_FINITE = np.array([np.nan, np.inf])


def contribution(
    dtype: Dtype, elements: int, rank: int, *, op: str, fill: str = VALUES, not_finite: bool = False
) -> NDArray[Any]:
    """The input of a rank, as the dtype lies in memory.

    Parameters
    ----------
    dtype : Dtype
    elements, rank : int
    op : str
        Products get factors near one, so that they neither vanish nor overflow.
    fill : str
        ``values`` or ``integers``.
    not_finite : bool
        Whether some values are NaN and infinity.

    Returns
    -------
    array of dtype.storage, shape (elements,)
    """
    random = np.random.default_rng([rank, dtype.format_id])
    period = min(elements, PERIOD)
    if fill == INTEGERS:
        small = (-2, -1, 1, 2) if op == "prod" else range(-8, 9)
        choices = np.array([value for value in small if dtype.name != "uint8" or value >= 0])
        numbers = random.choice(choices, period)
    elif dtype.kind == INTEGER:
        limits = np.iinfo(dtype.storage)
        numbers = random.integers(limits.min, limits.max, period, dtype.storage, endpoint=True)
    elif op == "prod":
        numbers = random.uniform(0.75, 1.5, period) * random.choice([-1.0, 1.0], period)
    else:
        numbers = np.ldexp(random.standard_normal(period), random.integers(-3, 4, period))
        odd = np.arange(rank % 13, period, 13)
        numbers[odd] = random.choice(ODD_FLOATS, len(odd))
    if not_finite and dtype.kind != INTEGER and fill == VALUES:
        special = np.arange(rank % 7, period, 101)
        numbers[special] = random.choice(NOT_FINITE[: 1 if op == "prod" else 2], len(special))
    return np.resize(to_storage(numbers, dtype), elements)
