"""Fused dot products of narrow numbers, as matrix units of GPUs compute them: align, truncate, add, round once.

A unit takes a few k's at a time, a *step*, and the accumulator. It aligns all terms to the largest exponent
among them, cuts each to some bits below it, and adds what is left as integers. Exponents are those that the
operands' fields say: a product of significands may be 3.5 at its exponent, a subnormal less than 1.
`tests/oracles/fused_dot_reference.py` states the rules once more in exact fractions.

The loops run over the columns of a panel, which vectorises; a panel of one step stays in the first-level cache
while all rows pass over it. Operands are codes, a byte each, finite ones: what tables say of the others is zero.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import OK
from collemu_kernels.matmul import pack_columns

ALIGNED = 0  # one alignment and one sum for all terms of a step: NVIDIA
EVEN_ODD = 1  # even and odd k's apart, then both with the accumulator: AMD CDNA 3

WIDTH = 256  # columns of a panel, as `pack_columns` lays them
UNROLLED = 8  # k's that one pass over a panel adds
GROUP = 16  # FP4 products that are summed exactly before they are scaled and aligned
GROUPS = 4  # of them in a step

NO_EXPONENT = -60  # of a zero in tables of exponents; with any other, below every exponent of a product
NO_PRODUCT = -40  # lies between: exponents of products are at least -30
LEAST_ALIGNED = -133  # alignment of a step without any larger term
LEAST_GROUPED = -139
WIDEST_SHIFT = 31


@jit
def decode_panel(codes, numbers, exponents, values, value_exponents):
    """Numbers and exponents of a panel's codes."""
    for i in range(codes.size):
        values[i] = numbers[codes[i]]
    for i in range(codes.size):
        value_exponents[i] = exponents[codes[i]]


@jit
def raise_highest(row, exponents, first, stride, count, panel, width, highest):
    """Raise ``highest`` to the largest exponent of the products of every ``stride``-th k, ``count`` of them."""
    for start in range(first, first + count * stride, UNROLLED * stride):
        a0 = exponents[row[start]]
        a1 = exponents[row[start + stride]]
        a2 = exponents[row[start + 2 * stride]]
        a3 = exponents[row[start + 3 * stride]]
        a4 = exponents[row[start + 4 * stride]]
        a5 = exponents[row[start + 5 * stride]]
        a6 = exponents[row[start + 6 * stride]]
        a7 = exponents[row[start + 7 * stride]]
        b = panel[start * WIDTH :]
        skip = stride * WIDTH
        for j in range(width):
            e0 = np.int8(a0 + b[j])
            e1 = np.int8(a1 + b[skip + j])
            e2 = np.int8(a2 + b[2 * skip + j])
            e3 = np.int8(a3 + b[3 * skip + j])
            e4 = np.int8(a4 + b[4 * skip + j])
            e5 = np.int8(a5 + b[5 * skip + j])
            e6 = np.int8(a6 + b[6 * skip + j])
            e7 = np.int8(a7 + b[7 * skip + j])
            e0 = e0 if e0 > e1 else e1
            e2 = e2 if e2 > e3 else e3
            e4 = e4 if e4 > e5 else e5
            e6 = e6 if e6 > e7 else e7
            e0 = e0 if e0 > e2 else e2
            e4 = e4 if e4 > e6 else e6
            e0 = e0 if e0 > e4 else e4
            highest[j] = highest[j] if highest[j] > e0 else e0


@jit
def add_truncated(row, numbers, first, stride, count, panel, width, factors, sums):
    """Add the products of some k's, each times its column's power of two and cut toward zero to an integer.

    A product has at most 8 bits, so float32 holds it exactly, scaled too.
    """
    for start in range(first, first + count * stride, UNROLLED * stride):
        a0 = numbers[row[start]]
        a1 = numbers[row[start + stride]]
        a2 = numbers[row[start + 2 * stride]]
        a3 = numbers[row[start + 3 * stride]]
        a4 = numbers[row[start + 4 * stride]]
        a5 = numbers[row[start + 5 * stride]]
        a6 = numbers[row[start + 6 * stride]]
        a7 = numbers[row[start + 7 * stride]]
        b = panel[start * WIDTH :]
        skip = stride * WIDTH
        for j in range(width):
            f = factors[j]
            s0 = np.int32(np.int32(a0 * b[j] * f) + np.int32(a1 * b[skip + j] * f))
            s2 = np.int32(np.int32(a2 * b[2 * skip + j] * f) + np.int32(a3 * b[3 * skip + j] * f))
            s4 = np.int32(np.int32(a4 * b[4 * skip + j] * f) + np.int32(a5 * b[5 * skip + j] * f))
            s6 = np.int32(np.int32(a6 * b[6 * skip + j] * f) + np.int32(a7 * b[7 * skip + j] * f))
            s0 = np.int32(s0 + s2)
            s4 = np.int32(s4 + s6)
            sums[j] = np.int32(sums[j] + np.int32(s0 + s4))


@jit
def set_factors(highest, scales, row_scale, accumulators, fraction_bits, width, alignments, factors):
    """Exponent that a step's terms are aligned to, and the factor that turns products into integers of it.

    Products have the exponent ``highest`` plus both scales. The factor's exponent is clamped where products
    are cut to zero anyhow, or where there are none.
    """
    for j in range(width):
        scale = np.int32(row_scale + scales[j])
        bits = np.int32(accumulators[j])
        field = np.int32((bits >> 23) & 0xFF)
        exponent = np.int32((field if field > 1 else 1) - 127)
        largest = np.int32(exponent if (bits & 0x7FFFFFFF) != 0 else LEAST_ALIGNED)
        of_products = np.int32(highest[j] + scale if highest[j] > NO_PRODUCT else LEAST_ALIGNED)
        largest = largest if largest > of_products else of_products
        largest = largest if largest > LEAST_ALIGNED else np.int32(LEAST_ALIGNED)
        alignments[j] = largest
        power = np.int32(fraction_bits - largest + scale)
        power = power if power > -126 else np.int32(-126)
        power = power if power < 60 else np.int32(60)
        factors[j] = np.int32(np.int32(power + 127) << 23)


@jit
def cut(total, alignment, fraction_bits, result_bits):
    """An integer in units of 2**(alignment - fraction_bits) as float32 with ``result_bits``, toward zero.

    Overflow gives infinity; what is cut to zero is +0.
    """
    dropped = np.int64(52 - result_bits)
    bits = np.float64(total).view(np.int64)
    kept = np.int64(np.int64(bits >> dropped) << dropped).view(np.float64)
    power = np.int64(np.int64(alignment - fraction_bits + 1023) << 52).view(np.float64)
    value = kept * power
    last = np.int64(np.int64(126 + result_bits + 1023) << 52).view(np.float64)  # of subnormal results, inverse
    small = np.trunc(value * last) / last
    return np.float32((small if abs(value) < 2.0**-126 else value) + 0.0)


@jit
def round_aligned(sums, alignments, fraction_bits, result_bits, width, accumulators, results):
    """Sum of a step's integers and of its accumulator, as the new accumulator; infinities and NaNs stay."""
    for j in range(width):
        bits = np.int32(accumulators[j])
        field = np.int32((bits >> 23) & 0xFF)
        significand = np.int32((bits & 0x7FFFFF) | (0x800000 if field > 0 else 0))
        shift = np.int32(alignments[j] - ((field if field > 1 else 1) - 127) + 25 - fraction_bits)
        shift = shift if shift < WIDEST_SHIFT else np.int32(WIDEST_SHIFT)
        term = np.int64(np.int32(significand << 2) >> shift)
        term = np.int64(-term) if bits < 0 else term
        total = np.int64(np.int64(sums[j]) + np.int64(sums[WIDTH + j]) + term)
        result = cut(total, alignments[j], fraction_bits, result_bits)
        results[j] = result if field < 255 else results[j]


@jit
def round_even_odd(sums, even, odd, fraction_bits, width, accumulators, results):
    """Join the sums of even and odd k's and the accumulator, each cut downward, and round to nearest even.

    Sums are integers in units of 2**(exponent - fraction_bits), their exponents in ``even`` and ``odd``. Both
    are cut to as many bits below the larger exponent; their sum to 32, the accumulator to ``fraction_bits``
    below the exponent of the largest of the three, but an accumulator that lies below these bits is dropped;
    the whole to 31 below its own exponent.
    """
    for j in range(width):
        bits = np.int32(accumulators[j])
        field = np.int32((bits >> 23) & 0xFF)
        exponent = np.int64((field if field > 1 else 1) - 127)
        significand = np.int64((bits & 0x7FFFFF) | (0x800000 if field > 0 else 0))
        significand = np.int64(-significand) if bits < 0 else significand
        e_even = np.int64(even[j] if even[j] > NO_PRODUCT else -300)
        e_odd = np.int64(odd[j] if odd[j] > NO_PRODUCT else -300)
        e_dot = e_even if e_even > e_odd else e_odd
        d_even = np.int64(e_dot - e_even)
        d_odd = np.int64(e_dot - e_odd)
        dot = np.int64(np.int64(sums[j]) >> (d_even if d_even < 63 else 63))
        dot = np.int64(dot + (np.int64(sums[WIDTH + j]) >> (d_odd if d_odd < 63 else 63)))
        largest = e_dot if e_dot > exponent else exponent
        d_dot = np.int64(largest - e_dot)
        d_c = np.int64(largest - exponent)
        dot = np.int64((dot << (32 - fraction_bits)) >> (d_dot if d_dot < 63 else 63))
        term = np.int64((significand << (fraction_bits - 23)) >> (d_c if d_c < 63 else 63))
        term = np.int64(term << (32 - fraction_bits)) if d_c <= fraction_bits + 1 else np.int64(0)
        total = np.int64(dot + term)
        length = np.int64(((np.float64(total).view(np.int64) >> 52) & 0x7FF) - 1022)  # bits of |total|
        dropped = np.int64(length - 32 if length > 32 else 0)
        kept = np.int64((total >> dropped) << dropped)
        power = np.int64(np.int64(largest - 32 + 1023) << 52).view(np.float64)
        result = np.float32(np.float64(kept) * power)
        results[j] = result if field < 255 else results[j]


@jit
def multiply_fused(
    a: NDArray[np.uint8],
    a_row: int,
    a_k: int,
    a_numbers: NDArray[np.float32],
    a_exponents: NDArray[np.int8],
    a_scales: NDArray[np.int16],
    b: NDArray[np.uint8],
    b_k: int,
    b_column: int,
    b_numbers: NDArray[np.float32],
    b_exponents: NDArray[np.int8],
    b_scales: NDArray[np.int16],
    rule: int,
    step: int,
    fraction_bits: int,
    result_bits: int,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Pass float32 ``c`` (m x n, flat, neither 0) through the steps of k from ``first`` to ``last``.

    a[i, k] lies at i * a_row + k * a_k, b[k, j] at k * b_k + j * b_column, both codes. Scales are exponents
    of the steps of each row of a, of each column of b, or empty (ALIGNED only, ``first`` a multiple of the
    step). A last step that is not full is filled with zeros. ``step`` is 16 or 32, ``fraction_bits`` at most
    25.
    """
    scaled = a_scales.size > 0
    a_steps = a_scales.size // m
    b_steps = b_scales.size // n
    codes = np.zeros(step * WIDTH, np.uint8)
    values = np.zeros(step * WIDTH, np.float32)
    value_exponents = np.zeros(step * WIDTH, np.int8)
    row_codes = np.zeros(step, np.uint8)
    scales = np.zeros(WIDTH, np.int16)
    highest = np.zeros(2 * WIDTH, np.int8)
    alignments = np.zeros(2 * WIDTH, np.int32)
    factors = np.zeros(2 * WIDTH, np.int32)
    powers = factors.view(np.float32)
    sums = np.zeros(2 * WIDTH, np.int32)
    nothing = np.zeros(WIDTH, np.int32)
    accumulators = c.view(np.int32)
    for left in range(0, n, WIDTH):
        width = min(WIDTH, n - left)
        for start in range(first, last, step):
            depth = min(step, last - start)
            index = start // step
            codes[:] = 0
            pack_columns(b[left * b_column :], b_k, b_column, width, start, depth, codes)
            decode_panel(codes, b_numbers, b_exponents, values, value_exponents)
            if scaled:
                for j in range(width):
                    scales[j] = b_scales[(left + j) * b_steps + index]
            row_codes[:] = 0
            for row in range(m):
                for k in range(depth):
                    row_codes[k] = a[row * a_row + (start + k) * a_k]
                corner = row * n + left
                here = accumulators[corner : corner + width]
                results = c[corner : corner + width]
                row_scale = np.int32(a_scales[row * a_steps + index]) if scaled else np.int32(0)
                highest[:] = -128
                sums[:] = 0
                if rule == ALIGNED:
                    raise_highest(row_codes, a_exponents, 0, 1, step, value_exponents, width, highest)
                    set_factors(highest, scales, row_scale, here, fraction_bits, width, alignments, factors)
                    for part in range(step // 16):  # int32 holds the sum of 16
                        of_part = sums[part * WIDTH :]
                        add_truncated(row_codes, a_numbers, part * 16, 1, 16, values, width, powers, of_part)
                    round_aligned(sums, alignments, fraction_bits, result_bits, width, here, results)
                else:
                    half = step // 2
                    for part in range(2):
                        of_highest = highest[part * WIDTH :]
                        of_part = sums[part * WIDTH :]
                        raise_highest(row_codes, a_exponents, part, 2, half, value_exponents, width, of_highest)
                        set_factors(of_highest, scales, row_scale, nothing, fraction_bits, width, alignments, factors)
                        add_truncated(row_codes, a_numbers, part, 2, half, values, width, powers, of_part)
                    round_even_odd(sums, highest, highest[WIDTH:], fraction_bits, width, here, results)
    return OK


@jit
def add_group(row, numbers, panel, width, sums):
    """Exact sums of a group's products of small integers, in int16."""
    sums[:width] = 0
    for start in range(0, GROUP, UNROLLED):
        a0 = numbers[row[start]]
        a1 = numbers[row[start + 1]]
        a2 = numbers[row[start + 2]]
        a3 = numbers[row[start + 3]]
        a4 = numbers[row[start + 4]]
        a5 = numbers[row[start + 5]]
        a6 = numbers[row[start + 6]]
        a7 = numbers[row[start + 7]]
        b = panel[start * WIDTH :]
        for j in range(width):
            s0 = np.int16(np.int16(a0 * b[j]) + np.int16(a1 * b[WIDTH + j]))
            s2 = np.int16(np.int16(a2 * b[2 * WIDTH + j]) + np.int16(a3 * b[3 * WIDTH + j]))
            s4 = np.int16(np.int16(a4 * b[4 * WIDTH + j]) + np.int16(a5 * b[5 * WIDTH + j]))
            s6 = np.int16(np.int16(a6 * b[6 * WIDTH + j]) + np.int16(a7 * b[7 * WIDTH + j]))
            s0 = np.int16(s0 + s2)
            s4 = np.int16(s4 + s6)
            sums[j] = np.int16(sums[j] + np.int16(s0 + s4))


@jit
def mark_nonzero(values, stride, width, marks):
    """For each column a bit for each k of a group whose number is not zero."""
    marks[:width] = 0
    for k in range(GROUP):
        for j in range(width):
            mark = np.uint16(1 << k) if values[k * stride + j] != 0 else np.uint16(0)
            marks[j] = np.uint16(marks[j] | mark)


@jit
def round_groups(sums, exponents, fraction_bits, width, accumulators, results):
    """Sum of a step's groups and of its accumulator, aligned and cut, as the new accumulator.

    A group's sum is an integer in units of 2**(exponent - 8), and has the least exponent if it has no term.
    """
    for j in range(width):
        bits = np.int32(accumulators[j])
        field = np.int32((bits >> 23) & 0xFF)
        exponent = np.int32((field if field > 1 else 1) - 127)
        significand = np.int64((bits & 0x7FFFFF) | (0x800000 if field > 0 else 0))
        largest = np.int32(exponent if (bits & 0x7FFFFFFF) != 0 else LEAST_GROUPED)
        for group in range(GROUPS):
            other = exponents[group * WIDTH + j]
            largest = largest if largest > other else other
        shift = np.int32(largest - exponent)
        total = np.int64((significand << (fraction_bits - 23)) >> (shift if shift < 63 else 63))
        total = np.int64(-total) if bits < 0 else total
        for group in range(GROUPS):
            part = np.int64(sums[group * WIDTH + j])
            shift = np.int32(largest - exponents[group * WIDTH + j])
            size = np.int64(np.int64(abs(part) << (fraction_bits - 8)) >> (shift if shift < 63 else 63))
            total = np.int64(total + (np.int64(-size) if part < 0 else size))
        result = cut(total, largest, fraction_bits, 23)
        results[j] = result if field < 255 else results[j]


@jit
def multiply_grouped(
    a: NDArray[np.uint8],
    a_row: int,
    a_k: int,
    a_numbers: NDArray[np.int16],
    a_scales: NDArray[np.int16],
    a_significands: NDArray[np.int16],
    b: NDArray[np.uint8],
    b_k: int,
    b_column: int,
    b_numbers: NDArray[np.int16],
    b_scales: NDArray[np.int16],
    b_significands: NDArray[np.int16],
    block: int,
    fraction_bits: int,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Pass float32 ``c`` (m x n, flat, neither 0) through steps of four groups of FP4 products.

    ``a`` and ``b`` as in `multiply_fused`; the tables give twice the numbers, as integers. A group's sum is
    exact, times the significands of its block's scales, which are in eighths; its exponent is theirs. Groups
    whose products are all zero, or whose scale is, take no part in the alignment; a sum that cancels does.
    ``block`` is 16 or 32, and divides ``first``.
    """
    step = GROUP * GROUPS
    a_blocks = a_scales.size // m
    b_blocks = b_scales.size // n
    codes = np.zeros(step * WIDTH, np.uint8)
    values = np.zeros(step * WIDTH, np.int16)
    marks = np.zeros(GROUPS * WIDTH, np.uint16)
    row_codes = np.zeros(step, np.uint8)
    row_marks = np.zeros(1, np.uint16)
    row_values = np.zeros(GROUP, np.int16)
    scales = np.zeros(GROUPS * WIDTH, np.int16)
    significands = np.zeros(GROUPS * WIDTH, np.int16)
    products = np.zeros(WIDTH, np.int16)
    exponents = np.zeros(GROUPS * WIDTH, np.int32)
    sums = np.zeros(GROUPS * WIDTH, np.int32)
    accumulators = c.view(np.int32)
    for left in range(0, n, WIDTH):
        width = min(WIDTH, n - left)
        for start in range(first, last, step):
            depth = min(step, last - start)
            groups = (depth + GROUP - 1) // GROUP
            exponents[:] = LEAST_GROUPED
            sums[:] = 0
            codes[:] = 0
            pack_columns(b[left * b_column :], b_k, b_column, width, start, depth, codes)
            for i in range(codes.size):
                values[i] = b_numbers[codes[i]]
            for group in range(groups):
                index = (start + group * GROUP) // block
                mark_nonzero(values[group * GROUP * WIDTH :], WIDTH, width, marks[group * WIDTH :])
                for j in range(width):
                    scales[group * WIDTH + j] = b_scales[(left + j) * b_blocks + index]
                    significands[group * WIDTH + j] = b_significands[(left + j) * b_blocks + index]
            row_codes[:] = 0
            for row in range(m):
                for k in range(depth):
                    row_codes[k] = a[row * a_row + (start + k) * a_k]
                for group in range(groups):
                    at = group * WIDTH
                    of_row = row_codes[group * GROUP : (group + 1) * GROUP]
                    index = row * a_blocks + (start + group * GROUP) // block
                    scale = np.int32(a_scales[index])
                    significand = np.int32(a_significands[index])
                    for k in range(GROUP):
                        row_values[k] = a_numbers[of_row[k]]
                    mark_nonzero(row_values, 1, 1, row_marks)
                    mark = row_marks[0]
                    add_group(of_row, a_numbers, values[group * GROUP * WIDTH :], width, products)
                    for j in range(width):
                        factor = np.int32(significand * np.int32(significands[at + j]))
                        sums[at + j] = np.int32(np.int32(products[j]) * factor)
                        absent = (marks[at + j] & mark) == 0 or factor == 0
                        exponents[at + j] = np.int32(LEAST_GROUPED if absent else scale + scales[at + j])
                corner = row * n + left
                here = accumulators[corner : corner + width]
                round_groups(sums, exponents, fraction_bits, width, here, c[corner : corner + width])
    return OK
