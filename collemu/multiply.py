"""Matrix products under a named accumulation model, to the last bit.

A model says where a dot product is rounded, and in which order it is summed. Results are exact to that
definition, which `tests/oracles/matmul_reference.py` states once more in exact fractions; what silicon does
is another matter, and for much of it undocumented.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, log2
from typing import Any

import numpy as np
from collemu_kernels.matmul import multiply_blocks, multiply_float32
from numpy.typing import ArrayLike, NDArray

from collemu.dtypes import find_dtype, to_storage, to_values
from collemu.inputs import as_float32
from collemu.number_formats import ElementFormat, find_block_format
from collemu.quantization import Quantized, decode

ACCUMULATE = ("float32", "block_exact")
OUT_DTYPES = ("float32", "float16", "bfloat16")
VECTOR = 256  # columns that the kernels work on at once
FLOAT64_INTEGERS = 2.0**53
INT16_INTEGERS = 2.0**15 - 1
EXACT_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")  # few enough bits that float64 holds sum times scales


@dataclass(frozen=True)
class Operand:
    """One matrix as the kernels take it: flat, with strides in elements.

    Attributes
    ----------
    values : numpy.ndarray
        float32 numbers, or uint8 codes.
    outer, k : int
        Strides: from row to row of a or column to column of b, and from k to k.
    table : numpy.ndarray
        Numbers of the codes; empty if there are none.
    scales : numpy.ndarray of float64
        Of the blocks of each row of a or column of b, flat; empty if there are none.
    """

    values: NDArray[Any]
    outer: int
    k: int
    table: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    scales: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


Matrix = Quantized | NDArray[np.float32]
Add = Callable[[Operand, Operand, int, int, NDArray[np.float32]], None]


def matmul(
    a: Quantized | ArrayLike,
    b: Quantized | ArrayLike,
    c: ArrayLike | None = None,
    *,
    accumulate: str = "float32",
    out_dtype: str = "float32",
    promote_every: int | None = None,
) -> NDArray[Any]:
    """Product of two matrices, plus a third, with every rounding specified.

    Parameters
    ----------
    a : Quantized or array of numbers, (M, K)
        Blocks along K: quantised with axis=-1. Numbers that are wider than float32 are rounded to it first.
    b : Quantized or array of numbers, (K, N)
        Blocks along K: quantised with axis=0.
    c : array of numbers, (M, N), optional
        What sums start at, rounded to float32; +0 without it.
    accumulate : str
        float32: both operands are dequantised to float32; each product is rounded to float32, and each sum,
        k ascending, without fused multiply-add. block_exact: the products of a block's elements are summed
        exactly, times the scales of both blocks, and rounded to float32 once (nearest even; overflow gives
        infinity); these terms are added in float32, k ascending. It takes two Quantized with equal blocks.
    out_dtype : str
        float32, float16 or bfloat16: the float32 result is rounded once more. NumPy has no bfloat16, so its
        numbers come as float32.
    promote_every : int, optional
        Sum each run of so many k's in an accumulator of its own, which starts at +0, and add it to the result
        in float32, as kernels do that promote partial sums. For block_exact a multiple of the block.

    Returns
    -------
    numpy.ndarray
        (M, N), float32, or float16.

    Raises
    ------
    ValueError
        For an unknown name, for shapes that do not fit, for blocks that do not run along K.

    Notes
    -----
    block_exact with nvfp4: the scale of a block is its E4M3 scale times the tensor scale, so both tensor
    scales enter the exact product before its one rounding. GPU libraries commonly apply them to the finished
    sum.

    A block's product that is exactly zero counts as +0; one that underflows keeps its sign. Infinities and
    NaNs follow IEEE 754; the bits of a NaN are not specified.
    """
    _choose(accumulate, ACCUMULATE, "accumulate")
    _choose(out_dtype, OUT_DTYPES, "out_dtype")
    a = a if isinstance(a, Quantized) else as_float32(a, "matmul: a", to_odd=False)
    b = b if isinstance(b, Quantized) else as_float32(b, "matmul: b", to_odd=False)
    m, k, n = _sizes(a, b)
    result = _start(c, m, n)
    if promote_every is not None and promote_every < 1:
        raise ValueError(f"matmul: promote_every={promote_every} must be 1 or more, or None")
    with np.errstate(all="ignore"):
        if accumulate == "float32":
            rows, columns, add = _float32(a, b)
        else:
            rows, columns, add = _block_exact(a, b, promote_every)
        if result.size and k:
            _add_in_runs(add, rows, columns, k, promote_every, result)
        return _rounded(result, out_dtype)


def _choose(given: str, allowed: tuple[str, ...], what: str) -> None:
    if given not in allowed:
        raise ValueError(f"matmul: {what}={given!r} is not there; choose {', '.join(allowed)}")


def _sizes(a: Matrix, b: Matrix) -> tuple[int, int, int]:
    for name, operand, axis in (("a", a, 1), ("b", b, 0)):
        if len(operand.shape) != 2:
            raise ValueError(f"matmul: {name} has shape {operand.shape}; give a matrix, a (M, K) and b (K, N)")
        if isinstance(operand, Quantized) and operand.axis % 2 != axis:
            raise ValueError(
                f"matmul: the blocks of {name} run along axis {operand.axis % 2}, not along K; "
                f"quantise it with axis={axis}"
            )
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: a {a.shape} has K={a.shape[1]}, b {b.shape} has K={b.shape[0]}; make them equal")
    return a.shape[0], a.shape[1], b.shape[1]


def _start(c: ArrayLike | None, m: int, n: int) -> NDArray[np.float32]:
    if c is None:
        return np.zeros((m, n), np.float32)
    start = as_float32(c, "matmul: c", to_odd=False)
    if start.shape != (m, n):
        raise ValueError(f"matmul: c has shape {start.shape}, the product has {(m, n)}; make them equal")
    return np.array(start, order="C")


def _rounded(result: NDArray[np.float32], out_dtype: str) -> NDArray[Any]:
    if out_dtype == "float32":
        return result
    dtype = find_dtype(out_dtype)
    storage = to_storage(result, dtype, "matmul: result")
    return to_values(storage, dtype) if dtype.is_codes else storage


def _add_in_runs(
    add: Add, rows: Operand, columns: Operand, k: int, every: int | None, result: NDArray[np.float32]
) -> None:
    """Call a kernel on all k's at once, or on each run of ``every`` k's from +0."""
    m, n = result.shape
    total = result
    if n < min(m, VECTOR):  # the transposed product has the same bits, and fills the kernel's vectors
        rows, columns, total = columns, rows, np.array(result.T, order="C")
    if every is None:
        add(rows, columns, 0, k, total)
    else:
        for first in range(0, k, every):
            partial_sums = np.zeros_like(total)
            add(rows, columns, first, min(first + every, k), partial_sums)
            total += partial_sums
    if total is not result:
        result[:] = total.T


def _float32(a: Matrix, b: Matrix) -> tuple[Operand, Operand, Add]:
    rows = a.dequantize() if isinstance(a, Quantized) else a
    columns = b.dequantize().T if isinstance(b, Quantized) else b.T

    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        multiply_float32(
            left.values, left.outer, left.k, right.values, right.k, right.outer,
            first, last, m, n, c.reshape(-1),
        )  # fmt: skip

    return _dense(rows), _dense(columns), add


def _dense(numbers: NDArray[np.float32]) -> Operand:
    """A matrix of either memory order, without a copy."""
    if numbers.flags.f_contiguous:
        return Operand(numbers.T.reshape(-1), 1, numbers.shape[0])
    return Operand(np.ascontiguousarray(numbers).reshape(-1), numbers.shape[1], 1)


def _block_exact(a: Matrix, b: Matrix, every: int | None) -> tuple[Operand, Operand, Add]:
    if not isinstance(a, Quantized) or not isinstance(b, Quantized):
        raise ValueError("matmul: accumulate='block_exact' needs two Quantized: quantise a on axis=1, b on axis=0")
    a_format, b_format = find_block_format(a.format), find_block_format(b.format)
    for block_format in (a_format, b_format):
        if block_format.scale.name not in EXACT_SCALES:
            raise ValueError(
                f"matmul: accumulate='block_exact' has no exact product for scales of {block_format.name} "
                f"({block_format.scale.name}); use accumulate='float32'"
            )
    block = a_format.block
    if block != b_format.block:
        raise ValueError(
            f"matmul: blocks of {block} ({a.format}) and of {b_format.block} ({b.format}) do not meet; "
            "quantise both with equal blocks"
        )
    if every is not None and every % block:
        raise ValueError(f"matmul: promote_every={every} cuts blocks; give a multiple of {block}")
    a_table, b_table, unit = _tables(a_format.element, b_format.element, block)
    high, low = _tensor_factor(a, b, unit)

    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        multiply_blocks(
            left.values, left.outer, left.k, left.table, left.scales,
            right.values, right.k, right.outer, right.table, right.scales,
            high, low, block, first, last, m, n, c.reshape(-1),
        )  # fmt: skip

    return _coded(a, "a", a_table), _coded(b, "b", b_table), add


def _coded(quantized: Quantized, name: str, table: NDArray[Any]) -> Operand:
    """Codes one a byte, and scales as numbers, of a matrix with K as its last axis."""
    block = find_block_format(quantized.format)
    codes, scales, (outer, k) = quantized.codes, quantized.scales, quantized.shape
    if quantized.axis % 2 == 0:
        codes, scales, outer, k = codes.T, scales.T, k, outer
    packed = block.element.bits == 4
    if codes.shape != (outer, -(-k // 2) if packed else k) or scales.shape != (outer, -(-k // block.block)):
        raise ValueError(
            f"matmul: {name} has codes {quantized.codes.shape} and scales {quantized.scales.shape}, which "
            f"{quantized.format} of shape {quantized.shape} has not; make it with quantize or from_bytes"
        )
    if packed:
        nibbles = [codes & np.uint8(15), codes >> np.uint8(4)]
        if quantized.order == "high_first":
            nibbles.reverse()
        codes = np.stack(nibbles, axis=-1).reshape(outer, 2 * codes.shape[1])[:, :k]
    flat_scales = decode(scales, block.scale.name).astype(np.float64).reshape(-1)
    return Operand(np.ascontiguousarray(codes).reshape(-1), k, 1, table, flat_scales)


@lru_cache
def _tables(a: ElementFormat, b: ElementFormat, block: int) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Numbers of the 256 codes of each format, and what a product of two of them must be multiplied by.

    int16 where it holds a block's sum of products, else float64; where that may round, three rows each: all
    numbers, large ones, small ones.
    """
    tables = [_numbers(a), _numbers(b)]
    largest = block * a.max * b.max
    unit = a.min_subnormal * b.min_subnormal
    if not (a.has_nan or b.has_nan) and largest / unit <= INT16_INTEGERS:
        whole = [tables[0] / a.min_subnormal, tables[1] / b.min_subnormal]
        return whole[0].astype(np.int16), whole[1].astype(np.int16), unit
    if largest / unit > FLOAT64_INTEGERS:
        tables[0] = _split(tables[0], a, largest / b.min_subnormal)
        tables[1] = _split(tables[1], b, largest / a.min_subnormal)
    return tables[0], tables[1], 1.0


def _numbers(element: ElementFormat) -> NDArray[np.float64]:
    numbers = np.zeros(256)
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    numbers[: codes.size] = decode(codes, element.name)
    return numbers


def _split(numbers: NDArray[np.float64], element: ElementFormat, largest: float) -> NDArray[np.float64]:
    """All, large and small numbers: sums up to ``largest`` have 53 bits down to a large number's last."""
    last_bit = 2.0 ** ceil(log2(largest / FLOAT64_INTEGERS))
    small = np.abs(numbers) < last_bit * 2**element.mantissa_bits
    return np.concatenate([numbers, np.where(small, 0, numbers), np.where(small, numbers, 0)])


def _tensor_factor(a: Quantized, b: Quantized, unit: float) -> tuple[float, float]:
    """Exact product of the unit and the tensor scales as a sum of two float64, the first of at most 33 bits.

    A sum of FP4 products times two E4M3 scales has at most 20 bits, so its product with either is exact.
    """
    factor = np.float64(unit)
    for operand in (a, b):
        if operand.tensor_scale is not None:
            factor = factor * np.float64(operand.tensor_scale)
    high = (np.array(factor).view(np.int64) & ~np.int64((1 << 20) - 1)).view(np.float64)
    low = factor - high if np.isfinite(factor) else 0.0
    return float(high), float(low)
