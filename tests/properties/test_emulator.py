"""Whatever is asked of the emulator: the bits of the rules, times above the bound, and books that balance."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import collemu as ce
from collemu.collectives import ROOTED
from collemu.schedule import RECEIVES, build_schedule
from tests.built_in import BUILT_IN
from tests.oracles.collectives_reference import input_elements
from tests.oracles.hard_numbers import hard_numbers, same_bits
from tests.oracles.quantised_interpreter import interpret, numpy_type, rounded

ELEMENT_WIRES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float4_e2m1fn")
WIRES = ("none", *ELEMENT_WIRES, "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4")
LARGEST_TRAFFIC = 2**28  # bytes of all messages together: an example takes less than a second

SYSTEM = ce.load_system("trainium4_nvl72")

some_builtin = st.sampled_from(BUILT_IN)
some_wire = st.sampled_from(WIRES)
log_uniform_bytes = st.floats(0, 30).map(lambda exponent: int(2**exponent))


@given(
    builtin=some_builtin,
    wire=some_wire,
    ranks=st.sampled_from([1, 2, 3, 5, 8, 12]),
    count=st.one_of(st.sampled_from([0, 1, 31, 33, 100, 257]), st.integers(0, 300)),
    values=st.sampled_from(["plain", "wide", "mixed", "not_finite"]),
    op=st.sampled_from(["sum", "sum", "avg", "prod", "min", "max"]),
    dtype=st.sampled_from(["float32", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]),
    round_own=st.booleans(),
    lanes=st.sampled_from([{}, {}, {"channels": 2}, {"chunks": 2}, {"channels": 2, "chunks": 3}]),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_bytes_equal_the_interpreters(
    builtin, wire, ranks, count, values, op, dtype, round_own, lanes, seed
):
    collective, algorithm = builtin
    assume(not (wire == "float4_e2m1fn" and values == "not_finite"))
    assume(not (wire == "float4_e2m1fn" and op == "prod"))  # infinity times zero is a NaN, which it has not
    root = seed % ranks if collective in ROOTED else 0
    schedule = build_schedule(collective, algorithm, ranks, root=root, **lanes)
    kind = numpy_type(dtype)
    data = hard_numbers(seed, (ranks, input_elements(collective, ranks, count)), values)
    data = rounded(data, kind, saturate=kind.itemsize == 1 or wire == "float4_e2m1fn")
    recipe = ce.Recipe(wire=wire, round_own=round_own)
    try:
        result = ce.emulate(schedule, SYSTEM, count=count, dtype=dtype, op=op, recipe=recipe, data=data)
    except ValueError as error:
        assert wire == "float4_e2m1fn" and "NaN" in str(error)  # a sum of huge values of both signs
        return
    expected, sent = interpret(schedule, data, count, dtype=dtype, wire=wire, op=op, round_own=recipe.round_own)
    assert result.outputs.dtype == data.dtype
    for rank in (root,) if collective == "reduce" else range(ranks):
        got = result.outputs[rank].astype(np.float64)
        assert same_bits(got, expected[rank].astype(np.float64)), f"rank {rank}"
    assert result.wire_bytes_per_rank.tolist() == sent
    assert result.replicas_identical == _replicas(collective, result.outputs)


def _replicas(collective, outputs):
    if collective not in ("all_reduce", "all_gather", "broadcast"):
        return None
    first = np.ascontiguousarray(outputs[0]).tobytes()
    return all(np.ascontiguousarray(row).tobytes() == first for row in outputs)


@given(
    builtin=some_builtin,
    dtype=st.sampled_from(["int8", "uint8", "int32", "int64", "float64"]),
    op=st.sampled_from(["sum", "prod", "min", "max", "avg"]),
    ranks=st.sampled_from([1, 2, 3, 5, 8]),
    count=st.integers(0, 40),
    seed=st.integers(0, 2**16),
)
def test_types_that_numpy_has_equal_the_interpreters(builtin, dtype, op, ranks, count, seed):
    collective, algorithm = builtin
    schedule = build_schedule(collective, algorithm, ranks)
    shape = (ranks, input_elements(collective, ranks, count))
    random = np.random.default_rng(seed)
    if dtype == "float64":
        data = random.standard_normal(shape) * np.ldexp(1.0, random.integers(-900, 900, shape))
    else:
        limits = np.iinfo(dtype)
        data = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    result = ce.emulate(schedule, SYSTEM, count=count, dtype=dtype, op=op, data=data)
    expected, _ = interpret(schedule, data, count, dtype=dtype, op=op)
    for rank in (0,) if collective == "reduce" else range(ranks):
        if dtype == "float64":
            assert same_bits(result.outputs[rank], expected[rank])
        else:
            np.testing.assert_array_equal(result.outputs[rank], expected[rank], strict=True)


@st.composite
def runs(draw, largest_ranks=72):
    """A schedule and a count whose traffic is bearable, and how it travels."""
    collective, algorithm = draw(some_builtin)
    ranks = draw(st.one_of(st.integers(1, 8), st.integers(1, largest_ranks)))
    wire = draw(some_wire)
    root = draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0
    wide = collective in ("all_gather", "reduce_scatter", "alltoall")
    copies = ranks * ranks if wide or algorithm == "one_shot" else 2 * ranks
    nbytes = min(draw(log_uniform_bytes), LARGEST_TRAFFIC // copies)
    channels = draw(st.sampled_from([1, 1, 2])) if ranks <= 16 else 1
    return build_schedule(collective, algorithm, ranks, root=root, channels=channels), nbytes // 4, wire


def packets_of(wire_bytes: np.ndarray, system, protocol: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes with protocol lines, in whole flits, and packets, of messages with these wire images."""
    how = system.protocols[protocol]
    moved = -(-wire_bytes // how.data_bytes) * how.line_bytes
    flit = system.domain.packet_flit_bytes
    return -(-moved // flit) * flit, np.maximum(1, -(-moved // system.domain.packet_payload_bytes))


@given(run=runs(), protocol=st.sampled_from(["auto", "simple", "ll", "ll128"]))
def test_time_is_above_the_bound_and_the_books_balance(run, protocol):
    schedule, count, wire = run
    result = ce.emulate(schedule, SYSTEM, count=count, wire=wire, protocol=protocol)
    assert result.time_fs >= result.bounds.total_fs
    assert result.time_s == result.time_fs / 1e15
    assert math.isfinite(result.time_s) and result.time_s >= 0
    assert 0 <= result.links.max_utilisation <= 1

    messages = result.timeline.messages
    moved, packets = packets_of(messages["nbytes"], SYSTEM, result.header["protocol"])
    carried = moved + packets * SYSTEM.domain.packet_header_bytes
    per_chip = [
        np.bincount(messages[end], weights=carried, minlength=schedule.ranks).astype(np.int64)
        for end in ("source", "destination")
    ]
    np.testing.assert_array_equal(result.links.up_bytes.sum(axis=1), per_chip[0])
    np.testing.assert_array_equal(result.links.down_bytes.sum(axis=1), per_chip[1])
    np.testing.assert_array_equal(result.links.up_bytes.sum(axis=0), result.links.down_bytes.sum(axis=0))
    assert result.links.total_bytes == carried.sum()
    assert result.wire_bytes == messages["nbytes"].sum() == result.wire_bytes_per_rank.sum()
    check_timeline(schedule, result)


def check_timeline(schedule, result):
    """What starts has been allowed to start, and what is received has been sent."""
    operations, messages = result.timeline.operations, result.timeline.messages
    start, finish = operations["start_fs"], operations["finish_fs"]
    assert (start <= finish).all() and (start >= SYSTEM.endpoint.launch_fs).all()
    assert (messages["visible_fs"] >= messages["ready_fs"]).all()
    if len(operations):
        assert finish.max() == result.time_fs
    same_thread = np.diff(schedule.thread_of_op) == 0
    assert (start[1:][same_thread] >= finish[:-1][same_thread]).all()
    waiting = np.flatnonzero(schedule.ops["dep"] >= 0)
    assert (start[waiting] >= finish[schedule.ops["dep"][waiting]]).all()
    receivers = np.flatnonzero(operations["received"] >= 0)
    assert RECEIVES[operations["kind"][receivers]].all()
    assert (start[receivers] >= messages["visible_fs"][operations["received"][receivers]]).all()
    np.testing.assert_array_equal(operations["sent"][messages["sender"]], np.arange(len(messages)))
    np.testing.assert_array_equal(operations["received"][messages["receiver"]], np.arange(len(messages)))
    step = SYSTEM.protocols[result.header["protocol"]].step_latency_fs
    np.testing.assert_array_equal(messages["ready_fs"], start[messages["sender"]] + step)
    assert (finish[messages["sender"]] >= messages["ready_fs"]).all()


@given(run=runs(largest_ranks=12), seed=st.integers(0, 100))
def test_the_same_run_takes_the_same_femtoseconds_with_and_without_data(run, seed):
    schedule, count, wire = run
    count = min(count, 3000)
    data = hard_numbers(seed, (schedule.ranks, schedule.input_regions * count), "plain")
    first = ce.emulate(schedule, SYSTEM, count=count, wire=wire)
    again = ce.emulate(schedule, SYSTEM, count=count, wire=wire)
    loaded = ce.emulate(schedule, SYSTEM, count=count, wire=wire, data=data)
    silent = ce.emulate(schedule, SYSTEM, count=count, wire=wire, timeline=False)
    assert first.time_fs == again.time_fs == loaded.time_fs == silent.time_fs
    for other in (again, loaded):
        np.testing.assert_array_equal(first.timeline.operations, other.timeline.operations)
        np.testing.assert_array_equal(first.timeline.messages, other.timeline.messages)
        np.testing.assert_array_equal(first.links.up_bytes, other.links.up_bytes)
    assert silent.timeline is None and first.outputs is None and loaded.outputs is not None


FASTER = {
    "domain.link_bytes_per_s": st.floats(1.0, 8.0),
    "endpoint.copy_bytes_per_s": st.floats(1.0, 8.0),
    "domain.hop_latency_s": st.floats(0.1, 1.0),
    "endpoint.launch_s": st.floats(0.1, 1.0),
    "protocol.dma.step_latency_s": st.floats(0.1, 1.0),
}


@given(name=st.sampled_from(sorted(FASTER)), data=st.data(), nbytes=log_uniform_bytes)
def test_a_faster_system_is_never_slower_for_one_message(name, data, nbytes):
    schedule = build_schedule("sendrecv", "direct", 2)
    count = min(nbytes, 2**22) // 4
    before = SYSTEM.provenance[name].value
    better = SYSTEM.with_(**{name: before * data.draw(FASTER[name])})
    assert ce.emulate(schedule, better, count=count).time_fs <= ce.emulate(schedule, SYSTEM, count=count).time_fs


@given(ranks=st.integers(2, 12), nbytes=log_uniform_bytes, more=st.integers(1, 4096))
def test_more_bytes_of_one_message_are_never_faster(ranks, nbytes, more):
    schedule = build_schedule("sendrecv", "direct", ranks)
    count = min(nbytes, 2**20) // 4
    less, larger = (ce.emulate(schedule, SYSTEM, count=c) for c in (count, count + more))
    assert less.time_fs <= larger.time_fs


@pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
@pytest.mark.parametrize("wire", ["none", "mxfp8_e4m3"])
def test_a_gibibyte_is_above_the_bound(collective, algorithm, wire):
    """2 ranks, 1 GiB of a rank's input."""
    schedule = build_schedule(collective, algorithm, 2)
    count = 2**28 // schedule.input_regions
    result = ce.emulate(schedule, SYSTEM, count=count, wire=wire, timeline=False)
    assert result.bounds.total_fs <= result.time_fs
