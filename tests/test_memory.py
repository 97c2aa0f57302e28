"""Memory of the emulated chips: layouts, dtypes that go together, and replicas."""

from dataclasses import replace

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu as ce
from collemu.lower import lower
from collemu.memory import build_memory, replicas_identical
from collemu.payload import payload_of
from collemu.schedule import ScheduleError, build_schedule
from tests.built_in import BUILT_IN, COLLECTIVES, anywhere
from tests.oracles.hard_numbers import hard_numbers, same_bits


@pytest.fixture(scope="module")
def system():
    return ce.load_system("trainium4_nvl72")


@pytest.mark.parametrize("wire", ["none", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
def test_in_place_gives_what_out_of_place_gives(system, collective, algorithm, wire):
    """Where a schedule also holds in place; input and output then share memory and remembered images."""
    apart = build_schedule(collective, algorithm, 5)
    shared = replace(apart, in_place=True)
    try:
        ce.verify(shared)
    except ScheduleError:
        pytest.skip("holds out of place alone")
    data = hard_numbers(1, (5, apart.input_regions * 37))
    before = data.copy()
    results = [ce.emulate(each, system, count=37, wire=wire, data=data) for each in (apart, shared)]
    ranks = [0] if collective == "reduce" else range(5)
    assert all(same_bits(results[0].outputs[rank], results[1].outputs[rank]) for rank in ranks)
    assert results[0].time_fs == results[1].time_fs
    assert same_bits(data, before)


def test_the_rings_hold_in_place():
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        ce.verify(replace(build_schedule(collective, "ring", 5), in_place=True))


@pytest.mark.parametrize(
    ("dtype", "wire", "names"),
    [
        ("int32", "mxfp8_e4m3", r"int32.*wire none"),
        ("uint8", "float8_e4m3fn", r"uint8.*wire none"),
        ("float64", "nvfp4", r"float32.*float64"),
        ("float32", "float8_e8m0fnu", "e8m0"),
        ("float32", "float9", "float9"),
        ("float9", "none", "float9"),
    ],
)
def test_dtypes_and_wires_that_do_not_go_together(dtype, wire, names):
    with pytest.raises(ValueError, match=names) as caught:
        payload_of("all_reduce", dtype, ce.Recipe(wire=wire), "sum")
    assert "\n" not in str(caught.value)


def test_a_wire_format_holds_float32_between_messages():
    assert payload_of("all_reduce", "bfloat16", ce.Recipe(wire="mxfp4"), "sum").held.name == "float32"
    assert payload_of("all_reduce", "bfloat16", ce.Recipe(), "sum").held.name == "bfloat16"


@pytest.mark.parametrize(
    ("dtype", "wire", "op", "first"),
    [
        ("float32", "none", "avg", False),
        ("float64", "none", "avg", False),
        ("int8", "none", "avg", False),
        ("bfloat16", "none", "avg", True),
        ("float8_e5m2", "none", "avg", True),
        ("float32", "float16", "avg", True),
        ("float32", "float4_e2m1fn", "avg", True),
        ("float32", "mxfp4", "avg", False),
        ("float16", "mxfp4", "avg", True),
        ("float16", "none", "sum", False),
    ],
)
def test_an_average_divides_first_where_a_sum_could_overflow(dtype, wire, op, first):
    assert payload_of("all_reduce", dtype, ce.Recipe(wire=wire), op).scales_first is first


def test_replicas_are_identical_to_the_bit():
    rows = [np.float32([0.0, np.nan]), np.float32([0.0, np.nan])]
    assert replicas_identical(rows)
    assert not replicas_identical([*rows, np.float32([-0.0, np.nan])])
    assert replicas_identical([np.zeros(0, np.float32)] * 3)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_only_replicated_collectives_are_asked_for_replicas(system, collective):
    schedule = build_schedule(collective, anywhere(collective)[0], 3)
    data = np.ones((3, schedule.input_regions * 4), np.float32)
    identical = ce.emulate(schedule, system, count=4, data=data).replicas_identical
    replicated = collective in ("all_reduce", "all_gather", "broadcast")
    assert identical is (True if replicated else None)
    assert ce.emulate(schedule, system, count=4).replicas_identical is None


@pytest.mark.parametrize("seed", [0, 5])
def test_a_rank_alone_knows_where_switches_find_things_in_the_memory_of_others(seed):
    """In place, outputs of a reduce_scatter begin somewhere else at each rank."""
    schedule = replace(build_schedule("reduce_scatter", "nvls", 5), in_place=True)
    reads = schedule.ops[schedule.ops["kind"] == kinds.MULTIMEM_REDUCE]
    reads["src_buffer"], reads["src"] = kinds.OUTPUT, 0
    schedule.ops[schedule.ops["kind"] == kinds.MULTIMEM_REDUCE] = reads
    payload = payload_of("reduce_scatter", "float32", ce.Recipe(), "sum")
    lowered = lower(schedule, 37, item_bytes=4)
    together = build_memory(lowered, payload, seed=seed).plane
    for rank in range(5):
        alone = build_memory(lowered, payload, ranks=[rank], seed=seed).plane
        assert np.array_equal(alone.place_rank, together.place_rank)
        assert np.array_equal(alone.places + alone.place_rank * len(alone.memory), together.places)
