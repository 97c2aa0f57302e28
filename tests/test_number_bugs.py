"""Bugs that others shipped, each with the right value. The id of a case names where it was reported."""

import ml_dtypes
import numpy as np
import pytest

import collemu as ce
from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS
from collemu.quantization import Quantized, decode, encode, quantize
from collemu.schedule import build_schedule
from tests.built_in import anywhere
from tests.oracles.numbers_reference import nvfp4

MX = [name for name in BLOCK_FORMATS if name.startswith("mx")]
FP8 = [name for name in ELEMENT_FORMATS if name.startswith("float8") and name != "float8_e8m0fnu"]
SYSTEM = ce.load_system("trainium4_nvl72")


def case(source, *values):
    return pytest.param(*values, id=source)


@pytest.mark.parametrize(
    ("element_format", "inputs", "codes"),
    [
        case("triton#2583 #10846 #11753", "float8_e4m3fn", [1.0625001], [0x39]),
        case("double rounding through bfloat16", "float8_e4m3fn", np.uint32([0xBFB7E674]).view("f4"), [0xBB]),
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
        case("pychop#3 #4, apytypes#110", "float8_e3m4", [3.0, -3.0, 2.0**-6, 3 * 2.0**-7], [0x48, 0xC8, 1, 2]),
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


@pytest.mark.parametrize("name", ELEMENT_FORMATS)
def test_tt_metal_51971_tvm_20315_every_code_decodes_and_encodes_back(name):
    bits = ELEMENT_FORMATS[name].bits
    if name == "tfloat32":
        codes = np.arange(1 << 19, dtype=np.uint32) << np.uint32(13)
        expected = codes.view(np.float32)
    else:
        codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
        expected = codes.view(np.dtype(getattr(ml_dtypes, name, name))).astype(np.float32)
    values = decode(codes, name)
    number = ~np.isnan(expected)
    assert (np.isnan(values) == ~number).all()
    assert (values.view(np.uint32) == expected.view(np.uint32))[number].all()
    assert (encode(values[number], name, saturate=False) == codes[number]).all()


@pytest.mark.parametrize("name", FP8)
def test_brevitas_1027_only_fnuz_formats_have_their_nan_at_minus_zero(name):
    fnuz = name.endswith("fnuz")
    assert ELEMENT_FORMATS[name].has_negative_zero == (not fnuz)
    assert np.isnan(decode(np.uint8(0x80), name)) == fnuz
    assert encode(np.float32(-0.0), name) == (0 if fnuz else 0x80)


@pytest.mark.parametrize(
    ("rounding", "codes"), [("nearest_even", [0, 0, 0, 1]), ("up", [0, 1, 1, 1]), ("down", [0, 0, 0, 0])]
)
def test_onnxruntime_28435_e8m0_of_subnormal_float32(rounding, codes):
    bits = np.array([0x00400000, 0x00400001, 0x00500000, 0x007FFFFF], np.uint32)
    assert encode(bits.view(np.float32), "float8_e8m0fnu", rounding=rounding).tolist() == codes


@pytest.mark.parametrize("name", MX)
def test_directed_roundings_of_what_float32_products_lose(name):
    """An element 200 binades below its block's largest is no zero: up and down give the smallest number."""
    x = np.zeros(32, np.float32)
    x[:3] = 2.0**100, 2.0**-100, -(2.0**-100)
    least = BLOCK_FORMATS[name].element.min_subnormal
    scale = float(decode(quantize(x, name).scales, "float8_e8m0fnu")[0])
    for rounding, expected in (("up", [least, 0]), ("down", [0, -least]), ("toward_zero", [0, 0])):
        got = quantize(x, name, rounding=rounding).dequantize()
        assert (got[1:3] / scale).tolist() == expected, rounding


@pytest.mark.parametrize(("value", "expected"), [(1e-40, 1e-40), (1e-42, 0.0)])
def test_tiny_tensors_as_torchao_scales_them(value, expected):
    """The reciprocal of the tensor scale is infinite; it is zero itself for the second."""
    x = np.full(16, value, np.float32)
    x[3] = 0
    q = quantize(x, "nvfp4", scale_mode="torchao")
    assert decode(q.scales, "float8_e4m3fn").tolist() == [448]
    assert q.element_codes().tolist() == [7, 7, 7, 0, *[7] * 12]
    assert q.dequantize()[0] == pytest.approx(expected, rel=0.02)


def test_the_tiniest_tensor_under_torchaos_scales_is_nan_as_zeros_are():
    """A sixth of its largest number is zero, and so is its tensor scale."""
    q = quantize(np.full(16, 1e-45, np.float32), "nvfp4", scale_mode="torchao")
    assert q.scales.tolist() == [0xFF]
    assert not q.element_codes().any()


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
    lone[0] = np.inf
    assert quantize(lone, "mxfp8_e4m3").scales.tolist() == [0xFF]


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


# Stochastic rounding, scales, and the arithmetic of NVFP4.


def assert_stochastic(got, low, high, x):
    """Both neighbours occur, nothing else does, and the mean is within five deviations of the number."""
    assert set(np.unique(got).tolist()) == {low, high}
    share = (x - low) / (high - low)
    deviation = (high - low) * np.sqrt(share * (1 - share) / got.size)
    assert abs(got.mean(dtype=np.float64) - x) <= 5 * deviation


@pytest.mark.parametrize("x", [1.03, -2.9, 0.013])
@pytest.mark.parametrize("name", [name for name in ELEMENT_FORMATS if name != "float8_e8m0fnu"])
def test_te_3281_stochastic_codes_are_unbiased(name, x):
    """TransformerEngine#3281: all zeros where an instruction was missing."""
    values = np.full(20_000, x, np.float32)
    got = decode(encode(values, name, rounding="stochastic", seed=11), name)
    low, high = (float(decode(encode(values[0], name, rounding=rounding), name)) for rounding in ("down", "up"))
    assert_stochastic(got, low, high, float(values[0]))


@pytest.mark.parametrize("x", [1.03, -0.7])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_te_3281_stochastic_blocks_are_unbiased(name, x):
    """Unbiased about what the elements of the block are rounded from."""
    rows = np.full((200, 128), x, np.float32)
    rows[:, ::16] = 6  # sets the scale of every block
    low, high = (quantize(rows, name, rounding=rounding).dequantize()[0, 1] for rounding in ("down", "up"))
    got = quantize(rows, name, rounding="stochastic", seed=12).dequantize()
    assert_stochastic(np.delete(got, np.s_[::16], axis=1), float(low), float(high), float(rows[0, 1]))


@pytest.mark.parametrize("values", ["normal", "wide", "ties", "bfloat16"])
@pytest.mark.parametrize("length", [16, 1024, 1040, 77])
def test_te_2615_nvfp4_is_the_reference_to_the_last_bit(values, length):
    """TransformerEngine#2615: a tuned kernel, off by a few codes."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(length).astype(np.float32)
    if values == "wide":
        x = np.ldexp(x, rng.integers(-30, 30, length))
    elif values == "ties":
        x = rng.choice(np.float32([0.25, -0.75, 1.25, 1.75, 2.5, -3.5, 5, 6]), length)
    elif values == "bfloat16":
        x = decode(encode(x, "bfloat16"), "bfloat16")
    codes, scales, tensor_scale = nvfp4(x)
    got = quantize(x, "nvfp4")
    assert got.element_codes().tolist() == codes
    assert got.scales.tolist() == scales
    assert got.tensor_scale == tensor_scale


def scale_values(quantised):
    scale = BLOCK_FORMATS[quantised.format].scale
    return quantised.scales if scale.bits == 32 else decode(quantised.scales, scale.name)


EVERY_MODE = [(name, mode) for name, block in BLOCK_FORMATS.items() for mode in block.scale_modes]


@pytest.mark.parametrize(("name", "mode"), EVERY_MODE)
def test_vllm_omni_5263_scales_of_numbers_are_positive_and_finite(name, mode):
    """NVFP4 rounds the scales of blocks far below the largest to +0, and is not made for tensors of subnormals."""
    largest = float(np.finfo(np.float32).max)
    subnormal = () if BLOCK_FORMATS[name].has_tensor_scale else (1e-40, 2.0**-149)
    for size in (largest, 2.0**127, 1e30, 448, 1, 1e-30, 2.0**-126, *subnormal):
        rows = np.zeros((5, 128), np.float32)
        rows[0] = size
        rows[1, ::7] = -size
        rows[2] = np.linspace(-size / 2, size / 2, 128)
        rows[3, 5] = size * 2.0**-40
        quantised = quantize(rows, name, scale_mode=mode)
        scales = scale_values(quantised)
        assert np.isfinite(scales).all()
        assert mode == "asymmetric" or not np.signbit(scales).any()
        scales = np.abs(scales)
        assert (scales[:3] > 0).all() and ((scales > 0).all() or mode == "two_level")
        if BLOCK_FORMATS[name].has_tensor_scale:
            assert 0 < quantised.tensor_scale < np.inf


@pytest.mark.parametrize(("name", "mode"), [pair for pair in EVERY_MODE if pair[1] != "torchao"])
def test_vllm_53346_58032_compressed_tensors_595_one_scale_of_nothing(name, mode):
    """A zero group has the least power of two (E8M0), 1 (float32), or +0 under a tensor scale of 1 (NVFP4)."""
    expected = {"float8_e8m0fnu": 2.0**-127, "float32": 1.0, "float8_e4m3fn": 0.0}[BLOCK_FORMATS[name].scale.name]
    if mode == "margin":  # DeepEP's: of a largest magnitude of 1e-4
        expected = np.float32(1e-4) * (np.float32(1) / np.float32(448))
    alone = quantize(np.zeros(1, np.float32), name, scale_mode=mode)
    whole = quantize(np.zeros((3, 130), np.float32), name, scale_mode=mode)
    assert (scale_values(alone) == expected).all() and (scale_values(whole) == expected).all()
    assert alone.tensor_scale == whole.tensor_scale == (1 if name == "nvfp4" else None)
    rows = np.zeros((3, 130), np.float32)
    rows[1] = 5
    among = quantize(rows, name, scale_mode=mode)
    assert (scale_values(among)[[0, 2]] == expected).all()
    minus = quantize(-rows, name, scale_mode=mode)
    assert (np.abs(scale_values(minus)) == np.abs(scale_values(among))).all()
    image = quantize(np.zeros(130, np.float32), name).to_bytes()
    assert ce.combine(image, image, name) == image


def test_modular_6600_the_tensor_scale_is_a_multiplier():
    """Some store its reciprocal under the same name."""
    x = np.random.default_rng(6).standard_normal((4, 64)).astype(np.float32) * np.float32(1e-3)
    quantised = quantize(x, "nvfp4")
    assert quantised.tensor_scale == pytest.approx(np.abs(x).max() / (448 * 6), rel=1e-6)
    elements = decode(quantised.element_codes(), "float4_e2m1fn")
    block_scales = np.repeat(decode(quantised.scales, "float8_e4m3fn"), 16, axis=1)
    assert (quantised.dequantize() == elements * block_scales * quantised.tensor_scale).all()
    assert np.abs(quantised.dequantize() - x).max() <= np.abs(x).max() / 6 * 1.1


# Collectives of narrow numbers.


def run(collective, algorithm, data, count, **how):
    schedule = build_schedule(collective, algorithm, len(data))
    return ce.emulate(schedule, SYSTEM, count=count, data=data, **how)


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("name", FP8)
def test_rocm_systems_9478_combined_ones_make_twos_wherever_they_lie(name, offset):
    """1 + 1 was the largest number where a scalar tail added it."""
    one, two = encode(np.float32([1, 2]), name)
    for size in (*range(18), 31, 32, 33, 63, 65, 129):
        for place in {0, size // 2, size - 1} if size else ():
            codes = np.zeros(offset + size, np.uint8)
            codes[offset + place] = one
            image = memoryview(codes)[offset:]
            expected = np.zeros(size, np.uint8)
            expected[place] = two
            assert ce.combine(image, image, name) == expected.tobytes()
        ones = np.full(offset + size, one, np.uint8)[offset:]
        assert ce.combine(ones, ones, name) == bytes([two]) * size


@pytest.mark.parametrize("algorithm", anywhere("all_reduce"))
@pytest.mark.parametrize("name", FP8)
def test_rocm_systems_9478_emulated_ones_make_twos_wherever_they_lie(name, algorithm):
    one, two = encode(np.float32([1, 2]), name).tolist()
    for count in (1, 2, 7, 15, 16, 17, 33):
        storage = np.zeros((2, count + 3), np.uint8)
        data = storage[:, 3:]  # rows begin at odd addresses
        data[:] = one
        assert (run("all_reduce", algorithm, data, count, dtype=name).outputs == two).all()
        wide = run("all_reduce", algorithm, np.ones((2, count), np.float32), count, wire=name)
        assert (wide.outputs == 2).all()


@pytest.mark.parametrize(
    ("name", "first", "exact", "rounded"),
    [
        ("float8_e4m3fn", 16, 23, 24),
        ("float8_e4m3", 16, 23, 24),
        ("float8_e4m3fnuz", 16, 23, 24),
        ("float8_e5m2", 8, 15, 16),
        ("float8_e5m2fnuz", 8, 15, 16),
        ("float8_e3m4", 8, 9.75, 10),
    ],
)
def test_rocm_systems_9902_float8_sums_are_rounded_once(name, first, exact, rounded):
    """Seven addends of half a step: every single addition would be rounded back to the first term."""
    data = np.ones((8, 19), np.float32)
    data[0] = first
    data[1:] = (exact - first) / 7
    stuck = np.float32(first)
    for term in data[1:, 0]:
        stuck = decode(encode(stuck + term, name), name)
    assert stuck == first
    for algorithm, dtype, expected in (
        ("one_shot", "float32", exact),
        ("one_shot", name, rounded),
        ("two_shot", "float32", rounded),
        ("two_shot", name, rounded),
    ):
        result = run("all_reduce", algorithm, data, 19, wire=name, dtype=dtype)
        assert (np.asarray(result.outputs, np.float32) == expected).all(), (algorithm, dtype)


@pytest.mark.parametrize("wire", [None, "own", "bfloat16", "mxfp8_e4m3", "mxfp8_e5m2"])
@pytest.mark.parametrize("name", FP8)
def test_rocm_systems_10374_a_float8_average_divides_by_the_number_of_ranks(name, wire):
    """One format's 1/N was read as another's: twice too much, or half."""
    wire = name if wire == "own" else wire
    for ranks in (2, 4, 8):
        data = np.full((ranks, 5), 2, np.float32)
        for algorithm in anywhere("all_reduce"):
            result = run("all_reduce", algorithm, data, 5, op="avg", dtype=name, wire=wire)
            assert (result.outputs == 2).all(), (ranks, algorithm)
    one, two, three = (encode(np.full(9, value, np.float32), name).tobytes() for value in (1, 2, 3))
    assert ce.combine(one, three, name, op="avg") == two


def test_rocm_systems_10374_an_average_over_three_is_a_third_in_float32():
    data = np.random.default_rng(7).standard_normal((3, 40)).astype(np.float32)
    expected = ((data[0] + data[1]) + data[2]) / np.float32(3)
    assert (run("all_reduce", "two_shot", data, 40, op="avg").outputs == expected).all()


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(collective, name) for collective in ("all_gather", "alltoall") for name in anywhere(collective)],
)
@pytest.mark.parametrize("wire", BLOCK_FORMATS)
def test_vllm_54683_sglang_31529_every_part_comes_with_its_senders_scales(collective, algorithm, wire):
    """Ranks thirty binades apart; the bytes on the wire are codes and scales of each part, and no more."""
    ranks, count = 4, 37
    parts = 1 if collective == "all_gather" else ranks
    data = np.random.default_rng(8).standard_normal((ranks, parts * count)).astype(np.float32)
    data = np.ldexp(data, 30 * np.arange(-2, 2)[:, None]).astype(np.float32)
    result = run(collective, algorithm, data, count, wire=wire)
    images = [[quantize(part, wire) for part in row.reshape(parts, count)] for row in data]
    for rank, row in enumerate(result.outputs.reshape(ranks, ranks, count)):
        for source, part in enumerate(row):
            own = parts > 1 and source == rank
            expected = data[rank].reshape(parts, count)[rank] if own else images[source][rank % parts].dequantize()
            assert (part == expected).all()
            sent = data[source].reshape(parts, count)[rank % parts]
            assert np.abs(part - sent).max() <= np.abs(sent).max() / 4
    image = images[0][0]
    each = len(image.to_bytes())
    assert each == image.codes.nbytes + image.scales.nbytes + 4 * (wire == "nvfp4")
    twice = collective == "alltoall" and algorithm in ("bruck", "hierarchical")  # what goes farthest, of three parts
    sent = ranks - 1 + twice
    assert result.wire_bytes == ranks * sent * each


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("wire", ["int4_block32", "int8_block32"])
def test_deepspeed_4386_5056_counts_that_twice_the_ranks_do_not_divide(collective, wire):
    for algorithm in anywhere(collective):
        for ranks, count in ((2, 1), (2, 33), (3, 7), (3, 101), (5, 1), (5, 33), (5, 64)):
            parts = ranks if collective == "reduce_scatter" else 1
            signs = np.random.default_rng(count).choice(np.float32([-1, 1]), parts * count)
            data = np.tile(signs, (ranks, 1))
            outputs = run(collective, algorithm, data, count, wire=wire, op="avg").outputs
            assert outputs.shape == (ranks, count)
            expected = data if parts == 1 else signs.reshape(ranks, count)
            np.testing.assert_allclose(outputs, expected, rtol=1e-6)
