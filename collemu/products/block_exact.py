"""Products of block formats whose blocks are summed exactly: block_exact."""

from functools import lru_cache
from math import ceil, log2
from typing import Any

import numpy as np
from collemu_kernels.matmul import multiply_blocks
from numpy.typing import NDArray

from collemu.inputs import plain
from collemu.number_formats import WHOLE_ROW, ElementFormat, find_block_format
from collemu.products import float32_scales
from collemu.products.operands import Add, Matrix, Operand, block_codes, largest_of, numbers_of
from collemu.quantization import Quantized, decode

FLOAT64_INTEGERS = 2.0**53
INT16_INTEGERS = 2.0**15 - 1
EXACT_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")  # few enough bits that float64 holds sum times scales


def prepare(a: Matrix, b: Matrix, every: int | None) -> tuple[Operand, Operand, Add]:
    """Operands, and what adds their blocks' exact terms."""
    if not isinstance(a, Quantized) or not isinstance(b, Quantized):
        raise ValueError("matmul: accumulate='block_exact' needs two Quantized: quantise a on axis=1, b on axis=0")
    a_format, b_format = find_block_format(a.format), find_block_format(b.format)
    block = a_format.block
    if block != b_format.block:
        raise ValueError(
            f"matmul: blocks of {_length(block)} ({a.format}) and of {_length(b_format.block)} ({b.format}) do not "
            "meet; quantise both with equal blocks, or use accumulate='float32'"
        )
    block = max(a.shape[1], 1) if block == WHOLE_ROW else block
    if every is not None and every % block:
        raise ValueError(f"matmul: promote_every={every} cuts blocks; give a multiple of {block}")
    if not {a_format.scale.name, b_format.scale.name} <= set(EXACT_SCALES):
        return float32_scales.prepare(a, b, block)
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


def _length(block: int) -> str:
    return "a whole row" if block == WHOLE_ROW else str(block)


def _coded(quantized: Quantized, name: str, table: NDArray[Any]) -> Operand:
    """Codes, and scales as numbers."""
    codes, scales = block_codes(quantized, name)
    numbers = decode(scales, find_block_format(quantized.format).scale.name).astype(np.float64)
    return Operand(plain(codes).reshape(-1), codes.shape[1], 1, table, scales=numbers.reshape(-1))


@lru_cache
def _tables(a: ElementFormat, b: ElementFormat, block: int) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Numbers of the 256 codes of each format, and what a product of two of them must be multiplied by.

    int16 where it holds a block's sum of products, else float64; where that may round, three rows each: all
    numbers, large ones, small ones.
    """
    tables = [numbers_of(a), numbers_of(b)]
    largest = block * largest_of(a) * largest_of(b)
    unit = a.min_subnormal * b.min_subnormal
    if not (a.has_nan or b.has_nan) and largest / unit <= INT16_INTEGERS:
        whole = [tables[0] / a.min_subnormal, tables[1] / b.min_subnormal]
        return whole[0].astype(np.int16), whole[1].astype(np.int16), unit
    if largest / unit > FLOAT64_INTEGERS:
        tables[0] = _split(tables[0], a, largest / b.min_subnormal)
        tables[1] = _split(tables[1], b, largest / a.min_subnormal)
    return tables[0], tables[1], 1.0


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
