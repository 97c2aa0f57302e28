"""Published recipes: bits against their own arithmetic, and the facts that are told of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collemu as ce
from collemu.in_switch import refuse_in_switch
from collemu.payload import payload_of
from collemu.published import PUBLISHED, find_recipe, recipes
from collemu.schedule import ScheduleError
from tests.oracles import recipes_reference as oracle
from tests.oracles.hard_numbers import hard_numbers

PLAIN = ce.load_system("trainium4_nvl72")
ADDING = ce.load_system("gb200_nvl72")


def run(collective, algorithm, data, recipe, **how):
    """Emulate, and give the result."""
    ranks, elements = data.shape
    regions = ranks if collective in ("reduce_scatter", "alltoall") else 1
    system = ADDING if algorithm == "nvls" else PLAIN
    schedule = ce.build_schedule(collective, algorithm, ranks)
    return ce.emulate(schedule, system, count=elements // regions, recipe=recipe, data=data, fidelity="flow", **how)


def normal(ranks, count, seed=0):
    return np.random.default_rng(seed).standard_normal((ranks, count)).astype(np.float32)


KINDS = ("int8", "int6", "int4", "fp8", "fp4")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(2, 9),
    count=st.integers(1, 400),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-8, 3e-6, 1e-3, 1.0, 40.0, 3e4]),
)
def test_quickreduce_is_its_float16_arithmetic(kind, ranks, count, seed, scale):
    data = normal(ranks, count, seed) * np.float32(scale)
    data[np.random.default_rng(seed).random(data.shape) < 0.1] = 0
    result = run("all_reduce", "two_shot", data, f"quickreduce_{kind}")
    expected = oracle.quickreduce_two_shot(data, kind)
    assert result.replicas_identical
    if np.isfinite(expected).all():
        np.testing.assert_array_equal(result.outputs[0], expected)
    sizes = [len(part) for part in np.array_split(np.arange(count), ranks)]
    bits = {"int8": 8, "int6": 6, "int4": 4, "fp8": 8, "fp4": 4}[kind]
    images = sum(-(-size * bits // 8) + 4 * -(-size // 64) for size in sizes)
    assert result.wire_bytes == 2 * (ranks - 1) * images


def test_even_and_odd_elements_do_not_share_a_scale():
    data = np.tile(np.array([1000.0, 0.1], np.float32), (2, 64))
    outputs = run("all_reduce", "two_shot", data, "quickreduce_int8").outputs
    np.testing.assert_allclose(outputs[0], 2 * data[0], rtol=0.01)
    shared = run("all_reduce", "two_shot", data, ce.Recipe(wire="int8_block32", scale_mode="asymmetric")).outputs
    assert (shared[0][1::2] == 0).all()


def test_a_lane_with_a_nan_or_an_infinity_is_nan_and_the_other_is_not():
    for bad in (np.nan, np.inf, -np.inf):
        data = np.ones((2, 128), np.float32)
        data[0, 2] = bad
        outputs = run("all_reduce", "two_shot", data, "quickreduce_int4").outputs[0]
        assert np.isnan(outputs[:64:2]).all()
        assert np.isfinite(outputs[1:64:2]).all()
        assert np.isfinite(outputs[64:]).all()


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(1, 12), count=st.integers(1, 200), seed=st.integers(0, 10**6))
def test_nccl_fp8_adds_in_float16_and_rounds_at_every_hop(ranks, count, seed):
    data = 30 * normal(ranks, count, seed)
    result = run("all_reduce", "ring", data, "nccl_fp8")
    np.testing.assert_array_equal(result.outputs[0], oracle.nccl_fp8_ring(data))
    assert result.quantisations.most == ranks - 1


ALL_REDUCES = ("ring", "tree", "two_shot", "one_shot", "recursive_doubling", "halving_doubling")


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_two_ways_to_say_fp8_at_every_hop(algorithm):
    """Memory in FP8 is the same as an FP8 wire to which inputs and every sum are rounded."""
    data = hard_numbers(3, (6, 257))
    inside = ce.Recipe(dtype="float8_e4m3fn", accumulate="float16")
    outside = ce.Recipe(wire="float8_e4m3fn", accumulate="float16", round_input=True, requantise="hop")
    first, second = (run("all_reduce", algorithm, data, recipe) for recipe in (inside, outside))
    np.testing.assert_array_equal(first.outputs, second.outputs)
    assert first.wire_bytes == second.wire_bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_nccl_symmetric_rounds_once(dtype):
    data = ce.decode(ce.encode(normal(7, 100, 4), dtype), dtype)
    total = data[0].copy()
    for row in data[1:]:
        total = total + row
    expected = ce.decode(ce.encode(total, dtype), dtype)
    result = run("all_reduce", "two_shot", data, "nccl_symmetric", dtype=dtype)
    np.testing.assert_array_equal(np.asarray(result.outputs[0], np.float32), expected)
    hop = run("all_reduce", "two_shot", data, None, dtype=dtype)
    assert hop.wire_bytes == result.wire_bytes
    assert (np.asarray(hop.outputs[0], np.float32) != expected).any()


def test_nccl_symmetric_overflows_as_its_dtype_does():
    data = np.full((3, 64), 40000, np.float32)
    assert np.isinf(run("all_reduce", "two_shot", data, "nccl_symmetric", dtype="float16").outputs).all()
    largest = run("all_reduce", "two_shot", data, "nccl_symmetric", dtype="float8_e4m3fn").outputs
    assert (largest == 448).all()


def test_nvls_fp8_adds_in_float16_in_the_switch():
    import ml_dtypes

    data = normal(5, 128, 9)
    fp8 = data.astype(ml_dtypes.float8_e4m3fn).astype(np.float16)
    total = fp8[0]
    for row in fp8[1:]:
        total = total + row
    result = run("all_reduce", "nvls", data, "nvls_fp8")
    expected = np.clip(total.astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(result.outputs[0], expected)
    assert result.quantisations.most == 1


def test_zeropp_clips_the_positive_largest_number_and_not_the_negative_one():
    x = np.array([8.0, -8.0, 1.0, 0.0], np.float32)
    np.testing.assert_array_equal(ce.quantize(x, "int4_block2048", scale_mode="clipped").dequantize(), [7, -8, 1, 0])
    data = np.stack([x, 0 * x])
    result = run("reduce_scatter", "direct", np.tile(data, 2), "zeropp_qgz")
    np.testing.assert_array_equal(result.outputs[0], [7, -8, 1, 0])
    assert result.saturated == 2  # 8 in either block


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(2, 6), count=st.integers(1, 5000), seed=st.integers(0, 10**6))
def test_zeropp_is_its_quantiser(ranks, count, seed):
    data = normal(ranks, ranks * count, seed)
    result = run("reduce_scatter", "direct", data, "zeropp_qgz")
    for owner in range(ranks):
        block = slice(owner * count, (owner + 1) * count)
        total = oracle.zeropp(data[0, block]).astype(np.float16)
        for row in data[1:]:
            total = total + oracle.zeropp(row[block]).astype(np.float16)
        np.testing.assert_array_equal(result.outputs[owner], total.astype(np.float32))


def test_deepep_scales_have_a_least_amax():
    tiny = np.full((1, 128), 1e-6, np.float32)
    quantized = ce.quantize(tiny, "fp8_block128", scale_mode="margin")
    assert quantized.scales[0, 0] == np.float32(1e-4) * (np.float32(1) / np.float32(448))
    assert abs(quantized.dequantize()[0, 0] - 1e-6) < 1e-7


# Facts that are told of the recipes.


@pytest.mark.parametrize("ranks", [2, 3, 8, 12, 72])
def test_quantisations_an_element(ranks):
    data = normal(ranks, 144)
    counted = {
        (algorithm, wire): run("all_reduce", algorithm, data, ce.Recipe(wire=wire)).quantisations.most
        for algorithm in ("ring", "two_shot", "one_shot")
        for wire in ("mxfp8_e4m3", "none")
    }
    assert counted["ring", "mxfp8_e4m3"] == ranks  # once a hop, and once when it is final
    assert counted["two_shot", "mxfp8_e4m3"] == 2
    assert counted["one_shot", "mxfp8_e4m3"] == 1
    assert counted["ring", "none"] == counted["two_shot", "none"] == 0
    assert run("all_reduce", "two_shot", data, "quickreduce_int8").quantisations.most == 2
    assert run("all_reduce", "ring", data, "nccl_fp8").quantisations.most == ranks - 1


def test_elements_that_are_encoded():
    data = normal(8, 800)
    ring = run("all_reduce", "ring", data, ce.Recipe(wire="mxfp4")).quantisations
    assert ring.encoded == 8 * 800  # every hop of every chunk, and the last sum: n a chunk
    shots = run("all_reduce", "two_shot", data, ce.Recipe(wire="mxfp4")).quantisations
    assert shots.encoded == 7 * 800 + 800  # terms of the others; the sum
    own = run("all_reduce", "two_shot", data, ce.Recipe(wire="mxfp4", round_input=True)).quantisations
    assert own.encoded == 8 * 800 + 800


@pytest.mark.parametrize("name", recipes())
def test_replicas_hold_the_same_bits(name):
    published = PUBLISHED[name]
    for collective, algorithms in published.algorithms.items():
        for algorithm in algorithms:
            if algorithm not in ce.algorithms(collective) or collective == "alltoallv":  # replicates nothing
                continue
            result = run(collective, algorithm, normal(6, 6 * 96, 5), name, dtype="bfloat16")
            assert result.replicas_identical in (True, None)
            assert np.isfinite(np.asarray(result.outputs, np.float32)).all()
            assert result.header["recipe"] == name


@pytest.mark.parametrize("name", [*ce.formats()[:3], "mxfp4", "nvfp4", "int4_block32", "mxint8"])
def test_saturated_numbers_are_counted_as_reports_count_them(name):
    data = 200 * normal(1, 640, 3)
    two = np.concatenate([data, np.zeros_like(data)])
    one = ce.build_schedule("broadcast", "ring", 2, chunks=1)
    result = ce.emulate(one, PLAIN, count=640, wire=name, data=two)
    assert result.saturated == ce.quantization_report(data[0], name).saturated


def test_what_is_beyond_the_dtype_of_a_recipe_is_counted():
    data = np.array([[3000, 1, -448, 464, 465, -np.inf]], np.float32)
    assert run("all_reduce", "ring", data, "nccl_fp8").saturated == 3


def test_a_sum_beyond_fp8_is_counted_once():
    data = np.full((2, 10), 300, np.float32)
    assert run("all_reduce", "ring", data, "nccl_fp8").saturated == 10
    assert run("all_reduce", "ring", data, None).saturated == 0
    assert run("all_reduce", "ring", data, ce.Recipe(wire="float8_e4m3fn")).saturated == 10


@pytest.mark.parametrize(
    ("wire", "count", "codes", "scales", "padding"),
    [
        ("none", 33, 132, 0, 0),
        ("bfloat16", 33, 66, 0, 0),
        ("float6_e2m3fn", 33, 24.75, 0, 0.25),
        ("mxfp4", 33, 16.5, 2, 0.5),
        ("mxfp8_e4m3", 64, 64, 2, 0),
        ("nvfp4", 33, 16.5, 3 + 4, 0.5),
        ("fp8_block128", 129, 129, 8, 0),
        ("int4_lanes32", 65, 32.5, 8, 0.5),
        ("tfloat32", 3, 12, 0, 0),
    ],
)
def test_the_bytes_of_a_message_are_codes_scales_and_padding(wire, count, codes, scales, padding):
    one = ce.build_schedule("broadcast", "ring", 2, chunks=1)
    result = ce.emulate(one, PLAIN, count=count, wire=wire)
    parts = result.wire_parts
    assert (parts.codes, parts.scales, parts.padding) == (codes, scales, padding)
    assert parts.total == result.wire_bytes


# The rules of recipes.


def test_per_hop_rounds_every_sum():
    data = normal(5, 200, 7)
    hop, shot = (
        run("all_reduce", "two_shot", data, ce.Recipe(wire="mxfp4", requantise=each)) for each in ("hop", "shot")
    )
    assert hop.quantisations.most == 5
    assert shot.quantisations.most == 2
    total = ce.quantize(data[1, :40], "mxfp4").dequantize() + data[0, :40]  # its owner's own term is exact
    total = ce.quantize(total, "mxfp4").dequantize()
    for row in data[2:]:
        total = ce.quantize(total + ce.quantize(row[:40], "mxfp4").dequantize(), "mxfp4").dequantize()
    np.testing.assert_array_equal(hop.outputs[0][:40], total)


@pytest.mark.parametrize("mode", ["floor", "ceil", "even", "rceil", "trn3"])
def test_the_scale_rule_is_that_of_quantize(mode):
    data = normal(2, 320, 8)
    result = run("broadcast", "ring", data, ce.Recipe(wire="mxfp4", scale_mode=mode))
    expected = ce.quantize(data[0], "mxfp4", scale_mode=mode).dequantize()
    np.testing.assert_array_equal(result.outputs[1], expected)


def test_inputs_are_rounded_before_anything_else():
    data = normal(3, 96, 9)
    rounded = np.stack([ce.quantize(row, "mxfp4").dequantize() for row in data])
    recipe = ce.Recipe(wire="mxfp4", round_input=True)
    np.testing.assert_array_equal(
        run("all_reduce", "ring", data, recipe).outputs, run("all_reduce", "ring", rounded, recipe).outputs
    )
    one = ce.build_schedule("broadcast", "ring", 3, chunks=1)
    whole = ce.emulate(one, PLAIN, count=96, recipe=recipe, data=data)
    np.testing.assert_array_equal(whole.outputs, np.tile(rounded[0], (3, 1)))


def test_inputs_are_rounded_to_no_type_that_memory_holds_anyway():
    data = normal(3, 96, 9)
    result = run("all_reduce", "ring", data, ce.Recipe(wire="dtype", round_input=True))
    np.testing.assert_array_equal(result.outputs, run("all_reduce", "ring", data, ce.Recipe(wire="dtype")).outputs)
    assert (result.quantisations.most, result.quantisations.encoded) == (0, 0)


def test_inputs_without_a_code_are_refused():
    data = normal(2, 64)
    data[1, 3] = np.nan
    with pytest.raises(ValueError, match="a NaN has no code in this wire format"):
        run("all_reduce", "ring", data, ce.Recipe(wire="float4_e2m1fn", round_input=True))


def test_a_published_recipe_that_is_changed_has_its_name_no_longer():
    data = normal(2, 64)
    assert run("all_reduce", "ring", data, "nccl_fp8", wire="mxfp4").header["recipe"] == ""
    assert run("all_reduce", "ring", data, "nccl_fp8", accumulate="float16").header["recipe"] == "nccl_fp8"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale_mode": "floor"}, "scale_mode='floor' needs a wire format; wire is none"),
        ({"requantise": "hop"}, "requantise='hop' needs a wire format"),
        ({"round_input": True}, "round_input=True needs a wire format"),
        ({"wire": "mxfp4", "requantise": "often"}, "requantise='often' is not supported; choose shot, hop"),
        ({"wire": "mxfp4", "round_input": 1}, "round_input is 1; give True or False"),
        ({"wire": "mxfp4", "scale_mode": "amax"}, "scale_mode='amax' is not one of wire mxfp4; choose floor, ceil"),
        ({"wire": "bfloat16", "scale_mode": "floor"}, "scale_mode='floor' is for block formats; wire is bfloat16"),
        ({"dtype": "int8"}, "dtype='int8' is for floats of at most 32 bits, not int8"),
        ({"dtype": "mxfp4"}, "no dtype 'mxfp4'"),
    ],
)
def test_recipes_that_make_no_sense_are_refused_in_one_line(fields, words):
    with pytest.raises(ValueError) as caught:
        payload_of("all_reduce", "float32", ce.Recipe(**fields), "sum")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_recipes_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean quickreduce_int"):
        run("all_reduce", "ring", normal(2, 4), "quickreduce_int5")


def test_switches_take_no_wire_format_of_a_recipe():
    schedule = ce.build_schedule("all_reduce", "nvls", 4)
    payload = payload_of("all_reduce", "bfloat16", find_recipe("quickreduce_int4"), "sum")
    with pytest.raises(ScheduleError, match="int4_lanes32"):
        refuse_in_switch(schedule, ADDING, payload)


def test_switches_must_add_the_type_that_a_recipe_runs_in():
    """Those of B300 add no 8-bit floats, whatever the dtype outside."""
    schedule = ce.build_schedule("all_reduce", "nvls", 4)
    payload = payload_of("all_reduce", "bfloat16", find_recipe("nvls_fp8"), "sum")
    refuse_in_switch(schedule, ADDING, payload)
    with pytest.raises(ScheduleError, match="no sum of float8_e4m3fn"):
        refuse_in_switch(schedule, ce.load_system("b300_hgx"), payload)


def test_every_field_of_a_recipe_is_in_the_header():
    result = run("all_reduce", "ring", normal(2, 64), "zeropp_qgz")
    fields = {field.name for field in dataclasses.fields(ce.Recipe)} - {"name", "dtype"}
    assert fields | {"recipe", "runs_in"} <= set(result.header)
