"""What holds for all numbers: round trips, error bounds, idempotence, order, symmetry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS
from collemu.quantization import ROUNDINGS, Quantized, decode, encode, quantize
from tests.oracles.numbers_reference import REFERENCES, encode_all

BITS = st.integers(0, 2**32 - 1)
ELEMENTS = st.sampled_from(sorted(REFERENCES))
FLT_MAX = float(np.finfo(np.float32).max)
BLOCKS = st.sampled_from(sorted(BLOCK_FORMATS))
MX = st.sampled_from([name for name in sorted(BLOCK_FORMATS) if name.startswith("mx")])
DETERMINISTIC = st.sampled_from([name for name in ROUNDINGS if not name.startswith("stochastic")])


def floats(max_size=70):
    """float32 of any bits that are no NaN, subnormals, infinities and -0 included."""
    any_bits = npst.arrays(np.uint32, st.integers(0, max_size), elements=BITS)
    return any_bits.map(
        lambda bits: np.where(bits & 0x7FFFFFFF > 0x7F800000, 0, bits).astype(np.uint32).view(np.float32)
    )


def moderate(max_size=100):
    """Finite float32 that no block format takes out of float32."""
    numbers = st.floats(-(2.0**100), 2.0**100, width=32)
    sizes = st.one_of(st.sampled_from([0, 1, 31, 32, 33]), st.integers(0, max_size))
    return sizes.flatmap(lambda size: npst.arrays(np.float32, size, elements=numbers))


@given(floats(), ELEMENTS, DETERMINISTIC, st.booleans())
def test_codes_are_those_of_exact_fractions(x, name, rounding, saturate):
    expected = encode_all(x, name, rounding=rounding, saturate=saturate)
    assert (encode(x, name, rounding=rounding, saturate=saturate) == expected).all()


@given(npst.arrays(np.float64, st.integers(0, 20), elements=st.floats(allow_nan=False)), ELEMENTS, DETERMINISTIC)
def test_float64_rounds_as_if_exact(x, name, rounding):
    assert (encode(x, name, rounding=rounding) == encode_all(x, name, rounding=rounding)).all()


@given(npst.arrays(np.int64, st.integers(0, 20)), DETERMINISTIC)
def test_int64_rounds_as_if_exact(x, rounding):
    codes = encode(x, "bfloat16", rounding=rounding)
    for value, code in zip(x.tolist(), codes, strict=True):
        magnitude = abs(value)
        drop = max(magnitude.bit_length() - 8, 0)
        low, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
        half = (1 << drop) // 2
        away = rounding == ("down" if value < 0 else "up")
        up = {
            "nearest_even": drop and (rest > half or (rest == half and low % 2)),
            "nearest_away": drop and rest >= half,
            "toward_zero": False,
        }.get(rounding, rest and away)
        expected = float((low + bool(up)) << drop) * (-1 if value < 0 else 1)
        assert decode(code, "bfloat16") == expected


@given(floats(), st.sampled_from(sorted(ELEMENT_FORMATS)), st.booleans())
def test_encoding_what_was_decoded_changes_nothing(x, name, saturate):
    codes = encode(x, name, saturate=saturate)
    values = decode(codes, name)
    number = ~np.isnan(values)
    assert (encode(values[number], name, saturate=saturate) == codes[number]).all()


@given(floats(), ELEMENTS, DETERMINISTIC)
def test_order_is_kept(x, name, rounding):
    x = np.sort(x)
    values = decode(encode(x, name, rounding=rounding), name)
    assert (np.diff(np.nan_to_num(values)) >= 0).all()


@given(floats(), ELEMENTS)
def test_sign_is_symmetric(x, name):
    plus, minus = decode(encode(x, name), name), decode(encode(-x, name), name)
    assert (plus == -minus).all()


@given(moderate(), BLOCKS, st.sampled_from(["low_first", "high_first"]))
def test_image_round_trip(x, name, order):
    order = order if BLOCK_FORMATS[name].element.bits == 4 else "low_first"
    quantised = quantize(x, name, order=order)
    image = quantised.to_bytes()
    assert len(image) == quantised.nbytes
    back = Quantized.from_bytes(image, name, x.shape, order=order)
    assert back.to_bytes() == image
    assert (back.dequantize().view(np.uint32) == quantised.dequantize().view(np.uint32)).all()
    signs_kept = np.signbit(back.dequantize()) == np.signbit(x)
    has_minus_zero = name != "nvfp4" and BLOCK_FORMATS[name].element.has_negative_zero
    assert signs_kept[(back.dequantize() != 0) | has_minus_zero].all(), "nvfp4 and integers encode -0 as +0"


@given(moderate(), MX, st.sampled_from(["floor", "ceil", "rceil"]))
def test_mx_quantising_twice_is_quantising_once(x, name, mode):
    """Not under floor + 1 or rounded-up exponents, where a smaller largest value may take a smaller scale."""
    once = quantize(x, name, scale_mode=mode).dequantize()
    twice = quantize(once, name, scale_mode=mode).dequantize()
    assert (twice == once).all()


@given(moderate(), MX, st.sampled_from(["ceil", "rceil"]))
def test_mx_error_is_at_most_half_a_step(x, name, mode):
    quantised = quantize(x, name, scale_mode=mode)
    element = BLOCK_FORMATS[name].element
    scale = np.repeat(decode(quantised.scales, "float8_e8m0fnu").astype(np.float64), 32)[: x.size]
    scaled = np.abs(x.astype(np.float64) / scale)
    exponent = np.floor(np.log2(np.maximum(scaled, element.min_normal)))
    step = scale * 2.0 ** (exponent - element.mantissa_bits)
    if element.exponent_bits == 0:
        step = scale * element.min_subnormal
    error = np.abs(quantised.dequantize().astype(np.float64) - x)
    assert (error <= step / 2).all()


@given(moderate(), st.integers(-20, 20), MX)
def test_mx_follows_powers_of_two(x, power, name):
    """Away from the ends of the scale's range."""
    x = np.where(np.abs(x) < 2.0**-60, np.float32(0), np.clip(x, -(2.0**60), 2.0**60)).astype(np.float32)
    factor = np.float32(2.0**power)
    assert (quantize(x * factor, name).dequantize() == quantize(x, name).dequantize() * factor).all()


@given(moderate(), BLOCKS, st.data())
def test_blocks_do_not_see_each_other(x, name, data):
    block = BLOCK_FORMATS[name].block
    if name == "nvfp4" or x.size <= block:
        return
    cut = data.draw(st.integers(1, (x.size - 1) // block)) * block
    parts = [quantize(part, name).dequantize() for part in (x[:cut], x[cut:])]
    assert (np.concatenate(parts) == quantize(x, name).dequantize()).all()


@pytest.mark.parametrize("name", sorted(BLOCK_FORMATS))
@given(x=floats())
def test_only_blocks_with_an_infinity_are_nan(name, x):
    block = min(BLOCK_FORMATS[name].block, max(x.size, 1))
    finite = np.abs(x) < 2.0**100
    x = np.where(finite | np.isinf(x), x, np.float32(1)).astype(np.float32)
    poisoned = np.array([np.isinf(x[i : i + block]).any() for i in range(0, x.size, block)], bool)
    got = quantize(x, name).dequantize()
    assert (np.isnan(got) == np.repeat(poisoned, block)[: x.size]).all()


@given(moderate(), BLOCKS)
def test_a_tail_is_a_zero_padded_block_cut_back(x, name):
    padded = np.pad(x, (0, -x.size % 128))
    assert (quantize(padded, name).dequantize()[: x.size] == quantize(x, name).dequantize()).all()


@given(moderate(), st.sampled_from(["int8_block32", "int4_block32"]))
def test_integer_error_is_at_most_half_a_step_and_codes_are_symmetric(x, name):
    quantised = quantize(x, name)
    step = np.repeat(quantised.scales, 32)[: x.size].astype(np.float64)
    error = np.abs(quantised.dequantize().astype(np.float64) - x)
    assert (error <= step * (0.5 + 2.0**-15)).all()
    assert (quantize(-x, name).dequantize() == -quantised.dequantize()).all()


@given(moderate(), st.sampled_from(["fp8_block128", "fp8_row"]), st.sampled_from(["amax", "pow2"]))
def test_scaled_fp8_error_is_at_most_half_a_step(x, name, mode):
    quantised = quantize(x, name, scale_mode=mode)
    scales = np.repeat(quantised.scales, 128 if name == "fp8_block128" else max(x.size, 1))[: x.size]
    error = np.abs(quantised.dequantize().astype(np.float64) - x)
    largest = np.repeat([np.abs(x[i : i + 128]).max() for i in range(0, x.size, 128)], 128)[: x.size]
    bound = np.abs(x) * (2.0**-4 + 2.0**-20) + scales.astype(np.float64) * 2.0**-10 * (1 + 2.0**-20)
    assert (error <= bound).all()
    usual = largest >= 448 / FLT_MAX  # below, the factor is limited, and the largest number is not the largest code
    if name == "fp8_block128" and mode == "amax":
        assert (np.abs(quantised.dequantize()) <= largest * (1 + 2.0**-20))[usual].all()


@given(moderate(40), BLOCKS)
def test_element_codes_are_the_codes_one_a_byte(x, name):
    quantised = quantize(np.stack([x, -x]), name)
    codes = quantised.element_codes()
    assert codes.shape == (2, x.size)
    bits = BLOCK_FORMATS[name].element.bits
    for row, packed in zip(codes, quantised.codes, strict=True):
        whole = sum(int(code) << (bits * i) for i, code in enumerate(row))
        assert packed.tobytes() == whole.to_bytes(packed.size, "little")


@given(st.integers(0, 2**32), ELEMENTS)
def test_stochastic_rounding_gives_a_neighbour(seed, name):
    x = np.random.default_rng(seed % 1000).standard_normal(64).astype(np.float32)
    low = decode(encode(x, name, rounding="down"), name)
    high = decode(encode(x, name, rounding="up"), name)
    got = decode(encode(x, name, rounding="stochastic", seed=seed), name)
    assert ((got == low) | (got == high)).all()
