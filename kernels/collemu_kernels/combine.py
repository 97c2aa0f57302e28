"""Reduce two arrays of values, two stretches of memory, or two wire images, element by element."""

import math

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit, jit_lean
from collemu_kernels.blocks import TILE, add_tile, decode_tile, encode_tile, tile_work
from collemu_kernels.elements import (
    EXPONENT,
    MAGNITUDE,
    QUIET_NAN,
    SIGN,
    decoder,
    encoder,
    finite_float,
    nearest_even,
    shorten,
)
from collemu_kernels.format_ids import (
    BFLOAT16,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    BLOCK_SIZE,
    FIRST_BLOCK_FORMAT,
    FIRST_LANE_FORMAT,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    NEAREST_EVEN,
    SATURATING_FLOAT16,
    TWO_LEVEL_SCALE,
    UINT8,
    WIRE_RULE,
)
from collemu_kernels.images import block_parts, decode_image, encode_image, image_bytes
from collemu_kernels.kinds import AVG, MAX, MIN, PROD, SUM


@jit
def lesser(a, b):
    """The smaller of two floats; NaN if one is (the first of two), -0 before +0, in whatever order they come."""
    return a if a < b or math.isnan(a) or (a == b and math.copysign(1.0, a) < 0.0) else b


@jit
def greater(a, b):
    """The larger of two floats; NaN if one is, +0 before -0."""
    return a if a > b or math.isnan(a) or (a == b and math.copysign(1.0, a) > 0.0) else b


@jit
def reduce_floats(
    target: NDArray[np.floating], first: NDArray[np.floating], second: NDArray[np.floating], operator: int
) -> None:
    """target = first (operator) second for floats of one type; any of the arrays may be the same."""
    if operator == PROD:
        for i in range(len(target)):
            target[i] = first[i] * second[i]
    elif operator == MIN:
        for i in range(len(target)):
            target[i] = lesser(first[i], second[i])
    elif operator == MAX:
        for i in range(len(target)):
            target[i] = greater(first[i], second[i])
    elif target.ctypes.data == first.ctypes.data:  # LLVM makes no vector code of arrays that turn out to overlap
        for i in range(len(target)):
            target[i] = target[i] + second[i]
    else:
        for i in range(len(target)):
            target[i] = first[i] + second[i]


@jit
def round_to(values, accumulate, rounded):
    """Float32 ``values`` rounded to bfloat16, or float16, where overflow gives infinity unless it saturates.

    ``rounded`` may be the same array.
    """
    if accumulate == BFLOAT16:
        for i in range(values.size):
            rounded[i] = np.uint32(shorten(values[i], np.uint32(16), EXPONENT)).view(np.float32)
        return
    dropped, least, limit, sign_shift, sign_bit = encoder(FLOAT16, accumulate == SATURATING_FLOAT16)
    code_shift, back, rebias, least_normal = decoder(FLOAT16)
    for i in range(values.size):
        bits = np.float32(values[i]).view(np.uint32)
        code = nearest_even(values[i], dropped, least, limit, sign_shift, sign_bit)
        near = np.float32(finite_float(code, code_shift, back, rebias, least_normal))
        near_bits = near.view(np.uint32)
        infinite = np.uint32(np.uint32(bits & SIGN) | EXPONENT)
        near_bits = infinite if np.uint32(near_bits & MAGNITUDE) >= np.uint32(0x47800000) else near_bits  # 65536
        near_bits = QUIET_NAN if np.uint32(bits & MAGNITUDE) > EXPONENT else near_bits
        rounded[i] = np.uint32(near_bits).view(np.float32)


@jit
def accumulate_floats(
    target: NDArray[np.float32],
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    operator: int,
    accumulate: int,
    work: NDArray[np.float32],
) -> None:
    """`reduce_floats` in an accumulate type: both terms are rounded to it, and the result.

    One operation on float32 numbers that are float16 or bfloat16, rounded to that, is the operation of the narrow type:
    24 bits are at least twice 11, and 2 more. ``target`` may be ``first``; ``work``, as long, may be ``second``, and is
    not used in float32.
    """
    if accumulate == FLOAT32:
        reduce_floats(target, first, second, operator)
        return
    round_to(first, accumulate, target)
    round_to(second, accumulate, work)
    reduce_floats(target, target, work, operator)
    round_to(target, accumulate, target)


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
def reduce_memory(target, first, second, dtype, operator, accumulate, values, addend):
    """target = first (operator) second on raw bytes of one dtype; returns an image status.

    Types below 32 bits are decoded to float32, reduced there, and rounded to the dtype; 8-bit floats saturate, float16
    and bfloat16 overflow to infinity. ``values`` and ``addend`` are float32 work space for as many elements.
    """
    if dtype == FLOAT32:
        whole = target.view(np.float32)
        accumulate_floats(whole, first.view(np.float32), second.view(np.float32), operator, accumulate, addend)
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
        accumulate_floats(values, values, addend, operator, accumulate, addend)
        saturate = len(target) == elements
        return status | encode_image(values, dtype, saturate, target)
    return 0


@jit
def halve(values):
    """Half of every float32."""
    for i in range(values.size):
        values[i] = np.float32(values[i] * np.float32(0.5))


@jit
def combine_values(values, addend, operator, accumulate):
    """values = values (operator) addend; an average adds halves, which cannot overflow. ``addend`` is used up."""
    if operator == AVG:
        halve(values)
        halve(addend)
    accumulate_floats(values, values, addend, operator, accumulate, addend)


@jit
def reduce_images(
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    n: int,
    format_id: int,
    operator: int,
    accumulate: int,
    target: NDArray[np.uint8],
) -> None:
    """Image of first (operator) second, two images of n elements; ``target`` may be either of them.

    Tile by tile, so that no number leaves the first-level cache; in one piece where all elements share a scale.
    """
    if n == 0:
        return
    whole = format_id >= FIRST_LANE_FORMAT  # whether elements share scales beyond a tile, or are not in tiles
    blocks = format_id >= FIRST_BLOCK_FORMAT and not whole
    if blocks:
        two_level = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE
        whole = two_level or BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE] > TILE
    if blocks and not whole:
        reduce_tiles(
            first, second, n, format_id, operator, accumulate, target, tile_work(), np.empty((2, TILE), np.float32)
        )
        return
    stretch = n if whole else TILE
    values = np.empty(stretch, np.float32)
    addend = np.empty(stretch, np.float32)
    for start in range(0, n, stretch):
        stop = min(start + stretch, n)
        a = values[: stop - start]
        b = addend[: stop - start]
        begin = image_bytes(start, format_id)
        end = image_bytes(stop, format_id)
        decode_image(first[begin:end], format_id, a)
        decode_image(second[begin:end], format_id, b)
        combine_values(a, b, operator, accumulate)
        encode_image(a, format_id, True, target[begin:end])


@jit_lean
def reduce_tiles(first, second, n, format_id, operator, accumulate, target, work, values):
    """`reduce_images` of a format whose tiles know nothing of each other."""
    one = np.float32(1)
    plain_sum = operator == SUM and accumulate == FLOAT32
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        a = values[0, : stop - start]
        b = values[1, : stop - start]
        codes, codes_end, scales, scales_end = block_parts(n, start, stop, format_id)
        decode_tile(first[codes:codes_end], first[scales:scales_end], one, format_id, a, work)
        other = second[codes:codes_end]
        other_scales = second[scales:scales_end]
        if not (plain_sum and add_tile(other, other_scales, format_id, a, work)):
            decode_tile(other, other_scales, one, format_id, b, work)
            combine_values(a, b, operator, accumulate)
        encode_tile(
            a,
            format_id,
            WIRE_RULE,
            NEAREST_EVEN,
            True,
            work.no_random,
            np.uint32(0),
            work.no_amax,
            target[codes:codes_end],
            target[scales:scales_end],
            work,
        )
