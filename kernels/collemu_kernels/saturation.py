"""How many numbers lay beyond the largest of their format when they were encoded, and were cut down to it."""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.blocks import TILE, spread, tile_work
from collemu_kernels.elements import float_bits
from collemu_kernels.format_ids import (
    ASYMMETRIC,
    BIAS,
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    BLOCK_SIZE,
    CLIPPED,
    ELEMENT_PARAMETERS,
    FIRST_BLOCK_FORMAT,
    FIRST_FULL_INTEGER,
    FIRST_LANE_FORMAT,
    FLOAT8_E8M0FNU,
    FLOAT32,
    LANE_BITS,
    LANE_ELEMENT,
    LANE_PARAMETERS,
    MANTISSA_BITS,
    MAX_CODE,
    NO_ELEMENT,
    TWO_LEVEL_SCALE,
)
from collemu_kernels.images import block_parts
from collemu_kernels.lanes import lane_scale_of
from collemu_kernels.packing import copy_bytes
from collemu_kernels.scales import decode_scales


@jit
def half_step_beyond(element):
    """The largest number of an element format plus half a step, and whether that itself rounds beyond it."""
    mantissa_bits = ELEMENT_PARAMETERS[element, MANTISSA_BITS]
    most = ELEMENT_PARAMETERS[element, MAX_CODE]
    largest = np.uint32(float_bits(most, element)).view(np.float32)
    exponent = max(most >> mantissa_bits, 1) - ELEMENT_PARAMETERS[element, BIAS]
    return np.float32(largest + np.float32(2.0 ** (exponent - mantissa_bits - 1))), most % 2 == 1


@jit
def count_beyond(values, bounds, tie_too):
    """Numbers whose magnitude is above their bound, or as large where a tie counts; a bound of 0 is none."""
    count = 0
    if tie_too:
        for i in range(values.size):
            count += np.uint32(abs(values[i]) >= bounds[i]) & np.uint32(bounds[i] > np.float32(0))
    else:
        for i in range(values.size):
            count += np.uint32(abs(values[i]) > bounds[i]) & np.uint32(bounds[i] > np.float32(0))
    return count


@jit
def count_above(values, scales, half_range):
    """Integers of all codes: numbers that are cut down to the largest, or to the most negative one."""
    count = 0
    half = np.float32(0.5)
    for i in range(values.size):
        number = np.float32(values[i] / scales[i])
        count += number >= np.float32(half_range - half) or number < np.float32(-half_range - half)
    return count


@jit
def count_saturated(values: NDArray[np.float32], format_id: int, scale_mode: int, image: NDArray[np.uint8]) -> int:
    """Numbers of ``values`` that their ``image`` has as the largest of its format, though they lie beyond it.

    Beyond means by more than rounding explains. Infinities count in element formats; blocks that a NaN or an infinity
    has spoilt do not, nor do formats as wide as float32.
    """
    if values.size == 0 or format_id in (FLOAT32, FLOAT8_E8M0FNU):
        return 0
    count = 0
    work = tile_work()
    scales = work.spread_factors
    element = format_id
    all_codes = format_id >= FIRST_FULL_INTEGER
    codes_end = 0
    tensor_scale = np.ones(1, np.float32)
    if format_id >= FIRST_LANE_FORMAT:
        element = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_ELEMENT]
        bits = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_BITS]
        all_codes = element == NO_ELEMENT
        codes_end = (values.size * bits + 7) // 8
    elif format_id >= FIRST_BLOCK_FORMAT:
        element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
        bits = ELEMENT_PARAMETERS[element, BITS]
        all_codes = scale_mode in (ASYMMETRIC, CLIPPED)
        if BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE:
            copy_bytes(image[image.size - 4 :], tensor_scale.view(np.uint8))
    else:
        bits = ELEMENT_PARAMETERS[element, BITS]
    half_range = np.float32(1 << (bits - 1))
    limit, tie_too = np.float32(0), True
    if element != NO_ELEMENT:
        limit, tie_too = half_step_beyond(element)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        if format_id >= FIRST_LANE_FORMAT:
            for i in range(tile.size):
                scales[i] = lane_scale_of(image, codes_end, start + i)
        elif format_id >= FIRST_BLOCK_FORMAT:
            tile_scales(values.size, start, start + tile.size, format_id, tensor_scale[0], image, work)
        else:
            for i in range(tile.size):
                scales[i] = np.float32(1)
        if all_codes:
            count += count_above(tile, scales, half_range)
            continue
        for i in range(tile.size):
            scales[i] = abs(np.float32(scales[i] * limit))
        count += count_beyond(tile, scales, tie_too)
    return int(count)


@jit
def tile_scales(n, start, stop, format_id, tensor_scale, image, work):
    """The scale of each element of a tile of a block format, into ``work.spread_factors``."""
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    first = start // block
    factors = work.factors[: (stop + block - 1) // block - first]
    _, _, scales, _ = block_parts(n, first * block, stop, format_id)
    _, _, _, scales_end = block_parts(n, start, stop, format_id)
    decode_scales(image[scales:scales_end], BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE], factors)
    for i in range(factors.size):
        factors[i] = np.float32(factors[i] * tensor_scale)
    spread(factors, block, work.spread_factors)
