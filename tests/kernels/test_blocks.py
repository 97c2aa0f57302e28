"""Block kernels against the exact reference: scales of every mode, elements, NaN, short blocks, tiles."""

from fractions import Fraction

import numpy as np
import pytest
from collemu_kernels import blocks
from collemu_kernels import format_ids as ids

from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS, MX_SCALE_MODES
from collemu.quantization import SCALE_MODES, decode, quantize
from tests.oracles.numbers_reference import MX_ELEMENTS, mx_block, mx_scale_code, nvfp4


def unpack(codes, length):
    return np.stack([codes & 15, codes >> 4], -1).reshape(-1)[:length]


@pytest.mark.parametrize("mode", MX_SCALE_MODES)
@pytest.mark.parametrize("element", MX_ELEMENTS.values())
def test_scale_of_every_exponent_and_around_its_edges(element, mode):
    rng = np.random.default_rng(11)
    exponents = np.arange(255, dtype=np.uint32) << 23
    fractions = [0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x600000, 0x600001, 0x7FFFFE, 0x7FFFFF]
    bits = np.concatenate([exponents | f for f in fractions] + [exponents | rng.integers(0, 1 << 23)])
    for amax in bits.astype(np.uint32):
        value = Fraction(float(amax.view(np.float32)))
        code = blocks.mx_scale(amax, ELEMENT_FORMATS[element].format_id, SCALE_MODES[mode])
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
    for row, codes, scales in zip(rows, quantised.codes, quantised.scales, strict=True):
        code, expected = mx_block(row, name, mode)
        got = unpack(codes, 32) if name == "mxfp4" else codes
        assert scales.tolist() == [code]
        assert got.tolist() == expected


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 160])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-42, 1e30, 3e38])
def test_nvfp4_follows_the_reference_arithmetic(length, size):
    rng = np.random.default_rng(length)
    values = (np.clip(rng.standard_normal(length) / 4, -1, 1) * size).astype(np.float32)
    values[length // 2 :: 7] *= np.float32(1e-4)
    codes, scales, tensor_scale = nvfp4(values)
    quantised = quantize(values, "nvfp4")
    assert quantised.tensor_scale == tensor_scale
    assert quantised.scales.tolist() == scales
    assert unpack(quantised.codes, length).tolist() == codes
    elements = decode(np.array(codes, np.uint8), "float4_e2m1fn")
    block_scales = np.repeat(decode(quantised.scales, "float8_e4m3fn"), 16)[:length]
    assert (quantised.dequantize() == elements * block_scales * tensor_scale).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_nan_or_an_infinity_poisons_its_block_alone(name, bad):
    block = BLOCK_FORMATS[name].block
    values = np.linspace(-3, 3, 5 * block).astype(np.float32)
    clean = values.copy()
    clean[2 * block : 3 * block] = 0
    values[2 * block + 3] = bad
    quantised, expected = quantize(values, name), quantize(clean, name)
    assert quantised.scales[2] == (0x7F if name == "nvfp4" else 0xFF)
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
    scales = rng.integers(0, 256, quantised.scales.size, dtype=np.uint8)
    values = np.empty(length, np.float32)
    tensor = np.float32(0.5) if block.has_tensor_scale else np.float32(1)
    blocks.decode_row(codes, scales, tensor, block.format_id, values)
    element = unpack(codes, length) if block.element.bits == 4 else codes
    with np.errstate(all="ignore"):
        factor = np.repeat(decode(scales, block.scale.name), block.block)[:length]
        expected = decode(element, block.element.name) * factor * tensor
    assert ((values == expected) | (np.isnan(values) & np.isnan(expected))).all()


def test_ids_of_block_formats_follow_each_other():
    assert [block.format_id for block in BLOCK_FORMATS.values()] == list(
        range(ids.FIRST_BLOCK_FORMAT, ids.FIRST_BLOCK_FORMAT + len(BLOCK_FORMATS))
    )
