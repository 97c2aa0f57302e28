"""What the emulator computes: bit for bit what the rules say, for every algorithm and wire format."""

from functools import reduce

import numpy as np
import pytest

import collemu as ce
from collemu.collectives import ROOTED
from collemu.schedule import build_schedule
from tests.built_in import BUILT_IN, anywhere
from tests.oracles.collectives_reference import input_elements
from tests.oracles.hard_numbers import hard_numbers, same_bits
from tests.oracles.quantised_interpreter import image_bytes, interpret, numpy_type, round_trip, rounded

BLOCK_WIRES = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4")
ELEMENT_WIRES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
OTHER_WIRES = (
    "float8_e4m3",
    "float8_e3m4",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "tfloat32",
    "int8",
    "int4",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxint8",
    "fp8_block128",
    "fp8_row",
    "int8_block32",
    "int4_block32",
)
WIRES = ("none", *ELEMENT_WIRES, *BLOCK_WIRES)
RANKS = (1, 2, 3, 5, 8, 12)
COUNTS = (0, 1, 31, 33, 100, 257)

every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
every_wire = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture(scope="module")
def system():
    return ce.load_system("trainium4_nvl72")


def check(system, collective, algorithm, ranks, count, wire, *, values="mixed", seed=0, dtype="float32", **how):
    """Emulate and interpret one collective; outputs and sent bytes must agree. Returns the result."""
    root = seed % ranks if collective in ROOTED else 0
    lanes = {name: how.pop(name) for name in ("channels", "chunks") if name in how}
    schedule = build_schedule(collective, algorithm, ranks, root=root, **lanes)
    data = hard_numbers(seed, (ranks, input_elements(collective, ranks, count)), values)
    given = rounded(data, numpy_type(dtype), saturate=numpy_type(dtype).itemsize == 1)
    recipe = ce.Recipe(wire, accumulate=how.pop("accumulate", "float32"), round_own=how.pop("round_own", True))
    op = how.get("op", "sum")
    result = ce.emulate(schedule, system, count=count, dtype=dtype, recipe=recipe, data=given, **how)
    numbers = {"round_own": recipe.round_own, "accumulate": recipe.accumulate}
    expected, sent = interpret(schedule, given, count, dtype=dtype, wire=wire, op=op, **numbers)
    for rank in (root,) if collective == "reduce" else range(ranks):
        got = result.outputs[rank]
        assert got.dtype == given.dtype
        if not same_bits(got.astype(np.float64), expected[rank].astype(np.float64)):
            differ = np.flatnonzero(~((got == expected[rank]) | (np.isnan(got) & np.isnan(expected[rank]))))
            where = differ[:4] if len(differ) else "a sign of zero"
            raise AssertionError(f"rank {rank} at {where}: {got[differ[:4]]} not {expected[rank][differ[:4]]}")
    assert result.wire_bytes_per_rank.tolist() == sent
    assert result.wire_bytes == sum(sent)
    return result


@pytest.mark.parametrize("accumulate", ["float16", "bfloat16"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "two_shot", "one_shot"])
@pytest.mark.parametrize(
    ("wire", "dtype"),
    [("float8_e4m3fn", "float32"), ("mxfp8_e4m3", "bfloat16"), ("none", "float8_e5m2"), ("none", "float32")],
)
def test_narrow_accumulate_types(system, algorithm, wire, dtype, accumulate):
    for op, ranks in (("sum", 5), ("avg", 3), ("max", 2)):
        check(system, "all_reduce", algorithm, ranks, 100, wire, dtype=dtype, op=op, accumulate=accumulate)


def test_accumulate_types_are_of_floats_of_at_most_32_bits(system):
    schedule = build_schedule("all_reduce", "ring", 2)
    for dtype in ("float64", "int32"):
        with pytest.raises(ValueError, match=f"at most 32 bits; {dtype} is added in itself"):
            ce.emulate(schedule, system, count=4, dtype=dtype, accumulate="float16")


def test_half_adds_of_fp8_overflow_to_the_largest_number(system):
    """As the classic rings of NCCL add FP8: in float16, rounded to FP8 on every hop."""
    data = np.full((4, 5), 448, np.float32)
    result = ce.emulate(
        build_schedule("all_reduce", "ring", 4),
        system,
        count=5,
        wire="float8_e4m3fn",
        accumulate="float16",
        data=data,
    )
    assert (result.outputs == 448).all()
    assert result.header["accumulate"] == "float16"


@every_algorithm
@every_wire
def test_outputs_equal_the_interpreters(system, collective, algorithm, wire):
    """The grid: each count once, the ranks in turn, so that every pair of a rank and a count comes up somewhere."""
    turn = BUILT_IN.index((collective, algorithm)) + WIRES.index(wire)
    for number, count in enumerate(COUNTS):
        ranks = RANKS[(number + turn) % len(RANKS)]
        check(system, collective, algorithm, ranks, count, wire, seed=number)


@every_algorithm
@every_wire
def test_nan_and_infinity_go_where_the_rules_send_them(system, collective, algorithm, wire):
    check(system, collective, algorithm, 5, 67, wire, values="not_finite", seed=3)


@every_algorithm
@pytest.mark.parametrize("wire", OTHER_WIRES)
def test_other_wire_formats_equal_the_interpreters(system, collective, algorithm, wire):
    check(system, collective, algorithm, 3, 41, wire, seed=1)


@every_algorithm
@pytest.mark.parametrize("wire", ["none", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize(("channels", "chunks"), [(1, 3), (2, 1), (3, 2)])
def test_lanes_and_pieces_quantise_by_chunk(system, collective, algorithm, wire, channels, chunks):
    check(system, collective, algorithm, 4, 101, wire, channels=channels, chunks=chunks, seed=2)


@every_algorithm
@pytest.mark.parametrize("wire", ["none", "nvfp4"])
@pytest.mark.parametrize("slots", [1, 2])
def test_few_fifo_slots_lose_no_message(system, collective, algorithm, wire, slots):
    """Many messages on a connection take turns in its slots; a ring that turns needs two."""
    rings = algorithm in ("torus_2d", "hierarchical") and collective == "all_reduce"
    turns = rings or ("ring" in algorithm and collective in ("all_reduce", "reduce_scatter", "all_gather"))
    narrow = system.with_(**{"endpoint.fifo_slots": slots})
    if turns and slots == 1:
        with pytest.raises(ce.ScheduleError, match=r"deadlocks with 1 FIFO slots.*rank 0 thread \d"):
            check(narrow, collective, algorithm, 4, 101, wire, chunks=6)
    else:
        check(narrow, collective, algorithm, 4, 101, wire, chunks=6, seed=6)


@pytest.mark.parametrize("wire", ["bfloat16", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("algorithm", anywhere("all_reduce"))
def test_own_terms_stay_exact_without_round_own(system, algorithm, wire):
    check(system, "all_reduce", algorithm, 4, 65, wire, round_own=False, values="wide", seed=5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64"])
@every_algorithm
def test_dtypes_round_at_every_addition(system, collective, algorithm, dtype):
    check(system, collective, algorithm, 5, 37, "none", dtype=dtype, values="wide", seed=7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("wire", ["float8_e5m2", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_a_narrow_dtype_on_a_narrow_wire(system, dtype, wire, op):
    check(system, "all_reduce", "two_shot", 3, 50, wire, dtype=dtype, op=op, seed=8)


@pytest.mark.parametrize("op", ["prod", "min", "max", "avg"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [pair for pair in BUILT_IN if pair[0] in ("all_reduce", "reduce", "reduce_scatter")],
)
@pytest.mark.parametrize("wire", ["none", "float8_e4m3fn", "float4_e2m1fn", "mxfp8_e5m2"])
def test_every_operation_equals_the_interpreters(system, collective, algorithm, wire, op):
    check(system, collective, algorithm, 5, 40, wire, op=op, seed=4)


# Closed forms: no schedule, only the order and the roundings that the rules promise.


def blocks_of(values, ranks):
    """A region in as many chunks as ranks, the first ones longer."""
    return np.array_split(values, ranks)


def in_rank_order(terms):
    with np.errstate(all="ignore"):
        return reduce(np.add, terms)


@every_wire
@pytest.mark.parametrize(("ranks", "count"), [(2, 33), (3, 100), (8, 257)])
def test_one_shot_adds_rounded_terms_in_rank_order(system, ranks, count, wire):
    data = hard_numbers(11, (ranks, count))
    result = ce.emulate(build_schedule("all_reduce", "one_shot", ranks), system, count=count, wire=wire, data=data)
    expected = in_rank_order([row if wire == "none" else round_trip(row, wire) for row in data])
    assert all(same_bits(row, expected) for row in result.outputs)
    assert result.replicas_identical


@pytest.mark.parametrize("wire", WIRES[1:])
def test_one_shot_without_round_own_keeps_the_own_term(system, wire):
    ranks, count = 4, 50
    data = hard_numbers(12, (ranks, count), "wide")
    schedule = build_schedule("all_reduce", "one_shot", ranks)
    recipe = ce.Recipe(wire=wire, round_own=False)
    result = ce.emulate(schedule, system, count=count, recipe=recipe, data=data)
    for rank in range(ranks):
        terms = [row if source == rank else round_trip(row, wire) for source, row in enumerate(data)]
        assert same_bits(result.outputs[rank], in_rank_order(terms))
    assert not result.replicas_identical


@every_wire
@pytest.mark.parametrize(("ranks", "count"), [(2, 33), (3, 100), (8, 257), (5, 3)])
def test_two_shot_rounds_terms_and_the_sum_once(system, ranks, count, wire):
    data = hard_numbers(13, (ranks, count))
    schedule = build_schedule("all_reduce", "two_shot", ranks)
    result = ce.emulate(schedule, system, count=count, wire=wire, data=data)
    expected = []
    for owner in range(ranks):
        terms = [blocks_of(row, ranks)[owner] for row in data]
        if wire != "none":
            terms = [t if source == owner else round_trip(t, wire) for source, t in enumerate(terms)]
        total = in_rank_order(terms)
        expected.append(total if wire == "none" else round_trip(total, wire))
    assert all(same_bits(row, np.concatenate(expected)) for row in result.outputs)
    assert result.replicas_identical


@every_wire
@pytest.mark.parametrize(("ranks", "count"), [(2, 33), (3, 100), (8, 57)])
def test_direct_reduce_scatter_adds_in_rank_order(system, ranks, count, wire):
    data = hard_numbers(14, (ranks, ranks * count))
    schedule = build_schedule("reduce_scatter", "direct", ranks)
    result = ce.emulate(schedule, system, count=count, wire=wire, data=data)
    for rank in range(ranks):
        terms = [row[rank * count : (rank + 1) * count] for row in data]
        if wire != "none":
            terms = [t if source == rank else round_trip(t, wire) for source, t in enumerate(terms)]
        assert same_bits(result.outputs[rank], in_rank_order(terms))


@every_wire
@pytest.mark.parametrize("algorithm", anywhere("broadcast"))
def test_broadcast_copies_are_those_of_the_root(system, algorithm, wire):
    ranks, count, root = 6, 70, 4
    data = hard_numbers(15, (ranks, count))
    schedule = build_schedule("broadcast", algorithm, ranks, root=root, chunks=1)
    result = ce.emulate(schedule, system, count=count, wire=wire, data=data)
    assert result.replicas_identical
    if wire not in BLOCK_WIRES:  # rounding one element alone, chunks do not matter
        expected = data[root] if wire == "none" else round_trip(data[root], wire)
        assert same_bits(result.outputs[0], expected)


@every_wire
@pytest.mark.parametrize("algorithm", anywhere("all_gather"))
def test_all_gather_rounds_each_part_once(system, algorithm, wire):
    ranks, count = 5, 45
    data = hard_numbers(16, (ranks, count))
    schedule = build_schedule("all_gather", algorithm, ranks)
    result = ce.emulate(schedule, system, count=count, wire=wire, data=data)
    expected = np.concatenate([row if wire == "none" else round_trip(row, wire) for row in data])
    assert all(same_bits(row, expected) for row in result.outputs)


@pytest.mark.parametrize("wire", WIRES[1:])
@pytest.mark.parametrize("algorithm", anywhere("alltoall"))
def test_alltoall_leaves_the_own_part_exact(system, algorithm, wire):
    ranks, count = 3, 21
    data = hard_numbers(17, (ranks, ranks * count))
    schedule = build_schedule("alltoall", algorithm, ranks)
    result = ce.emulate(schedule, system, count=count, wire=wire, data=data)
    for rank in range(ranks):
        parts = [row[rank * count : (rank + 1) * count] for row in data]
        expected = [p if source == rank else round_trip(p, wire) for source, p in enumerate(parts)]
        assert same_bits(result.outputs[rank], np.concatenate(expected))


@pytest.mark.parametrize(("collective", "algorithm"), [p for p in BUILT_IN if p[0] in ("all_reduce", "all_gather")])
@every_wire
def test_replicas_hold_the_same_bits(system, collective, algorithm, wire):
    schedule = build_schedule(collective, algorithm, 7)
    result = ce.emulate(schedule, system, count=90, wire=wire, data=hard_numbers(18, (7, 90)))
    assert result.replicas_identical is True
    assert all(same_bits(result.outputs[0], row) for row in result.outputs)


def test_wire_bytes_count_codes_and_scales(system):
    """Two ranks swap one chunk of 33 elements."""
    schedule = build_schedule("sendrecv", "direct", 2)
    for wire, expected in {
        "mxfp8_e4m3": 33 + 2,
        "mxfp4": 17 + 2,
        "nvfp4": 17 + 3 + 4,
        "bfloat16": 66,
        "float8_e5m2": 33,
        "float4_e2m1fn": 17,
        "float6_e3m2fn": 25,
        "mxfp6_e2m3": 25 + 2,
        "mxint8": 33 + 2,
        "fp8_block128": 33 + 4,
        "fp8_row": 33 + 4,
        "int8_block32": 33 + 8,
        "int4_block32": 17 + 8,
    }.items():
        result = ce.emulate(schedule, system, count=33, wire=wire)
        assert result.wire_bytes_per_rank.tolist() == [expected, expected], wire
        assert image_bytes(33, wire) == expected


def test_input_data_is_not_changed(system):
    data = hard_numbers(19, (4, 40))
    before = data.copy()
    ce.emulate(build_schedule("all_reduce", "ring", 4), system, count=40, wire="nvfp4", data=data)
    assert same_bits(data, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
def test_nan_has_no_code_in_fp4_and_fp6(system, wire, bad):
    """NaN is refused in one line; an infinity saturates."""
    data = np.ones((2, 8), np.float32)
    data[1, 3] = bad
    schedule = build_schedule("all_gather", "direct", 2)
    if np.isnan(bad):
        with pytest.raises(ValueError, match="NaN") as caught:
            ce.emulate(schedule, system, count=8, wire=wire, data=data)
        assert "\n" not in str(caught.value)
    else:
        result = ce.emulate(schedule, system, count=8, wire=wire, data=data)
        assert abs(result.outputs[0, 11]) == float(round_trip(np.float32([1e30]), wire)[0])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"count": -1}, "count"),
        ({"count": 2.5}, "count is 2.5"),
        ({"count": "3"}, "count is '3'"),
        ({"count": True}, "count is True"),
        ({"count": 2**63}, "count is 9223372036854775808; give a whole number, 0 to "),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"dtype": None}, "no dtype None"),
        ({"op": ["sum"]}, "sum"),
        ({"protocol": ["simple"]}, "simple"),
        ({"dtype": "float7"}, "float7"),
        ({"op": "median"}, "median"),
        ({"wire": "mxfp9"}, "mxfp9"),
        ({"protocol": "pigeon"}, "pigeon"),
        ({"fidelity": "vague"}, "vague"),
        ({"accumulate": "float8"}, "float8"),
        ({"data": np.zeros((2, 4), np.float32)}, "shape"),
        ({"data": np.zeros((3, 5), np.float32)}, "shape"),
        ({"data": np.zeros(12, np.float32)}, "shape"),
        ({"data": [["a"] * 4] * 3}, "data"),
        ({"data": np.zeros((3, 4), complex)}, "complex"),
        ({"data": np.zeros((3, 4), np.float32), "dtype": "int32"}, "int32"),
        ({"wire": "mxfp4", "dtype": "int32"}, "int32"),
        ({"wire": "mxfp4", "dtype": "float64"}, "float64"),
        ({"data": [[1.0, 2.0], [3.0]]}, "data"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(system, change, names):
    schedule = build_schedule("all_reduce", "ring", 3)
    with pytest.raises(ValueError, match=names) as caught:
        ce.emulate(schedule, system, **{"count": 4, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schedule": "ring"}, "schedule is 'ring', no Schedule; build_schedule makes one"),
        ({"system": "trainium4_nvl72"}, "system is 'trainium4_nvl72', no System; load_system makes one"),
        ({"wire": 8}, "wire is 8, no str; give the name of a format"),
        ({"recipe": 4}, "recipe is 4, no Recipe; make one"),
    ],
)
def test_objects_of_other_classes_are_refused_in_one_line(system, change, text):
    with pytest.raises(TypeError, match=text) as caught:
        ce.emulate(**{"schedule": build_schedule("all_reduce", "ring", 3), "system": system, "count": 4, **change})
    assert "\n" not in str(caught.value)


def test_types_of_numpy_name_dtypes(system):
    schedule = build_schedule("all_reduce", "ring", 2)
    assert ce.emulate(schedule, system, count=4, dtype=np.float16).header["dtype"] == "float16"


def test_more_ranks_than_chips_are_refused_by_number(system):
    small = system.with_(**{"scaleout.cluster_max_chips": 72})
    with pytest.raises(ValueError, match=r"73.*72"):
        ce.emulate(build_schedule("sendrecv", "direct", 73), small, count=1)
