"""Blocks of 64 elements in two lanes, the even and the odd ones, each with a float16 scale: QuickReduce's images.

Two 16-bit numbers share a register there, so what belongs to its halves is scaled apart; and all arithmetic is that of
float16: every product, sum and reciprocal is rounded to it, and overflow gives the largest number. The number of
largest magnitude, a negative one if both signs have it, times a constant is the scale that travels; values are
multiplied by the reciprocal of that scale plus the least float16. Codes of integers are offset, not two's complement.

Source: csrc/quickreduce of vLLM (integers), and of AMD's QuickReduce (FP8, FP4). Its reciprocal is an instruction that
may be off by one unit; here it is rounded correctly. A lane with a NaN or an infinity has the scale NaN and codes 0,
as in every block format; there, a NaN is dropped.
"""

import math

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.elements import EXPONENT, MAGNITUDE, decoder, encoder, finite_float, nearest_even
from collemu_kernels.format_ids import (
    ELEMENT_PARAMETERS,
    FIRST_LANE_FORMAT,
    FLOAT16,
    LANE_BITS,
    LANE_ELEMENT,
    LANE_FACTOR,
    LANE_PARAMETERS,
    NO_ELEMENT,
    NO_NEGATIVE_ZERO,
)
from collemu_kernels.packing import pack, unpack

BLOCK = 64
SCALE_BYTES = 4  # two float16
LEAST = np.float32(2.0**-24)  # the least float16
NAN_FLOAT16 = 0x7E00


@jit
def lane_image_bytes(n: int, format_id: int) -> np.int64:
    """Bytes of the image of n elements: codes side by side, then two scales a block, the last one's too."""
    bits = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_BITS]
    return np.int64((n * bits + 7) // 8 + (n + BLOCK - 1) // BLOCK * SCALE_BYTES)


@jit
def float16_code(value):
    """Code of the float16 next to a float32 that is no NaN; beyond the largest it is that."""
    dropped, least, limit, sign_shift, sign_bit = encoder(FLOAT16, True)
    return nearest_even(value, dropped, least, limit, sign_shift, sign_bit)


@jit
def float16_value(code):
    """The float32 that a finite float16 code stands for, or NaN."""
    if np.uint32(np.uint32(code) & np.uint32(0x7FFF)) >= np.uint32(0x7C00):
        return np.float32(np.nan)
    sign_shift, back, rebias, least = decoder(FLOAT16)
    return np.float32(finite_float(np.uint32(code), sign_shift, back, rebias, least))


@jit
def as_float16(value):
    """A float32 that is no NaN, rounded to float16, as a float32."""
    return float16_value(float16_code(value))


@jit
def lane_scale(values, lane, factor):
    """Float16 code of a lane's scale, from its element of largest magnitude; NaN if one is not finite."""
    most = np.float32(0)
    least = np.float32(0)
    for i in range(lane, values.size, 2):
        if np.uint32(np.float32(values[i]).view(np.uint32) & MAGNITUDE) >= EXPONENT:
            return np.uint32(NAN_FLOAT16)
        value = as_float16(values[i])
        most = max(most, value)
        least = min(least, value)
    largest = most if most > np.float32(-least) else least
    return float16_code(np.float32(largest * factor))


@jit
def encode_lane(values, lane, scale, bits, element, codes):
    """Codes, one a byte, of every second value of a block."""
    if scale == NAN_FLOAT16:
        for i in range(lane, values.size, 2):
            codes[i] = 0
        return
    step = as_float16(np.float32(float16_value(scale) + LEAST))
    reciprocal = np.float32(np.inf) if step == np.float32(0) else as_float16(np.float32(np.float32(1) / step))
    beyond = np.float32(1 << (bits - 1))
    dropped, least, limit, sign_shift, sign_bit = encoder(FLOAT16 if element == NO_ELEMENT else element, True)
    no_minus_zero = element != NO_ELEMENT and ELEMENT_PARAMETERS[max(element, 0), NO_NEGATIVE_ZERO] == 1
    for i in range(lane, values.size, 2):
        product = np.float32(as_float16(values[i]) * reciprocal)
        if element == NO_ELEMENT:
            number = -beyond if math.isnan(product) else as_float16(product)
            number = min(max(number, -beyond), np.float32(beyond - np.float32(1)))
            codes[i] = np.uint8(np.int32(np.rint(number)) + np.int32(beyond))
        else:
            number = np.float32(0) if math.isnan(product) else as_float16(product)
            code = nearest_even(number, dropped, least, limit, sign_shift, sign_bit)
            codes[i] = np.uint8(np.uint32(0) if no_minus_zero and code == sign_bit else code)


@jit
def encode_lane_image(values: NDArray[np.float32], format_id: int, image: NDArray[np.uint8]) -> None:
    """Write the image of float32 ``values``, exactly `lane_image_bytes` long."""
    bits = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_BITS]
    element = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_ELEMENT]
    factor = float16_value(LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_FACTOR])
    codes_end = (values.size * bits + 7) // 8
    codes = np.empty(values.size, np.uint8)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        for lane in range(2):
            scale = lane_scale(block, lane, factor)
            encode_lane(block, lane, scale, bits, element, codes[start : start + BLOCK])
            at = codes_end + start // BLOCK * SCALE_BYTES + 2 * lane
            image[at] = np.uint32(scale & np.uint32(255))
            image[at + 1] = np.uint32(scale >> np.uint32(8))
    if bits < 8:
        pack(codes, bits, image[:codes_end])
    else:
        for i in range(values.size):
            image[i] = codes[i]


@jit
def lane_scale_of(image, codes_end, i):
    """The scale of element i, as float32."""
    at = codes_end + i // BLOCK * SCALE_BYTES + 2 * (i % 2)
    return float16_value(np.uint32(np.uint32(image[at]) | np.uint32(np.uint32(image[at + 1]) << np.uint32(8))))


@jit
def decode_lane_image(image: NDArray[np.uint8], format_id: int, values: NDArray[np.float32]) -> None:
    """Read float32 ``values``, all of them float16 numbers, from their image."""
    bits = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_BITS]
    element = LANE_PARAMETERS[format_id - FIRST_LANE_FORMAT, LANE_ELEMENT]
    codes_end = (values.size * bits + 7) // 8
    codes = np.empty(values.size, np.uint8)
    if bits < 8:
        unpack(image[:codes_end], bits, codes)
    else:
        for i in range(values.size):
            codes[i] = image[i]
    offset = np.int32(1 << (bits - 1))
    sign_shift, back, rebias, least = decoder(FLOAT16 if element == NO_ELEMENT else element)
    for i in range(values.size):
        if element == NO_ELEMENT:
            number = np.float32(np.int32(codes[i]) - offset)
        else:
            number = np.float32(finite_float(np.uint32(codes[i]), sign_shift, back, rebias, least))
        scale = lane_scale_of(image, codes_end, i)
        values[i] = np.float32(np.nan) if math.isnan(scale) else as_float16(np.float32(number * scale))
