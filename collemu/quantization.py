"""Numbers to codes and back: `encode` and `decode` one by one, `quantize` for blocks that share a scale.

Every value is rounded once, from the number that was given: `collemu.inputs` says how float64 is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from collemu_kernels import format_ids as ids
from collemu_kernels.blocks import decode_rows, encode_rows
from collemu_kernels.elements import (
    decode_e8m0,
    decode_elements,
    encode_e8m0,
    encode_elements,
    encode_rounded,
)
from collemu_kernels.images import decode_image, encode_image
from collemu_kernels.packing import code_bytes, unpack
from numpy.typing import ArrayLike, NDArray

from collemu.inputs import as_float32
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
}
NAN_RULES = ("propagate", "raise", "zero")
ORDERS = ("low_first", "high_first")


def encode(
    x: ArrayLike,
    element_format: str,
    *,
    rounding: str = "nearest_even",
    saturate: bool = True,
    nan: str = "propagate",
    seed: int | None = None,
) -> NDArray[Any]:
    """Codes of numbers in an element format.

    Parameters
    ----------
    x : array of numbers
        Any shape, memory order and byte order.
    element_format : str
        A name of `formats`.
    rounding : str
        nearest_even, nearest_away, toward_zero, up, down, or stochastic (away from zero with the probability
        of the dropped fraction; needs a seed).
    saturate : bool
        What overflows, infinities included, becomes the largest finite number; False gives infinity, or NaN
        in a format without infinity. FP6 and FP4 have neither, and always saturate.
    nan : str
        propagate: the format's NaN; raise: ValueError; zero: +0.
    seed : int, optional
        Of the stochastic rounding.

    Returns
    -------
    numpy.ndarray
        uint8, a code a byte (also FP4), or uint16 for bfloat16 and float16; the shape of ``x``.

    Raises
    ------
    ValueError
        For an unknown name; for a NaN where ``nan`` forbids it or the format has none.

    Notes
    -----
    float8_e8m0fnu has neither zero nor sign: 0, negative numbers and NaN give its NaN, 0xFF.
    """
    element = find_element_format(element_format)
    _choice(rounding, ROUNDINGS, "rounding")
    _choice(nan, NAN_RULES, "nan")
    values = as_float32(x, "encode: x")
    shape = values.shape
    values = _without_nan(values, nan, f"encode: {element.name}", has_nan=element.has_nan)
    values = _plain(values).reshape(-1)
    if element is E8M0:
        return _encode_e8m0(values, rounding, saturate, nan).reshape(shape)
    random = _random_bits(rounding, seed, values.size)
    codes: NDArray[Any] = np.empty(values.size, _storage(element))
    with np.errstate(all="ignore"):
        if rounding != "nearest_even":
            encode_rounded(values, element.format_id, saturate, ROUNDINGS[rounding], random, codes)
        elif element.bits == 16:
            encode_image(values, element.format_id, saturate, codes.view(np.uint8))
        else:
            encode_elements(values, element.format_id, saturate, codes)
    return codes.reshape(shape)


def decode(codes: ArrayLike, element_format: str) -> NDArray[np.float32]:
    """float32 values of codes, exact.

    Parameters
    ----------
    codes : array of uint8
        A code a byte (also FP4); uint16 for bfloat16 and float16. An array of that very format (ml_dtypes, or
        NumPy's float16) is taken as its codes.
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
    array = np.asarray(codes)
    storage = _storage(element)
    if array.dtype.name == element.name:
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).view(storage).reshape(array.shape)
    if array.dtype.newbyteorder("=") != storage:
        raise ValueError(f"decode: codes of {element.name} are {storage}, not {array.dtype}; encode numbers first")
    flat: NDArray[Any] = _plain(array.astype(storage, copy=False)).reshape(-1)
    if element.bits < 8 and flat.size and int(flat.max()) >> element.bits:
        raise ValueError(f"decode: {int(flat.max()):#04x} is no code of {element.name}, which has {1 << element.bits}")
    values = np.empty(flat.size, np.float32)
    with np.errstate(all="ignore"):
        if element.bits == 16:
            decode_image(flat.view(np.uint8), element.format_id, values)
        elif element.has_sign:
            decode_elements(flat, element.format_id, values)
        else:
            decode_e8m0(flat, values)
    return values.reshape(array.shape)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes with the scales that they share.

    Attributes
    ----------
    codes : numpy.ndarray of uint8
        As ``shape``, but along ``axis`` it counts bytes: codes of 4 and 6 bits lie side by side, from the lowest bit
        of the first byte on, and end with a whole byte. 0-d counts as one element.
    scales : numpy.ndarray of uint8 or float32
        As ``shape``, but along ``axis`` it counts blocks. Codes of a scale format, or float32 numbers.
    tensor_scale : numpy.float32 or None
        What every decoded value is multiplied by (NVFP4).
    shape : tuple of int
        Of the numbers.
    format : str
        Name of the block format.
    axis : int
        Along which blocks lie.
    order : str
        Of codes of 4 bits in a byte: low_first or high_first.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    tensor_scale: np.float32 | None
    shape: tuple[int, ...]
    format: str
    axis: int = -1
    order: str = "low_first"

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: codes, scales and tensor scale."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.tensor_scale is None else 4)

    def dequantize(self) -> NDArray[np.float32]:
        """float32 numbers: element times scale, rounded to float32 (powers of two: exact), times the tensor scale."""
        block = find_block_format(self.format)
        codes = _ordered(_rows(self.codes, self.axis), self.order, block)
        scales = _scale_bytes(_rows(self.scales, self.axis))
        lead, length = _split(self.shape, self.axis)
        values = np.empty((prod(lead), length), np.float32)
        tensor_scale = np.float32(1) if self.tensor_scale is None else self.tensor_scale
        with np.errstate(all="ignore"):
            decode_rows(codes, scales, tensor_scale, block.format_id, values)
        return _from_rows(values, lead, self.axis).reshape(self.shape)

    def element_codes(self) -> NDArray[np.uint8]:
        """The codes one a byte, in the shape of the numbers."""
        block = find_block_format(self.format)
        packed = _ordered(_rows(self.codes, self.axis), self.order, block)
        lead, length = _split(self.shape, self.axis)
        bits = block.element.bits
        if bits == 8:
            return _from_rows(packed, lead, self.axis).reshape(self.shape)
        codes = np.empty((len(packed), length), np.uint8)
        if length * bits % 8 == 0:  # rows meet without a gap
            unpack(packed.reshape(-1), bits, codes.reshape(-1))
        else:
            for row, row_codes in zip(packed, codes, strict=True):
                unpack(row, bits, row_codes)
        return _from_rows(codes, lead, self.axis).reshape(self.shape)

    def to_bytes(self) -> bytes:
        """The wire image: codes, then scales, then the tensor scale if there is one; float32 are little-endian.

        Rows along ``axis`` follow each other in C order of the other axes.
        """
        image = _rows(self.codes, self.axis).tobytes() + _scale_bytes(_rows(self.scales, self.axis)).tobytes()
        if self.tensor_scale is not None:
            image += np.array(self.tensor_scale, "<f4").tobytes()
        return image

    @classmethod
    def from_bytes(
        cls,
        buf: bytes | bytearray | memoryview | NDArray[np.uint8],
        block_format: str,
        shape: int | tuple[int, ...],
        *,
        axis: int = -1,
        order: str = "low_first",
    ) -> "Quantized":
        """Read a wire image that `to_bytes` wrote.

        Raises
        ------
        ValueError
            If the bytes are not as many as the format and shape need.
        """
        block = find_block_format(block_format)
        _choice(order, ORDERS, "order")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        lead, length = _split(shape, axis)
        rows = prod(lead)
        row_codes, row_scales = _row_sizes(block, length)
        image = np.frombuffer(buf, np.uint8).copy()
        codes_end = rows * row_codes
        scales_end = codes_end + rows * row_scales
        has_tensor_scale = block.has_tensor_scale and scales_end > 0
        needed = scales_end + (4 if has_tensor_scale else 0)
        if image.size != needed:
            raise ValueError(f"from_bytes: {block.name} of shape {shape} takes {needed} bytes, not {image.size}")
        return cls(
            codes=_from_rows(image[:codes_end].reshape(rows, row_codes), lead, axis),
            scales=_from_rows(_scale_numbers(image[codes_end:scales_end].reshape(rows, row_scales), block), lead, axis),
            tensor_scale=np.float32(image[scales_end:].view("<f4")[0]) if has_tensor_scale else None,
            shape=shape,
            format=block.name,
            axis=axis,
            order=order,
        )


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
        to a power of two). int*: amax (amax / 127, or / 7).
    rounding, seed
        Of the elements, as in `encode`.
    saturate : bool
        Elements beyond the largest finite one become it; False as in `encode`.
    nan : str
        propagate: a block that holds a NaN or an infinity has the scale NaN (0xFF; 0x7F in nvfp4) and codes
        0, and does not enter the tensor scale; raise: ValueError for either; zero: NaN becomes +0.
    order : str
        Which of two 4-bit codes takes the low nibble of their byte: low_first (the first) or high_first.
    axis : int
        Along which blocks lie.
    square : bool
        Blocks also reach over as many rows, along the last axis that is not ``axis``, as they have elements in one:
        16 x 16 of nvfp4, 128 x 128 of fp8_block128. Every row keeps the scales that it shares.

    Returns
    -------
    Quantized

    Raises
    ------
    ValueError
        For an unknown name, a wrong axis, a float64 beyond float32, a NaN or infinity under nan="raise", square
        blocks of a vector or of fp8_row.

    Notes
    -----
    MX scales are powers of two, so elements are rounded once from the exact input, float64 included. The other
    formats are defined by float32 arithmetic; other inputs are rounded to float32 first.

    Integers are two's complement without their most negative code (which decodes all the same), and have no -0.
    fp8_row scales each row as a whole: give it rows for scales a token, and a flat array for one scale a tensor.
    The scales of an all-zero tensor are NaN under torchao, as torchao 0.18 makes them.
    """
    block = find_block_format(block_format)
    scale_rule = scale_mode or block.scale_modes[0]
    _choice(rounding, ROUNDINGS, "rounding")
    _choice(scale_rule, block.scale_modes, f"{block.name}: scale_mode")
    _choice(nan, NAN_RULES, "nan")
    _choice(order, ORDERS, "order")
    values = as_float32(x, "quantize: x", to_odd=block.scale is E8M0)
    _refuse_beyond_float32(x, values)
    if nan == "raise" and not np.isfinite(values).all():
        raise ValueError("quantize: x has a NaN or an infinity, whose block would be NaN: nan='raise' refuses it")
    values = _without_nan(values, nan, f"quantize: {block.name}", has_nan=True)
    shape = values.shape
    lead, length = _split(shape, axis)
    rows = _rows(values, axis)
    matrix_rows, tile_rows = _square_blocks(block, shape, lead) if square else (1, 1)
    row_codes, row_scales = _row_sizes(block, length)
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
        codes=_from_rows(_ordered(codes, order, block), lead, axis),
        scales=_from_rows(_scale_numbers(scales, block), lead, axis),
        tensor_scale=np.float32(tensor_scale[0]) if block.has_tensor_scale and values.size else None,
        shape=shape,
        format=block.name,
        axis=axis,
        order=order,
    )


def _choice(given: str, allowed: Iterable[str], what: str) -> None:
    if given not in allowed:
        raise ValueError(f"{what}={given!r} is not supported; choose {', '.join(allowed)}")


def _storage(element: ElementFormat) -> np.dtype[Any]:
    """How codes of a format lie in arrays."""
    return np.dtype(np.uint16 if element.bits == 16 else np.uint8)


def _random_bits(rounding: str, seed: int | None, count: int) -> NDArray[np.uint64]:
    if rounding != "stochastic":
        return np.empty(0, np.uint64)
    if seed is None:
        raise ValueError("rounding='stochastic' needs a seed: the same seed gives the same codes")
    return np.asarray(np.random.Philox(seed).random_raw(count), np.uint64)


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
    if rounding == "stochastic":
        allowed = [name for name in ROUNDINGS if name != rounding]
        raise ValueError(f"encode: float8_e8m0fnu has no stochastic rounding; choose {', '.join(allowed)}")
    if nan == "zero":
        raise ValueError("encode: float8_e8m0fnu has no zero for a NaN; choose nan='propagate' or 'raise'")
    codes = np.empty(values.size, np.uint8)
    with np.errstate(all="ignore"):
        encode_e8m0(values, saturate, ROUNDINGS[rounding], codes)
    return codes


def _split(shape: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], int]:
    """Lengths of the other axes, and the length along the axis; a 0-d shape is one of one element."""
    if not shape:
        shape = (1,)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis={axis} is outside shape {shape}; choose -{len(shape)} to {len(shape) - 1}")
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :]), shape[axis]


def _rows(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """The rows along an axis as a C-contiguous matrix."""
    array = np.atleast_1d(array)
    moved = np.moveaxis(array, axis, -1)
    return _plain(moved).reshape(prod(moved.shape[:-1]), moved.shape[-1])


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """C-contiguous and writable, as the kernels take arrays: a read-only one would be another type to compile for."""
    return np.require(array, requirements=["C", "W"])


def _from_rows(rows: NDArray[Any], lead: tuple[int, ...], axis: int) -> NDArray[Any]:
    """Reverse of `_rows`: the axis back in its place."""
    return np.moveaxis(rows.reshape(*lead, rows.shape[-1]), -1, axis)


def _row_sizes(block: BlockFormat, length: int) -> tuple[int, int]:
    """Bytes of the codes and of the scales of a row."""
    return int(code_bytes(length, block.element.format_id)), -(-length // block.block) * (block.scale.bits // 8)


def _scale_numbers(scales: NDArray[np.uint8], block: BlockFormat) -> NDArray[Any]:
    """Scales as users see them, from the bytes of rows: uint8 codes, or float32."""
    return scales if block.scale.bits == 8 else np.ascontiguousarray(scales).view("<f4").astype(np.float32, copy=False)


def _scale_bytes(scales: NDArray[Any]) -> NDArray[np.uint8]:
    """Reverse of `_scale_numbers`."""
    return scales if scales.dtype == np.uint8 else scales.astype("<f4", copy=False).view(np.uint8)


def _square_blocks(block: BlockFormat, shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a matrix, over which square blocks lie, and rows of a block."""
    if block.block == WHOLE_ROW:
        raise ValueError(f"{block.name}: a row has one scale, so its blocks cannot be square; use square=False")
    if not lead:
        raise ValueError(f"{block.name}: square blocks need a matrix, not shape {shape}; use square=False")
    return max(lead[-1], 1), block.block


def _ordered(codes: NDArray[np.uint8], order: str, block: BlockFormat) -> NDArray[np.uint8]:
    """Codes as the kernels pack them, low nibble first, from ``order`` or into it."""
    if order == "low_first" or block.element.bits != 4:
        return codes
    return (codes >> np.uint8(4)) | (codes << np.uint8(4))
