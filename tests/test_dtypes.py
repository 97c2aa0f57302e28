"""What the dtypes of a collective mean: NumPy's semantics, and arrays that come back in the clothes they came in."""

from functools import reduce

import ml_dtypes
import numpy as np
import pytest

import collemu as ce
from collemu.dtypes import DTYPES, find_dtype, to_storage, to_user, to_values
from tests.oracles.hard_numbers import same_bits
from tests.oracles.quantised_interpreter import numpy_type

INTEGERS = ("int8", "uint8", "int32", "int64")
CODED = tuple(name for name in DTYPES if name == "bfloat16" or name.startswith("float8"))
FLOATS = ("float32", "float64", "float16", *CODED)
OPS = ("sum", "prod", "min", "max", "avg")


@pytest.fixture(scope="module")
def all_reduce():
    """Two-shot all_reduce of ``data`` with a row a rank: rank order, so that NumPy can do the same."""
    system = ce.load_system("trainium4_nvl72")

    def run(data, dtype, op, algorithm="two_shot", **how):
        ranks, count = np.shape(data)
        schedule = ce.build_schedule("all_reduce", algorithm, ranks)
        result = ce.emulate(schedule, system, count=count, dtype=dtype, op=op, data=data, **how)
        assert result.replicas_identical
        return result.outputs

    return run


def test_the_dtypes_are_those_of_the_field():
    assert set(DTYPES) == {
        *INTEGERS,
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e4m3",
        "float8_e3m4",
        "float8_e4m3b11fnuz",
    }
    assert all(find_dtype(name).item_bytes == numpy_type(name).itemsize for name in DTYPES)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "two_shot", "one_shot"])
def test_integers_wrap_as_numpys(all_reduce, dtype, algorithm):
    limits = np.iinfo(dtype)
    data = np.random.default_rng(1).integers(limits.min, limits.max, (5, 64), dtype, endpoint=True)
    data[:, 0], data[:, 1], data[0, 2] = limits.max, limits.min, limits.min
    with np.errstate(over="ignore"):
        expected = {
            "sum": data.sum(axis=0, dtype=dtype),
            "prod": data.prod(axis=0, dtype=dtype),
            "min": data.min(axis=0),
            "max": data.max(axis=0),
        }
    expected["avg"] = np.array([int(abs(v)) // 5 * int(np.sign(v)) for v in expected["sum"].astype(object)], dtype)
    for op in OPS:
        np.testing.assert_array_equal(all_reduce(data, dtype, op, algorithm)[3], expected[op], strict=True)


def test_integer_average_truncates_toward_zero_after_a_sum_that_wraps(all_reduce):
    data = np.array([[-7, 7, 100, -100, 1], [0, 0, 100, -100, 0]], np.int8)
    assert all_reduce(data, "int8", "avg")[0].tolist() == [-3, 3, -28, 28, 0]
    assert all_reduce(np.array([[200], [100]], np.uint8), "uint8", "avg")[0].tolist() == [22]
    least = np.array([[-(2**63)], [0]], np.int64)
    assert all_reduce(least, "int64", "avg")[0].tolist() == [-(2**62)]


def expected_floats(data, op, dtype):
    """Contributions in rank order; floats of at most 16 bits in float32, rounded at every step."""
    wide = np.float32 if dtype.itemsize <= 2 else dtype
    step = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    limit = np.float32(ml_dtypes.finfo(dtype).max) if dtype.itemsize == 1 else np.inf

    def narrow(values):
        return np.clip(values, -limit, limit).astype(dtype) if dtype.itemsize <= 2 else values

    with np.errstate(all="ignore"):
        terms = list(data)
        if op == "avg" and dtype.itemsize <= 2:
            terms = [narrow(term.astype(wide) / wide(len(data))) for term in terms]
        total = reduce(lambda a, b: narrow(step(a.astype(wide), b.astype(wide))), terms)
        return total / dtype.type(len(data)) if op == "avg" and dtype.itemsize > 2 else total


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OPS)
def test_floats_round_at_every_step(all_reduce, dtype, op):
    kind = numpy_type(dtype)
    values = np.random.default_rng(2).standard_normal((4, 200)) * 2
    values[:, :8] = float(ml_dtypes.finfo(kind).max)  # overflows: to infinity, or to the largest 8-bit float
    values[2, 4:8] *= -1
    data = values.astype(kind)
    output = all_reduce(data, dtype, op)[1]
    assert output.dtype == kind
    assert same_bits(output.astype(np.float64), expected_floats(data, op, kind).astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_propagate_nan_from_any_rank(all_reduce, dtype, op):
    kind = numpy_type(dtype)
    data = np.ones((3, 9), kind)
    for rank in range(3):
        data[rank, 3 * rank] = np.nan
    for algorithm in ("ring", "tree", "one_shot", "two_shot"):
        output = all_reduce(data, dtype, op, algorithm)[0].astype(np.float32)
        assert np.flatnonzero(np.isnan(output)).tolist() == [0, 3, 6]
        assert (output[[1, 2, 4, 5, 7, 8]] == 1).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_minus_zero(all_reduce, dtype):
    """-0 + -0 is -0, -0 + +0 is +0, and minimum and maximum tell them apart in whatever order they come."""
    kind = numpy_type(dtype)
    data = np.array([[-0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]], kind)
    signs = {op: np.signbit(all_reduce(data, dtype, op)[0].astype(np.float32)).tolist() for op in OPS}
    assert signs == {
        "sum": [True, False, False],
        "avg": [True, False, False],
        "prod": [False, True, True],
        "min": [True, True, True],
        "max": [True, False, False],
    }


# Clothes: codes come back as codes, ml_dtypes as ml_dtypes, numbers as numbers.


@pytest.mark.parametrize("dtype", CODED)
def test_codes_ml_dtypes_and_numbers_mean_the_same(all_reduce, dtype):
    kind = numpy_type(dtype)
    typed = np.random.default_rng(3).standard_normal((3, 50)).astype(kind)
    codes = typed.view(f"u{kind.itemsize}")
    from_typed = all_reduce(typed, dtype, "sum")
    from_codes = all_reduce(codes, dtype, "sum")
    from_numbers = all_reduce(typed.astype(np.float32), dtype, "sum")
    assert (from_typed.dtype, from_codes.dtype, from_numbers.dtype) == (kind, codes.dtype, np.float32)
    np.testing.assert_array_equal(from_typed.view(codes.dtype), from_codes)
    np.testing.assert_array_equal(from_typed.astype(np.float32), from_numbers)


@pytest.mark.parametrize("dtype", CODED)
def test_every_code_passes_unchanged(dtype):
    """A copy moves bits: NaN payloads and infinities come back as they were."""
    kind = find_dtype(dtype)
    codes = np.arange(256**kind.item_bytes, dtype=kind.storage)
    system = ce.load_system("trainium4_nvl72")
    schedule = ce.build_schedule("broadcast", "ring", 2)
    data = np.stack([codes, np.zeros_like(codes)])
    outputs = ce.emulate(schedule, system, count=len(codes), dtype=dtype, data=data).outputs
    np.testing.assert_array_equal(outputs, np.stack([codes, codes]), strict=True)
    values = to_values(codes, kind)
    expected = codes.view(numpy_type(dtype)).astype(np.float32)
    assert same_bits(values, expected)


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("given", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64])
def test_numbers_of_any_type_are_rounded_once(dtype, given):
    values = (np.random.default_rng(4).standard_normal(500) * 50).astype(given)
    kind = numpy_type(dtype)
    largest = float(ml_dtypes.finfo(kind).max)
    expected = np.clip(values.astype(np.float32), -largest, largest).astype(kind)
    found = to_storage(values, find_dtype(dtype)).view(kind)
    assert same_bits(found.astype(np.float32), expected.astype(np.float32))


def test_float64_is_rounded_from_the_exact_value():
    """Just above a tie of bfloat16 and of float8_e4m3fn, but a tie in float32."""
    above = np.array([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40)])
    assert to_storage(above, find_dtype("bfloat16")).tolist() == [0x3F81, 0xBF81]
    assert to_storage(np.array([1 + 2.0**-4 + 2.0**-40]), find_dtype("float8_e4m3fn")).tolist() == [0x39]
    half = to_storage(np.array([1 + 2.0**-11 + 2.0**-40]), find_dtype("float16"))
    assert half.view(np.uint16).tolist() == [0x3C01]


def test_eight_bit_floats_saturate_and_wider_ones_overflow():
    huge = np.array([1e30, -np.inf])
    assert to_storage(huge, find_dtype("float8_e4m3fn")).tolist() == [0x7E, 0xFE]
    assert to_storage(huge, find_dtype("float8_e5m2")).tolist() == [0x7B, 0xFB]
    assert to_storage(huge, find_dtype("float16")).tolist() == [np.inf, -np.inf]
    assert to_storage(np.array([3.4e38, -np.inf]), find_dtype("bfloat16")).tolist() == [0x7F80, 0xFF80]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float8_e4m3fn"])
def test_memory_order_and_byte_order_do_not_matter(all_reduce, dtype):
    base = np.random.default_rng(5).integers(-9, 9, (4, 30))
    plain = base.astype(np.int32 if dtype == "int32" else np.float32)
    expected = all_reduce(plain, dtype, "sum")
    wide = np.zeros((4, 60), plain.dtype)
    wide[:, ::2] = plain
    for view in (
        np.asfortranarray(plain),
        wide[:, ::2],
        plain[::-1, ::-1].copy()[::-1, ::-1],
        plain.astype(plain.dtype.newbyteorder(">")),
        plain.tolist(),
    ):
        np.testing.assert_array_equal(all_reduce(view, dtype, "sum"), expected)


def test_integers_take_other_integers_that_fit(all_reduce):
    output = all_reduce(np.array([[1, 2], [3, 4]], np.int64), "int8", "sum")
    np.testing.assert_array_equal(output, np.full((2, 2), [4, 6], np.int8), strict=True)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([[128]], "int8"),
        ([[-1]], "uint8"),
        ([[2**31]], "int32"),
        (np.array([[2**63]], np.uint64), "int64"),
        ([[0.5]], "int32"),
        ([["1"]], "float32"),
        ([[1j]], "float32"),
        ([[None]], "float32"),
        (np.array([["2026-01-01"]], "M8[D]"), "float32"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(data, dtype):
    with pytest.raises(ValueError, match="data") as caught:
        to_storage(data, find_dtype(dtype))
    assert "\n" not in str(caught.value) and dtype in str(caught.value)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"no dtype 'float12'.*float32.*bfloat16"):
        find_dtype("float12")
    assert find_dtype("half") is find_dtype("float16")
    assert find_dtype("bf16").name == "bfloat16"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "float32"),
        (np.dtype(">f8"), "float64"),
        (np.int8, "int8"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
    ],
)
def test_types_of_numpy_are_taken_by_their_names(given, name):
    assert find_dtype(given).name == name


@pytest.mark.parametrize("given", [None, True, 3, complex, np.dtype("M8[D]"), ["float32"]])
def test_other_types_are_refused(given):
    with pytest.raises(ValueError, match=r"no dtype .*; choose float32"):
        find_dtype(given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_arrays_keep_their_shape(dtype):
    kind = find_dtype(dtype)
    for shape in ((0,), (3, 0), (2, 3)):
        storage = to_storage(np.zeros(shape, np.int8), kind)
        assert storage.shape == shape and storage.dtype == kind.storage
    assert to_user(to_storage(np.zeros((2, 0), np.int8), kind), kind, np.zeros(1, np.int8)).shape == (2, 0)
