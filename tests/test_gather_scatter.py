"""gather and scatter: blocks reach the root, or come from it, by every algorithm, in every dtype and wire format."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collemu import (
    ScheduleError,
    algorithms,
    build_schedule,
    emulate,
    encode,
    load_schedule,
    load_system,
    quantize,
    save_schedule,
    verify,
)
from collemu.check import check
from collemu.matching import match_messages
from collemu.recipe import Recipe
from collemu.reference import reference

SYSTEM = load_system("trainium4_nvl72")
PAIRS = [(collective, name) for collective in ("gather", "scatter") for name in ("direct", "chain", "binomial")]

every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), PAIRS)


def given_by(collective, blocks, root):
    """Inputs of all ranks for the blocks of n ranks, as users give them."""
    if collective == "gather":
        return list(blocks)
    return [blocks.reshape(-1) if rank == root else blocks.reshape(-1)[:0] for rank in range(len(blocks))]


def got(collective, outputs, root):
    """The blocks that came out, after a look at who got how many."""
    assert isinstance(outputs, list)
    if collective == "scatter":
        return np.stack(outputs)
    assert all(len(outputs[rank]) == 0 for rank in range(len(outputs)) if rank != root)
    return outputs[root].reshape(len(outputs), -1)


def test_algorithm_names():
    for collective in ("gather", "scatter"):
        assert algorithms(collective) == ("direct", "chain", "binomial")


@given(
    pair=st.sampled_from(PAIRS),
    ranks=st.integers(1, 12),
    root=st.integers(0, 11),
    count=st.integers(0, 40),
    channels=st.integers(1, 3),
    chunks=st.sampled_from([None, 1, 2, 5]),
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "int32", "int64", "uint8"]),
    fidelity=st.sampled_from(["packet", "flow"]),
)
def test_blocks_arrive_as_they_were(pair, ranks, root, count, channels, chunks, dtype, fidelity):
    collective, algorithm = pair
    root %= ranks
    schedule = build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks)
    assert verify(schedule, slots=1).any_count
    blocks = np.random.default_rng(count).integers(0, 100, (ranks, count)).astype(dtype)
    data = given_by(collective, blocks, root)
    result = emulate(schedule, SYSTEM, count=count, dtype=dtype, data=data, fidelity=fidelity)
    out = got(collective, result.outputs, root)
    assert out.dtype == blocks.dtype
    np.testing.assert_array_equal(out, blocks)
    assert result.replicas_identical is None
    assert result.time_fs >= result.bounds.total_fs


@every_algorithm
@pytest.mark.parametrize("root", [0, 71])
def test_a_rack(collective, algorithm, root):
    schedule = build_schedule(collective, algorithm, 72, root=root)
    blocks = np.random.default_rng(1).standard_normal((72, 33)).astype(np.float32)
    result = emulate(schedule, SYSTEM, count=33, data=given_by(collective, blocks, root))
    np.testing.assert_array_equal(got(collective, result.outputs, root), blocks)
    assert result.bounds.port_bytes == 71 * 33 * 4


@every_algorithm
@pytest.mark.parametrize("wire", ["bfloat16", "float8_e4m3fn", "mxfp8_e4m3", "mxfp4", "nvfp4", "fp8_block128"])
@pytest.mark.parametrize(("ranks", "root", "count"), [(3, 1, 33), (6, 5, 1), (8, 0, 131)])
def test_what_travels_is_rounded_once(collective, algorithm, wire, ranks, root, count):
    """However many hops a block takes; the root's own block stays at home. An odd count leaves half a byte of FP4."""
    schedule = build_schedule(collective, algorithm, ranks, root=root)
    blocks = np.random.default_rng(2).standard_normal((ranks, count)).astype(np.float32)
    result = emulate(schedule, SYSTEM, count=count, wire=wire, data=given_by(collective, blocks, root))
    expected = [quantised(block, wire) for block in blocks]
    expected[root] = blocks[root]
    np.testing.assert_array_equal(got(collective, result.outputs, root), np.stack(expected))


def quantised(block, wire):
    if wire == "bfloat16":
        bits = block.view(np.uint32).astype(np.uint64)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    if wire == "float8_e4m3fn":
        from collemu import decode

        return decode(encode(block, wire), wire)
    return quantize(block, wire).dequantize()


@every_algorithm
def test_nan_and_infinity_travel(collective, algorithm):
    """A wire of elements saturates; that of blocks makes a NaN of all that shares a scale with one."""
    blocks = np.array([[1, np.nan, 3], [np.inf, 5, -0.0], [-np.inf, 8, 9]], np.float32)
    schedule = build_schedule(collective, algorithm, 3, root=1)
    largest = np.float32(np.finfo(np.float32).max // 2**120 * 2**120)
    beyond, lost = blocks.copy(), blocks.copy()
    beyond[2, 0], lost[0], lost[2] = -largest, np.nan, np.nan
    for wire, expected in (("none", blocks), ("bfloat16", beyond), ("mxfp8_e4m3", lost)):
        result = emulate(schedule, SYSTEM, count=3, wire=wire, data=given_by(collective, blocks, 1))
        np.testing.assert_array_equal(got(collective, result.outputs, 1), expected)


@every_algorithm
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_codes_stay_codes(collective, algorithm, dtype):
    kind = np.uint8 if dtype == "float8_e4m3fn" else np.uint16
    blocks = np.arange(4 * 7).reshape(4, 7).astype(kind)
    schedule = build_schedule(collective, algorithm, 4, root=2)
    result = emulate(schedule, SYSTEM, count=7, dtype=dtype, data=given_by(collective, blocks, 2))
    out = got(collective, result.outputs, 2)
    assert out.dtype == kind
    np.testing.assert_array_equal(out, blocks)


def test_plain_arrays_will_do():
    blocks = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    gathered = emulate(build_schedule("gather", "direct", 4, root=3), SYSTEM, count=3, data=blocks)
    assert gathered.outputs[3].tolist() == list(range(12))
    scattered = emulate(build_schedule("scatter", "direct", 4, root=3), SYSTEM, count=3, data=blocks.reshape(-1))
    assert [row.tolist() for row in scattered.outputs] == blocks.tolist()


@pytest.mark.parametrize(
    ("collective", "data", "text"),
    [
        ("gather", [[1, 2], [3, 4]], "data has 2 arrays; gather over 3 ranks takes one a rank"),
        ("gather", [[1, 2], [3, 4], [5]], r"data of rank 2 has shape \(1,\); gather over 3 ranks takes \(2,\) from it"),
        ("scatter", [[1] * 6, [], []], r"data of rank 0 has shape \(6,\); scatter over 3 ranks takes \(0,\) from it"),
        ("scatter", np.zeros(5), r"data of rank 1 has shape \(5,\); scatter over 3 ranks takes \(6,\) from it"),
    ],
)
def test_other_shapes_are_refused(collective, data, text):
    schedule = build_schedule(collective, "direct", 3, root=1)
    with pytest.raises(ValueError, match=text):
        emulate(schedule, SYSTEM, count=2, data=data)


def test_a_missing_count_is_named():
    with pytest.raises(ValueError, match="count is missing; gather needs the elements a rank"):
        emulate(build_schedule("gather", "direct", 3), SYSTEM)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 33, 72])
def test_messages_and_steps(n):
    levels = (n - 1).bit_length()
    for collective in ("gather", "scatter"):
        for algorithm, depth, messages, blocks in (
            ("direct", 1, n - 1, n - 1),
            ("chain", n - 1, n * (n - 1) // 2, n * (n - 1) // 2),
            # A place is as many hops from the root as it has bits set, and its block travels all of them.
            ("binomial", levels, n - 1, sum(place.bit_count() for place in range(n))),
        ):
            schedule = build_schedule(collective, algorithm, n, root=n // 2)
            report = verify(schedule)
            assert (report.messages, report.chunks_sent) == (messages, blocks)
            # A chain works on several blocks at once: the longest path follows one thread's order, too.
            assert report.depth == depth if algorithm != "binomial" else report.depth <= depth
            if algorithm == "chain":
                sender = match_messages(schedule).sender
                threads = schedule.threads[schedule.thread_of_op[sender]]
                assert len(np.unique(threads["send_peer"])) == (1 if n == 2 else n - 1)


def test_verify_finds_a_block_that_goes_astray():
    schedule = build_schedule("gather", "chain", 4)
    ops = schedule.ops.copy()
    last = np.flatnonzero(schedule.threads["rank"][schedule.thread_of_op] == 0)[-1]
    ops["dst"][last] = 1
    import dataclasses

    with pytest.raises(ScheduleError, match=r"rank 0 output\[1\] .*(; 1 more output chunks are wrong)?"):
        verify(dataclasses.replace(schedule, ops=ops))


@pytest.mark.parametrize("in_place", [False, True])
@every_algorithm
def test_msccl_files_keep_them(collective, algorithm, in_place, tmp_path):
    import dataclasses

    schedule = dataclasses.replace(build_schedule(collective, algorithm, 4, root=2), in_place=in_place)
    verify(schedule)
    path = tmp_path / "mine.xml"
    save_schedule(schedule, path)
    again = load_schedule(path, collective=collective)
    assert (again.collective, again.root, again.in_place) == (collective, 2, in_place)
    verify(again)
    blocks = np.arange(20, dtype=np.int32).reshape(4, 5)
    result = emulate(again, SYSTEM, count=5, dtype="int32", data=given_by(collective, blocks, 2))
    if not in_place:
        np.testing.assert_array_equal(got(collective, result.outputs, 2), blocks)


@every_algorithm
@pytest.mark.parametrize("wire", ["none", "nvfp4", "fp8_block128"])
def test_check_finds_nothing_wrong(collective, algorithm, wire):
    outcome = check(build_schedule(collective, algorithm, 5, root=4), SYSTEM, count=1001, recipe=Recipe(wire=wire))
    assert (outcome.wrong, outcome.elements, outcome.count, outcome.exact) == (0, 5005, 1001, True)


def test_reference():
    data = [np.array([1, 2]), np.array([3, 4])]
    assert reference("gather", data, root=1).tolist() == [1, 2, 3, 4]
    assert reference("scatter", [np.arange(4), np.arange(0)], root=0).tolist() == [0, 1, 2, 3]
