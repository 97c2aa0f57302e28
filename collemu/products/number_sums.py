"""Products of float32 numbers: float32, pairwise, float16, bfloat16, exact."""

from typing import Any

import numpy as np
from collemu_kernels.exact_sums import multiply_exact, multiply_exact_float64
from collemu_kernels.matmul import multiply_float32
from collemu_kernels.rounded_sums import multiply_narrow, multiply_pairwise
from numpy.typing import NDArray

from collemu.number_formats import find_element_format
from collemu.products.operands import Add, Matrix, Operand, dense, flat

FLOAT64_INTEGERS = 2.0**53
FLOAT64_FRACTION_BITS = 52


def prepare(a: Matrix, b: Matrix, name: str) -> tuple[Operand, Operand, Add]:
    """Operands, and what adds their products in the way of the model ``name``."""
    rows, columns = dense(a), dense(b).T
    kernel, parameters = _kernel(rows, columns, name)

    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        kernel(
            left.values, left.outer, left.k, right.values, right.k, right.outer, *parameters,
            first, last, m, n, c.reshape(-1),
        )  # fmt: skip

    return flat(rows), flat(columns), add


def _kernel(rows: NDArray[np.float32], columns: NDArray[np.float32], name: str) -> tuple[Any, tuple[float, ...]]:
    if name == "float32":
        return multiply_float32, ()
    if name == "pairwise":
        return multiply_pairwise, ()
    if name == "exact":
        return (multiply_exact_float64 if _fits_float64(rows, columns) else multiply_exact), ()
    return multiply_narrow, _narrow_parameters(name)


def _narrow_parameters(name: str) -> tuple[float, ...]:
    """A type as the kernel's `narrow` takes it."""
    element = find_element_format(name)
    magic = 1.5 * element.min_subnormal * 2.0**FLOAT64_FRACTION_BITS
    overflow = 2.0 ** (np.frexp(element.max)[1])
    return FLOAT64_FRACTION_BITS - element.mantissa_bits, element.min_normal, magic, float(overflow)


def _fits_float64(rows: NDArray[np.float32], columns: NDArray[np.float32]) -> bool:
    """Whether float64 holds every sum of some products, and every bit of each."""
    if not rows.size or not columns.size:
        return True
    largest = float(np.abs(rows).max()) * float(np.abs(columns).max()) * rows.shape[1]
    return largest <= FLOAT64_INTEGERS * _last_bit(rows) * _last_bit(columns)


def _last_bit(numbers: NDArray[np.float32]) -> float:
    """The largest power of two of which all numbers are multiples; 1 if all are zero."""
    significand, exponent = np.frexp(numbers[numbers != 0])
    if not significand.size:
        return 1.0
    whole = np.ldexp(significand, 24).astype(np.int32)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 24).min())
