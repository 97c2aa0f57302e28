"""Matrix products under a named accumulation model, to the last bit.

A model (`collemu.accumulation`) says where a dot product is rounded, and in which order it is summed. Results
are exact to that definition, which tests state once more in exact fractions; what silicon does is another
matter, and for much of it undocumented.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collemu.accumulation import Accumulation, FusedDot, find_accumulation
from collemu.dtypes import DTYPES, find_dtype, to_storage, to_values
from collemu.inputs import as_float32
from collemu.products import block_exact, fused_dot, number_sums
from collemu.products.nonfinite import put_nonfinite
from collemu.products.operands import Add, Coded, Matrix, Operand, as_matrix, dense
from collemu.quantization import Quantized

OUT_DTYPES = ("float32", "float16", "bfloat16", *(name for name in DTYPES if name.startswith("float8")))
VECTOR = 256  # columns that the kernels work on at once


def matmul(
    a: Quantized | ArrayLike,
    b: Quantized | ArrayLike,
    c: ArrayLike | None = None,
    *,
    accumulate: str = "float32",
    out_dtype: str = "float32",
    promote_every: int | None = None,
    a_format: str | None = None,
    b_format: str | None = None,
) -> NDArray[Any]:
    """Product of two matrices, plus a third, with every rounding specified.

    Parameters
    ----------
    a : Quantized or array of numbers, (..., M, K)
        Blocks along K: quantised with axis=-1. Numbers that are wider than float32 are rounded to it first.
        An ml_dtypes array of floats of at most 8 bits holds numbers of that format.
    b : Quantized or array of numbers, (..., K, N)
        Blocks along K: quantised with axis=-2. The leading axes of a and b broadcast.
    c : array of numbers, (..., M, N), optional
        What sums start at, rounded to float32; +0 without it. Its leading axes broadcast to those of the
        result.
    accumulate : str
        A model of `collemu.accumulation`, which states each in full: float32, pairwise, float16, bfloat16,
        exact, block_exact (of two Quantized), ada, hopper, blackwell, cdna3.
    out_dtype : str
        float32, float16, bfloat16 or a float8 format, which saturates: the float32 result is rounded once
        more. NumPy has neither bfloat16 nor float8, so such numbers come as float32.
    promote_every : int, optional
        Sum each run of so many k's in an accumulator of its own, which starts at +0, and add it to the result
        in float32, as kernels do that promote partial sums. With blocks a multiple of the block.
    a_format, b_format : str, optional
        Element format of an array: what uint8 codes mean, or what numbers must be exactly representable in.
        For ada, hopper, blackwell and cdna3, which multiply codes, numbers are in the model's first format
        where none is named: float8_e4m3fn, or float8_e4m3fnuz for cdna3.

    Returns
    -------
    numpy.ndarray
        (..., M, N), float32, or float16.

    Raises
    ------
    ValueError
        For an unknown name, for shapes that do not fit, for blocks that do not run along K, for formats that
        the model does not multiply, for numbers that are not in the format.

    Notes
    -----
    float32, pairwise, float16, bfloat16 and exact multiply any two operands, of whatever formats; block_exact any two
    block formats with equal blocks, and exactly where scales are float32 too; blackwell those with elements of FP8, FP6
    and FP4 whose scales are of one kind, E8M0 or E4M3.

    nvfp4: the scale of a block is its E4M3 scale times the tensor scale. block_exact takes both tensor scales
    into the exact product before its one rounding. blackwell has no place for them: its sum starts at +0,
    and is then multiplied by their float32 product, and added to c, each rounded to float32. Quantized
    without tensor scales start at c.

    Infinities and NaNs follow IEEE 754; the bits of a NaN are not specified. In exact and in the models of
    matrix units, a sum with such a term is what IEEE 754 makes of all its terms, and zero is +0. In
    block_exact a block's product that is exactly zero counts as +0; one that underflows keeps its sign.
    """
    model = find_accumulation(accumulate)
    if out_dtype not in OUT_DTYPES:
        raise ValueError(f"matmul: out_dtype={out_dtype!r} is not there; choose {', '.join(OUT_DTYPES)}")
    if promote_every is not None and promote_every < 1:
        raise ValueError(f"matmul: promote_every={promote_every} must be 1 or more, or None")
    default = model.elements[0] if isinstance(model, FusedDot) else None
    left, right = as_matrix(a, a_format, default, "a"), as_matrix(b, b_format, default, "b")
    shape = _result_shape(left, right)
    result = _start(c, shape)
    with np.errstate(all="ignore"):
        for index in np.ndindex(shape[:-2]):
            _multiply(_matrix_of(left, index), _matrix_of(right, index), model, promote_every, result[index])
        return _rounded(result, out_dtype)


def _result_shape(a: Matrix, b: Matrix) -> tuple[int, ...]:
    for name, operand, axis in (("a", a, -1), ("b", b, -2)):
        dimensions = len(operand.shape)
        if dimensions < 2:
            raise ValueError(f"matmul: {name} has shape {operand.shape}; give a matrix, a (M, K) and b (K, N)")
        if isinstance(operand, Quantized) and operand.axis % dimensions != dimensions + axis:
            raise ValueError(
                f"matmul: the blocks of {name} run along axis {operand.axis % dimensions}, not along K; "
                f"quantise it with axis={dimensions + axis}"
            )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: a {a.shape} has K={a.shape[-1]}, b {b.shape} has K={b.shape[-2]}; make them equal")
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: leading axes of a {a.shape} and b {b.shape} do not broadcast") from None
    return (*lead, a.shape[-2], b.shape[-1])


def _start(c: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if c is None:
        return np.zeros(shape, np.float32)
    start = as_float32(c, "matmul: c", to_odd=False)
    fits = start.shape[-2:] == shape[-2:] and start.ndim <= len(shape)
    if not fits or any(have not in (1, want) for have, want in zip(start.shape[-3::-1], shape[-3::-1], strict=False)):
        raise ValueError(f"matmul: c has shape {start.shape}, the product has {shape}; make them equal")
    return np.array(np.broadcast_to(start, shape), order="C")


def _matrix_of(x: Matrix, index: tuple[int, ...]) -> Matrix:
    """One matrix of a stack; ``index`` counts the broadcast stack."""
    lead = x.shape[:-2]
    if not lead:
        return x
    own = tuple(i if size > 1 else 0 for i, size in zip(index[len(index) - len(lead) :], lead, strict=True))
    if isinstance(x, Coded):
        return Coded(x.codes[own], x.element)
    if not isinstance(x, Quantized):
        return x[own]
    axis = x.axis % len(x.shape) - len(x.shape)
    return Quantized(x.codes[own], x.scales[own], x.tensor_scale, x.shape[-2:], x.format, axis=axis, order=x.order)


def _multiply(a: Matrix, b: Matrix, model: Accumulation, every: int | None, result: NDArray[np.float32]) -> None:
    """Turn one matrix of starting values into one of results."""
    if isinstance(model, FusedDot):
        _multiply_fused(a, b, model, every, result)
    elif model.name == "exact":
        start = result.copy()
        result[~np.isfinite(start)] = 0
        _add_in_runs(*number_sums.prepare(_finite(a), _finite(b), model.name), every, result)
        put_nonfinite(dense(a), dense(b), start, result)
    elif model.name == "block_exact":
        _add_in_runs(*block_exact.prepare(a, b, every), every, result)
    else:
        if model.name in ("float16", "bfloat16") and every is None:
            result[:] = _rounded(result, model.name)
        _add_in_runs(*number_sums.prepare(a, b, model.name), every, result)


def _multiply_fused(a: Matrix, b: Matrix, model: FusedDot, every: int | None, result: NDArray[np.float32]) -> None:
    factor = fused_dot.tensor_factor(a, b)
    total = result if factor is None else np.zeros_like(result)
    start = total.copy()
    total[~np.isfinite(start)] = 0
    _add_in_runs(*fused_dot.prepare(a, b, model, every), every, total)
    put_nonfinite(a, b, start, total)
    if factor is not None:
        result += total * factor


def _finite(x: Matrix) -> NDArray[np.float32]:
    numbers = dense(x)
    return np.where(np.isfinite(numbers), numbers, np.float32(0))


def _rounded(result: NDArray[np.float32], out_dtype: str) -> NDArray[Any]:
    if out_dtype == "float32":
        return result
    dtype = find_dtype(out_dtype)
    storage = to_storage(result, dtype, "matmul: result")
    return to_values(storage, dtype) if dtype.is_codes else storage


def _add_in_runs(rows: Operand, columns: Operand, add: Add, every: int | None, result: NDArray[np.float32]) -> None:
    """Call a kernel on all k's at once, or on each run of ``every`` k's from +0."""
    m, n = result.shape
    k = rows.values.size // max(m, 1)
    if not result.size or not k:
        return
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
