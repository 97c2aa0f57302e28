"""Reduce two arrays of values, or two stretches of memory, element by element."""

import math

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8
from collemu_kernels.images import decode_image, encode_image
from collemu_kernels.kinds import MAX, MIN, PROD


@jit
def reduce_floats(
    target: NDArray[np.floating], first: NDArray[np.floating], second: NDArray[np.floating], operator: int
) -> None:
    """target = first (operator) second for floats of one type; any of the arrays may be the same.

    Minimum and maximum propagate NaN and order -0 below +0, so that they do not depend on the order of ranks.
    """
    if operator == PROD:
        for i in range(len(target)):
            target[i] = first[i] * second[i]
    elif operator == MIN:
        for i in range(len(target)):
            a = first[i]
            b = second[i]
            keep = a < b or math.isnan(a) or (a == b and math.copysign(1.0, a) < 0.0)
            target[i] = a if keep else b
    elif operator == MAX:
        for i in range(len(target)):
            a = first[i]
            b = second[i]
            keep = a > b or math.isnan(a) or (a == b and math.copysign(1.0, a) > 0.0)
            target[i] = a if keep else b
    else:
        for i in range(len(target)):
            target[i] = first[i] + second[i]


@jit
def reduce_integers(target, first, second, operator):
    """target = first (operator) second for integers of one type; sums and products wrap."""
    if operator == PROD:
        target[:] = first * second
    elif operator == MIN:
        target[:] = np.minimum(first, second)
    elif operator == MAX:
        target[:] = np.maximum(first, second)
    else:
        target[:] = first + second


@jit
def reduce_memory(target, first, second, dtype, operator, values, addend):
    """target = first (operator) second on raw bytes of one dtype; returns an image status.

    Types below 32 bits are decoded to float32, reduced there, and rounded to the dtype; 8-bit floats saturate, float16
    and bfloat16 overflow to infinity. ``values`` and ``addend`` are float32 work space for as many elements.
    """
    if dtype == FLOAT32:
        reduce_floats(target.view(np.float32), first.view(np.float32), second.view(np.float32), operator)
    elif dtype == FLOAT64:
        reduce_floats(target.view(np.float64), first.view(np.float64), second.view(np.float64), operator)
    elif dtype == INT8:
        reduce_integers(target.view(np.int8), first.view(np.int8), second.view(np.int8), operator)
    elif dtype == UINT8:
        reduce_integers(target, first, second, operator)
    elif dtype == INT32:
        reduce_integers(target.view(np.int32), first.view(np.int32), second.view(np.int32), operator)
    elif dtype == INT64:
        reduce_integers(target.view(np.int64), first.view(np.int64), second.view(np.int64), operator)
    else:
        elements = len(values)
        status = decode_image(first, dtype, values)
        status |= decode_image(second, dtype, addend)
        reduce_floats(values, values, addend, operator)
        saturate = len(target) == elements
        return status | encode_image(values, dtype, saturate, target)
    return 0
