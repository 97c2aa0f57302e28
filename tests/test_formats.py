"""The formats as data: what their fields say is what their codes mean."""

from fractions import Fraction

import numpy as np
import pytest

from collemu.number_formats import (
    BLOCK_FORMATS,
    ELEMENT_FORMATS,
    find_block_format,
    find_element_format,
    find_format,
    formats,
)
from collemu.quantization import decode


def test_names_are_found_and_unknown_ones_are_listed():
    for name in formats():
        assert find_format(name).name == name
    with pytest.raises(ValueError, match=r"no format 'fp8'; choose float8_e4m3fn, .*nvfp4"):
        find_format("fp8")
    with pytest.raises(ValueError, match="use quantize"):
        find_element_format("mxfp4")
    with pytest.raises(ValueError, match="use encode"):
        find_block_format("float16")


@pytest.mark.parametrize("name", ELEMENT_FORMATS)
def test_fields_agree_with_the_codes(name):
    element = ELEMENT_FORMATS[name]
    kind = np.uint8 if element.bits <= 8 else np.uint16 if element.bits == 16 else np.uint32
    codes = np.arange(1 << element.bits, dtype=kind)
    if name == "tfloat32":
        codes <<= kind(13)
    values = decode(codes, name)
    finite = values[np.isfinite(values)]
    assert finite.max() == element.max
    assert finite[finite > 0].min() == element.min_subnormal
    assert bool((values < 0).any()) == element.has_sign
    assert bool(np.isinf(values).any()) == element.has_infinity
    assert bool(np.isnan(values).any()) == element.has_nan
    assert bool(((values == 0) & np.signbit(values)).any()) == element.has_negative_zero
    assert element.bits == element.exponent_bits + element.mantissa_bits + element.has_sign


@pytest.mark.parametrize(
    ("name", "largest", "smallest"),
    [
        ("float8_e4m3fn", 448, 2.0**-9),
        ("float8_e5m2", 57344, 2.0**-16),
        ("float8_e4m3fnuz", 240, 2.0**-10),
        ("float8_e5m2fnuz", 57344, 2.0**-17),
        ("float8_e4m3", 240, 2.0**-9),
        ("float8_e3m4", 15.5, 2.0**-6),
        ("float4_e2m1fn", 6, 0.5),
        ("float6_e2m3fn", 7.5, 0.125),
        ("float6_e3m2fn", 28, 0.0625),
        ("float8_e8m0fnu", 2.0**127, 2.0**-127),
        ("bfloat16", 3.3895313892515355e38, 2.0**-133),
        ("float16", 65504, 2.0**-24),
    ],
)
def test_ranges_of_the_specifications(name, largest, smallest):
    element = find_element_format(name)
    assert (element.max, element.min_subnormal) == (largest, smallest)


def test_bits_on_the_wire():
    wire = {name: block.bits_per_element for name, block in BLOCK_FORMATS.items()}
    assert wire["mxfp8_e4m3"] == wire["mxfp8_e5m2"] == Fraction(33, 4)
    assert wire["mxfp4"] == Fraction(17, 4)
    assert wire["nvfp4"] == Fraction(9, 2)
    assert wire["mxfp6_e2m3"] == wire["mxfp6_e3m2"] == Fraction(25, 4)
    assert wire["mxint8"] == Fraction(33, 4)
    assert wire["fp8_block128"] == Fraction(33, 4)
    assert wire["fp8_row"] == 8
    assert (wire["int8_block32"], wire["int4_block32"]) == (9, 5)
    assert find_element_format("float16").bits_per_element == 16
    assert find_element_format("float6_e2m3fn").bits_per_element == 6
