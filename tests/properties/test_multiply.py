"""`matmul` against exact fractions, on matrices of hard numbers: the same bits, NaN counted as one."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from collemu import Quantized, matmul
from tests.oracles.matmul_reference import (
    BLOCKS,
    FLOAT32_SCALES,
    Blocks,
    block_length,
    element_bits,
    matmul_block_exact,
    matmul_float32,
)

HARD = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    2.0**-149,
    -(2.0**-149),
    2.0**-126,
    1.5 * 2.0**-75,
]
HARD += [
    3.4028234663852886e38,
    -3.4028234663852886e38,
    1 + 2.0**-23,
    1 - 2.0**-24,
    2.0**24,
    2.0**64,
    -(2.0**64),
]
NUMBERS = st.one_of(
    st.sampled_from(HARD),
    st.floats(width=32),
    st.floats(-8, 8, width=32),
    st.integers(-3, 3).map(float),
)
PAIRS = [(a, b) for a in BLOCKS for b in BLOCKS if BLOCKS[a][1] == BLOCKS[b][1]]
CODED_SCALES = [pair for pair in PAIRS if not set(pair) & set(FLOAT32_SCALES)]
OF_FLOATS = [pair for pair in CODED_SCALES if "mxint8" not in pair]


def same_bits(result: np.ndarray, expected: list[list[float]]) -> bool:
    """Whether two float32 matrices are equal to the last bit, -0 and +0 apart, any NaN equal to any other."""
    wanted = np.array(expected, np.float32).reshape(result.shape)
    both_nan = np.isnan(result) & np.isnan(wanted)
    return bool(((result.view(np.uint32) == wanted.view(np.uint32)) | both_nan).all())


def choices(draw: st.DrawFn, pool: Sequence[Any], count: int) -> list[Any]:
    """Members of a pool, drawn as bytes, which is quick."""
    return [pool[byte % len(pool)] for byte in draw(st.binary(min_size=count, max_size=count))]


def matrix(draw: st.DrawFn, rows: int, columns: int) -> list[list[float]]:
    """Numbers, mostly from a small pool, so that they cancel."""
    pool = draw(st.lists(NUMBERS, min_size=1, max_size=6))
    cells = choices(draw, pool, rows * columns)
    return [cells[row * columns : (row + 1) * columns] for row in range(rows)]


def array(rows: list[list[float]], shape: tuple[int, int]) -> np.ndarray:
    """A float32 matrix of a shape that may have no elements."""
    return np.array(rows, np.float32).reshape(shape)


@st.composite
def float32_problem(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[list[float]], int]:
    """a by rows, b by columns, c, K."""
    m, n, k = draw(st.integers(0, 6)), draw(st.integers(0, 6)), draw(st.integers(0, 11))
    return matrix(draw, m, k), matrix(draw, n, k), matrix(draw, m, n), k


@given(float32_problem(), st.none() | st.integers(1, 12), st.booleans())
def test_float32_equals_fractions(problem, promote, column_major):
    """Every product and sum rounded to float32, in the order of k."""
    a, b, c, k = problem
    m, n = len(a), len(b)
    left = array(a, (m, k))
    right = array(b, (n, k)).T
    if not column_major:
        left, right = np.asfortranarray(left), np.ascontiguousarray(right)
    result = matmul(left, right, array(c, (m, n)), promote_every=promote)
    assert same_bits(result, matmul_float32(a, b, c, promote))


def blocks(draw: st.DrawFn, name: str, rows: int, k: int) -> Blocks:
    """Any codes and scales, the extreme ones often."""
    element, block = BLOCKS[name]
    count = -(-k // block)
    every = range(1 << element_bits(element))
    finite = [*range(123), *range(128, 251)] if element.startswith("float8") else every
    few = st.lists(st.sampled_from(finite), min_size=1, max_size=4)
    codes = choices(draw, draw(st.sampled_from([every, finite]) | few), rows * k)
    if name in FLOAT32_SCALES:
        pool = draw(st.lists(NUMBERS | st.floats(2.0**-40, 2.0**40, width=32), min_size=1, max_size=4))
    else:
        usual = range(100, 150) if name != "nvfp4" else range(127)
        pool = draw(st.sampled_from([usual, [0, 1, 126, 127, 128, 253, 254, 255], range(256)]))
    scales = choices(draw, pool, rows * count)
    tensor_scale = draw(NUMBERS) if name == "nvfp4" and rows and k else 1.0
    return Blocks(
        name,
        [codes[row * k : (row + 1) * k] for row in range(rows)],
        [scales[row * count : (row + 1) * count] for row in range(rows)],
        tensor_scale,
    )


def quantized(given_blocks: Blocks, k: int, axis: int) -> Quantized:
    """The same codes as a Quantized, its rows along ``axis``."""
    rows, name = len(given_blocks.codes), given_blocks.format
    codes = np.array(given_blocks.codes, np.uint8).reshape(rows, k)
    bits = np.unpackbits(codes[..., np.newaxis], axis=-1, bitorder="little")[..., : element_bits(BLOCKS[name][0])]
    image = np.packbits(bits.reshape(rows, -1) if rows else bits[:, :, 0], axis=-1, bitorder="little").tobytes()
    image += np.array(given_blocks.scales, "<f4" if name in FLOAT32_SCALES else np.uint8).tobytes()
    if name == "nvfp4" and image:
        image += np.array(given_blocks.tensor_scale, "<f4").tobytes()
    shape = (rows, k) if axis == 1 else (k, rows)
    return Quantized.from_bytes(image, name, shape, axis=axis)


@st.composite
def block_problem(
    draw: st.DrawFn, pairs: Sequence[tuple[str, str]] = PAIRS
) -> tuple[Blocks, Blocks, list[list[float]], int]:
    """a, b, c and K."""
    a_format, b_format = draw(st.sampled_from(pairs))
    m, n = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    lengths = [0, 1, 2, 15, 16, 17, 31, 32, 33, 40, 64, 67]
    k = draw(st.sampled_from(lengths if BLOCKS[a_format][1] < 128 else [*lengths, 127, 128, 129, 200]))
    return blocks(draw, a_format, m, k), blocks(draw, b_format, n, k), matrix(draw, m, n), k


@given(block_problem(), st.none() | st.integers(1, 4))
def test_block_exact_equals_fractions(problem, promote_blocks):
    """The exact sum of a block times both scales, rounded once, added in float32."""
    a, b, c, k = problem
    m, n = len(a.codes), len(b.codes)
    event(f"{a.format} x {b.format}")
    promote = None if promote_blocks is None else promote_blocks * block_length(a.format, k)
    result = matmul(
        quantized(a, k, 1),
        quantized(b, k, 0),
        array(c, (m, n)),
        accumulate="block_exact",
        promote_every=promote,
    )
    assert same_bits(result, matmul_block_exact(a, b, c, promote))


@given(block_problem(), st.none() | st.integers(1, 40))
def test_float32_of_blocks_is_float32_of_their_numbers(problem, promote):
    """A Quantized stands for its dequantised numbers."""
    a, b, c, k = problem
    left, right, start = quantized(a, k, 1), quantized(b, k, 0), array(c, (len(a.codes), len(b.codes)))
    result = matmul(left, right, start, promote_every=promote)
    of_numbers = matmul(left.dequantize(), right.dequantize(), start, promote_every=promote)
    assert same_bits(result, of_numbers.tolist())


# Magnitudes whose products span all that a block can: the largest, the least, and what lies beside the
# threshold below which numbers are summed apart.
WIDE = [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x7A, 0x7B]
WIDE += [code | 0x80 for code in WIDE]


@pytest.mark.parametrize(("a_format", "b_format"), [pair for pair in OF_FLOATS if "mxfp8_e5m2" in pair])
@given(data=st.data())
def test_sums_wider_than_float64_are_exact(a_format, b_format, data):
    """float8_e5m2 products of 2**31 and of 2**-32 in one block: cancelled, and just beside a tie."""
    k = data.draw(st.integers(1, 32))
    codes = {}
    for name in (a_format, b_format):
        limit = (1 << element_bits(BLOCKS[name][0])) - 1
        pool = [code & limit for code in WIDE if code & limit not in (0x7F, 0xFF)]
        codes[name] = data.draw(st.lists(st.sampled_from(pool), min_size=k, max_size=k))
    left, right = codes[a_format], codes[b_format]
    if data.draw(st.booleans()):  # the second half cancels the first, but for one element
        sign = 1 << (element_bits(BLOCKS[a_format][0]) - 1)
        half = k // 2
        left = [*left[:half], *(code ^ sign for code in left[:half]), *left[2 * half :]]
        right = [*right[:half], *right[:half], *right[2 * half :]]
    exponent = data.draw(st.integers(0, 254))
    a = Blocks(a_format, [left], [[exponent]])
    b = Blocks(b_format, [right], [[data.draw(st.integers(max(0, 200 - exponent), min(254, 300 - exponent)))]])
    result = matmul(quantized(a, k, 1), quantized(b, k, 0), accumulate="block_exact")
    assert same_bits(result, matmul_block_exact(a, b, [[0.0]]))
