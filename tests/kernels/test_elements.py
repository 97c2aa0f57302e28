"""Element kernels against ml_dtypes, gfloat and the exact reference, over all that can be gone through."""

import ml_dtypes
import numpy as np
import pytest
from collemu_kernels import elements, packing
from collemu_kernels import format_ids as ids

from collemu.number_formats import ELEMENT_FORMATS
from collemu.quantization import ROUNDINGS, decode, encode
from tests.oracles.numbers_reference import REFERENCES, encode_all
from tests.oracles.quantised_interpreter import tfloat32

NARROW = list(REFERENCES)
ML_DTYPES = {name: np.dtype(getattr(ml_dtypes, name)) for name in NARROW}
ALL_BF16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
DETERMINISTIC = [name for name in ROUNDINGS if not name.startswith("stochastic")]
ALL_F16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def same(a, b):
    """Equal as numbers, NaN like NaN, -0 unlike +0."""
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


@pytest.mark.parametrize("name", NARROW)
def test_every_code_decodes_as_defined_and_encodes_back(name):
    codes = np.arange(1 << ELEMENT_FORMATS[name].bits, dtype=np.uint8)
    values = decode(codes, name)
    expected = np.array([float(REFERENCES[name].decode(int(code))) for code in codes], np.float32)
    sign = codes & REFERENCES[name].sign != 0
    expected[(expected == 0) & sign] = -0.0
    assert same(values, expected).all()
    assert same(values, codes.view(ML_DTYPES[name]).astype(np.float32)).all()
    number = ~np.isnan(values)
    assert (encode(values[number], name, saturate=False) == codes[number]).all()
    if ELEMENT_FORMATS[name].has_nan:
        assert np.isnan(decode(encode(values[~number], name), name)).all()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("inputs", [ALL_BF16, ALL_F16], ids=["bfloat16", "float16"])
def test_all_16_bit_inputs_as_ml_dtypes_rounds_them(name, inputs):
    nan = "propagate" if ELEMENT_FORMATS[name].has_nan else "zero"
    values = np.where(np.isnan(inputs), np.float32(0), inputs) if nan == "zero" else inputs
    with np.errstate(all="ignore"):
        expected = values.astype(ML_DTYPES[name])
    codes = encode(inputs, name, saturate=False, nan=nan)
    assert (codes == expected.view(np.uint8)).all()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_16_bit_formats_round_as_numpy_and_ml_dtypes(name):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32)
    halfway = rng.integers(0, 1 << 17, 100_000, dtype=np.uint32) << 15
    values = np.concatenate([bits, halfway, halfway | 1]).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16 if name == "float16" else ml_dtypes.bfloat16)
    codes = encode(values, name, saturate=False)
    assert (codes == expected.view(np.uint16)).all()
    assert same(decode(codes, name), expected.astype(np.float32)).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    decoded = decode(every, name)
    back = encode(decoded, name, saturate=False)
    assert (back == every)[~np.isnan(decoded)].all()


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("name", NARROW)
def test_roundings_against_exact_fractions(name, rounding, saturate):
    """Every code, every midpoint of neighbours, one float32 to each side of both, and what overflows."""
    reference = REFERENCES[name]
    grid = np.array([float(x) for x in reference.magnitudes], np.float32)
    middle = ((grid[1:].astype(np.float64) + grid[:-1]) / 2).astype(np.float32)
    around = np.concatenate([grid, middle, [2 * grid[-1], 1e30, 1e-40, 1e-30]]).astype(np.float32)
    values = np.concatenate([around, np.nextafter(around, np.float32(0)), np.nextafter(around, np.float32(np.inf))])
    values = np.concatenate([values, -values, [np.inf, -np.inf]]).astype(np.float32)
    expected = encode_all(values, name, rounding=rounding, saturate=saturate)
    codes = encode(values, name, rounding=rounding, saturate=saturate)
    wrong = np.flatnonzero(codes != expected)
    assert wrong.size == 0, [(values[i], hex(codes[i]), hex(expected[i])) for i in wrong[:5]]


@pytest.mark.parametrize("name", NARROW)
def test_both_encoders_agree_on_random_bits(name):
    values = np.random.default_rng(5).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    fast, slow = np.empty(values.size, np.uint8), np.empty(values.size, np.uint8)
    none = np.empty(0, np.uint64)
    for saturate in (True, False):
        elements.encode_elements(values, ELEMENT_FORMATS[name].format_id, saturate, fast)
        elements.encode_rounded(values, ELEMENT_FORMATS[name].format_id, saturate, ids.NEAREST_EVEN, none, slow)
        assert (fast == slow).all()


def test_e8m0():
    values = np.array([1, 1.5, 3, 0.75, 1.4999999, 2.0**127, 2.0**-127, 1e38, 0, -0.0, -1, np.nan], np.float32)
    assert encode(values, "float8_e8m0fnu").tolist() == [
        127,
        128,
        129,
        127,
        127,
        254,
        0,
        253,
        255,
        255,
        255,
        255,
    ]
    huge = np.array([np.inf, np.finfo(np.float32).max], np.float32)
    assert encode(huge, "float8_e8m0fnu").tolist() == [0xFE, 0xFE]
    assert encode(huge, "float8_e8m0fnu", saturate=False).tolist() == [0xFF, 0xFF]
    codes = np.arange(256, dtype=np.uint8)
    decoded = decode(codes, "float8_e8m0fnu")
    assert same(decoded, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)).all()
    assert (encode(decoded, "float8_e8m0fnu") == codes).all()
    normal = ALL_BF16[(ALL_BF16 >= 2.0**-126)]
    assert (
        encode(normal, "float8_e8m0fnu", saturate=False) == normal.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    ).all()


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize(("name", "top"), [("int8", 127), ("int4", 7)])
def test_integers_are_rounded_and_then_limited(name, top, rounding):
    halves = np.arange(-300, 300, dtype=np.float32) / 2
    inputs = np.concatenate([ALL_BF16, ALL_F16, halves, np.nextafter(halves, np.float32(0))])
    inputs = inputs[~np.isnan(inputs)]
    wide = inputs.astype(np.float64)
    whole = {
        "nearest_even": np.rint,
        "nearest_away": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
        "toward_zero": np.trunc,
        "up": np.ceil,
        "down": np.floor,
    }[rounding](wide)
    expected = np.clip(whole, -top - 1, top)
    codes = encode(inputs, name, rounding=rounding)
    assert codes.dtype == np.uint8
    assert (decode(codes, name) == expected).all()
    assert not np.signbit(decode(codes, name)[expected == 0]).any()
    every = np.arange(2 * top + 2, dtype=np.uint8)
    assert (encode(decode(every, name), name) == every).all()
    with pytest.raises(ValueError, match="no code for it"):
        encode([np.nan], name)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("rounding", DETERMINISTIC)
def test_tfloat32_is_float32_with_ten_bits_of_mantissa(rounding, saturate):
    bits = np.random.default_rng(8).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    bits[:20_000] = bits[:20_000] & 0xFFFFE000 | 0x1000  # ties
    bits[20_000:30_000] &= 0x80FFFFFF  # small and subnormal numbers
    values = np.append(bits, [0x7F7FEFFF, 0x7F7FF000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000]).astype(np.uint32)
    values = values[values & 0x7FFFFFFF <= 0x7F800000].view(np.float32)
    if rounding == "nearest_even" and saturate:
        expected = tfloat32(values)
    else:
        low = values.view(np.uint32) & 0x1FFF
        cut = (values.view(np.uint32) - low).astype(np.int64)
        odd = (cut >> 13) & 1
        negative = np.signbit(values)
        away = {
            "nearest_even": (low > 0x1000) | ((low == 0x1000) & (odd == 1)),
            "nearest_away": low >= 0x1000,
            "toward_zero": np.zeros(low.size, bool),
            "up": (low > 0) & ~negative,
            "down": (low > 0) & negative,
        }[rounding]
        expected = (cut + (away.astype(np.int64) << 13)).astype(np.uint32).view(np.float32)
        if saturate:
            largest = np.float32(ELEMENT_FORMATS["tfloat32"].max)
            expected = np.clip(expected, -largest, largest)
    codes = encode(values, "tfloat32", rounding=rounding, saturate=saturate)
    assert (codes.view(np.float32) == expected).all()
    assert same(decode(codes, "tfloat32"), expected).all()
    assert np.isnan(decode(encode([np.nan, -np.nan], "tfloat32"), "tfloat32")).all()
    with pytest.raises(ValueError, match="zeros below their 19 highest bits"):
        decode(np.array([1], np.uint32), "tfloat32")


def test_eight_random_bits_round_away_as_often_as_the_first_eight_dropped_bits_say():
    """Every one of the 256 draws once: the count of those that go up is the dropped fraction, cut to 8 bits."""
    draws = np.arange(256, dtype=np.uint64) << np.uint64(56)
    for value, fraction in (
        (1 + 0.25 * 0.3, 0.3),
        (-3.0, 0.0),
        (1.25 - 2.0**-20, 1 - 2.0**-18),
        (1 + 0.25 / 256, 1 / 256),
    ):
        codes = np.empty(256, np.uint8)
        values = np.full(256, value, np.float32)
        elements.encode_rounded(values, ids.FLOAT8_E5M2, True, ids.STOCHASTIC, draws, codes)
        away = np.abs(decode(codes, "float8_e5m2")) > abs(value)
        assert away.sum() == int(fraction * 256), value
    x = np.random.default_rng(0).standard_normal(1000)
    short = encode(x, "float8_e5m2", rounding="stochastic_8bit", seed=4)
    assert (short == encode(x, "float8_e5m2", rounding="stochastic_8bit", seed=4)).all()
    assert (short <= encode(x, "float8_e5m2", rounding="stochastic", seed=4)).all(), "magnitudes: cut, never raised"


def test_typed_codes_are_arrays_of_that_type():
    x = np.array([[0.5, -1.0], [3.0, -2.0]], np.float32)
    for name in ELEMENT_FORMATS:
        given = np.abs(x) if name == "float8_e8m0fnu" else x
        if name == "tfloat32":
            with pytest.raises(ValueError, match="no type"):
                encode(given, name, typed=True)
            continue
        typed = encode(given, name, typed=True)
        assert typed.dtype.name == name
        assert typed.shape == x.shape
        assert (decode(typed, name) == decode(encode(given, name), name)).all()
        assert (typed.astype(np.float32) == decode(typed, name)).all()


def test_stochastic_rounding_is_seeded_and_unbiased():
    for x in (1.01, 1.25, -2.9, 0.1, 0.013, -5.5):
        values = np.full(200_000, x, np.float32)
        codes = encode(values, "float4_e2m1fn", rounding="stochastic", seed=7)
        assert (codes == encode(values, "float4_e2m1fn", rounding="stochastic", seed=7)).all()
        assert abs(decode(codes, "float4_e2m1fn").mean(dtype=np.float64) - x) < 0.01
    exact = decode(np.arange(16, dtype=np.uint8), "float4_e2m1fn")
    assert (encode(exact, "float4_e2m1fn", rounding="stochastic", seed=1) == np.arange(16)).all()
    with pytest.raises(ValueError, match="needs a seed"):
        encode(1.0, "float4_e2m1fn", rounding="stochastic")


def test_nibbles():
    codes = np.array([1, 2, 15, 0, 9], np.uint8)
    packed = np.empty(3, np.uint8)
    packing.pack_nibbles(codes, packed)
    assert packed.tolist() == [0x21, 0x0F, 0x09]
    back = np.empty(5, np.uint8)
    packing.unpack_nibbles(packed, back)
    assert (back == codes).all()


def test_six_bit_codes_lie_side_by_side_from_the_lowest_bit_on():
    rng = np.random.default_rng(9)
    for length in range(20):
        codes = rng.integers(0, 64, length, dtype=np.uint8)
        packed = np.full(-(-6 * length // 8), 0xA5, np.uint8)
        packing.pack_sixes(codes, packed)
        whole = sum(int(code) << (6 * i) for i, code in enumerate(codes))
        assert packed.tobytes() == whole.to_bytes(packed.size, "little")
        back = np.empty(length, np.uint8)
        packing.unpack_sixes(packed, back)
        assert (back == codes).all()


@pytest.mark.parametrize(("format_id", "bits"), [(ids.SYMMETRIC4, 4), (ids.SYMMETRIC8, 8), (ids.SIXTY_FOURTHS, 8)])
def test_integers_are_twos_complement(format_id, bits):
    half = 1 << (bits - 1)
    integers = np.arange(-half, half)
    codes = (integers & (2 * half - 1)).astype(np.uint8)
    step = 1 / 64 if format_id == ids.SIXTY_FOURTHS else 1
    values = np.empty(codes.size, np.float32)
    elements.decode_products(codes, np.full(codes.size, 2, np.float32), False, format_id, values)
    assert (values == 2 * step * integers).all()
    encoded = np.empty(codes.size, np.uint8)  # the most negative code is not written
    elements.encode_products(
        values, np.full(codes.size, 0.5, np.float32), False, np.float32(-0.0), format_id, True, encoded
    )
    elements.complement(encoded, format_id)
    assert encoded[0] == codes[1]
    assert (encoded[1:] == codes[1:]).all()
    encoded[0] = half  # -0 in sign and magnitude
    elements.complement(encoded[:1], format_id)
    assert encoded[0] == 0
