"""From the largest magnitude of a block to its scale, and to the factor that its values are encoded with.

Three kinds: OCP MX (a power of two), NVFP4 (float8_e4m3fn under a float32 a tensor), and float32. A NaN or an infinity
in a block makes its scale NaN.
"""

import math

import numpy as np

from collemu_kernels._jit import jit
from collemu_kernels.elements import (
    EXPONENT,
    ONE_EXPONENT,
    QUIET_NAN,
    SIGN,
    decoder,
    e8m0_bits,
    encoder,
    finite_float,
    float_bits,
    nearest_even,
)
from collemu_kernels.format_ids import (
    BIAS,
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    CEIL,
    CLIPPED,
    ELEMENT_PARAMETERS,
    EVEN,
    FIRST_BLOCK_FORMAT,
    FIRST_INTEGER_ELEMENT,
    FLOAT8_E4M3FN,
    FLOAT32_SCALE,
    FLOOR,
    MANTISSA_BITS,
    MARGIN,
    MAX_CODE,
    POW2,
    RCEIL,
    TORCHAO,
    TRN3,
    TWO_LEVEL_SCALE,
)
from collemu_kernels.packing import copy_bytes

NAN_E8M0 = 0xFF
NAN_E4M3 = 0x7F
LARGEST_FLOAT = np.float32(3.4028234663852886e38)
SMALLEST_NORMAL = np.float32(2.0**-126)
NVFP4_RANGE = np.float32(448 * 6)  # largest E4M3 scale times largest E2M1 element
RECIPROCAL_OF_6 = np.float32(np.float32(1) / np.float32(6))
LARGEST_E4M3 = np.float32(448)
LEAST_AMAX = np.float32(1e-4)
LEAST_NORMAL_E4M3 = np.float32(2.0**-6)


@jit
def scale_width(kind):
    """Bytes of a block's scale."""
    return np.int64(4 if kind == FLOAT32_SCALE else 1)


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
    subnormal = 1 if amax < ONE_EXPONENT else 0  # doubled: what is then subnormal is far below all scales
    magnitude = np.int64(amax) << subnormal
    fraction = magnitude & 0x7FFFFF
    code = (magnitude >> 23) - subnormal
    if scale_mode == CEIL:
        code += fraction != 0
    elif scale_mode == EVEN:
        code = ((magnitude + (1 << (22 - mantissa_bits))) >> 23) - subnormal
    elif scale_mode == RCEIL:
        code += fraction > max_fraction
    elif scale_mode == TRN3:
        code += 1
    code -= (max_code >> mantissa_bits) - ELEMENT_PARAMETERS[format_id, BIAS]
    return np.int64(min(max(code, 0), 254))


@jit
def floor_scales(amax, format_id, scales, factors):
    """`mx_scales` under ``floor``, without a branch: on the wire every block passes here."""
    largest_exponent = np.int32(ELEMENT_PARAMETERS[format_id, MAX_CODE] >> ELEMENT_PARAMETERS[format_id, MANTISSA_BITS])
    taken_off = np.int32(largest_exponent - np.int32(ELEMENT_PARAMETERS[format_id, BIAS]))
    for i in range(factors.size):
        code = np.int32(np.int32(np.uint32(amax[i]) >> np.uint32(23)) - taken_off)
        code = code if code > np.int32(0) else np.int32(0)
        reciprocal = np.uint32(np.uint32(np.int32(254) - code) << np.uint32(23))
        reciprocal = np.uint32(0x00400000) if code == np.int32(254) else reciprocal
        nan = np.uint32(amax[i]) >= EXPONENT
        scales[i] = np.int32(NAN_E8M0) if nan else code
        factors[i] = np.uint32(np.uint32(0) if nan else reciprocal).view(np.float32)


@jit
def mx_scales(amax, format_id, scale_mode, scales, factors):
    """E8M0 scales of blocks and their reciprocals (powers of two, exact); the factor of a NaN is 0."""
    if scale_mode == FLOOR:
        floor_scales(amax, format_id, scales, factors)
        return
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
def torchao_scales(amax, tensor_scale, scales, factors):
    """NVFP4 scales and factors as torchao 0.18 makes them: zeros under a tensor scale of zero have scales of NaN.

    The factor of a tiny tensor is infinite, and its elements are the largest there are; zeros stay zeros, of which
    torchao makes NaN.
    """
    dropped, least, limit, sign_shift, sign_bit = encoder(FLOAT8_E4M3FN, True)
    for i in range(scales.size):
        wanted = np.float32(np.float32(np.uint32(amax[i]).view(np.float32) / np.float32(6)) / tensor_scale)
        if amax[i] >= EXPONENT or math.isnan(wanted):  # zero over zero
            scales[i] = NAN_E4M3 if amax[i] >= EXPONENT else 0xFF
            factors[i] = np.float32(0)
            continue
        wanted = min(max(wanted, LEAST_NORMAL_E4M3), LARGEST_E4M3)
        code = np.int64(nearest_even(wanted, dropped, least, limit, sign_shift, sign_bit))
        scales[i] = code
        factors[i] = np.float32(np.float32(np.float32(1) / tensor_scale) / e4m3_value(code))


@jit
def two_level_tensor_scale(amax, scale_mode):
    """Float32 scale above the E4M3 scales of a tensor, from the bits of its largest magnitude."""
    if scale_mode == TORCHAO:
        return np.float32(np.uint32(amax).view(np.float32) / NVFP4_RANGE)
    return nvfp4_tensor_scales(amax)[1]


@jit
def put_float(value, index, memory):
    """Write a float32 to its place in bytes, little-endian, at any alignment."""
    bits = np.float32(value).view(np.uint32)
    for k in range(4):
        memory[4 * index + k] = np.uint32(np.uint32(bits >> np.uint32(8 * k)) & np.uint32(255))


@jit
def float32_scales(amax, element, scale_mode, scales, factors):
    """Bytes of the float32 scales of blocks, and their factors.

    Floating-point elements follow TransformerEngine: encoded with largest / amax (1 for zeros, at most the largest
    float32; under ``pow2`` rounded down to a power of two), whose reciprocal is stored; under ``margin``, as DeepEP,
    amax is at least 1e-4, and times 1 / largest is stored. Integers store amax / largest, at least the smallest normal
    float32, and are encoded with its reciprocal; under ``clipped``, as ZeRO++, they are encoded with half their range
    over amax, whose reciprocal is stored.
    """
    largest = np.uint32(float_bits(ELEMENT_PARAMETERS[element, MAX_CODE], element)).view(np.float32)
    half_range = np.float32(1 << (ELEMENT_PARAMETERS[element, BITS] - 1))
    for i in range(factors.size):
        magnitude = np.uint32(amax[i]).view(np.float32)
        scale = np.float32(1)
        factor = np.float32(1)
        if amax[i] >= EXPONENT:
            scale = np.uint32(QUIET_NAN).view(np.float32)
            factor = np.float32(0)
        elif scale_mode == MARGIN:
            magnitude = max(magnitude, LEAST_AMAX)
            factor = np.float32(largest / magnitude)
            scale = np.float32(magnitude * np.float32(np.float32(1) / largest))
        elif amax[i] == np.uint32(0):
            pass
        elif scale_mode == CLIPPED:
            factor = min(np.float32(half_range / magnitude), LARGEST_FLOAT)
            scale = np.float32(np.float32(1) / factor)
        elif element >= FIRST_INTEGER_ELEMENT:
            scale = max(np.float32(magnitude / largest), SMALLEST_NORMAL)
            factor = np.float32(np.float32(1) / scale)
        else:
            factor = min(np.float32(largest / magnitude), LARGEST_FLOAT)
            if scale_mode == POW2:
                factor = np.uint32(np.float32(factor).view(np.uint32) & EXPONENT).view(np.float32)
            scale = np.float32(np.float32(1) / factor)
        factors[i] = factor
        put_float(scale, i, scales)


@jit
def asymmetric_scales(values, amax, block, element, scales, factors):
    """Bytes of float32 scales, with a sign, of blocks of integers, as QuickReduce chooses them.

    The number of largest magnitude, a negative one if both signs have it, becomes the most negative code: its scale is
    that number / -2**(bits - 1), and at least the smallest normal float32 in magnitude.
    """
    share = np.float32(np.float32(1) / np.float32(1 << (ELEMENT_PARAMETERS[element, BITS] - 1)))
    bits = values.view(np.uint32)
    for i in range(factors.size):
        scale = np.float32(1)
        factor = np.float32(1)
        if amax[i] >= EXPONENT:
            scale = np.uint32(QUIET_NAN).view(np.float32)
            factor = np.float32(0)
        elif amax[i] > np.uint32(0):
            scale = max(np.float32(np.uint32(amax[i]).view(np.float32) * share), SMALLEST_NORMAL)
            negative = False
            for k in range(i * block, min((i + 1) * block, values.size)):
                negative = negative or bits[k] == np.uint32(amax[i] | SIGN)
            scale = scale if negative else np.float32(-scale)
            factor = np.float32(np.float32(1) / scale)
        factors[i] = factor
        put_float(scale, i, scales)


@jit
def encode_scales(amax, format_id, scale_mode, tensor_amax, scales, factors):
    """Bytes of the scales of blocks and the factors of their values, from the bits of their largest magnitudes."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    if kind == FLOAT32_SCALE:
        float32_scales(amax, element, scale_mode, scales, factors)
    elif kind != TWO_LEVEL_SCALE:
        mx_scales(amax, element, scale_mode, scales, factors)
    elif scale_mode == TORCHAO:
        torchao_scales(amax, two_level_tensor_scale(tensor_amax, scale_mode), scales, factors)
    else:
        nvfp4_scales(amax, nvfp4_tensor_scales(tensor_amax), scales, factors)


@jit
def decode_scales(scales, kind, factors):
    """Factors of decoding from the bytes of the scales."""
    if kind == FLOAT32_SCALE:
        copy_bytes(scales, factors.view(np.uint8))
    elif kind == TWO_LEVEL_SCALE:
        for i in range(factors.size):
            factors[i] = e4m3_value(scales[i])
    else:
        for i in range(factors.size):
            factors[i] = np.uint32(e8m0_bits(scales[i])).view(np.float32)
