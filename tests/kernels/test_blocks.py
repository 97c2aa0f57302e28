"""Block kernels against the exact reference: scales of every mode, elements, NaN, short blocks, tiles."""

from fractions import Fraction

import numpy as np
import pytest
from collemu_kernels import blocks, scales
from collemu_kernels import format_ids as ids

from collemu.number_formats import BLOCK_FORMATS, MX_SCALE_MODES
from collemu.quantization import SCALE_MODES, decode, quantize
from tests.oracles.numbers_reference import MX_ELEMENTS, float32_scaled, mx_block, mx_scale_code, nvfp4


def unpack(codes, length, bits=4):
    """Codes one a byte."""
    one_by_one = np.unpackbits(codes, bitorder="little")[: length * bits].reshape(length, bits)
    return np.packbits(one_by_one, axis=1, bitorder="little")[:, 0]


@pytest.mark.parametrize("mode", MX_SCALE_MODES)
@pytest.mark.parametrize("name", MX_ELEMENTS)
def test_scale_of_every_exponent_and_around_its_edges(name, mode):
    element = MX_ELEMENTS[name]
    rng = np.random.default_rng(11)
    exponents = np.arange(255, dtype=np.uint32) << 23
    fractions = [0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x600000, 0x600001, 0x7FFFFE, 0x7FFFFF]
    bits = np.concatenate([exponents | f for f in fractions] + [exponents | rng.integers(0, 1 << 23)])
    for amax in bits.astype(np.uint32):
        value = Fraction(float(amax.view(np.float32)))
        code = scales.mx_scale(amax, BLOCK_FORMATS[name].element.format_id, SCALE_MODES[mode])
        assert code == mx_scale_code(value, element, mode), (hex(amax), mode)


@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("length", [1, 15, 16, 31, 32, 33, 127, 128, 129, 1000, 1024])
def test_block_amax_is_the_largest_magnitude(block, length):
    values = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    count = -(-length // block)
    amax = np.zeros(count, np.uint32)
    blocks.block_amax(values, block, np.empty(1024, np.uint32), amax)
    expected = [np.abs(values[i * block : (i + 1) * block]).max() for i in range(count)]
    assert (amax.view(np.float32) == expected).all()


@pytest.mark.parametrize("mode", MX_SCALE_MODES)
@pytest.mark.parametrize("name", MX_ELEMENTS)
def test_mx_blocks_against_exact_fractions(name, mode):
    rng = np.random.default_rng(2)
    spread = np.exp2(rng.integers(-30, 5, (40, 32)))
    rows = (rng.standard_normal((40, 32)) * spread).astype(np.float32)
    rows[1] = 0
    rows[2, 5] = -0.0
    rows[3] *= np.float32(2.0**-100)
    rows[4] = np.float32(2.0**-149) * np.arange(32)
    rows[5] *= np.float32(2.0**100)
    rows[6] = np.linspace(-1, 1, 32) * np.finfo(np.float32).max
    quantised = quantize(rows, name, scale_mode=mode)
    for row, codes, row_scales in zip(rows, quantised.codes, quantised.scales, strict=True):
        code, expected = mx_block(row, name, mode)
        got = unpack(codes, 32, BLOCK_FORMATS[name].element.bits)
        assert row_scales.tolist() == [code]
        assert got.tolist() == expected


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 160])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-42, 1e30, 3e38])
def test_nvfp4_follows_the_reference_arithmetic(length, size):
    rng = np.random.default_rng(length)
    values = (np.clip(rng.standard_normal(length) / 4, -1, 1) * size).astype(np.float32)
    values[length // 2 :: 7] *= np.float32(1e-4)
    codes, expected, tensor_scale = nvfp4(values)
    quantised = quantize(values, "nvfp4")
    assert quantised.tensor_scale == tensor_scale
    assert quantised.scales.tolist() == expected
    assert unpack(quantised.codes, length).tolist() == codes
    elements = decode(np.array(codes, np.uint8), "float4_e2m1fn")
    block_scales = np.repeat(decode(quantised.scales, "float8_e4m3fn"), 16)[:length]
    assert (quantised.dequantize() == elements * block_scales * tensor_scale).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_nan_or_an_infinity_poisons_its_block_alone(name, bad):
    if name == "fp8_row":
        assert np.isnan(quantize([1, bad], name).dequantize()).all()
        return
    block = BLOCK_FORMATS[name].block
    values = np.linspace(-3, 3, 5 * block).astype(np.float32)
    clean = values.copy()
    clean[2 * block : 3 * block] = 0
    values[2 * block + 3] = bad
    quantised, expected = quantize(values, name), quantize(clean, name)
    if quantised.scales.dtype == np.float32:
        assert quantised.scales.view(np.uint32)[2] == 0x7FC00000
    else:
        assert quantised.scales[2] == (0x7F if name == "nvfp4" else 0xFF)
    assert (quantised.element_codes()[2 * block : 3 * block] == 0).all()
    got = quantised.dequantize().reshape(5, block)
    assert np.isnan(got[2]).all()
    assert (np.delete(got, 2, 0) == np.delete(expected.dequantize().reshape(5, block), 2, 0)).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_foreign_codes_with_nan_scales_and_special_elements_decode(name):
    """Images from elsewhere may hold any code."""
    rng = np.random.default_rng(8)
    block = BLOCK_FORMATS[name]
    length = 3 * blocks.TILE + 5
    quantised = quantize(rng.standard_normal(length), name)
    codes = rng.integers(0, 256, quantised.codes.size, dtype=np.uint8)
    row_scales = rng.integers(0, 256, quantised.scales.nbytes, dtype=np.uint8)
    values = np.empty(length, np.float32)
    tensor = np.float32(0.5) if block.has_tensor_scale else np.float32(1)
    blocks.decode_row(codes, row_scales, tensor, block.format_id, values)
    element = unpack(codes, length, block.element.bits)
    with np.errstate(all="ignore"):
        factors = row_scales.view(np.float32) if block.scale.bits == 32 else decode(row_scales, block.scale.name)
        factor = np.repeat(factors, min(block.block, length))[:length]
        if block.element.exponent_bits == 0:
            half = 1 << (block.element.bits - 1)
            numbers = (((element.astype(np.int32) ^ half) - half) * block.element.min_subnormal).astype(np.float32)
        else:
            numbers = decode(element, block.element.name)
        expected = numbers * factor * tensor
    assert ((values == expected) | (np.isnan(values) & np.isnan(expected))).all()


def test_ids_of_block_formats_follow_each_other():
    assert [block.format_id for block in BLOCK_FORMATS.values()] == list(
        range(ids.FIRST_BLOCK_FORMAT, ids.FIRST_BLOCK_FORMAT + len(BLOCK_FORMATS))
    )


@pytest.mark.parametrize("length", [1, 31, 32, 33, 127, 128, 129, 1024, 1025, 3000])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-38, 1e-42, 1e30, 3e38])
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "amax") for name in ("fp8_block128", "fp8_row", "int8_block32", "int4_block32")]
    + [(name, "pow2") for name in ("fp8_block128", "fp8_row")],
)
def test_float32_scales_follow_the_arithmetic_of_the_reference(name, mode, size, length):
    rng = np.random.default_rng(length)
    values = (np.clip(rng.standard_normal(length) / 4, -1, 1) * size).astype(np.float32)
    values[length // 2 :: 7] *= np.float32(1e-4)
    values[: length // 3] = 0
    quantised = quantize(values, name, scale_mode=mode)
    codes, expected = float32_scaled(values, name, mode)
    assert (quantised.scales == expected).all()
    assert (quantised.element_codes() == codes).all()
    largest = np.abs(values).max()
    assert (np.abs(quantised.dequantize() - values) <= np.maximum(largest * np.float32(0.08), 2.0**-120)).all()


@pytest.mark.parametrize(("name", "side"), [("nvfp4", 16), ("fp8_block128", 128), ("mxint8", 32)])
def test_square_blocks_share_the_scale_of_their_largest_magnitude(name, side):
    rng = np.random.default_rng(12)
    x = (rng.standard_normal((2, 150, 140)) * np.exp2(rng.integers(-9, 9, (2, 150, 1)))).astype(np.float32)
    x[0, 149, 139] = np.nan
    got = quantize(x, name, square=True)
    peaks = x.copy()
    for matrix in range(2):
        for top in range(0, 150, side):
            for left in range(0, 140, side):
                square = peaks[matrix, top : top + side, left : left + side]
                square[:] = np.abs(square).max()
    expected = quantize(peaks, name)
    assert np.array_equal(got.scales, expected.scales, equal_nan=got.scales.dtype == np.float32)
    assert got.tensor_scale == expected.tensor_scale
    flipped = quantize(np.swapaxes(x, 1, 2), name, square=True, axis=1)
    assert flipped.to_bytes() == got.to_bytes()
    with pytest.raises(ValueError, match="square blocks need a matrix"):
        quantize(x[0, 0], name, square=True)
    with pytest.raises(ValueError, match="a row has one scale"):
        quantize(x, "fp8_row", square=True)
