"""Execution of a rank's operations: the emulator's bytes and messages, in whatever order messages arrive."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import given
from hypothesis import strategies as st

from collemu import emulate, load_system
from collemu.builders.assembly import Assembler, steps
from collemu.collectives import UNEVEN
from collemu.counts import largest_buffer
from collemu.dtypes import find_dtype
from collemu.lower import lower
from collemu.memory import build_memory
from collemu.payload import payload_of
from collemu.ranks.contributions import contribution
from collemu.ranks.execute import Execution, execute
from collemu.ranks.message_log import READ, SENT, WRITE, emulated_log, first_difference
from collemu.ranks.transport import NoTransport
from collemu.recipe import Recipe
from collemu.rows import input_size
from collemu.schedule import Schedule, build_schedule
from tests.built_in import anywhere
from tests.mpi.network import run_all

PAIRS = [
    (collective, algorithm)
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv")
    for algorithm in anywhere(collective)
]
UNEVEN_PAIRS = [(collective, algorithm) for collective in UNEVEN for algorithm in anywhere(collective)]
# What the switches of gb200_nvl72 add, and what they compare.
SWITCHED = [
    (dtype, op)
    for dtype in ("float16", "bfloat16", "int32", "int64", "float8_e4m3fn", "float8_e5m2")
    for op in ("sum", "avg", "min", "max")
] + [(dtype, op) for dtype in ("float32", "float64") for op in ("sum", "avg")]


def parts_of(
    schedule: Schedule, count: int, wire: str, slots: int, dtype: str = "float32", op: str = "sum", seed: int = 0
):
    """Inputs, memories and executions of all ranks, each as if in a process of its own."""
    payload = payload_of(schedule.collective, dtype, Recipe(wire=wire), op)
    lowered = lower(schedule, count, item_bytes=payload.held.item_bytes, wire=payload.wire)
    inputs = [
        contribution(find_dtype(dtype), input_size(schedule, count, rank), rank, op=op)
        for rank in range(schedule.ranks)
    ]
    memories = [build_memory(lowered, payload, [rank], slots, seed) for rank in range(schedule.ranks)]
    for rank, memory in enumerate(memories):
        memory.write_input(rank, inputs[rank])
    executions = [Execution(lowered, memory.plane, rank, slots) for rank, memory in enumerate(memories)]
    return inputs, memories, executions


@given(
    pair=st.sampled_from(PAIRS),
    ranks=st.integers(1, 7),
    count=st.integers(0, 90),
    wire=st.sampled_from(["none", "bfloat16", "mxfp8_e4m3", "mxfp4", "nvfp4"]),
    slots=st.integers(2, 4),
    channels=st.integers(1, 2),
    chunks=st.sampled_from([None, 1, 3]),
    root=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_order_of_arrival_gives_the_emulators_bytes(pair, ranks, count, wire, slots, channels, chunks, root, seed):
    schedule = build_schedule(*pair, ranks, root=root % ranks, channels=channels, chunks=chunks)
    inputs, memories, executions = parts_of(schedule, count, wire, slots)
    system = load_system("trainium4_nvl72")
    expected = emulate(schedule, system, count=count, wire=wire, data=np.stack(inputs))

    run_all(executions, memories, Random(seed))
    assert_same(schedule, expected, memories, executions)


@given(
    pair=st.sampled_from(UNEVEN_PAIRS),
    ranks=st.integers(1, 7),
    count=st.integers(0, 90),
    wire=st.sampled_from(["none", "bfloat16", "mxfp4", "nvfp4"]),
    slots=st.integers(1, 3),
    channels=st.integers(1, 2),
    chunks=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_order_of_arrival_gives_uneven_amounts(pair, ranks, count, wire, slots, channels, chunks, seed):
    random = np.random.default_rng(seed)
    counts = random.integers(0, count, (ranks, ranks), endpoint=True) * (random.random((ranks, ranks)) < 0.6)
    uneven = pair[0] == "alltoallv"
    schedule = build_schedule(
        *pair, ranks, root=seed % ranks, channels=channels, chunks=chunks, counts=counts if uneven else None
    )
    count = largest_buffer(counts) if uneven else count
    inputs, memories, executions = parts_of(schedule, count, wire, slots)
    expected = emulate(schedule, load_system("trainium4_nvl72"), count=count, wire=wire, data=inputs)
    run_all(executions, memories, Random(seed))
    assert_same(schedule, expected, memories, executions)


def assert_same(schedule, expected, memories, executions):
    for rank in range(schedule.ranks):
        log = emulated_log(expected.timeline, rank, schedule)
        assert first_difference(log, executions[rank].log(), schedule) is None
        if schedule.collective != "reduce" or rank == schedule.root:
            output = memories[rank].read_output(rank)
            assert output.tobytes() == expected.outputs[rank].tobytes()


@given(
    collective=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]),
    ranks=st.integers(2, 7),
    group_ranks=st.sampled_from([0, 0, 1, 2, 3]),
    in_place=st.booleans(),
    count=st.integers(0, 90),
    number=st.sampled_from(SWITCHED),
    channels=st.integers(1, 2),
    chunks=st.sampled_from([None, 1, 3]),
    root=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_order_of_operations_has_switches_do_the_same(
    collective, ranks, group_ranks, in_place, count, number, channels, chunks, root, seed
):
    """Empty messages alone say when memory may be touched; the seed also decides in which order switches add."""
    built = build_schedule(collective, "nvls", ranks, root=root % ranks, channels=channels, chunks=chunks)
    schedule = replace(built, group_ranks=group_ranks, in_place=in_place)
    dtype, op = number
    inputs, memories, executions = parts_of(schedule, count, "none", 2, dtype, op, seed)
    system = load_system("gb200_nvl72")
    expected = emulate(schedule, system, count=count, dtype=dtype, op=op, data=np.stack(inputs), seed=seed)

    run_all(executions, memories, Random(seed))
    assert_same(schedule, expected, memories, executions)


def test_log_says_what_switches_read_and_wrote():
    schedule = build_schedule("all_reduce", "nvls", 3)
    _, memories, executions = parts_of(schedule, 7, "none", 2)
    run_all(executions, memories, Random(1))
    log = executions[2].log()
    read, written = (log[log["direction"] == direction] for direction in (READ, WRITE))
    assert read["peer"].tolist() == written["peer"].tolist() == [0, 1, 2]
    assert read["nbytes"].tolist() == written["nbytes"].tolist() == [8] * 3  # the third block of 7 float32


def test_log_has_every_message_at_both_ends():
    schedule = build_schedule("all_reduce", "ring", 4)
    _, memories, executions = parts_of(schedule, 10, "none", 2)
    run_all(executions, memories, Random(1))
    logs = [execution.log() for execution in executions]
    assert [len(log) for log in logs] == [12] * 4
    assert sum(int((log["direction"] == SENT).sum()) for log in logs) == schedule.n_messages
    assert {int(peer) for peer in logs[1]["peer"][logs[1]["direction"] == SENT]} == {2}


def self_sends(messages: int) -> Schedule:
    """One rank that sends its input to itself, a chunk a message."""
    chunk = np.arange(messages)
    assembler = Assembler()
    sends = steps(kinds.SEND, src=(kinds.INPUT, chunk))
    receives = steps(kinds.RECV, dst=(kinds.OUTPUT, chunk))
    assembler.add(np.array([0]), 0, sends, send_peer=np.array([0]), channel=0)
    assembler.add(np.array([0]), 1, receives, recv_peer=np.array([0]), channel=0)
    return assembler.schedule("sendrecv", "mine", 1, input_chunks=messages, output_chunks=messages, channels=1)


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_messages_to_oneself_do_not_travel(slots):
    inputs, memories, executions = parts_of(self_sends(5), 23, "none", slots)
    execute(executions[0], NoTransport())
    assert memories[0].read_output(0).tobytes() == inputs[0].tobytes()
    assert len(executions[0].log()) == 10


def test_a_deadlock_is_an_error_and_no_hang():
    schedule = self_sends(3)
    receive_first = steps(kinds.RECV, dst=(kinds.OUTPUT, 0))
    then_send = steps(kinds.SEND, src=(kinds.INPUT, 0))
    assembler = Assembler()
    both = np.concatenate([receive_first, then_send], axis=1)
    assembler.add(np.array([0]), 0, both, send_peer=np.array([0]), recv_peer=np.array([0]), channel=0)
    schedule = assembler.schedule("sendrecv", "mine", 1, input_chunks=1, output_chunks=1, channels=1)
    _, _, executions = parts_of(schedule, 4, "none", 2)
    with pytest.raises(RuntimeError, match="deadlocks"):
        execute(executions[0], NoTransport())
