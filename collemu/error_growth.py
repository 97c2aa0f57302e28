"""How the error of a quantised collective grows with the number of ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import System
from collemu.collectives import REDUCTIONS
from collemu.dtypes import Dtype
from collemu.emulator import emulate
from collemu.number_formats import ELEMENT_FORMATS, BlockFormat, LaneFormat, rounding_error
from collemu.payload import Payload, payload_of
from collemu.recipe import Recipe
from collemu.reference import Rows, difference
from collemu.schedule import Schedule

VALUES = ("normal", "positive")


@dataclass(frozen=True)
class Error:
    """What a run lost.

    Attributes
    ----------
    ranks : int
    quantisations : int
        Most roundings that a number went through.
    relative : float
        Frobenius norm of the difference from the exact result over that of the result.
    largest : float
        Largest absolute difference.
    worst : float or None
        What ``largest`` cannot exceed as long as nothing saturates: every rounding is off by at most half a step of the
        largest sum of magnitudes. None where the format has no such bound here.
    saturated : int
        Numbers that were cut down to the largest of their format.
    """

    ranks: int
    quantisations: int
    relative: float
    largest: float
    worst: float | None
    saturated: int


def values(name: str, ranks: int, elements: int, seed: int = 0) -> NDArray[np.float32]:
    """Contributions of every rank, shape (ranks, elements).

    Parameters
    ----------
    name : str
        ``normal``: zero mean, unit variance; ``positive``: uniform from 0 to 2, so that sums only grow.

    Raises
    ------
    ValueError
        For another name.
    """
    random = np.random.default_rng(seed)
    if name == "normal":
        return random.standard_normal((ranks, elements), np.float32)
    if name == "positive":
        return 2 * random.random((ranks, elements), np.float32)
    raise ValueError(f"no values {name!r}; choose {', '.join(VALUES)}")


def measure_error(
    schedule: Schedule,
    system: System,
    data: Rows,
    *,
    dtype: str = "float32",
    op: str = "sum",
    recipe: Recipe | None = None,
) -> Error:
    """Run a schedule on data, and compare with exact arithmetic.

    Parameters
    ----------
    data : array (ranks, elements), or list of arrays
        As `collemu.emulate` takes it.
    """
    recipe = recipe or Recipe()
    count = len(data[schedule.root]) // schedule.input_regions if schedule.counts is None else None
    result = emulate(
        schedule, system, count=count, dtype=dtype, op=op, recipe=recipe, data=data, fidelity="flow", timeline=False
    )
    assert result.outputs is not None
    relative, largest = difference(schedule.collective, data, result.outputs, op, schedule.root, schedule.counts)
    payload = payload_of(schedule.collective, dtype, recipe, op)
    quantisations = result.quantisations.most
    return Error(
        ranks=schedule.ranks,
        quantisations=quantisations,
        relative=relative,
        largest=largest,
        worst=_worst(payload, quantisations, data, adds=schedule.collective in REDUCTIONS),
        saturated=result.saturated or 0,
    )


def growth(errors: Sequence[Error]) -> float | None:
    """The power of the number of ranks with which the relative error grows: the slope of its logarithm, least squares.

    None for fewer than two numbers of ranks above 1 with an error.
    """
    points = {each.ranks: each.relative for each in errors if each.ranks > 1 and each.relative > 0}
    if len(points) < 2 or not all(map(math.isfinite, points.values())):
        return None
    slope, _ = np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)
    return float(slope)


def _worst(payload: Payload, quantisations: int, data: Rows, *, adds: bool) -> float | None:
    """Roundings one after the other, each of at most half a step of the largest sum of magnitudes.

    Of a block it is a step of its largest number, whichever element that belongs to: sums of the ranks' largest. Steps
    of tiny numbers do not shrink with them, so each rounding of a term, and of a sum, counts: no rank sends more than
    one to a result, whatever the algorithm.
    """
    if payload.operator != "sum" or payload.recipe.accumulate != "float32":
        return None
    format_ = payload.wire_format or ELEMENT_FORMATS.get(payload.held.name)
    relative, absolute = 2.0**-24, 0.0  # float32 sums
    if format_ is not None:
        if isinstance(format_, LaneFormat) or payload.recipe.scale_mode is not None:
            return None
        relative, absolute = rounding_error(format_)
    magnitudes = [np.abs(row.astype(np.float64)) for row in data]
    largest = [float(row.max(initial=0.0)) for row in magnitudes]
    most = max(largest)
    if adds:
        of_blocks = isinstance(payload.wire_format, BlockFormat)
        most = sum(largest) if of_blocks else float(np.sum(magnitudes, axis=0).max(initial=0.0))
    additions = len(data) if adds else 0
    at_first = 0.0  # contributions are rounded to the recipe's dtype
    if payload.runs_in != payload.dtype:
        step, tiny = _half_step(payload.runs_in)
        at_first = step * most + tiny * max(additions, 1)
        most += at_first
    grown = (1 + relative) ** quantisations * (1 + 2.0**-24) ** additions
    at_last = 2 * _half_step(payload.dtype)[0] * grown * most
    events = quantisations + 2 * additions  # terms may be rounded first, and when they are sent
    return at_first + (grown - 1) * most + events * grown * absolute + at_last


def _half_step(dtype: Dtype) -> tuple[float, float]:
    """Half a step of a dtype, relative, and that of tiny numbers; 0 of float32."""
    element = ELEMENT_FORMATS.get(dtype.name)
    return rounding_error(element) if element else (0.0, 0.0)
