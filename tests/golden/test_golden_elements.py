"""Element formats against vectors that other libraries made (ml_dtypes, torch, gfloat).

Rows that do not bind are left out by a mask, and counted: NaN inputs where a library has its own NaN code
(they must be NaN here too), and what torch makes of zero and negative numbers in float8_e8m0fnu.
"""

import numpy as np
import pytest

from collemu.number_formats import find_element_format
from collemu.quantization import decode, encode

FORMATS = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3_ieee": "float8_e4m3",
    "e3m4_ieee": "float8_e3m4",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e2m1": "float4_e2m1fn",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
}
GFLOAT_ROUNDINGS = {
    "TiesToEven": "nearest_even",
    "TiesToAway": "nearest_away",
    "TowardZero": "toward_zero",
    "TowardPositive": "up",
    "TowardNegative": "down",
}
TORCH_SATURATES = {"e4m3fn"}  # torch 2.13: this format alone


@pytest.fixture(scope="module")
def load(shared_folder):
    return lambda name: np.load(shared_folder / "data" / "golden" / f"{name}.npz")


def compare(values, expected, name, *, rounding="nearest_even", saturate):
    """Assert equal codes; NaN is compared as NaN. Returns how many rows were NaN."""
    holes = np.isnan(values)
    codes = encode(values[~holes], name, rounding=rounding, saturate=saturate)
    wrong = np.flatnonzero(codes != expected[~holes])
    nan_both = np.isnan(decode(codes[wrong], name)) & np.isnan(decode(expected[~holes][wrong], name))
    assert nan_both.all(), [(values[~holes][i].hex(), hex(codes[i]), hex(expected[~holes][i])) for i in wrong[:5]]
    if find_element_format(name).has_nan:
        assert np.isnan(decode(encode(values[holes], name, saturate=saturate), name)).all()
    return int(holes.sum())


@pytest.mark.parametrize("short", [*FORMATS, "e8m0"])
def test_decode_tables(load, short):
    name = FORMATS.get(short, "float8_e8m0fnu")
    expected = load("decode_tables")[f"{short}__ml_dtypes_f32bits"].view(np.float32)
    values = decode(np.arange(expected.size, dtype=np.uint8), name)
    nan = np.isnan(expected)
    assert (np.isnan(values) == nan).all()
    assert (values[~nan].view(np.uint32) == expected[~nan].view(np.uint32)).all()


@pytest.mark.parametrize("short", FORMATS)
def test_nearest_even(load, short):
    vectors = load(f"encode_{short}")
    values = vectors["in_f32bits"].view(np.float32)
    nan_rows = compare(values, vectors["rne_nonsat__ml_dtypes"], FORMATS[short], saturate=False)
    assert nan_rows <= 10, "rows whose NaN code is not compared"
    if "rne__torch2.13_cpu" in vectors:
        compare(values, vectors["rne__torch2.13_cpu"], FORMATS[short], saturate=short in TORCH_SATURATES)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("gfloat_name", GFLOAT_ROUNDINGS)
@pytest.mark.parametrize("short", ["e4m3fn", "e5m2", "e2m1", "e2m3", "e3m2"])
def test_roundings_of_gfloat(load, short, gfloat_name, saturate):
    vectors = load(f"encode_{short}")
    column = f"{gfloat_name}_{'sat' if saturate else 'nonsat'}__gfloat"
    if column not in vectors:
        assert not saturate, "only the formats that always saturate lack a column"
        return
    values = vectors["in_f32bits"].view(np.float32)
    no_code = vectors[column] == 255 if short[:2] in ("e2", "e3") else np.zeros(values.size, bool)
    assert (np.isnan(values) >= no_code).all(), "255 stands for NaN alone"
    compare(values, vectors[column], FORMATS[short], rounding=GFLOAT_ROUNDINGS[gfloat_name], saturate=saturate)


@pytest.mark.parametrize("short", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1", "e3m2", "e2m3"])
def test_every_bfloat16(load, short):
    vectors = load("exhaustive_bf16")
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    for column in vectors.files:
        if column.split("__")[0].rsplit("_", 1)[0] == short or column.startswith(f"{short}__"):
            saturate = "_sat" in column or ("torch" in column and short in TORCH_SATURATES)
            assert compare(values, vectors[column], FORMATS[short], saturate=saturate) == 254


def test_e8m0(load):
    vectors = load("encode_e8m0")
    values = vectors["in_f32bits"].view(np.float32)
    assert 0x00400001 not in vectors["in_f32bits"], "where ml_dtypes and torch are wrong"
    codes = encode(values, "float8_e8m0fnu", saturate=False)
    assert (codes == vectors["rne_nonsat__ml_dtypes"]).all()
    positive = values > 0  # torch drops the sign, and encodes 0 as 0
    assert positive.sum() == 765
    assert (codes == vectors["rne__torch2.13_cpu"])[positive].all()
