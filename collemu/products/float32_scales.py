"""block_exact where a scale is float32: more bits than the kernels' float64 products of sums and scales hold.

All numbers of a block are multiples of one unit, and few enough that float64 holds every partial sum of their
products: any order of summation, that of BLAS too, is exact. Two scales have an exact product in float64 as well.
What is left is one product of two float64, known as a rounded value and its error.
"""

import numpy as np
from numpy.typing import NDArray

from collemu.inputs import plain
from collemu.number_formats import find_block_format
from collemu.products.operands import Add, Operand, block_codes, largest_of, numbers_of
from collemu.quantization import Quantized, decode

FLOAT64_INTEGERS = 2.0**53
SPLITTER = 2.0**27 + 1
IN_CACHE = 2**14  # results that are rounded at once


def prepare(a: Quantized, b: Quantized, block: int) -> tuple[Operand, Operand, Add]:
    """Operands as float64 numbers and scales, and what adds their blocks' exact terms."""
    elements = find_block_format(a.format).element, find_block_format(b.format).element
    largest = block * largest_of(elements[0]) * largest_of(elements[1])
    longest = int(FLOAT64_INTEGERS * block * (elements[0].min_subnormal * elements[1].min_subnormal) / largest)
    if block > longest:
        raise ValueError(
            f"matmul: accumulate='block_exact' sums at most {longest} products of {a.format} and {b.format} in a "
            f"block, not {block}; use accumulate='float32'"
        )

    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        rows, columns = left.values.reshape(m, -1), right.values.reshape(n, -1)
        row_scales, column_scales = left.scales.reshape(m, -1), right.scales.reshape(n, -1)
        height = max(1, IN_CACHE // n)
        for start in range(first, last, block):
            stop = min(start + block, last)
            sums = rows[:, start:stop] @ columns[:, start:stop].T
            for top in range(0, m, height):
                strip = slice(top, top + height)
                scales = np.multiply.outer(row_scales[strip, start // block], column_scales[:, start // block])
                c[strip] += _rounded_product(sums[strip], scales)

    return _numbers(a, "a"), _numbers(b, "b"), add


def _numbers(quantized: Quantized, name: str) -> Operand:
    """Numbers of the codes, and scales, in float64."""
    codes, scales = block_codes(quantized, name)
    block = find_block_format(quantized.format)
    values = numbers_of(block.element)[codes]
    of_blocks = scales if scales.dtype == np.float32 else decode(scales, block.scale.name)
    return Operand(plain(values).reshape(-1), codes.shape[1], 1, scales=of_blocks.astype(np.float64).reshape(-1))


def _rounded_product(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float32]:
    """Exact products of float64, rounded to float32 once; an exact zero is +0.

    The float64 product is rounded to odd first, after which a narrower rounding is that of the exact product (Boldo
    and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Its error is Dekker's; sums and scales are
    far from where float64 under- or overflows.
    """
    product = x * y
    x_high, y_high = _upper_half(x), _upper_half(y)
    x_low, y_low = x - x_high, y - y_high
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    bits = product.view(np.int64)
    nearer = np.where((error > 0) == (product > 0), 1, -1)
    moves = (error != 0) & np.isfinite(product) & (bits & 1 == 0)
    odd = np.where(moves, bits + nearer, bits).view(np.float64)
    return (odd + 0.0).astype(np.float32)


def _upper_half(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The leading 26 bits of each number."""
    scaled = SPLITTER * x
    return scaled - (scaled - x)
