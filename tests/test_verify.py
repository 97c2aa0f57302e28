"""verify() passes what is right, and says rank, thread, step and chunk of what is not."""

import dataclasses
import time

import numpy as np
import pytest
from collemu_kernels import kinds

from collemu.builders import BUILDERS
from collemu.builders.assembly import Assembler, interleave, steps
from collemu.schedule import Schedule, ScheduleError, algorithms, build_schedule
from collemu.verification import verify

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH


def exchange(k: int) -> Schedule:
    """An alltoall of two ranks that sends k chunks before it receives the first."""
    assembler = Assembler()
    for rank in range(2):
        theirs, own = (1 - rank) * k, rank * k
        assembler.add(
            rank,
            0,
            steps(kinds.SEND, src=(IN, theirs + np.arange(k))),
            steps(kinds.RECV, dst=(OUT, theirs + np.arange(k))),
            steps(kinds.COPY, src=(IN, own), dst=(OUT, own), count=k),
            send_peer=1 - rank,
            recv_peer=1 - rank,
        )
    return assembler.schedule("alltoall", "send_first", 2, input_chunks=2 * k, output_chunks=2 * k)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_k_sends_before_the_first_receive_need_k_slots(k):
    """Circular waits when both sides send first: NVIDIA/nccl#479, #784, microsoft/mscclpp PR#616."""
    for slots in range(1, 2 * k):
        if slots >= k:
            assert verify(exchange(k), slots=slots).least_slots == k
        else:
            with pytest.raises(ScheduleError, match=f"{k} are the least that work.*rank [01] thread 0 step"):
                verify(exchange(k), slots=slots)


def test_a_ring_that_receives_first_never_runs():
    """NVIDIA/nccl#784: every rank waits for the one before."""
    rank = np.arange(4)[:, None]
    assembler = Assembler()
    hop = np.arange(3)
    assembler.add(
        rank[:, 0],
        0,
        steps(kinds.COPY, src=(IN, 0), dst=(OUT, rank)),
        interleave(steps(kinds.RECV, dst=(OUT, (rank - 1 - hop) % 4)), steps(kinds.SEND, src=(OUT, (rank - hop) % 4))),
        send_peer=(rank[:, 0] + 1) % 4,
        recv_peer=(rank[:, 0] - 1) % 4,
    )
    ring = assembler.schedule("all_gather", "receive_first", 4, input_chunks=1, output_chunks=4)
    for slots in (1, 2, 100):
        with pytest.raises(ScheduleError, match="deadlock at any slot count") as caught:
            verify(ring, slots=slots)
        for n in range(4):
            assert f"rank {n} thread 0 step 1" in str(caught.value)


def in_place_reduce_scatter() -> Schedule:
    """Two ranks; the result lands in the rank's own region of the input (microsoft/msccl#30)."""
    assembler = Assembler()
    for rank in range(2):
        assembler.add(
            rank,
            0,
            steps(kinds.SEND, src=(IN, 1 - rank)),
            steps(kinds.RECV, dst=(SCRATCH, 0)),
            steps(kinds.REDUCE, src=(SCRATCH, 0), dst=(IN, rank)),
            send_peer=1 - rank,
            recv_peer=1 - rank,
        )
    return assembler.schedule(
        "reduce_scatter",
        "in_place",
        2,
        input_chunks=2,
        output_chunks=1,
        scratch_chunks=1,
        in_place=True,
    )


def test_in_place_results_land_in_the_input():
    assert verify(in_place_reduce_scatter()).messages == 2
    with pytest.raises(ScheduleError, match=r"rank 0 output\[0\] is never written"):
        verify(dataclasses.replace(in_place_reduce_scatter(), in_place=False))


def test_a_direct_all_gather_runs_in_place_too():
    for algorithm in algorithms("all_gather"):
        schedule = build_schedule("all_gather", algorithm, 5)
        verify(dataclasses.replace(schedule, in_place=True))


def test_an_idle_rank_fails_the_postcondition():
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.COPY, src=(IN, 0), dst=(IN, 2), count=2), send_peer=1, recv_peer=1)
    idle = assembler.schedule("all_reduce", "idle", 2, input_chunks=4, output_chunks=4, in_place=True)
    with pytest.raises(ScheduleError, match=r"rank 0 output\[0\] lacks rank 1 input\[0\]"):
        verify(idle)


def change(schedule: Schedule, op: int, **fields) -> Schedule:
    ops, threads = schedule.ops.copy(), schedule.threads.copy()
    for name, value in fields.items():
        if name in (ops.dtype.names or ()):
            ops[name][op] = value
        else:
            threads[name][schedule.thread_of_op[op]] = value
    return dataclasses.replace(schedule, ops=ops, threads=threads)


def find(schedule: Schedule, rank: int, thread: int, step: int) -> int:
    threads = schedule.threads
    row = np.flatnonzero((threads["rank"] == rank) & (threads["id"] == thread))[0]
    return int(threads["first"][row]) + step


@pytest.mark.parametrize(
    ("place", "fields", "message"),
    [
        # In the two-rank ring: send, recv_reduce_copy_send, recv.
        ((0, 0, 1), {"kind": kinds.RECV_COPY_SEND}, r"rank 0 output\[0\] lacks rank 0 input\[0\]"),
        (
            (0, 0, 2),
            {"kind": kinds.RECV_REDUCE},
            r"\(recv_reduce to output\[1\]\) reads rank 0 output\[1",
        ),
        ((0, 0, 2), {"kind": kinds.RECV_REDUCE, "dst": 0}, "adds contributions of different chunks"),
        (
            (0, 0, 2),
            {"kind": kinds.NOP},
            r"rank 1 thread 0 step 1 .* is message 2 to rank 0 on channel 0, but",
        ),
        (
            (0, 0, 1),
            {"kind": kinds.RECV_REDUCE_COPY},
            r"rank 1 thread 0 step 2 .* expects message 2 from rank 0",
        ),
        ((0, 0, 1), {"src": 1}, "adds contributions of different chunks"),
        ((0, 0, 0), {"src": 2}, r"rank 0 thread 0 step 0 \(send input\[2\]\) reaches beyond"),
        ((0, 0, 2), {"dst_buffer": SCRATCH}, r"\(recv to scratch\[1\]\) reaches beyond the chunks"),
        ((0, 0, 2), {"dst_buffer": 3}, r"\(recv to buffer 3\[1\]\) reaches beyond the chunks"),
        ((0, 0, 2), {"dst": 0}, r"rank 0 output\[0\] lacks|rank 0 output\[0\] holds"),
        ((1, 0, 0), {"src": 1}, "adds contributions of different chunks"),
        ((1, 0, 0), {"count": 2}, r"step 0 \(send input\[0:2\]\) sends 2 chunks, but its receiver rank 0"),
        ((1, 0, 0), {"count": 0}, r"step 0 \(send nothing\) sends 0 chunks, but its receiver rank 0"),
        ((1, 0, 0), {"kind": 77}, r"rank 1 thread 0 step 0 \(kind 77\) is of no kind that there is"),
        ((1, 0, 0), {"send_peer": 1}, "rank 1 thread 0 sends to its own rank"),
        ((1, 0, 0), {"recv_peer": 2}, "rank 1 thread 0 receives from a rank that is not one of the 2"),
        ((1, 0, 0), {"send_peer": -1}, "rank 1 thread 0 step 0 .* has no send peer"),
        ((1, 0, 1), {"recv_peer": -1}, "rank 1 thread 0 step 1 .* has no recv peer"),
        ((1, 0, 1), {"dep": 0}, "rank 1 thread 0 step 1 .* depends on an operation of another rank"),
        ((1, 0, 1), {"dep": 4}, "rank 1 thread 0 step 1 .* depends on itself or on a later step"),
        ((1, 0, 1), {"dep": 99}, "rank 1 thread 0 step 1 .* depends on an operation that does not exist"),
        ((1, 0, 1), {"channel": 1}, r"on channel 0, but rank 1 receives only 0 there"),
        ((1, 0, 1), {"rank": 2}, "rank 2 thread 0 is not on one of the 2 ranks"),
    ],
)
def test_a_broken_ring_is_refused(place, fields, message):
    ring = build_schedule("all_reduce", "ring", 2)
    with pytest.raises(ScheduleError, match=message):
        verify(change(ring, find(ring, *place), **fields))


def test_a_contribution_that_counts_twice_is_named():
    assembler = Assembler()
    for rank in range(2):
        assembler.add(
            rank,
            0,
            steps(kinds.SEND, src=(IN, [0, 0])),
            steps(kinds.RECV_REDUCE_COPY, src=(IN, 0), dst=(OUT, 0)),
            steps(kinds.RECV_REDUCE, dst=(OUT, 0)),
            send_peer=1 - rank,
            recv_peer=1 - rank,
        )
    twice = assembler.schedule("all_reduce", "twice", 2, input_chunks=1, output_chunks=1)
    with pytest.raises(
        ScheduleError,
        match=r"rank 0 output\[0\] holds twice or more rank 1 input\[0\] 2 times "
        r"\(written last by rank 0 thread 0 step 3 \(recv_reduce to output\[0\]\)\); 1 more output chunks",
    ):
        verify(twice)


def test_doubling_until_all_counters_wrap_is_no_way_through():
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.COPY, src=(IN, 0), dst=(OUT, 0)), *[_double()] * 200)
    with pytest.raises(ScheduleError, match=r"holds twice or more rank 0 input\[0\] 1000000000 times"):
        verify(assembler.schedule("all_reduce", "double", 1, input_chunks=1, output_chunks=1))


def _double():
    return steps(kinds.REDUCE, src=(OUT, 0), dst=(OUT, 0))


def test_a_foreign_contribution_is_named():
    schedule = build_schedule("broadcast", "ring", 3, root=1, chunks=1)
    with pytest.raises(
        ScheduleError,
        match=r"lacks rank 0 input\[0\] and holds what does not belong there, rank 1 input\[0\]",
    ):
        verify(dataclasses.replace(schedule, root=0))


def test_the_wrong_number_of_chunks_is_refused():
    schedule = build_schedule("all_gather", "ring", 3)
    with pytest.raises(ScheduleError, match="all_gather of 3 ranks has 1 input and 4 output chunks"):
        verify(dataclasses.replace(schedule, output_chunks=4))


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot", "tree"])
@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_every_dependency_of_a_sum_counts(algorithm, ranks):
    """Without it, two operations on one chunk are in no order, or a sum is sent before it is complete."""
    schedule = build_schedule("all_reduce", algorithm, ranks, chunks=2)
    dependent = np.flatnonzero(schedule.ops["dep"] >= 0)
    assert len(dependent)
    for op in dependent:
        broken = change(schedule, op, dep=-1)
        if algorithm == "tree" and schedule.ops["kind"][op] == kinds.RECV_COPY_SEND:
            verify(broken)  # what comes down the tree is ordered by the messages that went up
            continue
        with pytest.raises(ScheduleError, match=r"race on rank|nothing has written yet"):
            verify(broken)


def test_a_full_slot_orders_nothing():
    """Rank 0's second send waits until rank 1 has taken the first only because one slot is there."""
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.SEND, src=(IN, [0, 0])), steps(kinds.COPY, src=(IN, 0), dst=(OUT, 0)), send_peer=1)
    # Rank 1 reads its output in thread 1 after the first receive, and overwrites it with the second.
    assembler.add(1, 0, steps(kinds.RECV, dst=(OUT, [0, 0])), recv_peer=0)
    assembler.add(1, 1, steps(kinds.COPY, src=(OUT, 0), dst=(SCRATCH, 0), dep=(0, 0)))
    schedule = assembler.schedule("broadcast", "overwrite", 2, input_chunks=1, output_chunks=1, scratch_chunks=1)
    for slots in (1, 2):
        with pytest.raises(ScheduleError, match=r"race on rank 1 output\[0\]: nothing orders"):
            verify(schedule, slots=slots)


def test_messages_through_other_ranks_order_accesses():
    """Rank 0 overwrites what it sent after the message has been round the ring."""
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.COPY, src=(IN, 0), dst=(OUT, 0)), steps(kinds.SEND, src=(OUT, 0)), send_peer=1)
    assembler.add(0, 1, steps(kinds.RECV, dst=(OUT, 0)), recv_peer=2)
    assembler.add([1, 2], 0, steps(kinds.RECV_COPY_SEND, dst=(OUT, 0)), send_peer=[2, 0], recv_peer=[0, 1])
    schedule = assembler.schedule("broadcast", "round", 3, input_chunks=1, output_chunks=1)
    assert verify(schedule).depth == 3
    # Were the message to start in another thread, rank 0 might receive before it has sent its own.
    early = change(schedule, find(schedule, 0, 0, 1), kind=kinds.COPY, dst_buffer=OUT)
    with pytest.raises(ScheduleError, match="expects message 1 from rank 0"):
        verify(early)


def test_dependencies_that_wait_for_each_other_are_named():
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.NOP, dep=(1, 0)))
    assembler.add(0, 1, steps(kinds.COPY, src=(IN, 0), dst=(OUT, 0), dep=(0, 0)))
    knot = assembler.schedule("all_reduce", "knot", 1, input_chunks=1, output_chunks=1)
    with pytest.raises(
        ScheduleError,
        match=r"any slot count: rank 0 thread 0 step 0 \(nop\) waits for rank 0 thread 1 step 0 to finish; "
        r"rank 0 thread 1 step 0 \(copy input\[0\] to output\[0\]\) waits for rank 0 thread 0 step 0",
    ):
        verify(knot)


def test_two_threads_on_one_connection_are_refused():
    assembler = Assembler()
    assembler.add(0, [0, 1], steps(kinds.SEND, src=(IN, 0)), send_peer=1)
    assembler.add(1, 0, steps(kinds.RECV, dst=(OUT, [0, 0])), recv_peer=0)
    shared = assembler.schedule("broadcast", "shared", 2, input_chunks=1, output_chunks=1)
    with pytest.raises(ScheduleError, match=r"rank 0 threads 0 and 1 both send to rank 1 on channel 0"):
        verify(shared)


def test_a_copy_onto_part_of_itself_is_refused():
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.COPY, src=(IN, 0), dst=(IN, 1), count=2))
    shifted = assembler.schedule("all_reduce", "shifted", 1, input_chunks=3, output_chunks=3)
    with pytest.raises(ScheduleError, match=r"rank 0 thread 0 step 0 .* writes part of what it reads"):
        verify(shifted)


def test_a_chunk_away_from_its_place_needs_even_counts():
    assembler = Assembler()
    assembler.add(
        0,
        0,
        steps(kinds.COPY, src=(IN, 0), dst=(OUT, 1)),
        steps(kinds.COPY, src=(OUT, 1), dst=(OUT, 0)),
        steps(kinds.COPY, src=(IN, 1), dst=(OUT, 1)),
    )
    assert not verify(assembler.schedule("all_reduce", "away", 1, input_chunks=2, output_chunks=2)).any_count


@pytest.mark.parametrize("slots", [0, "a", 2.0, True, None, 2**31])
def test_slots_are_at_least_one(slots):
    with pytest.raises(ValueError, match=f"slots is {slots!r}; give a whole number, 1 to "):
        verify(build_schedule("all_reduce", "ring", 2), slots=slots)


def test_only_schedules_are_proved():
    with pytest.raises(TypeError, match="schedule is None, no Schedule; build_schedule makes one"):
        verify(None)


NVLS = [collective for collective, table in BUILDERS.items() if "nvls" in table]
TELL, HEAR = steps(kinds.SEND, count=0), steps(kinds.RECV, count=0)


def without_signal(schedule: Schedule, sender: int, receiver: int, step: int) -> Schedule:
    """Nvls without what a rank tells another: in step 0 of its thread that it has begun, in step 2 that it is done."""
    n = schedule.ranks
    ops = schedule.ops.copy()
    for rank, peer, place in ((sender, receiver, step), (receiver, sender, step + 1)):
        ops["kind"][find(schedule, rank, (peer - rank - 1) % n, place)] = kinds.NOP
    return dataclasses.replace(schedule, ops=ops)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_signal_of_nvls_counts(ranks):
    schedule = build_schedule("all_reduce", "nvls", ranks)
    for one in range(ranks):
        for other in set(range(ranks)) - {one}:
            with pytest.raises(
                ScheduleError,
                match=rf"rank {other} thread .* \(multimem_reduce input\[{other}\] to output\[{other}\]\) touches "
                rf"memory of rank {one}, which need not have begun by then; an empty message from rank {one} before",
            ):
                verify(without_signal(schedule, one, other, 0))
            with pytest.raises(
                ScheduleError,
                match=rf"rank {one} thread .* \(multimem_\w+ .*\) touches memory of rank {other}, "
                rf"which may have ended by then; an empty message to rank {other} after it would order them",
            ):
                verify(without_signal(schedule, one, other, 2))


@pytest.mark.parametrize("collective", NVLS)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_dependency_of_nvls_counts(collective, ranks):
    schedule = build_schedule(collective, "nvls", ranks, channels=2, chunks=2)
    dependent = np.flatnonzero(schedule.ops["dep"] >= 0)
    assert len(dependent)
    for op in dependent:
        with pytest.raises(ScheduleError, match=r"race on rank|written yet|need not have begun|may have ended"):
            verify(change(schedule, op, dep=-1))


@pytest.mark.parametrize("collective", NVLS)
def test_nvls_runs_in_place_too(collective):
    verify(dataclasses.replace(build_schedule(collective, "nvls", 5, channels=2, chunks=2), in_place=True))


def test_a_rank_that_does_nothing_may_not_be_there():
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.MULTIMEM_STORE, src=(IN, 0), dst=(OUT, 0)))
    with pytest.raises(ScheduleError, match="touches memory of rank 1, which need not have begun"):
        verify(assembler.schedule("broadcast", "alone", 2, input_chunks=1, output_chunks=1))


def test_two_stores_to_one_chunk_race():
    schedule = build_schedule("all_gather", "nvls", 3)
    store = find(schedule, 1, 2, 0)
    with pytest.raises(
        ScheduleError, match=r"race on rank 0 output\[2\]: .*\(multimem_store .* and .*\(multimem_store"
    ):
        verify(change(schedule, store, dst=2))


def test_a_store_that_comes_twice_is_harmless():
    assembler = Assembler()
    store = steps(kinds.MULTIMEM_STORE, src=(IN, 0), dst=(OUT, 0))
    assembler.add(0, 0, HEAR, store, store, TELL, send_peer=1, recv_peer=1)
    assembler.add(1, 0, TELL, HEAR, send_peer=0, recv_peer=0)
    verify(assembler.schedule("broadcast", "twice", 2, input_chunks=1, output_chunks=1))


def test_what_was_stored_everywhere_is_added_once_a_rank():
    assembler = Assembler()
    reduce = steps(kinds.MULTIMEM_REDUCE, src=(SCRATCH, 0), dst=(OUT, 0))
    assembler.add(0, 0, TELL, HEAR, reduce, TELL, send_peer=1, recv_peer=1)
    store = steps(kinds.MULTIMEM_STORE, src=(IN, 0), dst=(SCRATCH, 0))
    assembler.add(1, 0, HEAR, store, TELL, HEAR, send_peer=0, recv_peer=0)
    schedule = assembler.schedule("reduce", "spread", 2, input_chunks=1, output_chunks=1, scratch_chunks=1)
    with pytest.raises(
        ScheduleError,
        match=r"rank 0 output\[0\] lacks rank 0 input\[0\] and holds twice or more rank 1 input\[0\] 2 times "
        r"\(written last by rank 0 thread 0 step 2 \(multimem_reduce scratch\[0\] to output\[0\]\)\)",
    ):
        verify(schedule)


def test_a_sum_of_what_one_rank_has_not_written_is_refused():
    assembler = Assembler()
    assembler.add(
        0,
        0,
        HEAR,
        steps(kinds.COPY, src=(IN, 0), dst=(SCRATCH, 0)),
        steps(kinds.MULTIMEM_REDUCE, src=(SCRATCH, 0), dst=(OUT, 0)),
        TELL,
        send_peer=1,
        recv_peer=1,
    )
    assembler.add(1, 0, TELL, HEAR, send_peer=0, recv_peer=0)
    schedule = assembler.schedule("reduce", "unset", 2, input_chunks=1, output_chunks=1, scratch_chunks=1)
    with pytest.raises(ScheduleError, match=r"step 2 \(multimem_reduce .*reads rank 1 scratch\[0\], which nothing"):
        verify(schedule)


@pytest.mark.parametrize(
    ("kind", "own_thread", "writes", "earlier", "later"),
    [
        (kinds.MULTIMEM_STORE, 0, OUT, r"rank 1 thread 0 step 1 \(copy", r"rank 0 .* \(multimem_store"),
        (kinds.MULTIMEM_STORE, 1, OUT, r"rank 0 .* \(multimem_store", r"rank 1 thread 1 step 0 \(copy"),
        (kinds.MULTIMEM_REDUCE, 0, IN, r"rank 1 thread 0 step 1 \(copy", r"rank 0 .* \(multimem_reduce"),
        (kinds.MULTIMEM_REDUCE, 1, IN, r"rank 0 .* \(multimem_reduce", r"rank 1 thread 1 step 0 \(copy"),
    ],
)
def test_what_a_rank_does_races_with_what_the_switch_does_there(kind, own_thread, writes, earlier, later):
    """Rank 1 writes to what rank 0 has the switch store to, or add, and is itself still at work."""
    assembler = Assembler()
    assembler.add(0, 0, HEAR, steps(kind, src=(IN, 0), dst=(OUT, 0)), TELL, send_peer=1, recv_peer=1)
    copy = steps(kinds.COPY, src=(IN, 0), dst=(writes, 0))
    own = [TELL, HEAR] if own_thread else [TELL, copy, HEAR]
    assembler.add(1, 0, *own, send_peer=0, recv_peer=0)
    if own_thread:
        assembler.add(1, 1, copy)
    schedule = assembler.schedule("all_reduce", "meddle", 2, input_chunks=1, output_chunks=1)
    with pytest.raises(ScheduleError, match=rf"race on rank 1 \w+\[0\]: nothing orders {earlier} .* and {later}"):
        verify(schedule)


def two_groups() -> Schedule:
    """A broadcast to two switch groups of two: the root stores, and sends to rank 2, which stores again."""
    assembler = Assembler()
    store = steps(kinds.MULTIMEM_STORE, src=(IN, 0), dst=(OUT, 0), count=2)
    again = steps(kinds.MULTIMEM_STORE, src=(OUT, 0), dst=(OUT, 0), count=2, dep=(1, 0))
    assembler.add(0, 0, HEAR, store, TELL, send_peer=1, recv_peer=1)
    assembler.add(0, 1, steps(kinds.SEND, src=(IN, 0), count=2), send_peer=2)
    assembler.add(2, 0, HEAR, again, TELL, send_peer=3, recv_peer=3)
    assembler.add(2, 1, steps(kinds.RECV, dst=(OUT, 0), count=2), recv_peer=0)
    assembler.add([1, 3], 0, TELL, HEAR, send_peer=[0, 2], recv_peer=[0, 2])
    schedule = assembler.schedule("broadcast", "two_groups", 4, input_chunks=2, output_chunks=2)
    return dataclasses.replace(schedule, group_ranks=2)


def test_switch_groups_are_apart():
    verify(two_groups())
    with pytest.raises(ScheduleError, match=r"race on rank 2 output\[0\]"):
        verify(dataclasses.replace(two_groups(), group_ranks=0))
    whole = build_schedule("all_reduce", "nvls", 4)
    for group_ranks, lacks in ((2, r"rank 2 input\[0\], rank 3"), (3, r"rank 3 input\[0\] "), (1, r"rank 1 input")):
        with pytest.raises(ScheduleError, match=rf"rank 0 output\[0\] lacks {lacks}"):
            verify(dataclasses.replace(whole, group_ranks=group_ranks))
    for group_ranks in (4, 5):
        verify(dataclasses.replace(whole, group_ranks=group_ranks))
    with pytest.raises(ScheduleError, match="group_ranks is -1; a switch group is 1 rank or more"):
        verify(dataclasses.replace(whole, group_ranks=-1))


def test_what_the_switch_adds_and_copies_is_told_apart():
    schedule = build_schedule("all_reduce", "nvls", 2)
    with pytest.raises(
        ScheduleError,
        match=r"rank 0 output\[0\] lacks rank 0 input\[0\], rank 1 input\[0\] and holds what does not belong there, "
        r"rank 0 input\[1\], rank 1 input\[1\] \(written last by rank 0 thread 2 step 0 \(multimem_store ",
    ):
        verify(change(schedule, find(schedule, 0, 1, 0), src=1))


def test_a_schedule_of_half_a_million_messages_is_proved_at_once():
    schedule = build_schedule("all_reduce", "ring", 512)
    verify(build_schedule("all_reduce", "ring", 3))
    begin = time.perf_counter()
    report = verify(schedule)
    # 0.2 s on one core of 2026; the bound only catches a loop over operations.
    assert time.perf_counter() - begin < 5
    assert (report.messages, report.depth, report.least_slots) == (523_264, 1022, 2)
