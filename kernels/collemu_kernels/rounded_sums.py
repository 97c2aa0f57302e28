"""Matrix products whose sums are rounded elsewhere than in a float32 chain: in a tree, or to 16 bits.

Tiles and packing are those of `collemu_kernels.matmul`. Here a panel of columns is the outer loop, so that
what a result needs between two runs of k's is kept for one panel only.
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
    load_tile,
    pack_columns,
    pack_rows,
    store_tile,
)

TILE = ROWS * WIDTH
LEVELS = 32  # more than the tree over the chunks of any K needs


@jit
def add_leaf(a, columns, width, leaf):
    """Sums of DEPTH products in a tree: neighbours first."""
    for row in range(ROWS):
        a0, a1, a2, a3 = a[row * DEPTH], a[row * DEPTH + 1], a[row * DEPTH + 2], a[row * DEPTH + 3]
        results = leaf[row * WIDTH : (row + 1) * WIDTH]
        for j in range(width):
            results[j] = (a0 * columns[j] + a1 * columns[WIDTH + j]) + (
                a2 * columns[2 * WIDTH + j] + a3 * columns[3 * WIDTH + j]
            )


@jit
def add_to_tree(count, levels, size, stride, at, leaf):
    """Put leaf number ``count`` into a tree: add it to each finished neighbour on its left.

    Level l of the tree holds the sum of 2**l leaves, where the bit l of ``count`` is set.
    """
    level = 0
    while (count >> level) & 1:
        left = levels[level * stride + at : level * stride + at + size]
        for i in range(size):
            leaf[i] = left[i] + leaf[i]
        level += 1
    levels[level * stride + at : level * stride + at + size] = leaf[:size]


@jit
def sum_tree(count, levels, size, stride, at, total):
    """Sum of all ``count`` leaves: what has no neighbour on its right moves up as it is."""
    found = False
    for level in range(LEVELS):
        if (count >> level) & 1:
            left = levels[level * stride + at : level * stride + at + size]
            if found:
                for i in range(size):
                    total[i] = left[i] + total[i]
            else:
                total[:size] = left
            found = True


@jit
def multiply_pairwise(
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
    """Add to float32 ``c`` (m x n, flat, neither 0) the tree sums of the k's from ``first`` to ``last``.

    Arguments as in `matmul.multiply_float32`. Every product and sum is rounded to float32. The k's that fill
    the last DEPTH are products -0, and adding one is what moving up as it is means.
    """
    groups = (m + ROWS - 1) // ROWS
    size = groups * TILE
    chunks = (last - first + CHUNK - 1) // CHUNK
    chunk_levels = 1
    while (chunks >> chunk_levels) > 0:
        chunk_levels += 1
    packed_rows = np.zeros(groups * ROWS * CHUNK, np.float32)
    packed_columns = np.zeros(CHUNK * WIDTH, np.float32)
    leaf = np.zeros(TILE, np.float32)
    levels = np.zeros(LEVELS * TILE, np.float32)
    panel_levels = np.zeros(chunk_levels * size, np.float32)
    tile = np.zeros(TILE, np.float32)
    for left in range(0, n, WIDTH):
        columns = min(WIDTH, n - left)
        width = (columns + LANES - 1) // LANES * LANES
        for chunk in range(chunks):
            start = first + chunk * CHUNK
            depth = min(CHUNK, last - start)
            steps = (depth + DEPTH - 1) // DEPTH
            pack_rows(a, a_row, a_k, m, start, depth, np.float32(-0.0), packed_rows)
            pack_columns(b[left * b_column :], b_k, b_column, columns, start, depth, packed_columns)
            for group in range(groups):
                for step in range(steps):
                    row = packed_rows[(group * steps + step) * GROUP :]
                    add_leaf(row, packed_columns[step * DEPTH * WIDTH :], width, leaf)
                    add_to_tree(step, levels, TILE, TILE, 0, leaf)
                sum_tree(steps, levels, TILE, TILE, 0, leaf)
                add_to_tree(chunk, panel_levels, TILE, size, group * TILE, leaf)
        for group in range(groups):
            rows = min(ROWS, m - group * ROWS)
            corner = group * ROWS * n + left
            sum_tree(chunks, panel_levels, TILE, size, group * TILE, leaf)
            load_tile(c, corner, n, rows, columns, tile)
            for i in range(TILE):
                tile[i] = tile[i] + leaf[i]
            store_tile(tile, corner, n, rows, columns, c)
    return OK


@jit
def narrow(x, dropped, least_normal, magic, overflow):
    """float64 rounded to nearest even to a type of fewer bits, as float64; one source for every such type.

    ``dropped`` are the significand bits that float64 has more; below ``least_normal`` the type has a fixed
    last bit, to which adding and taking away ``magic`` rounds; from ``overflow`` on it has infinity.
    """
    size = np.float64(abs(x))
    bits = size.view(np.int64)
    half = np.int64(np.int64(1) << (dropped - 1))
    up = np.int64(half - 1 + ((bits >> dropped) & 1))
    rounded = np.int64(np.int64(np.int64(bits + up) >> dropped) << dropped).view(np.float64)
    small = (size + magic) - magic
    result = small if size < least_normal else rounded
    result = np.float64(np.inf) if result >= overflow else result
    return np.float64(np.copysign(result if size < np.inf else size, x))


@jit
def multiply_narrow(
    a: NDArray[np.float32],
    a_row: int,
    a_k: int,
    b: NDArray[np.float32],
    b_k: int,
    b_column: int,
    dropped: int,
    least_normal: float,
    magic: float,
    overflow: float,
    first: int,
    last: int,
    m: int,
    n: int,
    c: NDArray[np.float32],
) -> int:
    """Add to ``c`` (m x n, flat) the products of k's from ``first`` to ``last``, one after the other.

    Arguments as in `matmul.multiply_float32`, and a type as in `narrow`: every product, from its exact value,
    and every sum is rounded to it. ``c`` holds numbers of that type. float64 holds products of float32, and
    sums of numbers of 16 bits, exactly.
    """
    groups = (m + ROWS - 1) // ROWS
    packed_rows = np.zeros(groups * ROWS * CHUNK, np.float32)
    packed_columns = np.zeros(CHUNK * WIDTH, np.float32)
    tile = np.zeros(TILE, np.float32)
    for left in range(0, n, WIDTH):
        columns = min(WIDTH, n - left)
        for start in range(first, last, CHUNK):
            depth = min(CHUNK, last - start)
            steps = (depth + DEPTH - 1) // DEPTH
            pack_rows(a, a_row, a_k, m, start, depth, np.float32(-0.0), packed_rows)
            pack_columns(b[left * b_column :], b_k, b_column, columns, start, depth, packed_columns)
            for group in range(groups):
                rows = min(ROWS, m - group * ROWS)
                corner = group * ROWS * n + left
                load_tile(c, corner, n, rows, columns, tile)
                for k in range(depth):
                    step = packed_rows[(group * steps + k // DEPTH) * GROUP + k % DEPTH :]
                    column = packed_columns[k * WIDTH : (k + 1) * WIDTH]
                    for row in range(rows):
                        x = np.float64(step[row * DEPTH])
                        sums = tile[row * WIDTH : (row + 1) * WIDTH]
                        for j in range(columns):
                            product = narrow(x * np.float64(column[j]), dropped, least_normal, magic, overflow)
                            total = np.float64(sums[j]) + product
                            sums[j] = np.float32(narrow(total, dropped, least_normal, magic, overflow))
                store_tile(tile, corner, n, rows, columns, c)
    return OK
