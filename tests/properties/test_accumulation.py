"""Accumulation models against exact fractions, on matrices of hard numbers: the same bits, NaN counted as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collemu import matmul
from tests.oracles.fused_dot_reference import FIELDS, blackwell_blocks, fused_dot
from tests.oracles.matmul_reference import BLOCKS, matmul_exact, matmul_narrow, matmul_pairwise
from tests.properties.test_multiply import (
    OF_FLOATS,
    array,
    block_problem,
    choices,
    float32_problem,
    matrix,
    quantized,
    same_bits,
)

PLAIN = {
    "ada": ("float8_e4m3fn", "float8_e5m2"),
    "hopper": ("float8_e4m3fn", "float8_e5m2"),
    "blackwell": ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
    "cdna3": ("float8_e4m3fnuz", "float8_e5m2fnuz"),
}
REFERENCES = {
    "pairwise": matmul_pairwise,
    "exact": matmul_exact,
    "float16": lambda a, b, c, promote: matmul_narrow(a, b, c, "float16", promote),
    "bfloat16": lambda a, b, c, promote: matmul_narrow(a, b, c, "bfloat16", promote),
}


@pytest.mark.parametrize("model", REFERENCES)
@given(problem=float32_problem(), promote=st.none() | st.integers(1, 12), column_major=st.booleans())
def test_number_sums_equal_fractions(model, problem, promote, column_major):
    """Models of float32 numbers."""
    a, b, c, k = problem
    m, n = len(a), len(b)
    left, right = array(a, (m, k)), array(b, (n, k)).T
    if not column_major:
        left, right = np.asfortranarray(left), np.ascontiguousarray(right)
    result = matmul(left, right, array(c, (m, n)), accumulate=model, promote_every=promote)
    assert same_bits(result, REFERENCES[model](a, b, c, promote))


def codes_of(draw: st.DrawFn, name: str, rows: int, k: int) -> list[list[int]]:
    """Any codes, or few, so that they cancel and leave room for subnormals and the accumulator."""
    bits = 1 + sum(FIELDS[name][:2])
    every = range(1 << bits)
    finite = [code for code in every if code & 0x7F < 0x7B and code != 0x80]
    small = [code for code in finite if code & ((1 << (bits - 1)) - 1) < 12]
    few = st.lists(st.sampled_from(finite), min_size=1, max_size=4)
    cells = choices(draw, draw(st.sampled_from([every, finite, finite, small]) | few), rows * k)
    return [cells[row * k : (row + 1) * k] for row in range(rows)]


@pytest.mark.parametrize("model", PLAIN)
@given(data=st.data())
def test_plain_codes_equal_fractions(model, data):
    """Units without scales: any pair of their formats, any accumulator."""
    a_name, b_name = data.draw(st.sampled_from(PLAIN[model])), data.draw(st.sampled_from(PLAIN[model]))
    m, n = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
    k = data.draw(st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 70]))
    a, b = data.draw(st.composite(codes_of)(a_name, m, k)), data.draw(st.composite(codes_of)(b_name, n, k))
    c = data.draw(st.composite(matrix)(m, n))
    every = data.draw(st.none() | st.integers(1, 40))
    left, right = np.array(a, np.uint8).reshape(m, k), np.array(b, np.uint8).reshape(n, k).T
    result = matmul(
        left, right, array(c, (m, n)), accumulate=model, promote_every=every, a_format=a_name, b_format=b_name
    )
    expected = [[fused_dot(row, column, a_name, b_name, c[i][j], model, every) if k else c[i][j]
                 for j, column in enumerate(b)] for i, row in enumerate(a)]  # fmt: skip
    assert same_bits(result, expected)


@given(block_problem(OF_FLOATS), st.none() | st.integers(1, 4))
def test_blackwell_blocks_equal_fractions(problem, promote_blocks):
    """Any pair of its block formats with equal blocks, extreme scales, NaN scales; the tensor scale after the sum."""
    a, b, c, k = problem
    m, n = len(a.codes), len(b.codes)
    block = BLOCKS[a.format][1]
    every = None if promote_blocks is None else promote_blocks * block
    names, formats = (BLOCKS[a.format][0], BLOCKS[b.format][0]), (a.format, b.format)
    left, right, start = quantized(a, k, 1), quantized(b, k, 0), array(c, (m, n))
    tensor_scales = [x.tensor_scale for x in (left, right) if x.tensor_scale is not None]

    def one(i: int, j: int, begin: float) -> float:
        scales = a.scales[i], b.scales[j]
        return blackwell_blocks(a.codes[i], b.codes[j], names, scales, formats, block, begin, every) if k else begin

    result = matmul(left, right, start, accumulate="blackwell", promote_every=every)
    if not tensor_scales:
        assert same_bits(result, [[one(i, j, c[i][j]) for j in range(n)] for i in range(m)])
        return
    total = array([[one(i, j, 0.0) for j in range(n)] for i in range(m)], (m, n))
    with np.errstate(all="ignore"):
        factor = np.prod(np.array(tensor_scales, np.float32), dtype=np.float32)
        assert same_bits(result, (start + total * factor).tolist())
