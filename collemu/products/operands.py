"""The matrices of a product: as users give them, and as the kernels take them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collemu.inputs import as_float32, plain
from collemu.number_formats import ELEMENT_FORMATS, ElementFormat, find_block_format, find_element_format
from collemu.quantization import Quantized, decode, encode


@dataclass(frozen=True, eq=False)
class Coded:
    """Codes of an element format, a byte each."""

    codes: NDArray[np.uint8]
    element: ElementFormat

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.codes.shape

    def numbers(self) -> NDArray[np.float32]:
        """What the codes stand for."""
        return decode(self.codes, self.element.name)


Matrix = Quantized | Coded | NDArray[np.float32]


@dataclass(frozen=True)
class Operand:
    """One matrix as the kernels take it: flat, with strides in elements.

    Attributes
    ----------
    values : numpy.ndarray
        float32 numbers, or uint8 codes.
    outer, k : int
        Strides: from row to row of a or column to column of b, and from k to k.
    table, exponents : numpy.ndarray
        Numbers of the codes, and their exponents; empty if there are none.
    scales, significands : numpy.ndarray
        Of the blocks of each row of a or column of b, flat; empty if there are none.
    """

    values: NDArray[Any]
    outer: int
    k: int
    table: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    exponents: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    scales: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    significands: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))


Add = Callable[[Operand, Operand, int, int, NDArray[np.float32]], None]


def as_matrix(x: Quantized | ArrayLike, element_format: str | None, default: str | None, name: str) -> Matrix:
    """A user's operand, of at least two dimensions.

    Parameters
    ----------
    x : Quantized or array
    element_format : str or None
        What its numbers or uint8 codes are in.
    default : str or None
        What numbers are in where that is None and the model multiplies codes.
    name : str
        How errors call it.
    """
    if isinstance(x, Quantized):
        if element_format is not None:
            raise ValueError(f"matmul: {name} is a Quantized of {x.format}; leave {name}_format out")
        return x
    array = np.asarray(x)
    of_array = ELEMENT_FORMATS.get(array.dtype.name)
    narrow = of_array is not None and of_array.bits <= 8 and of_array.has_sign and of_array.exponent_bits > 0
    stated = element_format
    if narrow and of_array is not None:
        if element_format not in (None, of_array.name):
            raise ValueError(f"matmul: {name} is an array of {of_array.name}; {name}_format={element_format!r} differs")
        stated = of_array.name
    elif stated is None:
        if default is None:
            return as_float32(array, f"matmul: {name}", to_odd=False)
        if array.dtype == np.uint8:
            raise ValueError(f"matmul: {name} is uint8; say with {name}_format what its codes are, or give numbers")
        stated = default
    element = find_element_format(stated)
    if element.bits > 8 or not element.has_sign:
        raise ValueError(f"matmul: {name}_format={stated!r} is no format of signed numbers of at most 8 bits")
    if narrow or array.dtype == np.uint8:
        decode(array, element.name)  # refuses codes outside the format
        codes = plain(array).view(np.uint8).reshape(array.shape)
        return Coded(codes, element)
    numbers = as_float32(array, f"matmul: {name}", to_odd=False)
    return Coded(_exact_codes(numbers, element, name), element)


def _exact_codes(numbers: NDArray[np.float32], element: ElementFormat, name: str) -> NDArray[np.uint8]:
    codes = encode(numbers, element.name, nan="propagate" if element.has_nan else "raise", saturate=False)
    back = decode(codes, element.name)
    wrong = (back != numbers) & ~(np.isnan(back) & np.isnan(numbers))
    if wrong.any():
        first = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise ValueError(
            f"matmul: {name} holds {float(numbers[first]):g} at {tuple(map(int, first))}, which is no number of "
            f"{element.name}; encode it first, or name its format with {name}_format"
        )
    return codes


def dense(x: Matrix) -> NDArray[np.float32]:
    """The float32 numbers of a matrix."""
    if isinstance(x, Quantized):
        return x.dequantize()
    return x.numbers() if isinstance(x, Coded) else x


def flat(matrix: NDArray[Any]) -> Operand:
    """A matrix of either memory order, without a copy."""
    if matrix.flags.f_contiguous:
        return Operand(matrix.T.reshape(-1), 1, matrix.shape[0])
    return Operand(plain(matrix).reshape(-1), matrix.shape[1], 1)


def block_codes(quantized: Quantized, name: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Codes, one a byte, and scales as they are stored, of a matrix in blocks, K as the last axis of both."""
    block = find_block_format(quantized.format)
    packed, scales, (outer, k) = quantized.codes, quantized.scales, quantized.shape
    columns = quantized.axis % 2 == 0
    if columns:
        packed, scales, outer, k = packed.T, scales.T, k, outer
    if packed.shape != (outer, -(-k * block.element.bits // 8)) or scales.shape != (outer, -(-k // block.block)):
        raise ValueError(
            f"matmul: {name} has codes {quantized.codes.shape} and scales {quantized.scales.shape}, which "
            f"{quantized.format} of shape {quantized.shape} has not; make it with quantize or from_bytes"
        )
    codes = quantized.element_codes()
    return codes.T if columns else codes, scales


@lru_cache
def numbers_of(element: ElementFormat) -> NDArray[np.float64]:
    """Numbers of all 256 codes; zero beyond those that a narrower format has."""
    numbers = np.zeros(256)
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    if element.exponent_bits == 0:
        half = 1 << (element.bits - 1)
        numbers[: codes.size] = ((codes.astype(np.int64) ^ half) - half) * element.min_subnormal
    else:
        numbers[: codes.size] = decode(codes, element.name)
    return numbers


def largest_of(element: ElementFormat) -> float:
    """The largest finite magnitude of any code: two's complement has one below -max."""
    numbers = numbers_of(element)
    return float(np.abs(numbers[np.isfinite(numbers)]).max())
