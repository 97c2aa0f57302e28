"""combine: it is dequantise, reduce, quantise; and it refuses what is no pair of images."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from collemu import Quantized, combine, decode, encode, formats, quantize
from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS

OPERATORS = {
    "sum": np.add,
    "avg": lambda a, b: a * np.float32(0.5) + b * np.float32(0.5),
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
}
NAMES = st.sampled_from(formats())


def numbers(size):
    return npst.arrays(np.float32, size, elements=st.floats(-(2.0**100), 2.0**100, width=32))


def image(x, name):
    """Wire image of a flat array, codes side by side."""
    if name in BLOCK_FORMATS:
        return quantize(x, name).to_bytes()
    codes = encode(x, name)
    bits = ELEMENT_FORMATS[name].bits
    if bits >= 8:
        return codes.tobytes()
    whole = sum(int(code) << (bits * i) for i, code in enumerate(codes))
    return whole.to_bytes(-(-bits * len(codes) // 8), "little")


def numbers_of(wire, name, size):
    if name in BLOCK_FORMATS:
        return Quantized.from_bytes(wire, name, size).dequantize()
    bits = ELEMENT_FORMATS[name].bits
    if bits >= 8:
        return decode(np.frombuffer(wire, {8: np.uint8, 16: np.uint16}.get(bits, np.uint32)), name)
    whole = int.from_bytes(wire, "little")
    return decode(np.array([whole >> (bits * i) & ((1 << bits) - 1) for i in range(size)], np.uint8), name)


@given(st.data(), NAMES, st.sampled_from(sorted(OPERATORS)), st.integers(0, 140), st.booleans())
def test_combining_is_decoding_reducing_and_encoding(data, name, op, size, told):
    a, b = data.draw(numbers(size)), data.draw(numbers(size))
    wires = image(a, name), image(b, name)
    with np.errstate(all="ignore"):
        expected = OPERATORS[op](numbers_of(wires[0], name, size), numbers_of(wires[1], name, size))
    got = combine(*wires, name, op=op, elements=size if told else None)
    assert len(got) == len(wires[0])
    if op not in ("min", "max") or name == "nvfp4":
        assert got == image(expected, name)
    again = numbers_of(got, name, size)
    wanted = numbers_of(image(expected, name), name, size)
    assert np.array_equal(again, wanted, equal_nan=True)


@given(st.data(), NAMES, st.sampled_from(["sum", "prod", "min"]), st.sampled_from(["float16", "bfloat16"]))
def test_narrow_accumulate_types_are_numpys_and_ml_dtypes(data, name, op, accumulate):
    size = data.draw(st.integers(0, 70))
    wires = image(data.draw(numbers(size)), name), image(data.draw(numbers(size)), name)
    kind = np.dtype(getattr(ml_dtypes, accumulate, accumulate))
    with np.errstate(all="ignore"):
        a, b = (numbers_of(wire, name, size).astype(kind) for wire in wires)
        expected = OPERATORS[op](a, b).astype(np.float32)
    got = numbers_of(combine(*wires, name, op=op, accumulate=accumulate, elements=size), name, size)
    assert np.array_equal(got, numbers_of(image(expected, name), name, size), equal_nan=True)


@given(st.data(), st.sampled_from(["sum", "prod"]), st.sampled_from(["bfloat16", "float16", "tfloat32"]))
def test_float32_between_two_numbers_and_their_result_rounds_nothing_twice(data, op, name):
    """24 bits are at least twice 11 and 2 more, so the result is the exact one, rounded once."""
    size = data.draw(st.integers(1, 40))
    values = [decode(encode(data.draw(numbers(size)) * np.float32(2.0**-80), name), name) for _ in range(2)]
    got = numbers_of(combine(*(image(v, name) for v in values), name, op=op), name, size)
    with np.errstate(all="ignore"):
        a, b = (v.astype(np.float64) for v in values)
        pairs = [(Fraction(x), Fraction(y)) for x, y in zip(a, b, strict=True)]
    exact = [x * y if op == "prod" else x + y for x, y in pairs]
    for result, whole in zip(got, exact, strict=True):
        assert Fraction(float(result)) == nearest(whole, ELEMENT_FORMATS[name])


def nearest(exact, element):
    """By whole numbers of the last place, ties to even; what overflows is the largest."""
    exponent = 1 - element.bias
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    step = Fraction(2) ** (exponent - element.mantissa_bits)
    largest = Fraction(element.max)
    return max(-largest, min(largest, round(exact / step) * step))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "mxfp8_e4m3", "nvfp4", "fp8_row", "int4_block32", "float6_e2m3fn"])
def test_long_images_are_their_parts(name):
    """More than one stretch, with a tail that divides nothing."""
    random = np.random.default_rng(0)
    size = 2 * 16384 + 1001
    a, b = (image(random.standard_normal(size).astype(np.float32), name) for _ in range(2))
    expected = numbers_of(a, name, size) + numbers_of(b, name, size)
    assert combine(a, b, name, elements=size) == image(expected, name)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "bfloat16"])
def test_sums_of_all_pairs_of_codes_as_ml_dtypes_adds_them(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = min(ELEMENT_FORMATS[name].bits, 8)
    codes = np.arange(1 << bits, dtype=np.uint8)
    first, second = (m.reshape(-1) for m in np.meshgrid(codes, codes))
    if name == "bfloat16":
        first, second = (first.astype(np.uint16) << 8), (second.astype(np.uint16) << 8) | 0x35
    with np.errstate(all="ignore"):
        a, b = (c.view(dtype).astype(np.float32) for c in (first, second))
        total = a + b
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        expected = np.clip(total, -largest, largest).astype(dtype).astype(np.float32)
    wires = (image(a, name), image(b, name)) if bits < 8 else (first.tobytes(), second.tobytes())
    got = numbers_of(combine(*wires, name), name, first.size)
    assert ((got == expected) | (np.isnan(got) & np.isnan(expected))).all()


def test_minimum_and_maximum_propagate_nan_and_order_zeros():
    a = encode(np.array([np.nan, 1, -0.0, 0.0], np.float32), "float16").tobytes()
    b = encode(np.array([1, np.nan, 0.0, -0.0], np.float32), "float16").tobytes()
    low = np.frombuffer(combine(a, b, "float16", op="min"), np.float16)
    high = np.frombuffer(combine(a, b, "float16", op="max"), np.float16)
    assert np.isnan([low[:2], high[:2]]).all()
    assert np.signbit(low[2:]).all()
    assert not np.signbit(high[2:]).any()


def test_a_poisoned_block_stays_poisoned_alone():
    x = np.ones(64, np.float32)
    bad = x.copy()
    bad[5] = np.inf
    for name in BLOCK_FORMATS:
        got = combine(quantize(x, name).to_bytes(), quantize(bad, name).to_bytes(), name)
        values = Quantized.from_bytes(got, name, 64).dequantize()
        assert np.isnan(values[:16]).all(), name
        assert name in ("fp8_block128", "fp8_row", "int4_block2048") or np.allclose(values[32:], 2, rtol=1e-6), name


def test_any_buffer_is_an_image():
    wire = quantize(np.ones(33), "mxfp6_e3m2").to_bytes()
    expected = quantize(np.full(33, 2), "mxfp6_e3m2").to_bytes()
    for kind in (bytes, bytearray, memoryview, lambda w: np.frombuffer(w, np.uint8)):
        assert combine(kind(wire), kind(wire), "mxfp6_e3m2") == expected
    assert combine(b"", b"", "nvfp4") == b""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: combine(b"12", b"123", "float8_e5m2"), "wire_a has 2 bytes and wire_b 3"),
        (lambda: combine(b"123", b"123", "float16"), "3 bytes are no image of float16: 1 elements take 2, 2 take 4"),
        (lambda: combine(b"1", b"1", "mxfp4"), "1 bytes are no image of mxfp4: 0 elements take 0, 1 take 2"),
        (lambda: combine(b"12", b"12", "mxfp4", elements=3), "elements=3 of mxfp4 take 3 bytes, not 2"),
        (lambda: combine(b"12", b"12", "mxfp4", elements=-1), "elements is -1; give a whole number of 0 or more"),
        (lambda: combine(b"1", b"1", "mxfp5"), "no format 'mxfp5'"),
        (lambda: combine(b"1", b"1", "float8_e5m2", op="median"), "op='median' is not supported; choose sum"),
        (lambda: combine(b"1", b"1", "float8_e5m2", accumulate="float64"), "accumulate='float64' is not supported"),
    ],
)
def test_refusals_are_one_line_that_helps(call, text):
    with pytest.raises(ValueError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bfloat16", "tfloat32", "mxfp8_e5m2", "int8_block32"])
def test_averages_of_huge_numbers_do_not_overflow(name):
    wires = [image(np.full(40, value, np.float32), name) for value in (3e38, 2.1e38)]
    numbers = [numbers_of(wire, name, 40) for wire in wires]
    got = numbers_of(combine(*wires, name, op="avg", elements=40), name, 40)
    assert got == pytest.approx(numbers[0] / 2 + numbers[1] / 2, rel=0.26)


@pytest.mark.parametrize("elements", [2.0, "2", True])
def test_elements_are_counted_in_whole_numbers(elements):
    with pytest.raises(ValueError, match=r"combine: elements is .*give a whole number"):
        combine(b"12", b"12", "int8", elements=elements)


@pytest.mark.parametrize("wire", [np.array([1, 2]), np.arange(8, dtype=np.uint8)[::2], "12", [1, 2], None])
def test_what_is_no_image_is_refused(wire):
    with pytest.raises(ValueError, match="wire_a must be bytes, or an array of uint8 in one piece"):
        combine(wire, b"12", "int8")
    with pytest.raises(ValueError, match="buf must be bytes"):
        Quantized.from_bytes(wire, "mxfp8_e4m3", 1)
