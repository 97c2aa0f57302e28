"""nccl-tests' #wrong for quantised collectives: data for which every algorithm must give every bit.

Rounding on the wire makes a random sum inexact, and a tolerance hides lost and doubled terms. So one rank, another
for every element, contributes a value, and all others the operator's neutral element: 0, or 1 in a product. Whatever
the order of additions, every partial result is then one of few numbers, and these are chosen so that no format on the
wire rounds them:

- Formats without scales, and those whose scales are powers of two: 0.5, 1, 1.5, 2, 3, 4, 6 with either sign. Every
  one of them is a code of FP4, the coarsest element format. A block's scale is a power of two that puts its largest
  magnitude into FP4's range, and 1 and 1.5 times a smaller power of two stay codes under it, whichever of them are in
  the block.
- Formats with float32 scales: one magnitude, the largest element, for which the scale is 1; for nvfp4 6 x 448 = 2688,
  for which tensor scale, block scale and code are 1, 448 and 6. They have none for products, where ones must survive
  beside the value: there the value is 1 or -1, and its float32 scale may be off by rounding.
- Formats whose scale has a sign, or which clip the positive largest number: one magnitude of one sign, which becomes
  the most negative code. None for products, of which only the sign is looked at; and those of float16 arithmetic whose
  constants are rounded may be off by that.
- An average divides, which rounds. Floats then have one magnitude, and may miss by the roundings of the formats.
  Integers are multiples of the number of ranks where the type holds them.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import System
from collemu.collectives import REDUCTIONS, UNEVEN
from collemu.dtypes import INTEGER
from collemu.emulator import Result, emulate
from collemu.number_formats import (
    BLOCK_FORMATS,
    ELEMENT_FORMATS,
    BlockFormat,
    ElementFormat,
    LaneFormat,
    find_format,
    formats,
    rounding_error,
)
from collemu.payload import Payload, payload_of
from collemu.recipe import Recipe
from collemu.reference import Rows, reference, rows_that_count
from collemu.rows import input_size, output_size, settled_count
from collemu.schedule import Schedule

BUDGET_BYTES = 64 * 2**20  # of inputs and outputs of all ranks
BLOCK = 64  # a smaller count keeps the remainder modulo chunks of whole blocks of 16, 32 and 64

EXACT = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
INTEGERS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class Check:
    """Outcome of a check.

    Attributes
    ----------
    wrong : int
        Elements, over all ranks, that are not what they must be.
    elements : int
        Elements that were looked at.
    count : int
        Elements a rank of the run that was looked at; smaller than the point's where that was too large.
    exact : bool
        Whether every element had to be exactly right; else it had to be within the roundings of its formats.
    result : Result
        Of the run that was looked at.
    """

    wrong: int
    elements: int
    count: int
    exact: bool
    result: Result


def check(
    schedule: Schedule,
    system: System,
    *,
    count: int | None = None,
    dtype: str = "float32",
    op: str = "sum",
    recipe: Recipe | None = None,
    protocol: str = "auto",
    fidelity: str = "auto",
    full: bool = False,
) -> Check:
    """Run a schedule on exact data and count the elements that came out wrong.

    Parameters
    ----------
    schedule : Schedule
    system : System
    count : int, optional
        Elements a rank; none for an alltoallv. Beyond `BUDGET_BYTES` of data a smaller count with the same remainder of
        chunks is checked; of an alltoallv its counts divided by a number.
    dtype, op, protocol, fidelity : str
    recipe : Recipe, optional
        As `collemu.emulate` takes them.
    full : bool
        Check this very count however large it is.
    """
    payload = payload_of(schedule.collective, dtype, recipe or Recipe(), op)
    reduces = schedule.collective in REDUCTIONS
    checked = settled_count(schedule, count)
    if not full:
        schedule, checked = _affordable(schedule, checked, payload.dtype.item_bytes)
    terms = _terms(payload, schedule.ranks, reduces=reduces)
    data = _contributions(schedule, checked, terms, reduces=reduces)
    result = emulate(
        schedule,
        system,
        count=checked,
        dtype=dtype,
        op=op,
        recipe=recipe,
        data=data,
        protocol=protocol,
        fidelity=fidelity,
        timeline=False,
    )
    assert result.outputs is not None
    expected = reference(schedule.collective, data, op, schedule.root, schedule.counts)
    got = rows_that_count(schedule.collective, result.outputs, schedule.root)
    right = got == expected
    if terms.relative:
        right = np.abs(got - expected) <= terms.relative * np.abs(expected) + terms.absolute
    return Check(int(np.count_nonzero(~right)), int(expected.size), checked, not terms.relative, result)


def affordable_count(schedule: Schedule, count: int, item_bytes: int) -> int:
    """The count, or a smaller one within the budget that leaves the same remainder of chunks and blocks."""
    elements = (input_size(schedule, 1, rank) + output_size(schedule, 1, rank) for rank in range(schedule.ranks))
    per_element = sum(elements) * item_bytes
    most = BUDGET_BYTES // per_element
    if count <= most:
        return count
    period = max(schedule.region_chunks, 1)
    if most >= 2 * period * BLOCK:
        period *= BLOCK
    return count % period + max(0, (most - count % period) // period) * period


def _affordable(schedule: Schedule, count: int, item_bytes: int) -> tuple[Schedule, int]:
    """Schedule and count within the budget: another count; or other counts, of which none that is not 0 becomes 0."""
    if schedule.counts is None:
        return schedule, affordable_count(schedule, count, item_bytes)
    factor = max(1, -(-2 * int(schedule.counts.sum()) * item_bytes // BUDGET_BYTES))
    smaller = replace(schedule, counts=-(-schedule.counts // factor))
    return smaller, settled_count(smaller, None)


@dataclass(frozen=True)
class _Terms:
    """What one rank contributes to an element, and the others; and how far the result may be from exact."""

    values: NDArray[Any]
    neutral: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


def _terms(payload: Payload, ranks: int, *, reduces: bool) -> _Terms:
    held, op = payload.runs_in, payload.operator if reduces else ""
    neutral = 1.0 if op == "prod" else 0.0
    if held.kind == INTEGER:
        values = np.array(INTEGERS)
        if op == "avg":
            values = ranks * np.arange(1, 1 + max(1, min(6, np.iinfo(held.storage).max // ranks)))
        if held.storage.kind != "u":
            return _Terms(_signed(values.astype(held.storage), op), neutral)
        return _Terms(values.astype(held.storage), float(INTEGERS[-1]) if op == "min" else neutral)
    kind = np.float32 if held.is_codes else held.storage
    if op == "avg":
        return _average(payload, ranks, kind)
    wire, mode = payload.wire_format, payload.recipe.scale_mode
    if _one_sided(payload):
        return _one_sided_terms(payload, ranks, op, kind)
    if not isinstance(wire, BlockFormat) or wire.scale.name == "float8_e8m0fnu":
        whole = isinstance(wire, ElementFormat) and wire.exponent_bits == 0
        exact = EXACT if mode in (None, "floor") else (1.0,)
        return _Terms(_signed(np.array(INTEGERS if whole else exact, kind), op), neutral)
    if op == "prod":
        return _Terms(_signed(np.ones(1, kind), op), neutral, relative=ranks * 2.0**-20)
    largest = wire.element.max * (wire.scale.max if wire.has_tensor_scale else 1.0)
    relative = ranks * 2.0**-20 if mode == "margin" else 0.0
    # 8-bit dtypes do not hold it, but bring what is near 1 back to 1
    return _Terms(_signed(np.array([largest if held.item_bytes > 1 else 1.0], kind), op), relative=relative)


def _one_sided(payload: Payload) -> bool:
    """Whether a block holds the largest magnitude of one sign alone exactly."""
    return isinstance(payload.wire_format, LaneFormat) or payload.recipe.scale_mode in ("asymmetric", "clipped")


def _one_sided_terms(payload: Payload, ranks: int, op: str, kind: Any) -> _Terms:
    wire = payload.wire_format
    if op == "prod":
        return _Terms(np.ones(1, kind), 1.0, relative=1.0)
    relative = ranks * 2.0**-9 if isinstance(wire, LaneFormat) and wire.element != "integer" else 0.0
    if isinstance(wire, LaneFormat):
        magnitude = 2.0 ** (wire.bits - 1) if wire.element == "integer" else ELEMENT_FORMATS[wire.element].max
    else:
        magnitude = 2.0 ** (wire.element.bits - 1) if isinstance(wire, BlockFormat) else 1.0
    if op == "max":  # what is least must be what is neutral
        return _Terms(np.array([-magnitude / 2], kind), -magnitude, relative=relative)
    return _Terms(np.array([-magnitude], kind), relative=relative)


def _average(payload: Payload, ranks: int, kind: Any) -> _Terms:
    """Plus or minus one magnitude, for which quotients by the number of ranks are ordinary numbers of the formats."""
    magnitude = 1.0
    signs = np.array([-1.0]) if _one_sided(payload) else np.array([1.0, -1.0])
    hops = ranks * 2.0**-9 if isinstance(payload.wire_format, LaneFormat) else ranks * 2.0**-20
    if payload.scales_first:
        narrow = ELEMENT_FORMATS.get(payload.runs_in.name)
        most = math.frexp(narrow.max)[1] - 1 if narrow else 127
        magnitude = 2.0 ** min((ranks - 1).bit_length(), most)
    elif payload.recipe.wire in BLOCK_FORMATS:
        # 1 travels whole, but for the rounding of float32 scales on every hop, and is divided at the end
        relative, absolute = _rounding(payload.dtype.name)
        return _Terms(signs.astype(kind), relative=2 * relative + hops, absolute=absolute)
    roundings = [_rounding(name) for name in (payload.dtype.name, payload.runs_in.name, payload.recipe.wire)]
    return _Terms(
        (magnitude * signs).astype(kind),
        relative=2 * sum(relative for relative, _ in roundings) + (hops if _one_sided(payload) else 0.0),
        absolute=sum(absolute for _, absolute in roundings),
    )


def _signed(values: NDArray[Any], op: str) -> NDArray[Any]:
    """Of either sign; but 0 must stay neutral: positive where the largest counts, negative where the least does."""
    if op == "max":
        return values
    return -values if op == "min" else np.concatenate([values, -values])


def _rounding(name: str) -> tuple[float, float]:
    """Largest error of one rounding: relative of normal numbers, absolute of subnormal ones."""
    if name in formats():
        return rounding_error(find_format(name))
    return {"float32": 2.0**-24, "float64": 2.0**-53}.get(name, 0.0), 0.0


def _contributions(schedule: Schedule, count: int, terms: _Terms, *, reduces: bool) -> Rows:
    """Data of all ranks; the choice of rank and value is pseudo-random and the same in every run."""
    random = np.random.default_rng(0)
    if schedule.collective in UNEVEN:
        return [random.choice(terms.values, input_size(schedule, count, rank)) for rank in range(schedule.ranks)]
    shape = (schedule.ranks, schedule.input_regions * count)
    if not reduces:
        return random.choice(terms.values, shape)
    data = np.full(shape, terms.neutral, terms.values.dtype)
    contributor = random.integers(schedule.ranks, size=shape[1])
    data[contributor, np.arange(shape[1])] = random.choice(terms.values, shape[1])
    return data
