"""The tables, the geometry of chunks, and what a user is told who asks for something that is not there."""

import dataclasses
import time

import numpy as np
import pytest
from collemu_kernels import kinds

from collemu.builders import BUILDERS
from collemu.builders.assembly import ABSENT, Assembler, interleave, steps
from collemu.counts import staircase
from collemu.schedule import OP, THREAD, ScheduleError, algorithms, build_schedule, operations_at_most


def test_rows_are_small():
    assert (OP.itemsize, THREAD.itemsize) == (20, 24)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 100])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7])
def test_chunks_differ_by_at_most_one_element_and_the_longer_come_first(count, chunks):
    schedule = build_schedule("sendrecv", "direct", 2, chunks=chunks)
    lengths = np.diff(schedule.chunk_starts(kinds.INPUT, count))
    assert lengths.tolist() == [-(-count // chunks)] * (count % chunks) + [count // chunks] * (chunks - count % chunks)


def test_regions_begin_at_multiples_of_count():
    gather = build_schedule("all_gather", "ring", 3, channels=2)
    assert gather.chunk_starts(kinds.INPUT, 7).tolist() == [0, 4, 7]
    assert gather.chunk_starts(kinds.OUTPUT, 7).tolist() == [0, 4, 7, 11, 14, 18, 21]
    scatter = build_schedule("reduce_scatter", "ring", 3, channels=2)
    assert scatter.chunk_starts(kinds.INPUT, 7).tolist() == [0, 4, 7, 11, 14, 18, 21]
    assert scatter.chunk_starts(kinds.OUTPUT, 7).tolist() == [0, 4, 7]


def test_scratch_chunks_have_room_for_the_longest_chunk():
    schedule = build_schedule("all_reduce", "one_shot", 3, chunks=2)
    assert schedule.chunk_starts(kinds.SCRATCH, 7).tolist() == [0, 4, 8]


def test_chunks_that_share_memory_share_a_cell():
    gather = dataclasses.replace(build_schedule("all_gather", "ring", 3), in_place=True)
    bases, cells = gather.cell_bases()
    assert cells == 9
    assert (bases[:, kinds.INPUT] - bases[:, kinds.OUTPUT]).tolist() == [0, 1, 2]
    scatter = dataclasses.replace(build_schedule("reduce_scatter", "ring", 3), in_place=True)
    bases, cells = scatter.cell_bases()
    assert cells == 9
    assert (bases[:, kinds.OUTPUT] - bases[:, kinds.INPUT]).tolist() == [0, 1, 2]
    reduce = dataclasses.replace(build_schedule("all_reduce", "one_shot", 3), in_place=True)
    bases, cells = reduce.cell_bases()
    assert cells == 3 * 2
    assert bases[:, kinds.INPUT].tolist() == bases[:, kinds.OUTPUT].tolist()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_cells_of_all_ranks_are_equally_far_apart(collective, in_place):
    """The proof of in-switch operations steps from rank to rank by it."""
    bases, _ = dataclasses.replace(build_schedule(collective, "nvls", 5), in_place=in_place).cell_bases()
    steps_between = np.diff(bases, axis=0)
    assert (steps_between == steps_between[0]).all()


def test_operations_of_a_thread_are_consecutive_and_sorted():
    schedule = build_schedule("all_reduce", "tree", 11, channels=2)
    threads = schedule.threads
    key = threads["rank"].astype(np.int64) * 1000 + threads["id"]
    assert (np.diff(key) > 0).all()
    assert threads["first"].tolist() == (np.cumsum(threads["length"]) - threads["length"]).tolist()
    assert len(schedule.ops) == threads["length"].sum() == len(schedule.thread_of_op)
    for rank in range(11):
        mine = threads["id"][threads["rank"] == rank]
        assert mine.tolist() == list(range(len(mine)))


def test_operations_are_named_by_their_place():
    schedule = build_schedule("all_reduce", "ring", 3)
    assert schedule.where(7) == "rank 1 thread 0 step 2"
    assert schedule.describe(7) == "rank 1 thread 0 step 2 (recv_reduce_copy_send input[1] to output[1])"
    switched = build_schedule("all_reduce", "nvls", 2)
    assert [switched.describe(op) for op in (0, 1, 4)] == [
        "rank 0 thread 0 step 0 (send nothing)",
        "rank 0 thread 0 step 1 (recv nothing)",
        "rank 0 thread 1 step 0 (multimem_reduce input[0] to output[0])",
    ]


def test_the_last_switch_group_may_be_smaller():
    schedule = build_schedule("all_reduce", "nvls", 5)
    assert {schedule.group_of(rank) for rank in range(5)} == {range(5)}
    pairs = dataclasses.replace(schedule, group_ranks=2)
    assert [pairs.group_of(rank) for rank in range(5)] == [range(2), range(2), range(2, 4), range(2, 4), range(4, 5)]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("all_reduce", "nvl", 4), {}, "no algorithm 'nvl' for all_reduce; choose ring, tree, "),
        (("allreduce", "ring", 4), {}, "no collective 'allreduce'; choose all_reduce, reduce_scatter, "),
        (("all_reduce", "ring", 0), {}, "ranks is 0; give a whole number of 1 or more"),
        (("all_reduce", "ring", 2.5), {}, "ranks is 2.5; give a whole number of 1 or more"),
        (("all_reduce", "ring", True), {}, "ranks is True; give a whole number of 1 or more"),
        (("all_reduce", ["ring"], 4), {}, "no algorithm .* for all_reduce"),
        ((["all_reduce"], "ring", 4), {}, "no collective "),
        (("all_reduce", "one_shot", 20_000), {}, "800,000,000 operations, over the limit of .*choose fewer"),
        (("all_reduce", "tree", 10**9), {}, "operations, over the limit"),
        (("broadcast", "ring", 10**5), {}, "operations, over the limit"),
        (("sendrecv", "direct", 4), {"channels": 10**9}, "operations, over the limit"),
        (("alltoall", "pairwise", 4), {"chunks": 2**63}, "operations, over the limit"),
        (("all_reduce", "ring", 4), {"channels": 0}, "channels is 0; give a whole number of 1 or more"),
        (("all_reduce", "ring", 4), {"chunks": 0}, "chunks is 0; give a whole number of 1 or more"),
        (("broadcast", "tree", 4), {"root": 4}, "root 4 is not one of the 4 ranks; choose 0 to 3"),
        (("broadcast", "tree", 4), {"root": -1}, "root is -1; give a whole number of 0 or more"),
        (
            ("alltoall", "direct", 2),
            {"counts": [[1, 2], [3, 4]]},
            "counts belong to alltoallv; alltoall",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(arguments, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build_schedule(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_unknown_collective_has_no_algorithms():
    with pytest.raises(ValueError, match="no collective 'gossip'; choose all_reduce"):
        algorithms("gossip")


def test_algorithm_names():
    assert algorithms("all_reduce")[:4] == ("ring", "tree", "one_shot", "two_shot")
    assert set(algorithms()) >= {"ring", "tree", "one_shot", "two_shot", "direct", "pairwise"}
    assert len(set(algorithms())) == len(algorithms())


def test_numpy_integers_are_whole_numbers():
    assert build_schedule("all_reduce", "ring", np.int64(4), channels=np.int32(2)).ranks == 4


@pytest.mark.parametrize("chunks", [None, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4, 9, 33])
def test_operations_are_bounded_before_they_are_written(ranks, chunks):
    for collective, table in BUILDERS.items():
        for name in table:
            counts = staircase(ranks, 7) if collective == "alltoallv" else None
            there = len(build_schedule(collective, name, ranks, channels=2, chunks=chunks, counts=counts).ops)
            bound = operations_at_most(collective, name, ranks, 2, chunks)
            assert there <= bound and (ranks == 2 or bound <= 2 * there)


def test_interleave_alternates():
    block = interleave(steps(kinds.SEND, src=(0, np.arange(2))), steps(kinds.RECV, dst=(1, [[5], [6]])))
    assert block["kind"].tolist() == [[kinds.SEND, kinds.RECV] * 2] * 2
    assert block["dst"][:, 1].tolist() == [5, 6]


def test_dependencies_become_indices():
    assembler = Assembler()
    assembler.add([1, 0], 7, steps(kinds.NOP, dep=(3, [0, 1])))
    assembler.add([0, 1], 3, steps(kinds.NOP, count=[1, 1, 1]))
    schedule = assembler.schedule("all_reduce", "mine", 2, input_chunks=1, output_chunks=1)
    assert schedule.threads["id"].tolist() == [3, 7, 3, 7]
    assert schedule.ops["dep"].tolist() == [-1, -1, -1, 0, 1, -1, -1, -1, 5, 6]


@pytest.mark.parametrize("dep", [(2, 0), (0, 5), (0, -1)])
def test_a_dependency_on_nothing_is_refused(dep):
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.NOP))
    assembler.add(0, 1, steps(kinds.NOP, dep=dep))
    with pytest.raises(ScheduleError, match=r"rank 0 thread 1 step 0 depends on thread \d step -?\d, which"):
        assembler.schedule("all_reduce", "mine", 1, input_chunks=1, output_chunks=1)


def test_absent_steps_leave_no_operation():
    """Who depends on one waits for what its thread has before it; a thread of nothing else is none."""
    assembler = Assembler()
    kind = np.array([[kinds.NOP, ABSENT, kinds.NOP], [ABSENT] * 3, [kinds.NOP, kinds.NOP, ABSENT]])
    assembler.add([0, 1, 1], [0, 0, 1], steps(kind))
    assembler.add([0, 1], 2, steps(kinds.NOP, dep=([[0], [1]], [[1, 2]])))
    schedule = assembler.schedule("all_reduce", "mine", 2, input_chunks=1, output_chunks=1)
    assert schedule.threads[["rank", "id"]].tolist() == [(0, 0), (0, 2), (1, 1), (1, 2)]
    assert schedule.threads["first"].tolist() == [0, 2, 4, 6]
    assert schedule.ops["dep"].tolist() == [-1, -1, 0, 1, -1, -1, 5, 5]


def test_a_dependency_on_what_is_absent_and_the_first_is_refused():
    assembler = Assembler()
    assembler.add(0, 0, steps([[ABSENT, kinds.NOP]]))
    assembler.add(0, 1, steps(kinds.NOP, dep=(0, 0)))
    with pytest.raises(ScheduleError, match="operation 1 depends on an absent step, and its thread has none before"):
        assembler.schedule("all_reduce", "mine", 1, input_chunks=1, output_chunks=1)


def test_two_threads_with_one_id_are_refused():
    assembler = Assembler()
    assembler.add([2, 2], 1, steps(kinds.NOP))
    with pytest.raises(ScheduleError, match="rank 2 has two threads with id 1"):
        assembler.schedule("all_reduce", "mine", 3, input_chunks=1, output_chunks=1)


def test_half_a_million_messages_are_built_at_once():
    build_schedule("all_reduce", "ring", 512)
    begin = time.perf_counter()
    schedule = build_schedule("all_reduce", "ring", 512)
    # 0.1 s on one core of 2026; the bound only catches a loop over operations.
    assert time.perf_counter() - begin < 2
    assert schedule.n_messages == 523_264
    assert (schedule.ops.nbytes + schedule.threads.nbytes) / schedule.n_messages < 64
