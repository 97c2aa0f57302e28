"""One number at a time: float32 to the codes of an element format and back, rounded once.

Rounding to nearest even needs no table and no branch. For a magnitude x whose last kept bit has the weight
2**q, the float32 sum x + 2**(q + 23) has no bit below 2**q, and the addition itself rounds to nearest even;
its low bits are the significand of the result. Below the smallest normal number q stays, which is what
subnormal numbers are. LLVM turns this straight line into vector code.

The kernels named ``_as`` are called with the id of a common format as a literal, so that LLVM folds the
format's parameters: twice as fast as parameters in registers.

The other roundings, which no hot loop needs, shift and add integers.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import (
    BIAS,
    BITS,
    DOWN,
    ELEMENT_PARAMETERS,
    FIRST_INTEGER_ELEMENT,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    INFINITY_CODE,
    MANTISSA_BITS,
    MAX_CODE,
    NAN_CODE,
    NEAREST_AWAY,
    NEAREST_EVEN,
    NO_NAN,
    NO_NEGATIVE_ZERO,
    STOCHASTIC,
    TOWARD_ZERO,
    UP,
)

MAGNITUDE = np.uint32(0x7FFFFFFF)
EXPONENT = np.uint32(0x7F800000)  # also the bits of infinity: any magnitude above is a NaN
QUIET_NAN = np.uint32(0x7FC00000)
SIGN = np.uint32(0x80000000)
ONE_EXPONENT = np.uint32(0x00800000)
NO_CODE = np.uint32(0xFFFFFFFF)
RUN = 32  # elements of the usual block, known to the compiler: one that is not would leave vector code
WITHIN_WORD = np.uint32(31)  # masks how far to shift: else LLVM shifts in 64-bit lanes, half as many to a vector


@jit
def holds_nan(values):
    """Whether any float32 of ``values`` is NaN."""
    bits = values.view(np.uint32)
    largest = np.uint32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        largest = magnitude if magnitude > largest else largest
    return largest > EXPONENT


@jit
def float_bits(code, format_id):
    """Bits of the float32 that a normal magnitude ``code`` stands for."""
    mantissa_bits = ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]
    rebias = 127 - ELEMENT_PARAMETERS[format_id, BIAS]
    return np.uint32((code << (23 - mantissa_bits)) + (rebias << 23))


@jit
def encoder(format_id, saturate):
    """What `nearest_even` must know of a format: five uint32.

    The magnitude is limited to the largest finite number, or to the number one code above it, which rounds
    to that code: infinity or NaN, as the format has it. FP6 and FP4 have neither, and always saturate.
    """
    bits = ELEMENT_PARAMETERS[format_id, BITS]
    limit_code = ELEMENT_PARAMETERS[format_id, MAX_CODE]
    if not saturate and ELEMENT_PARAMETERS[format_id, NAN_CODE] != NO_NAN:
        limit_code += 1
    return (
        np.uint32(23 - ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]),  # bits that rounding drops
        np.uint32((128 - ELEMENT_PARAMETERS[format_id, BIAS]) << 23),  # exponent of the least normal number
        float_bits(limit_code, format_id),
        np.uint32(32 - bits),  # from float32's sign bit to the code's
        np.uint32(1 << (bits - 1)),
    )


@jit
def nearest_even(value, dropped, least, limit, sign_shift, sign_bit):
    """Code of a float32 that is no NaN (and not for bfloat16, whose exponents leave no room above)."""
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & MAGNITUDE)
    magnitude = magnitude if magnitude < limit else limit
    exponent = np.uint32(magnitude & EXPONENT)
    exponent = exponent if exponent > least else least
    magic = np.uint32(exponent + np.uint32(dropped << np.uint32(23)))
    total = np.float32(np.uint32(magnitude).view(np.float32) + np.uint32(magic).view(np.float32))
    significand = np.uint32(np.float32(total).view(np.uint32) - magic)
    code = np.uint32(significand + np.uint32(np.uint32(exponent - least) >> dropped))
    return np.uint32(code | np.uint32(np.uint32(bits >> sign_shift) & sign_bit))


@jit
def encode_elements_as(values, format_id, saturate, codes):
    """`encode_elements` compiled for one format."""
    dropped, least, limit, sign_shift, sign_bit = encoder(format_id, saturate)
    nan_code = np.uint32(max(ELEMENT_PARAMETERS[format_id, NAN_CODE], 0))
    for i in range(values.size):
        bits = np.float32(values[i]).view(np.uint32)
        code = nearest_even(values[i], dropped, least, limit, sign_shift, sign_bit)
        nan = np.uint32(nan_code | np.uint32(np.uint32(bits >> sign_shift) & sign_bit))
        codes[i] = nan if np.uint32(bits & MAGNITUDE) > EXPONENT else code
    if ELEMENT_PARAMETERS[format_id, NO_NEGATIVE_ZERO]:
        half_least = float_bits(0, format_id) - np.uint32(ELEMENT_PARAMETERS[format_id, MANTISSA_BITS] << 23)
        for i in range(values.size):
            if np.uint32(np.float32(values[i]).view(np.uint32) & MAGNITUDE) <= np.uint32(half_least):
                codes[i] = 0


@jit
def encode_elements(values: NDArray[np.float32], format_id: int, saturate: bool, codes: NDArray[np.uint8]) -> None:
    """Codes of float32 ``values``, one a byte."""
    if format_id == FLOAT8_E4M3FN:
        encode_elements_as(values, FLOAT8_E4M3FN, saturate, codes)
    elif format_id == FLOAT8_E5M2:
        encode_elements_as(values, FLOAT8_E5M2, saturate, codes)
    elif format_id == FLOAT4_E2M1FN:
        encode_elements_as(values, FLOAT4_E2M1FN, saturate, codes)
    else:
        encode_elements_as(values, format_id, saturate, codes)


@jit
def encode_products_as(values, factors, runs, zero, format_id, saturate, codes):
    """`encode_products` compiled for one format."""
    dropped, least, limit, sign_shift, sign_bit = encoder(format_id, saturate)
    if runs:
        for run in range(values.size // RUN):
            factor = factors[run]
            for i in range(run * RUN, run * RUN + RUN):
                product = np.float32(np.float32(values[i] * factor) + zero)
                codes[i] = nearest_even(product, dropped, least, limit, sign_shift, sign_bit)
        return
    for i in range(values.size):
        product = np.float32(np.float32(values[i] * factors[i]) + zero)
        codes[i] = nearest_even(product, dropped, least, limit, sign_shift, sign_bit)


@jit
def encode_products(values, factors, runs, zero, format_id, saturate, codes):
    """Codes of the float32 products ``values * factors``; a NaN gives any code.

    ``runs``: every factor is that of `RUN` values, of which there are whole runs.
    ``zero`` is added to the products: -0 changes nothing, +0 makes +0 of -0.
    """
    if format_id == FLOAT8_E4M3FN:
        encode_products_as(values, factors, runs, zero, FLOAT8_E4M3FN, saturate, codes)
    elif format_id == FLOAT8_E5M2:
        encode_products_as(values, factors, runs, zero, FLOAT8_E5M2, saturate, codes)
    elif format_id == FLOAT4_E2M1FN:
        encode_products_as(values, factors, runs, zero, FLOAT4_E2M1FN, saturate, codes)
    else:
        encode_products_as(values, factors, runs, zero, format_id, saturate, codes)


@jit
def shorten(value, dropped, limit):
    """Bits of a float32 rounded to nearest even at ``dropped`` bits above the last, the magnitude at most ``limit``.

    For formats with float32's own exponent: an integer is rounded, and a carry runs into the exponent. NaN is quiet.
    """
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & MAGNITUDE)
    limited = magnitude if magnitude < limit else limit
    odd = np.uint32(np.uint32(limited >> dropped) & np.uint32(1))
    half_less = np.uint32(np.uint32(np.uint32(1) << np.uint32(dropped - np.uint32(1))) - np.uint32(1))
    rounded = np.uint32(limited + np.uint32(half_less + odd))
    rounded = np.uint32(np.uint32(rounded >> dropped) << dropped)
    rounded = QUIET_NAN if magnitude > EXPONENT else rounded
    return np.uint32(rounded | np.uint32(bits & SIGN))


@jit
def encode_bfloat16(values, saturate, codes):
    """Codes of float32 ``values`` in bfloat16."""
    limit = np.uint32(0x7F7F0000) if saturate else EXPONENT
    for i in range(values.size):
        codes[i] = np.uint32(shorten(values[i], np.uint32(16), limit)) >> np.uint32(16)


@jit
def encode_tfloat32(values, saturate, words):
    """Words of float32 ``values`` in tfloat32: float32 with 10 bits of mantissa, the 13 below zero."""
    limit = np.uint32(0x7F7FE000) if saturate else EXPONENT
    for i in range(values.size):
        words[i] = shorten(values[i], np.uint32(13), limit)


@jit
def encode_rounded(
    values: NDArray[np.float32],
    format_id: int,
    saturate: bool,
    rounding: int,
    random: NDArray[np.uint64],
    codes: NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32],
) -> None:
    """Codes of float32 ``values`` under any rounding; those of tfloat32 are of 19 bits.

    ``random`` holds 64 random bits a value when the rounding is stochastic: the value moves away from zero
    with the probability of the dropped fraction, to 2**-62 (what is further below the format: 2**-39).
    Without saturation a finite value overflows only where the rounding leads away from zero, as in IEEE 754.
    """
    mantissa_bits = ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]
    least = 128 - ELEMENT_PARAMETERS[format_id, BIAS]
    nan_code = ELEMENT_PARAMETERS[format_id, NAN_CODE]
    largest_code = ELEMENT_PARAMETERS[format_id, MAX_CODE]
    largest = np.int64(float_bits(largest_code, format_id))
    beyond = largest
    if not saturate and nan_code != NO_NAN:
        beyond = np.int64(float_bits(largest_code + 1, format_id))
    sign_bit = 1 << (ELEMENT_PARAMETERS[format_id, BITS] - 1)
    bits = values.view(np.uint32)
    for i in range(bits.size):
        magnitude = np.int64(bits[i] & MAGNITUDE)
        negative = bits[i] > MAGNITUDE
        if magnitude > np.int64(EXPONENT):
            codes[i] = nan_code | (sign_bit if negative else 0)
            continue
        away = (rounding == UP and not negative) or (rounding == DOWN and negative)
        inward = rounding == TOWARD_ZERO or (rounding in (UP, DOWN) and not away)
        limit = largest if inward and magnitude < np.int64(EXPONENT) else beyond
        magnitude = min(magnitude, limit)
        exponent = min(max(magnitude >> 23, 1), least)
        kept = magnitude - ((exponent - 1) << 23)  # significand, with the exponent above `least` on top
        dropped = min(23 - mantissa_bits + least - exponent, 62)
        mask = (np.int64(1) << dropped) - 1
        if rounding == NEAREST_EVEN:
            step = (mask >> 1) + ((kept >> dropped) & 1)
        elif rounding == NEAREST_AWAY:
            step = (mask >> 1) + 1
        elif rounding == STOCHASTIC:
            step = np.int64(random[i] >> np.uint64(64 - dropped))
        else:
            step = mask if away else np.int64(0)
        code = (kept + step) >> dropped
        if negative and (code != 0 or not ELEMENT_PARAMETERS[format_id, NO_NEGATIVE_ZERO]):
            code |= sign_bit
        codes[i] = code


@jit
def decoder(format_id):
    """What `finite_float` must know of a format."""
    bits = ELEMENT_PARAMETERS[format_id, BITS]
    dropped = 23 - ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]
    rebias = (127 - ELEMENT_PARAMETERS[format_id, BIAS]) << 23
    return (
        np.uint32(32 - bits),  # from the code's sign bit to float32's
        np.uint32(32 - bits - dropped),  # back, so that the mantissas meet
        np.uint32(rebias),
        np.uint32(rebias + (1 << 23)).view(np.float32),  # the least normal number
    )


@jit
def finite_float(code, sign_shift, back, rebias, least):
    """Value of a finite code, exact: its bits moved to float32's places, the exponent rebiased.

    A subnormal number f * least is read as (1 + f) * least, then ``least`` is taken off: no float32 is
    subnormal on the way, which would be slow on many processors.
    """
    moved = np.uint32(np.uint32(code) << np.uint32(sign_shift & WITHIN_WORD))
    magnitude = np.uint32(np.uint32(moved & MAGNITUDE) >> np.uint32(back & WITHIN_WORD))
    subnormal = magnitude < ONE_EXPONENT
    bits = np.uint32(magnitude + rebias)
    bits = np.uint32(bits + ONE_EXPONENT) if subnormal else bits
    value = np.float32(np.uint32(bits).view(np.float32) - (least if subnormal else np.float32(0)))
    signed = np.uint32(np.float32(value).view(np.uint32) | np.uint32(moved & SIGN))
    return np.uint32(signed).view(np.float32)


@jit
def decode_elements_as(codes, format_id, values):
    """`decode_elements` compiled for one format."""
    sign_shift, back, rebias, least = decoder(format_id)
    sign_bit = np.uint32(SIGN >> sign_shift)
    largest = np.uint32(ELEMENT_PARAMETERS[format_id, MAX_CODE])
    infinity = np.uint32(ELEMENT_PARAMETERS[format_id, INFINITY_CODE])
    lone_nan = sign_bit if ELEMENT_PARAMETERS[format_id, NO_NEGATIVE_ZERO] else NO_CODE
    for i in range(values.size):
        code = np.uint32(codes[i])
        bits = np.float32(finite_float(code, sign_shift, back, rebias, least)).view(np.uint32)
        magnitude = np.uint32(code & np.uint32(sign_bit - np.uint32(1)))
        infinite = np.uint32(np.uint32(bits & SIGN) | EXPONENT)
        bits = infinite if magnitude > largest else bits
        bits = QUIET_NAN if magnitude > infinity else bits
        bits = QUIET_NAN if code == lone_nan else bits
        values[i] = np.uint32(bits).view(np.float32)


@jit
def decode_elements(codes: NDArray[np.uint8], format_id: int, values: NDArray[np.float32]) -> None:
    """float32 ``values`` of codes, one a byte, exact."""
    if format_id == FLOAT8_E4M3FN:
        decode_elements_as(codes, FLOAT8_E4M3FN, values)
    elif format_id == FLOAT8_E5M2:
        decode_elements_as(codes, FLOAT8_E5M2, values)
    elif format_id == FLOAT4_E2M1FN:
        decode_elements_as(codes, FLOAT4_E2M1FN, values)
    else:
        decode_elements_as(codes, format_id, values)


@jit
def all_finite(codes, format_id):
    """Whether no code is infinity or NaN, for formats with a -0 (quick: 64 bytes to a vector)."""
    magnitude = np.uint8((1 << (ELEMENT_PARAMETERS[format_id, BITS] - 1)) - 1)
    largest = np.uint8(0)
    for i in range(codes.size):
        code = np.uint8(codes[i] & magnitude)
        largest = code if code > largest else largest
    return largest <= ELEMENT_PARAMETERS[format_id, MAX_CODE]


@jit
def decode_products_as(codes, factors, runs, format_id, values):
    """`decode_products` compiled for one format."""
    sign_shift, back, rebias, least = decoder(format_id)
    finite = all_finite(codes, format_id)
    if not finite:
        decode_elements_as(codes, format_id, values)
    if finite and runs:
        for run in range(values.size // RUN):
            factor = factors[run]
            for i in range(run * RUN, run * RUN + RUN):
                value = finite_float(codes[i], sign_shift, back, rebias, least)
                values[i] = np.float32(value * factor)
    elif finite:
        for i in range(values.size):
            value = finite_float(codes[i], sign_shift, back, rebias, least)
            values[i] = np.float32(value * factors[i])
    elif runs:
        for i in range(values.size):
            values[i] = np.float32(values[i] * factors[i // RUN])
    else:
        for i in range(values.size):
            values[i] = np.float32(values[i] * factors[i])


@jit
def add_products_as(codes, factors, format_id, values):
    """`add_products` compiled for one format."""
    sign_shift, back, rebias, least = decoder(format_id)
    for run in range(values.size // RUN):
        factor = factors[run]
        for i in range(run * RUN, run * RUN + RUN):
            product = np.float32(finite_float(codes[i], sign_shift, back, rebias, least) * factor)
            values[i] = np.float32(values[i] + product)


@jit
def add_products(codes, factors, format_id, values):
    """Add to float32 ``values`` what `decode_products` makes of whole runs of finite floating-point codes."""
    if format_id == FLOAT8_E4M3FN:
        add_products_as(codes, factors, FLOAT8_E4M3FN, values)
    elif format_id == FLOAT8_E5M2:
        add_products_as(codes, factors, FLOAT8_E5M2, values)
    else:
        add_products_as(codes, factors, format_id, values)


@jit
def complement(codes, format_id):
    """Make two's complement of codes of sign and magnitude; 0 of -0."""
    sign = np.uint32(1 << (ELEMENT_PARAMETERS[format_id, BITS] - 1))
    largest = np.uint32(np.uint32(2) * sign - np.uint32(1))
    three_signs = np.uint32(np.uint32(3) * sign)
    for i in range(codes.size):
        code = np.uint32(codes[i])
        codes[i] = np.uint32(np.uint32(three_signs - code) & largest) if code >= sign else code


@jit
def decode_integer_products(codes, factors, runs, format_id, values):
    """`decode_products` of two's complement."""
    sign = np.int32(1 << (ELEMENT_PARAMETERS[format_id, BITS] - 1))
    step = 128 - ELEMENT_PARAMETERS[format_id, BIAS] - ELEMENT_PARAMETERS[format_id, MANTISSA_BITS]
    unit = np.uint32(step << 23).view(np.float32)
    for i in range(values.size):
        integer = np.int32(np.int32(np.int32(codes[i]) ^ sign) - sign)
        product = np.float32(np.float32(np.float32(integer) * unit) * factors[i // RUN if runs else i])
        values[i] = np.float32(product + np.float32(0))  # no -0, whatever sign the scale has


@jit
def decode_products(codes, factors, runs, format_id, values):
    """float32 ``values`` of codes times their factors, rounded once: exact for powers of two within float32.

    ``runs`` as in `encode_products`.
    """
    if format_id >= FIRST_INTEGER_ELEMENT:
        decode_integer_products(codes, factors, runs, format_id, values)
    elif format_id == FLOAT8_E4M3FN:
        decode_products_as(codes, factors, runs, FLOAT8_E4M3FN, values)
    elif format_id == FLOAT8_E5M2:
        decode_products_as(codes, factors, runs, FLOAT8_E5M2, values)
    elif format_id == FLOAT4_E2M1FN:
        decode_products_as(codes, factors, runs, FLOAT4_E2M1FN, values)
    else:
        decode_products_as(codes, factors, runs, format_id, values)


@jit
def decode_bfloat16(codes, values):
    """float32 ``values`` of bfloat16 codes: the upper half of the bits."""
    bits = values.view(np.uint32)
    for i in range(bits.size):
        bits[i] = np.uint32(codes[i]) << np.uint32(16)


@jit
def encode_e8m0(values: NDArray[np.float32], saturate: bool, rounding: int, codes: NDArray[np.uint8]) -> None:
    """Codes of float32 ``values`` in float8_e8m0fnu, the powers of two from 2**-127 to 2**127.

    Zero, negative values and NaN have no code but NaN (0xFF). A tie between two powers goes up: both are
    even, and 1.5 rounds to 2 as 3 does to 4. Values below 2**-127 give 2**-127.
    """
    bits = values.view(np.uint32)
    overflow = np.int64(0xFE) if saturate else np.int64(0xFF)
    for i in range(bits.size):
        magnitude = np.int64(bits[i])
        if magnitude == 0 or magnitude > np.int64(EXPONENT):
            codes[i] = 0xFF
            continue
        code = magnitude >> 23
        fraction = magnitude & 0x7FFFFF
        if code == 0:  # subnormal: code 0 is 2**-127, which is the fraction 0x400000
            fraction = max((fraction - 0x400000) << 1, 0)
        if rounding in (NEAREST_EVEN, NEAREST_AWAY):
            code += fraction >= 0x400000
        elif rounding == UP:
            code += fraction != 0
        codes[i] = overflow if code > 0xFE else code


@jit
def decode_e8m0(codes: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
    """float32 ``values`` of float8_e8m0fnu codes."""
    bits = values.view(np.uint32)
    for i in range(bits.size):
        bits[i] = e8m0_bits(codes[i])


@jit
def e8m0_bits(code):
    """Bits of the float32 that a float8_e8m0fnu code stands for: 2**(code - 127), NaN for 0xFF."""
    bits = np.uint32(np.uint32(code) << np.uint32(23))
    bits = np.uint32(0x00400000) if bits == np.uint32(0) else bits
    return QUIET_NAN if bits == EXPONENT else bits
