"""quantization_report: what it counts is what happened."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from collemu import formats, quantization_report
from collemu.number_formats import BLOCK_FORMATS


def test_a_report_counts_what_happened():
    x = np.array([448, 464, 465, 1e-9, 0, -0.0, np.nan, np.inf, 1.0625], np.float32)
    report = quantization_report(x, "float8_e4m3fn")
    assert report.elements == 9
    assert report.saturated == 1
    assert report.flushed_to_zero == 1
    assert report.not_finite == 2
    assert report.nan == 1
    assert report.max_abs_error == 17
    assert report.max_rel_error == 1
    assert (report.nan_scales, report.scale_exponents) == (0, {})
    with pytest.raises(FrozenInstanceError):
        report.nan = 3


def test_scales_and_saturation_of_blocks():
    x = np.ones((3, 64), np.float32)
    x[0, 0] = 7.9  # scale 1 under floor: beyond 6 by more than half a step
    x[1, :32] = 2.0**-20
    x[2, 40] = np.nan
    report = quantization_report(x, "mxfp4")
    assert report.saturated == 1
    assert report.scale_exponents == {-22: 1, -2: 3, 0: 1}
    assert report.nan_scales == 1
    assert report.nan == 32
    assert report.max_abs_error == pytest.approx(1.9)
    assert quantization_report(x, "mxfp4", scale_mode="rceil").saturated == 0
    along = quantization_report(x.T, "mxfp4", axis=0)
    assert along == report


def test_signal_to_noise():
    x = np.random.default_rng(1).standard_normal(4096)
    for name in formats():
        if name == "float8_e8m0fnu":
            continue
        report = quantization_report(x, name)
        assert report.saturated == 0 or name.startswith("mx"), "floor alone saturates"
        assert 5 < report.snr_db < 80, name
        blocks = -(-4096 // BLOCK_FORMATS[name].block) if name in BLOCK_FORMATS else 0
        assert sum(report.scale_exponents.values()) == blocks
    wide, narrow = (quantization_report(x, name).snr_db for name in ("int8_block32", "int4_block32"))
    assert 20 < wide - narrow < 30, "6 dB a bit"
    assert quantization_report([1.0, 2.0], "mxint8").snr_db == float("inf")


@pytest.mark.parametrize("name", formats())
def test_empty_and_single(name):
    assert quantization_report(np.zeros((0, 3)), name).elements == 0
    assert quantization_report(np.float32(1), name).max_abs_error <= 1e-6


@pytest.mark.parametrize(
    ("x", "name", "options", "saturated", "blocks"),
    [
        ([4, 1, 0.5], "int8_block32", {"scale_mode": "asymmetric"}, 0, 1),
        ([-4, 1, 0.5], "int8_block32", {"scale_mode": "asymmetric"}, 0, 1),
        ([-4, 4, 0.5], "int8_block32", {"scale_mode": "asymmetric"}, 1, 1),  # 4 would be 128
        ([-128, -100, 127], "int8", {}, 0, 0),
        ([-129, 128, 7], "int8", {}, 2, 0),
        ([-8, 7, 8], "int4", {}, 1, 0),
        ([-4, 4, 0.5], "int4_block32", {}, 0, 1),
    ],
)
def test_integers_saturate_beyond_their_codes(x, name, options, saturated, blocks):
    report = quantization_report(np.array(x, np.float32), name, **options)
    assert report.saturated == saturated
    assert sum(report.scale_exponents.values()) == blocks
