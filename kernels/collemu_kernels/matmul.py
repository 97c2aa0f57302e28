"""Matrix products whose every rounding is specified: float32 in k order, and exact sums of blocks.

Both kernels walk over tiles of ROWS x WIDTH results, which stay in the first-level cache. An operand is
packed first: rows of ``a`` by groups of ROWS, columns of ``b`` by panels of WIDTH, so that `add_products`
meets both in the order in which it reads them. Its loop over the columns of a panel vectorises; each result
adds its products in the order of k, whatever the tiles. Products and sums are rounded apart: no fused
multiply-add may arise.

An operand is a flat array and two strides, which covers both orders in memory and their transposes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import OK

ROWS = 4
DEPTH = 4  # k's that one pass over a panel adds
GROUP = ROWS * DEPTH
WIDTH = 256
LANES = 64  # columns are worked on by whole multiples of this, so that no scalar remainder is left
CHUNK = 256  # k's that are packed together: a panel of them fits the second-level cache

# Rows of a table of numbers: all of them, the large ones (else 0), the small ones (else 0).
WHOLE = 0
HIGH = 1
LOW = 2


@jit
def pack_rows(values, row_stride, k_stride, rows, first, depth, padding, packed):
    """Groups of ROWS rows, DEPTH by DEPTH k's, ``padding`` after the last k."""
    steps = (depth + DEPTH - 1) // DEPTH
    for row in range(rows):
        start = (row // ROWS) * steps * GROUP + (row % ROWS) * DEPTH
        source = row * row_stride + first * k_stride
        for k in range(depth):
            packed[start + (k // DEPTH) * GROUP + k % DEPTH] = values[source + k * k_stride]
        for k in range(depth, steps * DEPTH):
            packed[start + (k // DEPTH) * GROUP + k % DEPTH] = padding


@jit
def pack_columns(values, k_stride, column_stride, columns, first, depth, packed):
    """A panel: WIDTH columns of each k, zero where the matrix ends."""
    steps = (depth + DEPTH - 1) // DEPTH
    packed[depth * WIDTH : steps * DEPTH * WIDTH] = 0
    for tile in range(0, depth, 16):  # as many k's as lie in a cache line, if k is the fast index
        for column in range(columns):
            source = column * column_stride + first * k_stride
            for k in range(tile, min(tile + 16, depth)):
                packed[k * WIDTH + column] = values[source + k * k_stride]


@jit
def add_products(rows, columns, steps, width, sums):
    """Add to ROWS x ``width`` sums the products of a group of rows with a panel, k ascending.

    One source for float32, float64 and int16: sums are stored in the type of ``sums``.
    """
    for step in range(steps):
        a = rows[step * GROUP : step * GROUP + GROUP]
        b = columns[step * DEPTH * WIDTH : (step + 1) * DEPTH * WIDTH]
        a00, a01, a02, a03 = a[0], a[1], a[2], a[3]
        a10, a11, a12, a13 = a[4], a[5], a[6], a[7]
        a20, a21, a22, a23 = a[8], a[9], a[10], a[11]
        a30, a31, a32, a33 = a[12], a[13], a[14], a[15]
        for j in range(width):
            b0 = b[j]
            b1 = b[WIDTH + j]
            b2 = b[2 * WIDTH + j]
            b3 = b[3 * WIDTH + j]
            sums[j] = (((sums[j] + a00 * b0) + a01 * b1) + a02 * b2) + a03 * b3
            sums[WIDTH + j] = (((sums[WIDTH + j] + a10 * b0) + a11 * b1) + a12 * b2) + a13 * b3
            sums[2 * WIDTH + j] = (((sums[2 * WIDTH + j] + a20 * b0) + a21 * b1) + a22 * b2) + a23 * b3
            sums[3 * WIDTH + j] = (((sums[3 * WIDTH + j] + a30 * b0) + a31 * b1) + a32 * b2) + a33 * b3


@jit
def load_tile(c, first, n, rows, columns, tile):
    """Copy a tile of the results from ``c``, a flat matrix of n columns."""
    for row in range(rows):
        for j in range(columns):
            tile[row * WIDTH + j] = c[first + row * n + j]


@jit
def store_tile(tile, first, n, rows, columns, c):
    """Copy a tile of the results back."""
    for row in range(rows):
        for j in range(columns):
            c[first + row * n + j] = tile[row * WIDTH + j]


@jit
def multiply_float32(
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
    """Add to float32 ``c`` (m x n, flat) the products of k's from ``first`` to ``last``, one after the other.

    a[i, k] lies at i * a_row + k * a_k, b[k, j] at k * b_k + j * b_column. Every product and every sum is
    rounded to float32. The k's that fill the last step are products -0 * 0 = -0, which change no sum, even
    -0.
    """
    groups = (m + ROWS - 1) // ROWS
    packed_rows = np.zeros(groups * ROWS * CHUNK, np.float32)
    packed_columns = np.zeros(CHUNK * WIDTH, np.float32)
    tile = np.zeros(ROWS * WIDTH, np.float32)
    for start in range(first, last, CHUNK):
        depth = min(CHUNK, last - start)
        steps = (depth + DEPTH - 1) // DEPTH
        pack_rows(a, a_row, a_k, m, start, depth, np.float32(-0.0), packed_rows)
        for left in range(0, n, WIDTH):
            columns = min(WIDTH, n - left)
            width = (columns + LANES - 1) // LANES * LANES
            pack_columns(b[left * b_column :], b_k, b_column, columns, start, depth, packed_columns)
            for group in range(groups):
                rows = min(ROWS, m - group * ROWS)
                corner = group * ROWS * n + left
                load_tile(c, corner, n, rows, columns, tile)
                add_products(packed_rows[group * steps * GROUP :], packed_columns, steps, width, tile)
                store_tile(tile, corner, n, rows, columns, c)
    return OK


@jit
def decode_parts(codes, table, parts, values):
    """Numbers of packed codes, once for each of the table's rows of 256."""
    for part in range(parts):
        for i in range(codes.size):
            values[part * codes.size + i] = table[part * 256 + np.int64(codes[i])]


@jit
def any_nonzero(values):
    """Whether a number other than zero is among ``values``."""
    found = 0
    for i in range(values.size):
        found |= values[i] != 0
    return found != 0


@jit
def round_to_odd(high, low):
    """float64 sum of which a narrower rounding gives what it gives for the exact sum.

    Where the sum is inexact, the one of its two neighbours that has an odd significand: it is never a tie,
    and on the right side of every tie (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums",
    2008). The error is Knuth's; a sum that is infinite or NaN has none.
    """
    total = np.float64(high + low)
    back = total - high
    error = (high - (total - back)) + (low - back)
    bits = np.float64(total).view(np.int64)
    nearer = np.int64(1) if (error > 0.0) == (total > 0.0) else np.int64(-1)
    moved = bits + nearer if abs(error) > 0.0 and (bits & 1) == 0 else bits
    return np.int64(moved).view(np.float64)


@jit
def sum_block(rows, columns, at, panel_at, steps, width, parts, work, sums):
    """Exact sums of one block's products, rounded to odd where float64 cannot hold them.

    a b = (a_high b + a_low b_high) + a_low b_low, and float64 holds each of the two sums exactly (the caller
    chose what is low so that it does). Where a group has no low elements, which is the rule, a b itself is
    exact. An infinity or a NaN is right at once, and would not be after the split: 0 times infinity.
    """
    sums[:] = 0
    add_products(rows[at:], columns[panel_at:], steps, width, sums)
    if parts == 1:
        return
    row_part = rows.size // parts
    column_part = columns.size // parts
    low = rows[LOW * row_part + at : LOW * row_part + at + steps * GROUP]
    if not any_nonzero(low):
        return
    large = work[: ROWS * WIDTH]
    small = work[ROWS * WIDTH :]
    work[:] = 0
    add_products(rows[HIGH * row_part + at :], columns[panel_at:], steps, width, large)
    add_products(low, columns[HIGH * column_part + panel_at :], steps, width, large)
    add_products(low, columns[LOW * column_part + panel_at :], steps, width, small)
    for j in range(ROWS * WIDTH):
        total = np.float64(sums[j])
        sums[j] = round_to_odd(np.float64(large[j]), np.float64(small[j])) if abs(total) < np.inf else total


@jit
def add_terms(sums, row_factors, column_factors, tensor_high, tensor_low, width, tile):
    """Scale the exact sums of a block, round them to float32 once, and add them to the tile.

    A sum times the block's scales is exact in float64. All blocks share the factor tensor_high + tensor_low;
    where the second is not zero, products with either must be exact too. A sum that is exactly zero gives +0.
    """
    for row in range(ROWS):
        factor = row_factors[row]
        terms = sums[row * WIDTH : row * WIDTH + WIDTH]
        results = tile[row * WIDTH : row * WIDTH + WIDTH]
        if tensor_low == 0.0:
            for j in range(width):
                scaled = (np.float64(terms[j]) * factor) * column_factors[j]
                results[j] = np.float32(results[j] + np.float32(scaled * tensor_high + 0.0))
        else:
            for j in range(width):
                scaled = (np.float64(terms[j]) * factor) * column_factors[j]
                term = round_to_odd(scaled * tensor_high, scaled * tensor_low)
                results[j] = np.float32(results[j] + np.float32(term + 0.0))


@jit
def multiply_blocks(
    a: NDArray[np.uint8],
    a_row: int,
    a_k: int,
    a_table: NDArray[Any],
    a_scales: NDArray[np.float64],
    b: NDArray[np.uint8],
    b_k: int,
    b_column: int,
    b_table: NDArray[Any],
    b_scales: NDArray[np.float64],
    tensor_high: float,
    tensor_low: float,
    block: int,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Add to float32 ``c`` (m x n, flat, neither 0) the blocks of k from ``first`` to ``last``.

    A block's products are summed exactly, times both scales, and rounded to float32 once; then these terms
    are added in float32. ``a`` and ``b`` are codes (uint8, one each; strides as in `multiply_float32`). A
    table gives the numbers of the 256 codes in a type that adds a block's products without rounding, int16
    or float64; where float64 is not wide enough, both tables have the rows WHOLE, HIGH and LOW (see
    `sum_block`). Scales are float64: those of the blocks of each row of a, of each column of b. ``block``
    is a multiple of DEPTH and divides CHUNK and ``first``.
    """
    parts = a_table.size // 256
    a_blocks = a_scales.size // m
    b_blocks = b_scales.size // n
    groups = (m + ROWS - 1) // ROWS
    row_part = groups * ROWS * CHUNK
    column_part = CHUNK * WIDTH
    row_codes = np.zeros(row_part, np.uint8)
    column_codes = np.zeros(column_part, np.uint8)
    rows = np.zeros(parts * row_part, a_table.dtype)
    columns = np.zeros(parts * column_part, b_table.dtype)
    column_scales = np.zeros((CHUNK // block + DEPTH) * WIDTH, np.float64)
    group_scales = np.zeros(ROWS, np.float64)
    sums = np.zeros(ROWS * WIDTH, a_table.dtype)
    work = np.zeros(2 * ROWS * WIDTH, a_table.dtype)
    tile = np.zeros(ROWS * WIDTH, np.float32)
    for start in range(first, last, CHUNK):
        depth = min(CHUNK, last - start)
        steps = (depth + DEPTH - 1) // DEPTH
        blocks = (depth + block - 1) // block
        pack_rows(a, a_row, a_k, m, start, depth, np.uint8(0), row_codes)
        decode_parts(row_codes, a_table, parts, rows)
        for left in range(0, n, WIDTH):
            used = min(WIDTH, n - left)
            width = (used + LANES - 1) // LANES * LANES
            pack_columns(b[left * b_column :], b_k, b_column, used, start, depth, column_codes)
            decode_parts(column_codes, b_table, parts, columns)
            pack_columns(b_scales[left * b_blocks :], 1, b_blocks, used, start // block, blocks, column_scales)
            for group in range(groups):
                used_rows = min(ROWS, m - group * ROWS)
                corner = group * ROWS * n + left
                load_tile(c, corner, n, used_rows, used, tile)
                for index in range(blocks):
                    step = index * (block // DEPTH)
                    at = (group * steps + step) * GROUP
                    in_block = min(block // DEPTH, steps - step)
                    sum_block(rows, columns, at, index * block * WIDTH, in_block, width, parts, work, sums)
                    for row in range(used_rows):
                        of_row = (group * ROWS + row) * a_blocks
                        group_scales[row] = a_scales[of_row + start // block + index]
                    factors = column_scales[index * WIDTH :]
                    add_terms(sums, group_scales, factors, tensor_high, tensor_low, width, tile)
                store_tile(tile, corner, n, used_rows, used, c)
    return OK
