"""Numbers to codes and back: `encode` and `decode` one by one, `quantize` for blocks that share a scale.

Every value is rounded once, from the number that was given: `collemu.inputs` says how float64 is. Stochastic roundings
alone take the nearest float32.
"""

from typing import Any

import numpy as np
from collemu_kernels import format_ids as ids
from collemu_kernels.blocks import encode_rows
from collemu_kernels.elements import (
    decode_e8m0,
    decode_elements,
    encode_e8m0,
    encode_elements,
    encode_rounded,
)
from collemu_kernels.images import decode_image, encode_image
from collemu_kernels.integers import decode_integers, encode_integers
from numpy.typing import ArrayLike, NDArray

from collemu.arguments import flag, one_of, whole
from collemu.blocks import (
    Quantized,
    from_rows,
    in_order,
    index_of_axis,
    refuse_order,
    row_sizes,
    rows_along,
    scale_numbers,
    split_shape,
)
from collemu.inputs import as_float32, plain
from collemu.number_formats import (
    E8M0,
    WHOLE_ROW,
    BlockFormat,
    ElementFormat,
    find_block_format,
    find_element_format,
)

ROUNDINGS = {
    "nearest_even": ids.NEAREST_EVEN,
    "nearest_away": ids.NEAREST_AWAY,
    "toward_zero": ids.TOWARD_ZERO,
    "up": ids.UP,
    "down": ids.DOWN,
    "stochastic": ids.STOCHASTIC,
    "stochastic_8bit": ids.STOCHASTIC,
}
RANDOM_BITS = {  # which of the 64 bits drawn for a number count
    "stochastic": 0xFFFF_FFFF_FFFF_FFFF,
    "stochastic_8bit": 0xFF00_0000_0000_0000,
}
SCALE_MODES = {
    "floor": ids.FLOOR,
    "ceil": ids.CEIL,
    "even": ids.EVEN,
    "rceil": ids.RCEIL,
    "trn3": ids.TRN3,
    "two_level": ids.TWO_LEVEL,
    "torchao": ids.TORCHAO,
    "amax": ids.AMAX,
    "pow2": ids.POW2,
    "margin": ids.MARGIN,
    "asymmetric": ids.ASYMMETRIC,
    "clipped": ids.CLIPPED,
}
NAN_RULES = ("propagate", "raise", "zero")


def encode(
    x: ArrayLike,
    element_format: str,
    *,
    rounding: str = "nearest_even",
    saturate: bool = True,
    nan: str = "propagate",
    seed: int | None = None,
    typed: bool = False,
) -> NDArray[Any]:
    """Codes of numbers in an element format.

    Parameters
    ----------
    x : array of numbers
        Any shape, memory order and byte order.
    element_format : str
        A name of `formats`.
    rounding : str
        nearest_even, nearest_away, toward_zero, up, down; stochastic (away from zero with the probability of the
        dropped fraction, so unbiased) or stochastic_8bit (of its first 8 bits, as conversions to FP4 on Blackwell take
        them). These two need a seed, and round the nearest float32.
    saturate : bool
        What overflows, infinities included, becomes the largest finite number; False gives infinity, or NaN
        in a format without infinity. FP6, FP4 and integers have neither, and always saturate.
    nan : str
        propagate: the format's NaN; raise: ValueError; zero: +0.
    seed : int, optional
        Of the stochastic roundings. Number i of ``x`` in C order takes random number i of Philox 4x64, so the codes
        depend on nothing else.
    typed : bool
        Return the codes as an array of the type of that name, of NumPy or ml_dtypes; tfloat32 has none.

    Returns
    -------
    numpy.ndarray
        The shape of ``x``; uint8, a code a byte (also FP4), two's complement for integers; uint16 for bfloat16 and
        float16; uint32 for tfloat32: float32 words whose 13 lowest bits are zero.

    Raises
    ------
    ValueError
        For an unknown name; for a NaN where ``nan`` forbids it or the format has none.

    Notes
    -----
    float8_e8m0fnu has neither zero nor sign: 0, negative numbers and NaN give its NaN, 0xFF.
    """
    element = find_element_format(element_format)
    one_of(rounding, ROUNDINGS, "rounding")
    one_of(nan, NAN_RULES, "nan")
    saturate, typed = flag(saturate, "saturate"), flag(typed, "typed")
    if typed and element.name == "tfloat32":
        raise ValueError("encode: tfloat32 has no type in NumPy or ml_dtypes; use typed=False")
    # a sticky bit would weigh far more than what it stands for, so what is drawn for takes the nearest float32
    values = as_float32(x, "encode: x", to_odd=rounding not in RANDOM_BITS)
    shape = values.shape
    values = _without_nan(values, nan, f"encode: {element.name}", has_nan=element.has_nan)
    values = plain(values).reshape(-1)
    if element is E8M0:
        codes = _encode_e8m0(values, rounding, saturate, nan)
    else:
        codes = _encode(values, element, rounding, saturate, _random_bits(rounding, seed, values.size))
    return (_as_typed(codes, element) if typed else codes).reshape(shape)


def decode(codes: ArrayLike, element_format: str) -> NDArray[np.float32]:
    """float32 values of codes, exact.

    Parameters
    ----------
    codes : array of uint8
        A code a byte (also FP4); uint16 for bfloat16 and float16, uint32 for tfloat32. An array of that very format
        (ml_dtypes, or NumPy's float16 and int8) is taken as its codes.
    element_format : str
        A name of `formats`.

    Returns
    -------
    numpy.ndarray
        float32, the shape of ``codes``.

    Raises
    ------
    ValueError
        For an unknown name, for codes of another type or outside the format.
    """
    element = find_element_format(element_format)
    try:
        array = np.asarray(codes)
    except ValueError:
        raise ValueError("decode: rows of different lengths are no array; make them equally long") from None
    storage = _storage(element)
    if array.size == 0 and not isinstance(codes, np.ndarray):  # an empty list has no type of its own
        array = array.astype(storage)
    if array.dtype.name == element.name:
        native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
        array = native.view(storage).reshape(array.shape)
        if element.exponent_bits == 0:  # ml_dtypes repeats the sign of 4-bit integers
            array = array & storage.type((1 << element.bits) - 1)
    if array.dtype.newbyteorder("=") != storage:
        raise ValueError(f"decode: codes of {element.name} are {storage}, not {array.dtype}; encode numbers first")
    flat: NDArray[Any] = plain(array.astype(storage, copy=False)).reshape(-1)
    if element.bits < 8 and flat.size and int(flat.max()) >> element.bits:
        raise ValueError(f"decode: {int(flat.max()):#04x} is no code of {element.name}, which has {1 << element.bits}")
    if element.bits > 16 and (flat << np.uint32(element.bits)).any():
        raise ValueError(f"decode: words of {element.name} have zeros below their {element.bits} highest bits")
    values = np.empty(flat.size, np.float32)
    with np.errstate(all="ignore"):
        if element.bits > 8:
            decode_image(flat.view(np.uint8), element.format_id, values)
        elif element.exponent_bits == 0:
            decode_integers(flat, element.bits, values)
        elif element.has_sign:
            decode_elements(flat, element.format_id, values)
        else:
            decode_e8m0(flat, values)
    return values.reshape(array.shape)


def quantize(
    x: ArrayLike,
    block_format: str,
    *,
    scale_mode: str | None = None,
    rounding: str = "nearest_even",
    saturate: bool = True,
    nan: str = "propagate",
    order: str = "low_first",
    axis: int = -1,
    square: bool = False,
    seed: int | None = None,
) -> Quantized:
    """Codes and shared scales of numbers in a block format.

    Blocks lie along ``axis`` and never reach into the next row; a short last block has the scale of its own
    elements.

    Parameters
    ----------
    x : array of numbers
        Any shape, memory order and byte order. A 0-d array is one block of one element.
    block_format : str
        A name of `formats`.
    scale_mode : str, optional
        How a block's scale follows from its largest magnitude, amax. MX: floor (default; OCP MX 1.0 section 6.3),
        ceil, even, rceil, trn3 (floor + 1). nvfp4: two_level (default; TransformerEngine), torchao. fp8_*: amax
        (default; elements are x * (448 / amax), the reciprocal of which is the scale), pow2 (that factor rounded down
        to a power of two), margin (DeepEP's: as amax, but of an amax of at least 1e-4, and amax * (1 / 448) is the
        scale). int*: amax (default; amax / 127, or / 7), asymmetric (QuickReduce's: the number of largest magnitude, a
        negative one if both signs have it, over -128, or -8, so that it becomes the most negative code), clipped
        (ZeRO++'s: amax / 128, or / 8; a positive number of largest magnitude is clipped to 127 / 128, or 7 / 8, of it).
    rounding, seed
        Of the elements, as in `encode`.
    saturate : bool
        Elements beyond the largest finite one become it; False as in `encode`.
    nan : str
        propagate: a block that holds a NaN or an infinity has the scale NaN (0xFF; 0x7F in nvfp4) and codes
        0, and does not enter the tensor scale; raise: ValueError for either; zero: NaN becomes +0.
    order : str
        Which of two 4-bit codes takes the low nibble of their byte: low_first (the first) or high_first. Other codes
        have no such choice: low_first.
    axis : int
        Along which blocks lie; -1 or 0 of a 0-d array.
    square : bool
        Blocks also reach over as many rows, along the last axis that is not ``axis``, as they have elements in one:
        16 x 16 of nvfp4, 128 x 128 of fp8_block128. Every row keeps the scales that it shares.

    Returns
    -------
    Quantized

    Raises
    ------
    ValueError
        For an unknown name, a wrong axis or seed, a float64 beyond float32, a NaN or infinity under nan="raise", square
        blocks of a vector, of fp8_row or under asymmetric scales.

    Notes
    -----
    MX scales are powers of two, so elements are rounded once from the exact input, float64 included. The other
    formats are defined by float32 arithmetic; other inputs are rounded to float32 first.

    Integers are two's complement without their most negative code (which decodes all the same, and which asymmetric
    and clipped scales use), and have no -0.
    fp8_row scales each row as a whole: give it rows for scales a token, and a flat array for one scale a tensor.
    The scales of an all-zero tensor are NaN under torchao, as torchao 0.18 makes them.
    """
    block = find_block_format(block_format)
    scale_rule = block.scale_modes[0] if scale_mode is None else scale_mode
    saturate, square = flag(saturate, "saturate"), flag(square, "square")
    one_of(rounding, ROUNDINGS, "rounding")
    one_of(scale_rule, block.scale_modes, f"{block.name}: scale_mode")
    one_of(nan, NAN_RULES, "nan")
    refuse_order(order, block)
    values = as_float32(x, "quantize: x", to_odd=block.scale is E8M0 and rounding not in RANDOM_BITS)
    _refuse_beyond_float32(x, values)
    if nan == "raise" and not np.isfinite(values).all():
        raise ValueError("quantize: x has a NaN or an infinity, whose block would be NaN: nan='raise' refuses it")
    values = _without_nan(values, nan, f"quantize: {block.name}", has_nan=True)
    shape = values.shape
    axis = index_of_axis(axis)
    lead, length = split_shape(shape, axis)
    rows = rows_along(values, axis)
    if square and scale_rule == "asymmetric":
        raise ValueError(f"{block.name}: asymmetric scales are of blocks of one row; use square=False")
    matrix_rows, tile_rows = _square_blocks(block, shape, lead) if square else (1, 1)
    row_codes, row_scales = row_sizes(block, length)
    codes = np.empty((len(rows), row_codes), np.uint8)
    scales = np.empty((len(rows), row_scales), np.uint8)
    tensor_scale = np.empty(1, np.float32)
    random = _random_bits(rounding, seed, rows.size)
    with np.errstate(all="ignore"):
        encode_rows(
            rows,
            block.format_id,
            SCALE_MODES[scale_rule],
            ROUNDINGS[rounding],
            saturate,
            random,
            matrix_rows,
            tile_rows,
            codes,
            scales,
            tensor_scale,
        )
    return Quantized(
        codes=from_rows(in_order(codes, order, block), lead, axis),
        scales=from_rows(scale_numbers(scales, block), lead, axis),
        tensor_scale=np.float32(tensor_scale[0]) if block.has_tensor_scale and values.size else None,
        shape=shape,
        format=block.name,
        axis=axis,
        order=order,
    )


def _encode(
    values: NDArray[np.float32], element: ElementFormat, rounding: str, saturate: bool, random: NDArray[np.uint64]
) -> NDArray[Any]:
    codes: NDArray[Any] = np.empty(values.size, _storage(element))
    number = element.format_id
    with np.errstate(all="ignore"):
        if element.exponent_bits == 0:
            encode_integers(values, element.bits, ROUNDINGS[rounding], random, codes)
        elif rounding != "nearest_even":
            encode_rounded(values, number, saturate, ROUNDINGS[rounding], random, codes)
            if element.bits > 16:
                codes <<= np.uint32(32 - element.bits)
        elif element.bits > 8:
            encode_image(values, number, saturate, codes.view(np.uint8))
        else:
            encode_elements(values, number, saturate, codes)
    return codes


def _storage(element: ElementFormat) -> np.dtype[Any]:
    """How codes of a format lie in arrays."""
    if element.bits <= 8:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if element.bits == 16 else np.uint32)


def _as_typed(codes: NDArray[Any], element: ElementFormat) -> NDArray[Any]:
    """Codes as an array of the type of their format's name."""
    if element.name in ("float16", "int8"):
        return codes.view(element.name)
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, element.name))
    if element.exponent_bits == 0:
        return decode(codes, element.name).astype(dtype)
    return codes.view(dtype)


def _random_bits(rounding: str, seed: int | None, count: int) -> NDArray[np.uint64]:
    if rounding not in RANDOM_BITS:
        return np.empty(0, np.uint64)
    if seed is None:
        raise ValueError(f"rounding={rounding!r} needs a seed: the same seed gives the same codes")
    random = np.asarray(np.random.Philox(whole(seed, "seed")).random_raw(count), np.uint64)
    return random & np.uint64(RANDOM_BITS[rounding])


def _without_nan(values: NDArray[np.float32], nan: str, what: str, *, has_nan: bool) -> NDArray[np.float32]:
    if nan == "propagate" and has_nan:
        return values
    holes = np.isnan(values)
    if not holes.any():
        return values
    if nan == "zero":
        return np.where(holes, np.float32(0), values)
    first = np.unravel_index(int(holes.argmax()), holes.shape)
    reason = "nan='raise' refuses it" if nan == "raise" else "the format has no code for it; pass nan='zero'"
    raise ValueError(f"{what}: x has {int(holes.sum())} NaN, the first at {tuple(map(int, first))}: {reason}")


def _refuse_beyond_float32(x: ArrayLike, values: NDArray[np.float32]) -> None:
    array = np.asarray(x)
    if array.dtype.kind != "f" or array.dtype.itemsize < 8:
        return
    beyond = np.isfinite(array) & ((np.abs(array) >= 2.0**128) | ~np.isfinite(values))
    if beyond.any():
        value = float(array[beyond][0])
        raise ValueError(f"quantize: x holds {value:g}, beyond float32 (2**128); scale x first")


def _encode_e8m0(values: NDArray[np.float32], rounding: str, saturate: bool, nan: str) -> NDArray[np.uint8]:
    if rounding in RANDOM_BITS:
        allowed = [name for name in ROUNDINGS if name not in RANDOM_BITS]
        raise ValueError(f"encode: float8_e8m0fnu has no stochastic rounding; choose {', '.join(allowed)}")
    if nan == "zero":
        raise ValueError("encode: float8_e8m0fnu has no zero for a NaN; choose nan='propagate' or 'raise'")
    codes = np.empty(values.size, np.uint8)
    with np.errstate(all="ignore"):
        encode_e8m0(values, saturate, ROUNDINGS[rounding], codes)
    return codes


def _square_blocks(block: BlockFormat, shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a matrix, over which square blocks lie, and rows of a block."""
    if block.block == WHOLE_ROW:
        raise ValueError(f"{block.name}: a row has one scale, so its blocks cannot be square; use square=False")
    if not lead:
        raise ValueError(f"{block.name}: square blocks need a matrix, not shape {shape}; use square=False")
    return max(lead[-1], 1), block.block
