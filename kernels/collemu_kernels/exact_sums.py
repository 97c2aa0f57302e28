"""Matrix products that are rounded once: the nearest float32 of the exact sum.

Where float64 holds all sums of products exactly, it adds them; else each result has a fixed-point number of its
own, wide enough for every product of float32 numbers (Kulisch's accumulator). Numbers are finite.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import OK
from collemu_kernels.matmul import (
    CHUNK,
    DEPTH,
    GROUP,
    LANES,
    ROWS,
    WIDTH,
    add_products,
    pack_columns,
    pack_rows,
    round_to_odd,
)

TILE = ROWS * WIDTH
LOWEST = -298  # power of two of the last bit of the product of two least float32 numbers
LIMB_BITS = 32
LIMBS = 20  # of 32 bits from 2**-298 on: products reach 2**256, and 2**29 of them 2**285
CARRY_EVERY = 1 << 20  # additions that a limb of 64 bits takes without a carry, and many more
MASK = (1 << LIMB_BITS) - 1


@jit
def multiply_exact_float64(
    a: NDArray[np.float32],
    a_row: int,
    a_k: int,
    b: NDArray[np.float32],
    b_k: int,
    b_column: int,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Add to float32 ``c`` (m x n, flat, neither 0) the exact sums of products, rounded once with it.

    Arguments as in `matmul.multiply_float32`; all sums of products must be exact in float64.
    """
    groups = (m + ROWS - 1) // ROWS
    packed_rows = np.zeros(groups * ROWS * CHUNK, np.float64)
    packed_columns = np.zeros(CHUNK * WIDTH, np.float64)
    sums = np.zeros(groups * TILE, np.float64)
    for left in range(0, n, WIDTH):
        columns = min(WIDTH, n - left)
        width = (columns + LANES - 1) // LANES * LANES
        sums[:] = 0
        for start in range(first, last, CHUNK):
            depth = min(CHUNK, last - start)
            steps = (depth + DEPTH - 1) // DEPTH
            pack_rows(a, a_row, a_k, m, start, depth, np.float64(0), packed_rows)
            pack_columns(b[left * b_column :], b_k, b_column, columns, start, depth, packed_columns)
            for group in range(groups):
                of_group = sums[group * TILE : (group + 1) * TILE]
                add_products(packed_rows[group * steps * GROUP :], packed_columns, steps, width, of_group)
        for row in range(m):
            for j in range(columns):
                at = row * n + left + j
                total = round_to_odd(sums[row * WIDTH + j], np.float64(c[at]))
                c[at] = np.float32(total + 0.0)
    return OK


@jit
def add_product(x_bits, y_bits, limbs):
    """Add the product of two float32, given by their bits, to a fixed-point number."""
    x_field = np.int64((x_bits >> 23) & 0xFF)
    y_field = np.int64((y_bits >> 23) & 0xFF)
    x = np.int64((x_bits & 0x7FFFFF) | (0x800000 if x_field > 0 else 0))
    y = np.int64((y_bits & 0x7FFFFF) | (0x800000 if y_field > 0 else 0))
    x_field = x_field if x_field > 1 else np.int64(1)
    y_field = y_field if y_field > 1 else np.int64(1)
    product = np.int64(x * y)
    place = np.int64(x_field + y_field - 2)  # above LOWEST
    sign = np.int64(1) if (x_bits < 0) == (y_bits < 0) else np.int64(-1)
    limb = place >> 5
    offset = place & 31
    low = np.int64(np.int64(product & MASK) << offset)
    high = np.int64(np.int64(product >> LIMB_BITS) << offset)
    limbs[limb] += np.int64(sign * np.int64(low & MASK))
    limbs[limb + 1] += np.int64(sign * np.int64((low >> LIMB_BITS) + (high & MASK)))
    limbs[limb + 2] += np.int64(sign * np.int64(high >> LIMB_BITS))


@jit
def carry(limbs):
    """Bring all limbs but the last to 32 bits; the last has the sign."""
    for i in range(LIMBS - 1):
        limbs[i + 1] += np.int64(limbs[i] >> LIMB_BITS)
        limbs[i] &= MASK


@jit
def round_limbs(limbs):
    """Nearest float32 of a fixed-point number; zero is +0. The limbs are left as its absolute value."""
    carry(limbs)
    negative = limbs[LIMBS - 1] < 0
    if negative:
        for i in range(LIMBS):
            limbs[i] = np.int64(-limbs[i])
        carry(limbs)
    top = LIMBS - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    # The leading 64 bits, or all; what lies below counts as a bit set at their end.
    size = np.float64(limbs[0])
    if top > 0:
        second = np.int64(limbs[top - 1])
        below = False
        for i in range(top - 1):
            below = below or limbs[i] != 0
        size = round_to_odd(np.float64(limbs[top]) * 2.0**32, np.float64(second))
        if below:
            bits = np.float64(size).view(np.int64)
            size = np.int64(bits | 1).view(np.float64)
    power = np.int64(np.int64((top - 1 if top > 0 else 0) * LIMB_BITS + LOWEST + 1023) << 52).view(np.float64)
    value = np.float32(size * power)
    return np.float32(-value) if negative else value


@jit
def multiply_exact(
    a: NDArray[np.float32],
    a_row: int,
    a_k: int,
    b: NDArray[np.float32],
    b_k: int,
    b_column: int,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Add to float32 ``c`` (m x n, flat) the exact sums of products, rounded once with it.

    Arguments as in `matmul.multiply_float32`; any finite numbers.
    """
    a_bits = a.view(np.int32)
    b_bits = b.view(np.int32)
    c_bits = c.view(np.int32)
    one = np.ones(1, np.float32).view(np.int32)
    limbs = np.zeros(LIMBS, np.int64)
    for row in range(m):
        for column in range(n):
            limbs[:] = 0
            add_product(c_bits[row * n + column], one[0], limbs)
            for start in range(first, last, CARRY_EVERY):
                for k in range(start, min(start + CARRY_EVERY, last)):
                    add_product(a_bits[row * a_row + k * a_k], b_bits[k * b_k + column * b_column], limbs)
                carry(limbs)
            c[row * n + column] = round_limbs(limbs)
    return OK
