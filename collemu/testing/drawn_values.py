"""Hypothesis strategies of numbers: types, formats, recipes, codes, and arrays of values that break number code.

How they shrink: a name to the first of its list, a recipe to the default one, numbers to 0. An array is a palette of a
few drawn numbers and a way to lay them out, so that it costs and shrinks the same at any size: to fewer different
numbers, nearer to 0, one after the other in turn.
"""

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from collemu.dtypes import DTYPES, FLOATING, Dtype, find_dtype, to_storage, to_values
from collemu.number_formats import (
    ELEMENT_FORMATS,
    BlockFormat,
    ElementFormat,
    LaneFormat,
    find_element_format,
    find_wire_format,
    wire_formats,
)
from collemu.published import PUBLISHED, find_recipe
from collemu.quantization import decode
from collemu.recipe import ACCUMULATE, DTYPE, REQUANTISE, Recipe

Shape = int | tuple[int, ...]

PALETTE = 16  # numbers that an array is made of
RUN = 32  # equal numbers, as many as the blocks of most formats
EXPONENTS = (0, 1, -1, 40, -40)  # of two, by which all numbers of an array are scaled
NO_NUMBERS = "float8_e8m0fnu"  # has neither zero nor sign, so that no collective sends it


def dtypes() -> SearchStrategy[str]:
    """Names of the types that `collemu.emulate` takes, for any collective; float32 is the simplest."""
    return st.sampled_from(tuple(DTYPES))


def wires(dtype: str = "float32") -> SearchStrategy[str]:
    """Names of what a collective of a dtype can send: ``none``, ``dtype``, and formats for floats of up to 32 bits."""
    formats = [name for name in wire_formats() if name != NO_NUMBERS] if is_narrow(dtype) else []
    return st.sampled_from(("none", DTYPE, *formats))


def recipes(dtype: str = "float32") -> SearchStrategy[Recipe]:
    """Recipes for a collective of a dtype: all that goes together, and those of published systems."""
    if not is_narrow(dtype):
        return st.builds(Recipe)
    return st.one_of(_own_recipes(dtype), st.builds(find_recipe, st.sampled_from(tuple(PUBLISHED))))


def codes(element_format: str, shape: Shape = ()) -> SearchStrategy[NDArray[Any]]:
    """Arrays of codes of an element format, as `collemu.decode` takes them: any code, or all of them in order."""
    element = find_element_format(element_format)
    return _codes(element, shape)


def tensors(
    dtype: str, shape: Shape, *, wire: str = "none", largest: float | None = None, not_finite: bool = True
) -> SearchStrategy[NDArray[Any]]:
    """Arrays of hard values: zeros of both signs, subnormals, powers of two, extremes, ties, NaN; equal blocks.

    Parameters
    ----------
    dtype : str
        A name of `dtypes`. Of bfloat16 and the 8-bit floats, which NumPy has not, the array holds codes.
    shape : int or tuple of int
    wire : str
        A name of `wires`: its extremes, and numbers halfway between two of its own, are among the values.
    largest : float, optional
        No magnitude above it.
    not_finite : bool
        Whether NaN and infinities are among the values; not with a largest one.
    """
    kind = find_dtype(dtype)
    finite = largest is not None or not not_finite
    hard = _hard_values(kind, wire, largest, finite)
    numbers = st.sampled_from(hard)
    if kind.kind != FLOATING:
        limits = np.iinfo(kind.storage)
        numbers |= st.integers(int(limits.min), int(limits.max))
    elif kind.is_codes:  # these are all that there are
        numbers = st.sampled_from(hard[:PALETTE]) | numbers
    else:
        bound = {} if largest is None else {"min_value": -largest, "max_value": largest}
        special = {"allow_nan": not finite, "allow_infinity": not finite}
        numbers |= st.floats(width=8 * kind.item_bytes, **bound, **special)  # pyright: ignore[reportArgumentType, reportCallIssue]
    scaled = kind.name in ("float32", "float64") and largest is None
    return _tensors(kind, shape, palettes(numbers), scaled, not finite)


def is_narrow(dtype: str) -> bool:
    """Whether a dtype is a float of at most 32 bits: what recipes are for."""
    found = find_dtype(dtype)
    return found.kind == FLOATING and found.item_bytes <= 4


def lacks_nan(recipe: Recipe) -> bool:
    """Whether a recipe's wire has no code for NaN, so that no sum may come to one."""
    if recipe.wire in ("none", DTYPE):
        return False
    wire = find_wire_format(recipe.wire)
    return isinstance(wire, ElementFormat) and not wire.has_nan


Laid = tuple[list[Any], str, int]  # a palette, how it is laid out, and the seed of a layout that is random


def palettes(numbers: SearchStrategy[Any]) -> SearchStrategy[Laid]:
    layouts = st.sampled_from(("in turn", "in runs", "anyhow"))
    return st.tuples(st.lists(numbers, min_size=1, max_size=PALETTE), layouts, st.integers(0, 2**16))


def laid_out(laid: Laid, shape: Shape, dtype: Any) -> NDArray[Any]:
    """An array of the numbers of a palette."""
    palette, layout, seed = laid
    size = shape if isinstance(shape, int) else prod(shape)
    if layout == "anyhow":
        index = np.random.default_rng(seed).integers(len(palette), size=size)
    else:
        index = np.arange(size) // (RUN if layout == "in runs" else 1) % len(palette)
    return np.array(palette, dtype)[index].reshape(shape)


@st.composite
def _codes(draw: DrawFn, element: ElementFormat, shape: Shape) -> NDArray[Any]:
    every = draw(st.booleans())
    if every:
        return _as_codes(laid_out((list(range(2**element.bits)), "in turn", 0), shape, np.uint32), element)
    return _as_codes(laid_out(draw(palettes(st.integers(0, 2**element.bits - 1))), shape, np.uint32), element)


def _as_codes(numbers: NDArray[Any], element: ElementFormat) -> NDArray[Any]:
    """Numbers from 0 as codes: of tfloat32 they are the highest bits of a word."""
    if element.bits > 16:
        return numbers.astype(np.uint32) << np.uint32(32 - element.bits)
    return numbers.astype(np.uint16 if element.bits > 8 else np.uint8)


@st.composite
def _tensors(
    draw: DrawFn,
    kind: Dtype,
    shape: Shape,
    palettes: SearchStrategy[Laid],
    scaled: bool,
    not_finite: bool,
) -> NDArray[Any]:
    array = laid_out(draw(palettes), shape, kind.storage)
    exponent = draw(st.sampled_from(EXPONENTS))  # for all types: one with fewer draws would count as simpler
    if exponent == 0 or not scaled:
        return array
    with np.errstate(over="ignore"):
        larger = np.ldexp(array, exponent)
    return larger if not_finite or np.isfinite(larger).all() else array


@st.composite
def _own_recipes(draw: DrawFn, dtype: str) -> Recipe:
    wire = draw(wires(dtype))
    fields: dict[str, SearchStrategy[Any]] = {
        "wire": st.just(wire),
        "accumulate": st.sampled_from(tuple(ACCUMULATE)),
        "round_own": st.sampled_from((True, False)),
        "dtype": st.sampled_from((None, *filter(is_narrow, DTYPES))),
    }
    if wire != "none":
        fields |= {"requantise": st.sampled_from(REQUANTISE), "round_input": st.booleans()}
        found = None if wire == DTYPE else find_wire_format(wire)
        if isinstance(found, BlockFormat):
            fields["scale_mode"] = st.sampled_from((None, *found.scale_modes))
    return draw(st.builds(Recipe, **fields))


@lru_cache(maxsize=256)
def _hard_values(kind: Dtype, wire: str, largest: float | None, finite: bool) -> tuple[Any, ...]:
    """Values of a dtype that deserve a try, as they lie in memory, simplest first; every code where it has few."""
    if kind.kind != FLOATING:
        limits = np.iinfo(kind.storage)
        found = {0, 1, 2, 3, -1, -2, int(limits.min), int(limits.max), int(limits.max) // 2 + 1}
        return tuple(
            sorted((each for each in found if limits.min <= each <= limits.max), key=lambda n: (abs(n), n < 0))
        )
    if kind.is_codes:
        storage = np.arange(2 ** (8 * kind.item_bytes), dtype=kind.storage)
        values = _as_float64(to_values(storage, kind))
    else:
        with np.errstate(over="ignore", under="ignore"):
            storage = to_storage(_special_values(kind, wire), kind)
        values = _as_float64(storage)
    kept = np.isfinite(values) & (np.abs(values) <= (largest or np.inf)) if finite else np.full(len(values), True)
    with np.errstate(divide="ignore"):
        far_from_one = np.where(values == 0, -1, np.abs(np.log2(np.abs(values))))
    hardness = far_from_one + 2.5 * np.signbit(values) + 1.5 * (values != np.rint(values))
    order = np.argsort(hardness, kind="stable")  # not a number comes last
    return tuple(storage[order[kept[order]]].tolist())


def _special_values(kind: Dtype, wire: str) -> NDArray[np.float64]:
    """What is hard for a dtype, and for a format on the wire; not rounded yet."""
    limits = np.finfo(kind.storage)
    powers = np.ldexp(1.0, [0, 1, -1, 2, -2, 3, 7, 8, -9, 15, -16, -24, 40, -40, 126, -126])
    least = [limits.smallest_subnormal, limits.tiny, limits.tiny - limits.smallest_subnormal]
    near = [1.0, 1.0 + limits.eps, 1.0 - limits.eps / 2, 0.1, 1.5, 3.0]
    largest = [limits.max, limits.max / 2, np.inf, np.nan]
    parts = [[0.0], powers, least, near, largest]
    element = _element_of(wire)
    if element is not None:
        own = _values_of(element)
        ties = (own[1:] + own[:-1]) / 2
        step = max(1, len(ties) // 64)  # of large formats a few
        parts += [ties[::step], ties[:2], [element.max, 1.01 * element.max, 2 * element.max, element.min_normal]]
    magnitudes = np.unique(np.concatenate([np.asarray(part, np.float64) for part in parts]))
    return np.concatenate([magnitudes, -magnitudes])


def _element_of(wire: str) -> ElementFormat | None:
    """The format of the codes on a wire; None where they are the dtype's."""
    if wire in ("none", DTYPE):
        return None
    found = find_wire_format(wire)
    if isinstance(found, LaneFormat):
        return ELEMENT_FORMATS[found.element] if found.element in ELEMENT_FORMATS else ELEMENT_FORMATS["int8"]
    return found.element if isinstance(found, BlockFormat) else found


@lru_cache(maxsize=32)
def _values_of(element: ElementFormat) -> NDArray[np.float64]:
    """The finite numbers of a format from 0 on, ascending."""
    if element.exponent_bits == 0:
        return np.arange(2.0 ** (element.bits - 1)) * element.min_subnormal
    numbers = np.arange(2**element.bits, dtype=np.uint32)
    every = _as_float64(decode(_as_codes(numbers, element), element.name))
    return np.unique(every[np.isfinite(every) & (every >= 0)])


def _as_float64(values: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return values.astype(np.float64)
