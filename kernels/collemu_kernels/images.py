"""Wire images: the bytes of one chunk of float32 values in any format, and back.

An image lies anywhere in a byte buffer, so nothing here assumes that it is aligned: whatever is wider than a
byte goes through a scratch tile, or is copied byte by byte (which compiles to a plain copy).
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.blocks import TILE, decode_row, encode_row, finite_max, gather_amax
from collemu_kernels.elements import (
    decode_bfloat16,
    decode_e8m0,
    decode_elements,
    decode_elements_as,
    encode_bfloat16,
    encode_e8m0,
    encode_elements,
    encode_elements_as,
    encode_tfloat32,
    holds_nan,
)
from collemu_kernels.format_ids import (
    BFLOAT16,
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    BLOCK_SIZE,
    ELEMENT_PARAMETERS,
    FIRST_BLOCK_FORMAT,
    FIRST_FULL_INTEGER,
    FIRST_INTEGER_ELEMENT,
    FIRST_LANE_FORMAT,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    FULL_INT4,
    LANE_PARAMETERS,
    NAN_CODE,
    NAN_HAS_NO_CODE,
    NEAREST_EVEN,
    NO_NAN,
    OK,
    TFLOAT32,
    TWO_LEVEL_SCALE,
    UNKNOWN_FORMAT,
    WIRE_RULE,
)
from collemu_kernels.integers import decode_integers, encode_integers
from collemu_kernels.lanes import decode_lane_image, encode_lane_image, lane_image_bytes
from collemu_kernels.packing import code_bytes, copy_bytes, pack, unpack
from collemu_kernels.scales import scale_width, two_level_tensor_scale


@jit
def scale_bytes(n, block_format):
    """Bytes of the scales of n elements in a row."""
    block = BLOCK_PARAMETERS[block_format - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    width = scale_width(BLOCK_PARAMETERS[block_format - FIRST_BLOCK_FORMAT, BLOCK_SCALE])
    return (n + block - 1) // block * width


@jit
def image_bytes(n: int, format_id: int) -> np.int64:
    """Bytes of the wire image of a chunk of n elements; 0 for none."""
    if n == 0:
        return np.int64(0)
    if format_id == FLOAT32:
        return np.int64(4 * n)
    if format_id < FIRST_BLOCK_FORMAT:
        return np.int64(code_bytes(n, format_id))
    if format_id >= FIRST_LANE_FORMAT:
        return lane_image_bytes(n, format_id)
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    two_level = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE
    tensor = 4 if two_level else 0
    return np.int64(code_bytes(n, element) + scale_bytes(n, format_id) + tensor)


@jit
def is_known(format_id):
    """Whether images of this format exist."""
    if format_id >= FIRST_LANE_FORMAT:
        return format_id < FIRST_LANE_FORMAT + LANE_PARAMETERS.shape[0]
    if format_id >= FIRST_BLOCK_FORMAT:
        return format_id < FIRST_BLOCK_FORMAT + BLOCK_PARAMETERS.shape[0]
    if format_id in (FLOAT32, FLOAT8_E8M0FNU):
        return True
    if format_id >= FIRST_INTEGER_ELEMENT:
        return FIRST_FULL_INTEGER <= format_id <= FULL_INT4
    return format_id > 0 and ELEMENT_PARAMETERS[format_id, BITS] > 0


@jit
def encode_image(
    values: NDArray[np.float32], format_id: int, saturate: bool, image: NDArray[np.uint8], scale_mode: int = WIRE_RULE
) -> int:
    """Write the wire image of float32 ``values`` to ``image`` (uint8, exactly `image_bytes` long).

    Rounds to nearest even, from the float32 values, once. ``saturate`` concerns element formats alone, ``scale_mode``
    block formats.
    Returns OK, NAN_HAS_NO_CODE (a NaN for FP4, FP6 or an integer: nothing is written) or UNKNOWN_FORMAT.
    """
    if not is_known(format_id):
        return UNKNOWN_FORMAT
    n = values.size
    if n == 0:
        return OK
    if format_id == FLOAT32:
        copy_bytes(values.view(np.uint8), image)
    elif format_id >= FIRST_LANE_FORMAT:
        encode_lane_image(values, format_id, image)
    elif format_id >= FIRST_BLOCK_FORMAT:
        encode_block_image(values, format_id, scale_mode, image)
    elif format_id == FLOAT8_E8M0FNU:
        encode_e8m0(values, saturate, NEAREST_EVEN, image)
    elif ELEMENT_PARAMETERS[format_id, BITS] == 16:
        encode_wide(values, format_id, saturate, image)
    elif format_id == TFLOAT32:
        words = np.empty(TILE, np.uint32)
        for start in range(0, n, TILE):
            tile = values[start : start + TILE]
            encode_tfloat32(tile, saturate, words)
            copy_bytes(words[: tile.size].view(np.uint8), image[4 * start : 4 * (start + tile.size)])
    elif ELEMENT_PARAMETERS[format_id, NAN_CODE] == NO_NAN and holds_nan(values):
        return NAN_HAS_NO_CODE
    else:
        bits = ELEMENT_PARAMETERS[format_id, BITS]
        unpacked = np.empty(TILE, np.uint8)
        for start in range(0, n, TILE):
            tile = values[start : start + TILE]
            packed = image[code_bytes(start, format_id) : code_bytes(start + tile.size, format_id)]
            codes = unpacked[: tile.size] if bits < 8 else packed
            if format_id >= FIRST_INTEGER_ELEMENT:
                encode_integers(tile, bits, NEAREST_EVEN, np.empty(0, np.uint64), codes)
            else:
                encode_elements(tile, format_id, saturate, codes)
            if bits < 8:
                pack(codes, bits, packed)
    return OK


@jit
def encode_wide(values, format_id, saturate, image):
    """Image of a 16-bit element format, little-endian."""
    codes = np.empty(TILE, np.uint16)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        if format_id == BFLOAT16:
            encode_bfloat16(tile, saturate, codes)
        else:
            encode_elements_as(tile, FLOAT16, saturate, codes)
        copy_bytes(codes.view(np.uint8), image[2 * start : 2 * (start + tile.size)])


@jit
def block_parts(n, first, last, format_id):
    """Where codes and scales of the elements from ``first``, where a block starts, to ``last`` lie in an image of n."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    scales = code_bytes(n, element)
    return (
        code_bytes(first, element),
        code_bytes(last, element),
        scales + scale_bytes(first, format_id),
        scales + scale_bytes(last, format_id),
    )


@jit
def encode_block_image(values, format_id, scale_mode, image):
    """Image of a block format: codes, scales, and the tensor scale if the format has one."""
    n = values.size
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    tensor_amax = np.uint32(0)
    amax = np.empty(0, np.uint32)
    if BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE:
        amax = np.zeros((n + block - 1) // block, np.uint32)
        gather_amax(values, block, amax)
        tensor_amax = finite_max(amax)
        tensor_scale = np.empty(1, np.float32)
        tensor_scale[0] = two_level_tensor_scale(tensor_amax, scale_mode)
        copy_bytes(tensor_scale.view(np.uint8), image[image.size - 4 :])
    no_random = np.empty(0, np.uint64)
    _, codes_end, scales, scales_end = block_parts(n, 0, n, format_id)
    encode_row(
        values,
        format_id,
        scale_mode,
        NEAREST_EVEN,
        True,
        no_random,
        tensor_amax,
        amax,
        image[:codes_end],
        image[scales:scales_end],
    )


@jit
def decode_image(image: NDArray[np.uint8], format_id: int, values: NDArray[np.float32]) -> int:
    """Read float32 ``values`` from their wire image; the length of ``values`` says how many.

    Returns OK or UNKNOWN_FORMAT.
    """
    if not is_known(format_id):
        return UNKNOWN_FORMAT
    n = values.size
    if n == 0:
        return OK
    if format_id in (FLOAT32, TFLOAT32):
        copy_bytes(image, values.view(np.uint8))
    elif format_id >= FIRST_LANE_FORMAT:
        decode_lane_image(image, format_id, values)
    elif format_id >= FIRST_BLOCK_FORMAT:
        decode_block_image(image, format_id, values)
    elif format_id == FLOAT8_E8M0FNU:
        decode_e8m0(image, values)
    elif ELEMENT_PARAMETERS[format_id, BITS] == 16:
        codes = np.empty(TILE, np.uint16)
        for start in range(0, n, TILE):
            tile = values[start : start + TILE]
            copy_bytes(image[2 * start : 2 * (start + tile.size)], codes[: tile.size].view(np.uint8))
            if format_id == BFLOAT16:
                decode_bfloat16(codes, tile)
            else:
                decode_elements_as(codes, FLOAT16, tile)
    else:
        bits = ELEMENT_PARAMETERS[format_id, BITS]
        unpacked = np.empty(TILE, np.uint8)
        for start in range(0, n, TILE):
            tile = values[start : start + TILE]
            packed = image[code_bytes(start, format_id) : code_bytes(start + tile.size, format_id)]
            codes = unpacked[: tile.size] if bits < 8 else packed
            if bits < 8:
                unpack(packed, bits, codes)
            if format_id >= FIRST_INTEGER_ELEMENT:
                decode_integers(codes, bits, tile)
            else:
                decode_elements(codes, format_id, tile)
    return OK


@jit
def decode_block_image(image, format_id, values):
    """Values of the image of a block format."""
    n = values.size
    tensor_scale = np.ones(1, np.float32)
    if BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE:
        copy_bytes(image[image.size - 4 :], tensor_scale.view(np.uint8))
    _, codes_end, scales, scales_end = block_parts(n, 0, n, format_id)
    decode_row(image[:codes_end], image[scales:scales_end], tensor_scale[0], format_id, values)
