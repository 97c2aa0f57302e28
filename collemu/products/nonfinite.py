"""Infinities and NaNs, for models that say nothing of them: such a result is what IEEE 754 makes of its sum."""

import numpy as np
from collemu_kernels.matmul import multiply_float32
from numpy.typing import NDArray

from collemu.number_formats import find_block_format
from collemu.products.operands import Coded, Matrix, block_codes, flat, numbers_of
from collemu.quantization import Quantized, decode


def put_nonfinite(a: Matrix, b: Matrix, c: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    """Overwrite the results whose sum has an infinite or NaN term, by the kind of the sum of c and all products.

    What decides is exact: infinities and NaNs themselves, and the signs of finite numbers, whose sums in
    float32 stay finite.
    """
    rows, columns, start = _stand_ins(a), _stand_ins(b), _kinds(c)
    row_has: NDArray[np.bool_] = np.any(~np.isfinite(rows), axis=1, keepdims=True)[:, 0]
    column_has: NDArray[np.bool_] = np.any(~np.isfinite(columns), axis=0, keepdims=True)[0]
    if row_has.any():
        _put(rows[row_has], columns, start[row_has], result, row_has, slice(None))
    if column_has.any():
        _put(rows, columns[:, column_has], start[:, column_has], result, slice(None), column_has)
    alone: NDArray[np.bool_] = ~np.isfinite(c) & ~row_has[:, np.newaxis] & ~column_has
    result[alone] = c[alone]


def _put(
    rows: NDArray[np.float32],
    columns: NDArray[np.float32],
    start: NDArray[np.float32],
    result: NDArray[np.float32],
    at_rows: NDArray[np.bool_] | slice,
    at_columns: NDArray[np.bool_] | slice,
) -> None:
    kinds = np.array(start, order="C")
    left, right = flat(rows), flat(columns.T)
    m, n = kinds.shape
    k = rows.shape[1]
    multiply_float32(left.values, left.outer, left.k, right.values, right.k, right.outer, 0, k, m, n, kinds.reshape(-1))
    part = result[at_rows, at_columns]
    result[at_rows, at_columns] = np.where(np.isfinite(kinds), part, kinds)


def _kinds(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Signs of finite numbers; infinities and NaNs as they are."""
    return np.where(np.isfinite(numbers), np.sign(numbers), numbers).astype(np.float32)


def _stand_ins(x: Matrix) -> NDArray[np.float32]:
    """Kinds of a matrix's numbers, NaN in a block whose scale is NaN."""
    if not isinstance(x, Quantized):
        return _kinds(x.numbers() if isinstance(x, Coded) else x)
    block = find_block_format(x.format)
    codes, scales = block_codes(x, "operand")
    kinds = _kinds(numbers_of(block.element).astype(np.float32))[codes]
    bad = np.isnan(decode(scales, block.scale.name))
    if bad.any():
        kinds[np.repeat(bad, block.block, axis=1)[:, : kinds.shape[1]]] = np.nan
    return kinds.T if x.axis % 2 == 0 else kinds
