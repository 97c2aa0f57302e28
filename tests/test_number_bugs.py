"""Bugs that others shipped, each with the right value. The id of a case names where it was reported."""

import numpy as np
import pytest

from collemu.number_formats import BLOCK_FORMATS
from collemu.quantization import Quantized, decode, encode, quantize

MX = [name for name in BLOCK_FORMATS if name.startswith("mx")]


def case(source, *values):
    return pytest.param(*values, id=source)


@pytest.mark.parametrize(
    ("element_format", "inputs", "codes"),
    [
        case("triton#2583 #10846 #11753", "float8_e4m3fn", [1.0625001], [0x39]),
        case("double rounding through bfloat16", "float8_e4m3fn", [-1.4367204], [0xBB]),
        case("triton#5925 #6102", "float8_e5m2", [9.0], [0x48]),
        case("cutile-rs#250", "float8_e4m3fn", [0.1, 0.3, 1.9], [0x1D, 0x2A, 0x3F]),
        case("tt-metal#51971", "float4_e2m1fn", [0.25000006, 0.25], [1, 0]),
        case("onnxruntime#18473 onnx#5764 xla#17487 e4m3", "float8_e4m3fnuz", [-1e-9, -0.0], [0, 0]),
        case("onnxruntime#18473 onnx#5764 xla#17487 e5m2", "float8_e5m2fnuz", [-1e-9, -0.0], [0, 0]),
        case("ml_dtypes#221", "float8_e4m3fn", [4.25], [0x48]),
        case("llm-scaler#569 torch-xpu-ops#2951", "float8_e4m3fn", [-0.0], [0x80]),
        case("bitstring#333", "float6_e3m2fn", [-0.0], [0x20]),
        case("ml_dtypes#260 #400, pytorch#178817, ao#1912", "float8_e4m3fn", [464, 465, np.inf], [0x7E] * 3),
        case("ml_dtypes#223", "float8_e8m0fnu", [1.5, 3, 0.75], [128, 129, 127]),
        case("llvm#215445", "float8_e8m0fnu", [-1.0, 0.0, -np.inf], [0xFF] * 3),
        case("FreeToken PR#85", "float8_e4m3fn", [400.199585, 272.156555, 136.002075], [0x7D, 0x79, 0x71]),
        case(
            "ocannl#646",
            "float8_e5m2",
            [1.125, 1.625, 2.0**-16, 1e-5, -0.0, 65504],
            [0x3C, 0x3E, 0x01, 0x01, 0x80, 0x7B],
        ),
        case("QPyTorch#24 #48, Float8s.jl#12 #22", "float8_e5m2", [2.0**-15, 3 * 2.0**-16, -3.0], [2, 3, 0xC2]),
    ],
)
def test_encoding(element_format, inputs, codes):
    assert encode(np.array(inputs, np.float32), element_format).tolist() == codes


@pytest.mark.parametrize(
    ("element_format", "inputs", "codes"),
    [
        case("ml_dtypes#260 #400", "float8_e4m3fn", [464, 465, np.inf, -np.inf], [0x7E, 0x7F, 0x7F, 0xFF]),
        case("stillwater universal#1302", "float8_e5m2", [np.inf, 61440, 61439], [0x7C, 0x7C, 0x7B]),
        case("onnx#6220", "float8_e4m3fnuz", [np.inf, -np.inf, 1e9], [0x80, 0x80, 0x80]),
    ],
)
def test_encoding_without_saturation(element_format, inputs, codes):
    assert encode(np.array(inputs, np.float32), element_format, saturate=False).tolist() == codes


@pytest.mark.parametrize(
    ("element_format", "codes", "values"),
    [
        case("triton#10745", "float8_e4m3fnuz", [0x80], [np.nan]),
        case("tvm#20315", "float8_e5m2", [0, 1, 3, 0x80, 4], [0, 2.0**-16, 3 * 2.0**-16, -0.0, 2.0**-14]),
        case("sglang#25519", "float8_e8m0fnu", [134, 255], [128, np.nan]),
        case("llvm#214919", "float8_e8m0fnu", [0xFF, 0], [np.nan, 2.0**-127]),
    ],
)
def test_decoding(element_format, codes, values):
    got = decode(np.array(codes, np.uint8), element_format)
    expected = np.array(values, np.float32)
    assert np.array_equal(got, expected, equal_nan=True)
    number = ~np.isnan(expected)
    assert (np.signbit(got) == np.signbit(expected))[number].all()


@pytest.mark.parametrize(
    ("rounding", "codes"), [("nearest_even", [0, 0, 0, 1]), ("up", [0, 1, 1, 1]), ("down", [0, 0, 0, 0])]
)
def test_onnxruntime_28435_e8m0_of_subnormal_float32(rounding, codes):
    bits = np.array([0x00400000, 0x00400001, 0x00500000, 0x007FFFFF], np.uint32)
    assert encode(bits.view(np.float32), "float8_e8m0fnu", rounding=rounding).tolist() == codes


def test_microxcaling_4_saturation_under_floor():
    block = np.zeros(32, np.float32)
    block[:2] = 957, 960
    for mode, expected in (("floor", [896, 896]), ("ceil", [960, 960]), ("rceil", [960, 960])):
        assert quantize(block, "mxfp8_e4m3", scale_mode=mode).dequantize()[:2].tolist() == expected


def test_vllm_53110_scale_takes_the_element_exponent_off():
    block = np.full(32, 3.0, np.float32)
    assert quantize(block, "mxfp8_e4m3", scale_mode="rceil").scales.tolist() == [127 - 7]


@pytest.mark.parametrize("name", MX)
def test_kekzl_imp_250_elements_are_scaled_by_the_scale_that_is_sent(name):
    x = np.random.default_rng(1).standard_normal(32).astype(np.float32) + np.float32(1)
    quantised = quantize(x, name, scale_mode="ceil")
    scale = np.float32(decode(quantised.scales, "float8_e8m0fnu")[0])
    element = BLOCK_FORMATS[name].element
    step = np.maximum(2.0 ** (np.floor(np.log2(np.abs(x / scale))) - element.mantissa_bits), element.min_subnormal)
    assert (np.abs(quantised.dequantize() - x) <= scale * step / 2).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_model_optimizer_1397_compressed_tensors_595_vllm_58032_zero_blocks(name):
    """Also pytorch/ao#4713 and aiter#4288: zeros stay zeros, and so do their neighbours' values."""
    zeros = quantize(np.zeros((4, 64), np.float32), name)
    scales = zeros.scales
    if scales.dtype == np.uint8:
        scales = decode(scales, BLOCK_FORMATS[name].scale.name)
    assert (zeros.dequantize() == 0).all()
    assert not np.signbit(zeros.dequantize()).any()
    assert np.isfinite(scales).all()
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    without = quantize(x, name).dequantize()[[0, 2]]
    peak = np.abs(x).max()
    x[1] = 0
    if np.abs(x).max() == peak:
        assert (quantize(x, name).dequantize()[[0, 2]] == without).all()
    assert (quantize(x, name).dequantize()[1] == 0).all()


@pytest.mark.parametrize("length", [13, 129])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_vllm_37564_flashinfer_2726_ao_4713_padding_never_enters_a_scale(name, length):
    x = np.random.default_rng(3).standard_normal((4, length)).astype(np.float32)
    padded = np.pad(x, [(0, 0), (0, -length % 128)])
    assert (quantize(x, name).dequantize() == quantize(padded, name).dequantize()[:, :length]).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_mase_321_blocks_do_not_straddle_rows(name):
    x = np.ones((2, 24), np.float32)
    x[0] *= 1024
    assert (quantize(x, name).dequantize() == x).all() or not name.startswith("mx")
    assert quantize(x, name).scales.shape == (2, -(-24 // BLOCK_FORMATS[name].block))


def test_bitsandbytes_1721_each_byte_comes_from_its_own_pair():
    x = np.tile(np.array([6, -6, 0, 0.5], np.float32), 16)
    assert quantize(x, "mxfp4").codes.tolist() == [0xF7, 0x10] * 16


def test_kekzl_imp_567_sglang_23625_first_code_in_the_low_nibble():
    image = bytes([0x21]) + bytes([127])
    assert Quantized.from_bytes(image, "mxfp4", 2).dequantize().tolist() == [0.5, 1.0]
    assert Quantized.from_bytes(image, "mxfp4", 2, order="high_first").dequantize().tolist() == [1.0, 0.5]


def test_microxcaling_keeps_no_minus_zero_and_flushes():
    block = np.zeros(32, np.float32)
    block[:3] = -0.0, 1.0, 2.0**-140
    got = quantize(block, "mxfp8_e4m3").dequantize()
    assert np.signbit(got[0])
    assert got[:3].tolist() == [0, 1, 0]
    lone = np.zeros(32, np.float32)
    lone[0] = 2.0**-136
    assert quantize(lone, "mxfp8_e4m3").dequantize()[0] == np.float32(2.0**-136)
    lone[0] = 2.0**-140
    assert quantize(lone, "mxfp8_e4m3").dequantize()[0] == 0


@pytest.mark.parametrize("exponent", range(-126, 128))
def test_floor_of_log2_one_ulp_below_a_power_of_two(exponent):
    """microxcaling, gfloat and TransformerEngine take log2 in float32, which rounds up here."""
    below = np.nextafter(np.float32(2.0**exponent), np.float32(0))
    assert quantize([below], "mxfp4").scales[0] == max(exponent - 1 - 2, -127) + 127


def test_tt_metal_15889_ties_and_overflow_of_integer_blocks():
    x = np.zeros(32, np.float32)
    x[:3] = 64.5 / 64, 65.5 / 64, 1.99999
    quantised = quantize(x, "mxint8", scale_mode="floor")
    assert quantised.scales.tolist() == [127]
    assert (quantised.dequantize()[:3] * 64).tolist() == [64, 66, 127]
    assert (quantize(-x, "mxint8").dequantize()[:3] * 64).tolist() == [-64, -66, -127]


VIEWS = {
    "columns": lambda x: x[:, :64],
    "transposed": lambda x: x.T,
    "every second row": lambda x: x[::2],
    "reversed": lambda x: x[:, ::-1],
    "Fortran order": np.asfortranarray,
    "big endian": lambda x: x.astype(">f4"),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_vllm_49092_55534_burn_4491_5278_fbgemm_2919_mlx_4370_views(name, view):
    x = np.random.default_rng(4).standard_normal((128, 128)).astype(np.float32)
    before = x.copy()
    seen = VIEWS[view](x)
    plain = np.ascontiguousarray(seen).astype(np.float32)
    assert quantize(seen, name).to_bytes() == quantize(plain, name).to_bytes()
    assert quantize(seen, name, axis=0).to_bytes() == quantize(plain, name, axis=0).to_bytes()
    assert (quantize(seen, name, axis=0).dequantize() == quantize(seen.T, name).dequantize().T).all()
    assert (encode(seen, "float8_e4m3fn") == encode(plain, "float8_e4m3fn")).all()
    assert x.tobytes() == before.tobytes()
