"""How far predicted times are from measured ones: by group of cases, and by band of sizes."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Name and upper end, in bytes.
BANDS = (("<= 32 KiB", 32 * 2**10), ("<= 4 MiB", 4 * 2**20), ("> 4 MiB", np.inf))


@dataclass(frozen=True)
class Score:
    """Relative errors of time, of some rows; as shares.

    Attributes
    ----------
    name : str
    rows, cases : int
    median, p90, worst : float
        Of their magnitudes.
    bias : float
        Median, with its sign: above 0, the model is too slow.
    bands : tuple of float or None
        Medians by band of sizes; None where a band has no row.
    """

    name: str
    rows: int
    cases: int
    median: float
    p90: float
    worst: float
    bias: float
    bands: tuple[float | None, ...]


def score(name: str, cases: Iterable[str], size: NDArray[np.float64], error: NDArray[np.float64]) -> Score:
    """Score rows.

    Parameters
    ----------
    name : str
    cases : iterable of str
        Of each row.
    size : float array
        Bytes of each row.
    error : float array
        Predicted over measured time, less 1.
    """
    far = np.abs(error)
    bands: list[float | None] = []
    low = -1.0
    for _, high in BANDS:
        inside = (size > low) & (size <= high)
        bands.append(float(np.median(far[inside])) if inside.any() else None)
        low = high
    return Score(
        name,
        len(error),
        len(set(cases)),
        float(np.median(far)),
        float(np.percentile(far, 90)),
        float(far.max()),
        float(np.median(error)),
        tuple(bands),
    )
