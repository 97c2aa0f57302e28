"""Numbers that share a scale: OCP MX blocks (E8M0 scales) and NVFP4 (E4M3 scales under a float32 scale).

A row of values is worked on in tiles that stay in the first-level cache, pass after pass: the largest
magnitude of every block, its scale, the scale's factor spread over the block, then one pass over the tile.
Each pass is a flat loop, which LLVM vectorises; a loop over blocks with a loop inside would not be.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.elements import (
    EXPONENT,
    MAGNITUDE,
    decode_products,
    decoder,
    e8m0_bits,
    encode_products,
    encode_rounded,
    encoder,
    finite_float,
    nearest_even,
    pack_nibbles,
    unpack_nibbles,
)
from collemu_kernels.format_ids import (
    BIAS,
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SIZE,
    BLOCK_TENSOR_SCALE,
    CEIL,
    ELEMENT_PARAMETERS,
    EVEN,
    FIRST_BLOCK_FORMAT,
    FLOAT8_E4M3FN,
    MANTISSA_BITS,
    MAX_CODE,
    NEAREST_EVEN,
    RCEIL,
    TRN3,
)

TILE = 1024
SPREAD = 32
NAN_E8M0 = 0xFF
NAN_E4M3 = 0x7F
LARGEST_FLOAT = np.float32(3.4028234663852886e38)
NVFP4_RANGE = np.float32(448 * 6)  # largest E4M3 scale times largest E2M1 element
RECIPROCAL_OF_6 = np.float32(np.float32(1) / np.float32(6))


@jit
def block_amax(values, block, work, amax):
    """Bits of the largest magnitude of every block; infinity and NaN are larger than any number.

    Whole blocks are halved pair by pair, which vectorises. ``work`` (uint32) holds half of ``values``.
    """
    bits = values.view(np.uint32)
    whole = values.size // block
    size = whole * block // 2
    for i in range(size):
        a = np.uint32(bits[2 * i] & MAGNITUDE)
        b = np.uint32(bits[2 * i + 1] & MAGNITUDE)
        work[i] = a if a > b else b
    while size > whole:
        size //= 2
        for i in range(size):
            a = work[2 * i]
            b = work[2 * i + 1]
            work[i] = a if a > b else b
    for i in range(whole):
        amax[i] = work[i]
    if whole * block < values.size:
        largest = np.uint32(0)
        for i in range(whole * block, values.size):
            magnitude = np.uint32(bits[i] & MAGNITUDE)
            largest = magnitude if magnitude > largest else largest
        amax[whole] = largest


@jit
def spread(factors, block, spread_factors):
    """Repeat each block's factor for its elements.

    A fill of fewer than 32 floats would leave vector code, so it runs on into the next block, which then
    overwrites it; ``spread_factors`` is that much longer than the tile.
    """
    width = max(block, SPREAD)
    for i in range(factors.size):
        spread_factors[i * block : i * block + width] = factors[i]


@jit
def finite_amax(values, block):
    """Bits of the largest magnitude of a row, blocks with a NaN or an infinity left out."""
    work = np.empty(TILE // 2, np.uint32)
    amax = np.empty(TILE // block, np.uint32)
    largest = np.uint32(0)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        blocks = (tile.size + block - 1) // block
        block_amax(tile, block, work, amax)
        for i in range(blocks):
            if amax[i] < EXPONENT and amax[i] > largest:
                largest = amax[i]
    return largest


@jit
def mx_scale(amax, format_id, scale_mode):
    """E8M0 code of a block's scale from the bits of its largest magnitude.

    The exponent comes from the bits, never from a logarithm. ``floor`` is OCP MX 1.0, section 6.3; ``ceil``,
    ``even`` and ``rceil`` are torchao's names: the next power of two, the exponent of amax rounded half up to
    the element's mantissa, and the least power of two with which no element saturates; ``trn3`` is floor + 1.
    """
    if amax >= EXPONENT:
        return np.int64(NAN_E8M0)
    if amax == np.uint32(0):
        return np.int64(0)
    mantissa_bits = ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]
    max_code = ELEMENT_PARAMETERS[format_id, MAX_CODE]
    max_fraction = (max_code & ((1 << mantissa_bits) - 1)) << (23 - mantissa_bits)
    fraction = np.int64(amax) & 0x7FFFFF
    code = np.int64(amax) >> 23
    if scale_mode == CEIL:
        code += fraction != 0
    elif scale_mode == EVEN:
        code = (np.int64(amax) + (1 << (22 - mantissa_bits))) >> 23
    elif scale_mode == RCEIL:
        code += fraction > max_fraction
    elif scale_mode == TRN3:
        code += 1
    code -= (max_code >> mantissa_bits) - ELEMENT_PARAMETERS[format_id, BIAS]
    return np.int64(min(max(code, 0), 254))


@jit
def mx_scales(amax, format_id, scale_mode, scales, factors):
    """E8M0 scales of blocks and their reciprocals (powers of two, exact); the factor of a NaN is 0."""
    for i in range(scales.size):
        scale = mx_scale(amax[i], format_id, scale_mode)
        scales[i] = scale
        factor = np.uint32(e8m0_bits(254 - min(scale, 254))).view(np.float32)
        factors[i] = np.float32(0) if scale == NAN_E8M0 else factor


@jit
def nvfp4_tensor_scales(amax):
    """Scale that a tensor is encoded with, and its reciprocal, which travels, as TransformerEngine does."""
    largest = np.uint32(amax).view(np.float32)
    if largest == np.float32(0):
        return np.float32(1), np.float32(1)
    if largest <= np.float32(NVFP4_RANGE / LARGEST_FLOAT):
        return LARGEST_FLOAT, np.float32(np.float32(1) / LARGEST_FLOAT)
    encode = np.float32(NVFP4_RANGE / largest)
    return encode, np.float32(np.float32(1) / encode)


@jit
def nvfp4_scale(amax, tensor_encode):
    """E4M3 code of a block's scale from the bits of its largest magnitude."""
    if amax >= EXPONENT:
        return np.int64(NAN_E4M3)
    scale = np.float32(np.uint32(amax).view(np.float32) * np.float32(tensor_encode * RECIPROCAL_OF_6))
    dropped, least, limit, sign_shift, sign_bit = encoder(FLOAT8_E4M3FN, True)
    return np.int64(nearest_even(scale, dropped, least, limit, sign_shift, sign_bit))


@jit
def e4m3_value(code):
    """float32 value of a finite float8_e4m3fn code, NaN for the others."""
    if code & 0x7F == NAN_E4M3:
        return np.float32(np.nan)
    sign_shift, back, rebias, least = decoder(FLOAT8_E4M3FN)
    return finite_float(code, sign_shift, back, rebias, least)


@jit
def nvfp4_factor(scale, tensor_decode):
    """What values are multiplied by before rounding: 1 / (scale * tensor scale), at most LARGEST_FLOAT."""
    if scale == NAN_E4M3:
        return np.float32(0)
    step = np.float32(e4m3_value(scale) * tensor_decode)
    if step <= np.float32(np.float32(1) / LARGEST_FLOAT):
        return LARGEST_FLOAT
    return np.float32(np.float32(1) / step)


@jit
def nvfp4_scales(amax, tensor_scales, scales, factors):
    """E4M3 scales of blocks and what their values are multiplied by; the factor of a NaN is 0."""
    for i in range(scales.size):
        scale = nvfp4_scale(amax[i], tensor_scales[0])
        scales[i] = scale
        factors[i] = nvfp4_factor(scale, tensor_scales[1])


@jit
def encode_row(values, format_id, scale_mode, rounding, saturate, random, tensor_amax, codes, scales):
    """Codes (packed where an element has 4 bits) and scales of one row of float32 ``values``.

    ``tensor_amax``: bits of the largest magnitude of the whole tensor, for formats with a tensor scale.
    The codes of a block that holds a NaN or an infinity are zero; its scale is NaN.
    """
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    two_level = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_TENSOR_SCALE] == 1
    packed = ELEMENT_PARAMETERS[element, BITS] == 4
    tensor_scales = nvfp4_tensor_scales(tensor_amax)
    zero = np.float32(0.0) if two_level else np.float32(-0.0)  # TransformerEngine encodes -0 as +0
    work = np.empty(TILE, np.uint32)
    amax = np.empty(TILE // block, np.uint32)
    factors = np.empty(TILE // block, np.float32)
    spread_factors = np.empty(TILE + SPREAD, np.float32)
    unpacked = np.empty(TILE, np.uint8)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        size = tile.size
        blocks = (size + block - 1) // block
        block_amax(tile, block, work, amax)
        tile_scales = scales[start // block : start // block + blocks]
        if two_level:
            nvfp4_scales(amax, tensor_scales, tile_scales, factors)
        else:
            mx_scales(amax, element, scale_mode, tile_scales, factors)
        spread(factors[:blocks], block, spread_factors)
        tile_codes = unpacked[:size] if packed else codes[start : start + size]
        if rounding == NEAREST_EVEN:
            encode_products(tile, spread_factors, zero, element, saturate, tile_codes)
        else:
            scaled = work.view(np.float32)
            for i in range(size):
                scaled[i] = np.float32(np.float32(tile[i] * spread_factors[i]) + zero)
            encode_rounded(scaled[:size], element, saturate, rounding, random[start : start + size], tile_codes)
        for i in range(blocks):
            if amax[i] >= EXPONENT:
                tile_codes[i * block : min((i + 1) * block, size)] = 0
        if packed:
            pack_nibbles(tile_codes, codes[start // 2 : start // 2 + (size + 1) // 2])


@jit
def decode_row(codes, scales, tensor_scale, format_id, values):
    """float32 ``values`` of one row: the exact product of code and scale, times the tensor scale."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    two_level = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_TENSOR_SCALE] == 1
    packed = ELEMENT_PARAMETERS[element, BITS] == 4
    factors = np.empty(TILE // block, np.float32)
    spread_factors = np.empty(TILE + SPREAD, np.float32)
    unpacked = np.empty(TILE, np.uint8)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        size = tile.size
        first = start // block
        blocks = (size + block - 1) // block
        if two_level:
            for i in range(blocks):
                factors[i] = e4m3_value(scales[first + i])
        else:
            for i in range(blocks):
                factors[i] = np.uint32(e8m0_bits(scales[first + i])).view(np.float32)
        spread(factors[:blocks], block, spread_factors)
        if packed:
            unpack_nibbles(codes[start // 2 : start // 2 + (size + 1) // 2], unpacked[:size])
            decode_products(unpacked[:size], spread_factors, element, tile)
        else:
            decode_products(codes[start : start + size], spread_factors, element, tile)
        if two_level:
            for i in range(size):
                tile[i] = np.float32(tile[i] * tensor_scale)


@jit
def encode_rows(
    values: NDArray[np.float32],
    format_id: int,
    scale_mode: int,
    rounding: int,
    saturate: bool,
    random: NDArray[np.uint64],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    tensor_scale: NDArray[np.float32],
) -> None:
    """Codes and scales of every row of a float32 matrix, and the one tensor scale if the format has it."""
    rows, columns = values.shape
    tensor_amax = np.uint32(0)
    if BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_TENSOR_SCALE] == 1:
        for row in range(rows):
            amax = finite_amax(values[row], BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE])
            tensor_amax = amax if amax > tensor_amax else tensor_amax
        tensor_scale[0] = nvfp4_tensor_scales(tensor_amax)[1]
    for row in range(rows):
        bits = random[row * columns : (row + 1) * columns]
        encode_row(
            values[row],
            format_id,
            scale_mode,
            rounding,
            saturate,
            bits,
            tensor_amax,
            codes[row],
            scales[row],
        )


@jit
def decode_rows(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    tensor_scale: np.float32,
    format_id: int,
    values: NDArray[np.float32],
) -> None:
    """Values of every row of a matrix of codes and scales."""
    for row in range(values.shape[0]):
        decode_row(codes[row], scales[row], tensor_scale, format_id, values[row])
