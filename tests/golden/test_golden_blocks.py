"""Block formats against vectors that torchao, microxcaling and TransformerEngine made.

Rows that do not bind are left out by masks, and counted:

- the block with an infinity (torchao 0.18 gives it a finite scale);
- torchao blocks of scale code 0 with something in them: it clamps the scale to 2**-126, code 0 is 2**-127;
- torchao RCEIL just above max * 2**k, where its log2 is wrong;
- microxcaling blocks flagged with its log2 bug, its `floor` rows on the block with amax 1 - 2**-24,
  and the sign of its zeros;
- codes of torchao's all-zero NVFP4 tensors, whose scales are NaN.
"""

import numpy as np
import pytest

from collemu.quantization import decode, quantize

ELEMENTS = {
    "e4m3fn": "mxfp8_e4m3",
    "e5m2": "mxfp8_e5m2",
    "e2m1": "mxfp4",
    "e2m3": "mxfp6_e2m3",
    "e3m2": "mxfp6_e3m2",
}
MODES = ["FLOOR", "CEIL", "EVEN", "RCEIL"]
MICROXCALING_ROUNDINGS = {"even": "nearest_even", "nearest": "nearest_away", "floor": "toward_zero"}
LARGEST = {"e4m3fn": 448, "e5m2": 57344, "e2m1": 6, "e2m3": 7.5, "e3m2": 28}


@pytest.fixture(scope="module")
def load(shared_folder):
    return lambda name: np.load(shared_folder / "data" / "golden" / f"{name}.npz")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("short", ELEMENTS)
def test_torchao(load, short, mode):
    vectors = load("mx_blocks32")
    values = vectors["in_f32bits"].view(np.float32)
    scale = vectors[f"{short}_{mode}_scale__torchao0.18"]
    data = vectors[f"{short}_{mode}_data__torchao0.18"]
    dequantised = vectors[f"{short}_{mode}_dequant_f32bits__torchao0.18"].view(np.float32)
    infinite = ~np.isfinite(values).all(1)
    assert infinite.sum() == 1
    amax = np.abs(np.where(np.isfinite(values), values, 0)).max(1).astype(np.float64)
    clamped = (scale == 0) & (amax > 0)
    exact = amax / LARGEST[short]
    wrong_log2 = np.zeros(len(values), bool)
    if mode == "RCEIL":
        with np.errstate(all="ignore"):
            nearest = np.exp2(np.round(np.log2(exact)))
            wrong_log2 = (amax > 0) & (exact > nearest) & (exact < nearest * (1 + 2.0**-22))
    binding = ~(infinite | clamped | wrong_log2)
    print(f"{short} {mode}: {clamped.sum()} clamped, {wrong_log2.sum()} wrong log2, {binding.sum()} bind")
    assert clamped.sum() <= 5
    assert wrong_log2.sum() <= 6
    got = quantize(values, ELEMENTS[short], scale_mode=mode.lower())
    assert (got.scales[:, 0] == scale)[binding].all()
    codes = got.codes if short == "e2m1" else got.element_codes()  # torchao leaves FP6 unpacked
    assert (codes == data)[binding].all()
    assert (got.dequantize().view(np.uint32) == dequantised.view(np.uint32))[binding].all()
    assert (got.scales[infinite] == 0xFF).all()


@pytest.mark.parametrize("rounding", MICROXCALING_ROUNDINGS)
@pytest.mark.parametrize("short", [*ELEMENTS, "int8"])
def test_microxcaling(load, short, rounding):
    vectors = load("mx_blocks32")
    values = vectors["in_f32bits"].view(np.float32)
    expected = vectors[f"{short}_floor_{rounding}_dequant_f32bits__microxcaling"].view(np.float32)
    infinite = ~np.isfinite(values).all(1)
    log2_bug = vectors["block_hits_microxcaling_log2_bug"] == 1
    unflagged = (np.abs(values).max(1) == 1 - np.float32(2.0**-24)) & (rounding == "floor")
    got = quantize(values, ELEMENTS.get(short, "mxint8"), rounding=MICROXCALING_ROUNDINGS[rounding])
    tiny = got.scales[:, 0] == 0
    binding = ~(infinite | log2_bug | unflagged | tiny)
    assert binding.sum() >= 75
    assert (got.dequantize() == expected)[binding].all()


@pytest.mark.parametrize("case", ["normal", "zeros", "one_big", "negzero", "max"])
def test_transformer_engine_nvfp4(load, case):
    vectors = load("nvfp4")
    values = vectors[f"{case}_in_f32bits"].view(np.float32)
    got = quantize(values, "nvfp4")
    assert (got.scales == vectors[f"{case}_1x16_scale_e4m3__TE_ref"]).all()
    assert (got.codes == vectors[f"{case}_1x16_packed__TE_ref"]).all()
    assert np.isfinite(decode(got.scales, "float8_e4m3fn")).all()


@pytest.mark.parametrize("case", ["normal", "zeros", "one_big", "negzero", "max"])
def test_transformer_engine_nvfp4_square_blocks(load, case):
    vectors = load("nvfp4")
    got = quantize(vectors[f"{case}_in_f32bits"].view(np.float32), "nvfp4", square=True)
    assert (got.scales == vectors[f"{case}_16x16_scale_e4m3__TE_ref"]).all()
    assert (got.codes == vectors[f"{case}_16x16_packed__TE_ref"]).all()


@pytest.mark.parametrize("case", ["normal", "zeros", "one_big", "negzero", "max"])
def test_torchao_nvfp4(load, case):
    vectors = load("nvfp4")
    got = quantize(vectors[f"{case}_in_f32bits"].view(np.float32), "nvfp4", scale_mode="torchao")
    assert (got.scales == vectors[f"{case}_two_level_scale_e4m3__torchao0.18"]).all()
    assert got.tensor_scale == vectors[f"{case}_per_tensor_scale_f32bits__torchao0.18"].view(np.float32)[0]
    if case in ("zeros", "negzero"):
        assert np.isnan(got.dequantize()).all()
    else:
        assert (got.codes == vectors[f"{case}_two_level_packed__torchao0.18"]).all()


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("case", ["normal", "zeros"])
def test_transformer_engine_fp8_blocks(load, case, pow2):
    vectors = load("fp8_block128")
    values = vectors[f"{case}_in_f32bits"].view(np.float32)
    got = quantize(values, "fp8_block128", scale_mode="pow2" if pow2 else "amax")
    assert (got.codes.reshape(-1, 128) == vectors[f"{case}_1x128_pow2={pow2}_codes__TE_ref"]).all()
    scales = vectors[f"{case}_1x128_pow2={pow2}_scale_inv_f32bits__TE_ref"]
    assert (got.scales.reshape(-1).view(np.uint32) == scales).all()
    rows = quantize(values.reshape(-1, 128), "fp8_row", scale_mode="pow2" if pow2 else "amax")
    assert rows.to_bytes() == got.to_bytes()
