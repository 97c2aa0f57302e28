"""`matmul`: cases that only exact arithmetic gets right, sizes beyond the kernels' tiles, errors, golden vectors."""

import math
from fractions import Fraction
from random import Random

import ml_dtypes
import numpy as np
import pytest
from collemu_kernels import matmul as kernels

from collemu import Quantized, decode, encode, matmul, quantize
from collemu.accumulation import MODELS
from collemu.number_formats import BLOCK_FORMATS
from collemu.products.block_exact import _tables  # pyright: ignore[reportPrivateUsage]
from tests.oracles.matmul_reference import Blocks, matmul_block_exact, round_to_float32
from tests.properties.test_multiply import CODED_SCALES, PAIRS, array, quantized, same_bits

ONE = 127  # E8M0 code of 1
E4M3_ONE = 0x38


def block_exact(a: Blocks, b: Blocks, c: float = 0.0) -> float:
    """One result from one row and one column, which must be what exact fractions give."""
    k = len(a.codes[0])
    start = array([[c]], (1, 1))
    result = matmul(quantized(a, k, 1), quantized(b, k, 0), start, accumulate="block_exact")
    assert same_bits(result, matmul_block_exact(a, b, [[c]]))
    return float(result[0, 0])


def e5m2(*numbers: float) -> Blocks:
    """One block of float8_e5m2 numbers, scale 1."""
    codes = np.array(numbers, ml_dtypes.float8_e5m2)
    assert codes.astype(float).tolist() == list(numbers)
    return Blocks("mxfp8_e5m2", [codes.view(np.uint8).tolist()], [[ONE]])


def test_half_a_unit_and_the_least_product():
    """2**24 + 1 is a tie in float32; 2**-32, which float64 drops from the sum, decides it."""
    assert block_exact(e5m2(2**12, 1), e5m2(2**12, 1)) == 2**24
    assert block_exact(e5m2(2**12, 1, 2**-16), e5m2(2**12, 1, 2**-16)) == 2**24 + 2
    assert block_exact(e5m2(2**12, 3, 2**-16), e5m2(2**12, 1, 2**-16)) == 2**24 + 4
    assert block_exact(e5m2(2**12, 3, 2**-16), e5m2(2**12, 1, -(2**-16))) == 2**24 + 2
    assert block_exact(e5m2(2**12, -(2**12), 2**-16), e5m2(2**12, 2**12, 2**-16)) == 2**-32


def test_least_products_survive_the_largest():
    """The range of float8_e5m2 products is 64 bits wide, and they cancel exactly."""
    a = e5m2(*[57344] * 15, *[-57344] * 15, 2**-16, 2**-16)
    b = e5m2(*[57344] * 30, 2**-16, 1.5 * 2**-15)
    assert block_exact(a, b) == 2**-30


@pytest.mark.parametrize(("a", "b"), CODED_SCALES)
def test_split_sums_fit_float64(a, b):
    """The two sums of a split have at most 53 bits, and unsplit ones as many as their type."""
    a_format, b_format = BLOCK_FORMATS[a], BLOCK_FORMATS[b]
    a_table, b_table, _ = _tables(a_format.element, b_format.element, a_format.block)

    largest = a_format.block * a_format.element.max * b_format.element.max
    unit = a_format.element.min_subnormal * b_format.element.min_subnormal
    if a_table.size == 256:
        limit = 2.0**15 if a_table.dtype == np.int16 else 2.0**53
        assert largest / unit < limit
        return
    a_rows, b_rows = a_table.reshape(3, 256), b_table.reshape(3, 256)
    assert (a_rows[1] + a_rows[2] == a_rows[0])[np.isfinite(a_rows[0])].all()
    first = min(
        last_bit(a_rows[kernels.HIGH]) * last_bit(b_rows[kernels.WHOLE]),
        last_bit(a_rows[kernels.LOW]) * last_bit(b_rows[kernels.HIGH]),
    )
    assert largest / first <= 2.0**53
    small = a_format.block * np.abs(a_rows[kernels.LOW]).max() * np.abs(b_rows[kernels.LOW]).max()
    assert small / unit <= 2.0**53


def last_bit(numbers: np.ndarray) -> float:
    """The largest power of two of which all finite numbers are multiples."""
    scaled = [int(abs(number) * 2**40) for number in numbers[np.isfinite(numbers)].tolist()]
    return (math.gcd(*scaled) & -math.gcd(*scaled)) / 2**40


# Exact products of 66 bits, half a unit of float32 plus or minus less than half a unit of float64.
TIES = [(1593, 13, 13, 16403251, 10376937), (1881, 11, 11, 11600607, 16463509), (1161, 15, 11, 14700305, 14075045)]


@pytest.mark.parametrize(("total", "a_scale", "b_scale", "a_tensor", "b_tensor"), TIES)
def test_tensor_scales_enter_the_exact_product(total, a_scale, b_scale, a_tensor, b_tensor):
    """Rounding to float64 first would end on the tie."""
    sixes = (total - 9) // 144  # in quarters: 6 * 6 is 144, 1.5 * 1.5 is 9
    codes = [[*[0x7] * sixes, 0x3]]
    assert 144 * sixes + 9 == total
    a = Blocks("nvfp4", codes, [[0x38 + a_scale - 8]], a_tensor * 2.0**-30)
    b = Blocks("nvfp4", codes, [[0x38 + b_scale - 8]], b_tensor * 2.0**-20)
    exact = total * a_scale * b_scale * a_tensor * b_tensor
    assert round_to_float32(Fraction(exact)) != float(np.float32(float(exact)))
    block_exact(a, b)
    block_exact(a, Blocks("nvfp4", codes, b.scales, -b.tensor_scale), 1.0)


def test_zeros_keep_their_sign():
    """-0 as start stays -0 under products of -0 in float32; a block's exact zero is +0."""
    for k in range(1, 6):
        result = matmul(np.full((1, k), -1.0, np.float32), np.zeros((k, 1), np.float32), [[-0.0]])
        assert np.signbit(result).all()
    for tensor_scale in (-1.0, 0.0, -0.0, 1.0):
        a = Blocks("nvfp4", [[0x1, 0x9]], [[E4M3_ONE]], tensor_scale)
        assert math.copysign(1, block_exact(a, Blocks("nvfp4", [[0x2, 0x2]], [[E4M3_ONE]]), -0.0)) == 1
    tiny = Blocks("mxfp4", [[0x9]], [[0]])
    assert math.copysign(1, block_exact(tiny, Blocks("mxfp4", [[0x1]], [[0]]), -0.0)) == -1


@pytest.mark.parametrize("scales", [(0, 0), (0, 254), (254, 254), (0, 127), (254, 127), (3, 103), (0xFF, 0)])
@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e4m3", "mxfp8_e5m2"])
def test_extreme_scales(name, scales):
    """Scales whose product alone is outside float32."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 15 if name == "mxfp4" else 120, (2, 1, 32)).tolist()
    block_exact(Blocks(name, codes[0], [[scales[0]]]), Blocks(name, codes[1], [[scales[1]]]))


@pytest.mark.parametrize(("m", "n", "k"), [(9, 300, 515), (300, 9, 515), (1, 70, 257), (5, 5, 1030), (66, 1, 4)])
def test_float32_beyond_one_tile(m, n, k):
    """The order of k in every result, where rows, columns and k take several tiles."""
    rng = np.random.default_rng(m)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = c.copy()
    for i in range(k):
        expected = expected + a[:, i : i + 1] * b[i]
    assert (matmul(a, b, c) == expected).all()


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 270, 515), (260, 6, 293)])
def test_block_exact_beyond_one_tile(a, b, m, n, k):
    """A few results of a large product."""
    rng = np.random.default_rng(n)
    left = quantize(rng.standard_normal((m, k)), a)
    right = quantize(rng.standard_normal((k, n)) * np.exp2(rng.integers(-20, 20, (k, n))), b, axis=0)
    result = matmul(left, right, accumulate="block_exact")
    pick = Random(k)
    rows, columns = sorted(pick.sample(range(m), 3)), sorted(pick.sample(range(n), 3))
    part = matmul_block_exact(as_blocks(left, rows), as_blocks(right, columns), [[0.0] * 3] * 3)
    assert same_bits(np.ascontiguousarray(result[np.ix_(rows, columns)]), part)


def as_blocks(operand: Quantized, rows: list[int]) -> Blocks:
    """Some rows of a, or columns of b, as the reference takes them."""
    codes, scales = operand.element_codes(), operand.scales
    if operand.axis == 0:
        codes, scales = codes.T, scales.T
    scale = 1.0 if operand.tensor_scale is None else float(operand.tensor_scale)
    return Blocks(operand.format, codes[rows].tolist(), scales[rows].tolist(), scale)


def test_promotion_adds_runs():
    """2**24 swallows ones one by one, not sixteen at once."""
    a, b = np.ones((1, 32), np.float32), np.ones((32, 1), np.float32)
    start = [[2.0**24]]
    assert matmul(a, b, start) == 2.0**24
    assert matmul(a, b, start, promote_every=16) == 2.0**24 + 32


def test_high_nibble_first_is_the_same_product():
    """The order of FP4 in a byte is a matter of storage."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 37)), rng.standard_normal((37, 4))
    for mode in ("float32", "block_exact"):
        low, high = (
            matmul(quantize(a, "mxfp4", order=order), quantize(b, "mxfp4", axis=0, order=order), accumulate=mode)
            for order in ("low_first", "high_first")
        )
        assert (low == high).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_block_format_meets_every_other_in_float32(name):
    """Odd and short rows, codes of 4, 6 and 8 bits, stacks: float32 of the dequantised numbers."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 133)), rng.standard_normal((133, 4))
    left = quantize(a, name)
    for other in BLOCK_FORMATS:
        right = quantize(b, other, axis=0)
        assert (matmul(left, right) == matmul(left.dequantize(), right.dequantize())).all()


@pytest.mark.parametrize("name", [name for name in BLOCK_FORMATS if name != "fp8_row"])
def test_square_blocks(name):
    """Rows that share scales multiply as others do."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 150)), rng.standard_normal((150, 40))
    left, right = quantize(a, name, square=True), quantize(b, name, axis=0, square=True)
    rows, columns = [0, 39], [3, 38]
    result = matmul(left, right, accumulate="block_exact")
    part = matmul_block_exact(as_blocks(left, rows), as_blocks(right, columns), [[0.0] * 2] * 2)
    assert same_bits(np.ascontiguousarray(result[np.ix_(rows, columns)]), part)
    assert (matmul(left, right) == matmul(left.dequantize(), right.dequantize())).all()


@pytest.mark.parametrize(("a", "b"), [("mxint8", "mxfp8_e5m2"), ("mxint8", "mxfp4"), ("int8_block32", "int4_block32")])
def test_most_negative_integers(a, b):
    """Codes that quantize does not write, in sums that no number of the format's range reaches."""
    bits = {"mxint8": 8, "mxfp8_e5m2": 8, "mxfp4": 4, "int8_block32": 8, "int4_block32": 4}
    largest = {"mxfp8_e5m2": 0xFB, "mxfp4": 0xF}
    scale = 1.0 if a == "int8_block32" else ONE
    left = Blocks(a, [[largest.get(a, 1 << (bits[a] - 1))] * 32], [[scale]])
    right = Blocks(b, [[largest.get(b, 1 << (bits[b] - 1))] * 32], [[scale]])
    assert block_exact(left, right) > 0


@pytest.mark.parametrize(("total", "a_scale", "b_scale", "a_float", "b_float"), TIES)
def test_float32_scales_enter_the_exact_product(total, a_scale, b_scale, a_float, b_float):
    """The ties above as a sum of integers times two scales of 24 bits."""
    pairs, rest = divmod(total * a_scale * b_scale, 127 * 127)
    a = Blocks("int8_block32", [[127] * pairs + [127, 1]], [[a_float * 2.0**-30]])
    b = Blocks("int8_block32", [[127] * pairs + [rest // 127, rest % 127]], [[b_float * 2.0**-20]])
    assert len(b.codes[0]) <= 32
    block_exact(a, b)
    block_exact(a, Blocks(b.format, b.codes, [[-b_float * 2.0**-20]]), 1.0)


def test_float32_scales_of_any_bits():
    """Long sums of float8 times any scales."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        codes = rng.integers(0, 127, (2, 1, 128)).tolist()
        scales = rng.random((2, 1, 1), np.float32).astype(float).tolist()
        block_exact(*(Blocks("fp8_block128", codes[i], scales[i]) for i in range(2)))


def test_float32_scales_of_all_kinds():
    """Infinite, NaN, zero, subnormal and the largest scales."""
    largest = float(np.finfo(np.float32).max)
    for scale in (math.inf, math.nan, 0.0, -0.0, 2.0**-149, largest, -largest):
        for other in (1.0, 2.0**-149, largest, math.inf):
            for code in (0x00, 0x01, 0x80, 0x81, 0x7F):
                row = Blocks("int8_block32", [[code, 0]], [[scale]])
                block_exact(row, Blocks("int8_block32", [[0x03, 0x7F]], [[other]]), -0.0)
                block_exact(Blocks("fp8_row", [[code]], [[scale]]), Blocks("fp8_row", [[0xFE]], [[other]]))


def test_output_types():
    """float16 and bfloat16 round the float32 result once; overflow gives infinity."""
    a = np.array([[1 + 2.0**-8], [1 + 3 * 2.0**-8], [1 + 2.0**-11], [70000.0]], np.float32)
    one = np.ones((1, 1), np.float32)
    half = matmul(a, one, out_dtype="float16")
    assert half.dtype == np.float16
    assert half[:, 0].tolist() == [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1.0, math.inf]
    assert matmul(a, one, out_dtype="bfloat16")[:, 0].tolist() == [1.0, 1 + 2.0**-6, 1.0, 70144.0]
    numbers = np.array([[1.0625], [1.0625001], [-1.4367204], [70000.0], [math.inf], [math.nan]], np.float32)
    rounded = matmul(numbers, one, out_dtype="float8_e4m3fn")[:, 0]
    assert rounded.dtype == np.float32
    assert rounded[:5].tolist() == [1.0, 1.125, -1.375, 448.0, 448.0]
    assert np.isnan(rounded[5])
    for name in ("float8_e5m2", "float8_e4m3fnuz", "float8_e3m4"):
        expected = decode(encode(numbers, name), name)
        assert np.array_equal(matmul(numbers, one, out_dtype=name), expected, equal_nan=True)


@pytest.mark.parametrize("mode", ["float32", "exact", "block_exact", "blackwell"])
def test_stacks_broadcast(mode):
    """Leading axes as in NumPy's matmul: each matrix of the result is one product."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1, 5, 64)), rng.standard_normal((3, 64, 4))
    c = rng.standard_normal((2, 1, 5, 4)).astype(np.float32)
    left, right = quantize(a, "mxfp4"), quantize(b, "mxfp4", axis=-2)
    stack = matmul(left, right, c, accumulate=mode)
    assert stack.shape == (2, 3, 5, 4)
    for i, j in np.ndindex(2, 3):
        one, other = quantize(a[i, 0], "mxfp4"), quantize(b[j], "mxfp4", axis=0)
        assert (stack[i, j] == matmul(one, other, c[i, 0], accumulate=mode)).all()
    assert matmul(np.ones((0, 2, 3)), np.ones((3, 2))).shape == (0, 2, 2)
    assert (matmul(np.ones((4, 2, 3)), np.ones((3, 2)), np.ones((2, 2))) == 4).all()


@pytest.mark.parametrize("mode", [mode for mode in MODELS if mode != "block_exact"])
def test_views_are_their_numbers(mode):
    """Transposed, reversed, strided and byte-swapped arrays."""
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (40, 40)).astype(np.float32)
    views = [x.T, x[::-1], x[:, ::-1], x[::2, ::2], x[3:30, 5:32].T, np.asfortranarray(x), x.astype(">f4"), x[:7].T]
    for a in views:
        for b in (a.T, a.T[:, ::-1]):
            plain = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
            assert (matmul(a, b, accumulate=mode) == matmul(*plain, accumulate=mode)).all()


@pytest.mark.parametrize("mode", MODELS)
def test_no_elements(mode):
    """K = 0 gives c or +0; M or N = 0 an empty matrix."""
    for m, n, k in [(2, 3, 0), (0, 3, 2), (2, 0, 2), (0, 0, 0)]:
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        if mode in ("block_exact", "blackwell"):
            a, b = quantize(a, "mxfp4"), quantize(b, "mxfp4", axis=0)
        assert matmul(a, b, accumulate=mode).shape == (m, n)
        start = np.full((m, n), -0.0, np.float32)
        result = matmul(a, b, start, accumulate=mode)
        assert result is not start
        assert np.signbit(result).all()


MATRIX = np.ones((32, 32), np.float32)
FP4, FP4_COLUMNS = quantize(MATRIX, "mxfp4"), quantize(MATRIX, "mxfp4", axis=0)
ROWS, ROW_COLUMNS = quantize(MATRIX, "fp8_row"), quantize(MATRIX, "fp8_row", axis=0)
LONG, LONG_COLUMN = quantize(np.ones((1, 171197)), "fp8_row"), quantize(np.ones((171197, 1)), "fp8_row", axis=0)
WRONG = [
    ({"a": MATRIX, "b": MATRIX, "accumulate": "volta"}, "accumulate='volta' .* float32, pairwise, .* cdna3"),
    ({"a": MATRIX, "b": MATRIX, "accumulate": "trainium4"}, "AWS does not document .* choose float32"),
    ({"a": MATRIX, "b": MATRIX, "out_dtype": "int8"}, "out_dtype='int8' .* float16"),
    ({"a": MATRIX, "b": MATRIX, "promote_every": 0}, "promote_every=0 "),
    ({"a": MATRIX, "b": MATRIX[:5]}, r"a \(32, 32\) has K=32, b \(5, 32\) has K=5"),
    ({"a": MATRIX[0], "b": MATRIX}, r"a has shape \(32,\)"),
    ({"a": MATRIX, "b": MATRIX, "c": MATRIX[:4]}, r"c has shape \(4, 32\)"),
    ({"a": MATRIX, "b": MATRIX, "c": MATRIX[:1]}, r"c has shape \(1, 32\)"),
    ({"a": MATRIX, "b": MATRIX, "c": MATRIX[np.newaxis]}, r"c has shape \(1, 32, 32\)"),
    ({"a": MATRIX, "b": MATRIX, "out_dtype": "float8"}, "out_dtype='float8' .* float8_e4m3fn"),
    ({"a": np.ones((2, 32, 32)), "b": np.ones((3, 32, 32))}, r"a \(2, 32, 32\) and b \(3, 32, 32\) do not broadcast"),
    ({"a": FP4_COLUMNS, "b": MATRIX}, "blocks of a run along axis 0, .* axis=1"),
    ({"a": FP4, "b": FP4}, "blocks of b run along axis 1, .* axis=0"),
    ({"a": FP4, "b": MATRIX, "accumulate": "block_exact"}, "two Quantized"),
    ({"a": FP4, "b": quantize(MATRIX, "nvfp4", axis=0), "accumulate": "block_exact"}, "blocks of 32 .* of 16"),
    ({"a": FP4, "b": FP4_COLUMNS, "accumulate": "block_exact", "promote_every": 48}, "a multiple of 32"),
    ({"a": FP4, "b": ROW_COLUMNS, "accumulate": "block_exact"}, r"32 \(mxfp4\) and of a whole row \(fp8_row\) do not"),
    ({"a": ROWS, "b": ROW_COLUMNS, "accumulate": "block_exact", "promote_every": 16}, "promote_every=16 .* of 32"),
    ({"a": LONG, "b": LONG_COLUMN, "accumulate": "block_exact"}, "at most 171196 products .* not 171197; use"),
    ({"a": np.array([["x"]]), "b": MATRIX}, "matmul: a has dtype"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_errors_say_what_to_do(arguments, message):
    """One line: what, where, the value, what to do."""
    with pytest.raises(ValueError, match=message) as error:
        matmul(**arguments)
    assert "\n" not in str(error.value)


def test_golden_float8_products(shared_folder):
    """Distance to the exact results of published vectors, within the bound of the summation."""
    golden = np.load(shared_folder / "data/golden/gemm_accum.npz")
    a = golden["fp8_uniform_A_e4m3"].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    b = golden["fp8_uniform_B_e4m3_KxN"].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    c = golden["fp8_uniform_C_f32bits"].view(np.float32)
    exact = golden["fp8_uniform_exact_f64__numpy"]
    sizes = np.abs(a.astype(float)) @ np.abs(b.astype(float)) + np.abs(c)
    assert (np.abs(matmul(a, b, c) - exact) <= 128 * 2.0**-24 * sizes).all()
    scales = np.full((16, 4), ONE, np.uint8)
    left = Quantized(golden["fp8_uniform_A_e4m3"], scales, None, (16, 128), "mxfp8_e4m3", axis=1)
    right = Quantized(golden["fp8_uniform_B_e4m3_KxN"], scales.T, None, (128, 16), "mxfp8_e4m3", axis=0)
    result = matmul(left, right, c, accumulate="block_exact")
    assert (np.abs(result - exact) <= 8 * 2.0**-24 * sizes).all()


def test_golden_mxfp4_products(shared_folder):
    """block_exact of two blocks rounds less than Blackwell, as mmasim models it, and differs by its truncation."""
    golden = np.load(shared_folder / "data/golden/gemm_accum.npz")
    left = Quantized(golden["mxf4_A_packed"], golden["mxf4_sA_e8m0"], None, (16, 64), "mxfp4", axis=1)
    right = Quantized(golden["mxf4_Bt_packed"].T, golden["mxf4_sBt_e8m0"].T, None, (64, 16), "mxfp4", axis=0)
    c = golden["mxf4_C_f32bits"].view(np.float32)
    blackwell = golden["mxf4_D_f32bits__mmasim_blackwell"].view(np.float32).astype(float)
    x, y = left.dequantize().astype(float), right.dequantize().astype(float)
    sizes = np.abs(x) @ np.abs(y) + np.abs(c)
    for mode in ("float32", "block_exact"):
        result = matmul(left, right, c, accumulate=mode)
        assert (np.abs(result - (x @ y + c)) <= (64 if mode == "float32" else 4) * 2.0**-24 * sizes).all()
        assert (np.abs(result - blackwell) <= 66 * 2.0**-24 * sizes).all()
