"""alltoallv: any counts between any ranks, against NumPy, in every dtype and wire format."""

import dataclasses

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import given
from hypothesis import strategies as st

from collemu import ScheduleError, build_schedule, emulate, load_system, quantize, save_schedule, verify
from collemu.check import check
from collemu.counts import MOST, largest_buffer, load_counts, staircase
from collemu.lower import lower
from collemu.model.bounds import lower_bound, port_elements
from collemu.model.choose import Choice, Task, fastest
from collemu.recipe import Recipe

SYSTEM = load_system("trainium4_nvl72")
ALGORITHMS = ("direct", "pairwise")


@st.composite
def tables(draw, most_ranks=12):
    """Counts with empty pairs, empty rows and columns, and now and then one pair that has nearly all."""
    ranks = draw(st.integers(1, most_ranks))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = random.integers(0, draw(st.sampled_from([1, 3, 50])), (ranks, ranks), endpoint=True)
    counts[random.random((ranks, ranks)) < draw(st.sampled_from([0.0, 0.5, 0.9]))] = 0
    counts[random.random(ranks) < draw(st.sampled_from([0.0, 0.3]))] = 0
    counts[:, random.random(ranks) < draw(st.sampled_from([0.0, 0.3]))] = 0
    if draw(st.booleans()):
        counts[tuple(random.integers(ranks, size=2))] = 3000
    return counts


def exchanged(counts, data, change=lambda block: block):
    """What each rank gets, block by block; blocks between different ranks are changed by the wire."""
    received = [[] for _ in counts]
    for source, row in enumerate(counts):
        at = 0
        for target, size in enumerate(row):
            block = data[source][at : at + size]
            received[target].append(change(block) if source != target and size else block)
            at += size
    return [np.concatenate(blocks) for blocks in received]


def same(outputs, expected):
    assert isinstance(outputs, list)
    assert len(outputs) == len(expected)
    for got, wanted in zip(outputs, expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@given(
    counts=tables(),
    algorithm=st.sampled_from(ALGORITHMS),
    channels=st.integers(1, 3),
    chunks=st.sampled_from([None, 1, 2, 5]),
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "int32", "int64", "uint8"]),
    fidelity=st.sampled_from(["packet", "flow"]),
)
def test_every_block_arrives(counts, algorithm, channels, chunks, dtype, fidelity):
    ranks = len(counts)
    schedule = build_schedule("alltoallv", algorithm, ranks, channels=channels, chunks=chunks, counts=counts)
    report = verify(schedule, slots=1)
    assert report.any_count
    random = np.random.default_rng(0)
    data = [random.integers(0, 100, size).astype(dtype) for size in counts.sum(axis=1)]
    result = emulate(schedule, SYSTEM, dtype=dtype, data=data, fidelity=fidelity)
    same(result.outputs, exchanged(counts, data))
    others = counts.sum() - np.trace(counts)
    assert result.wire_bytes == others * np.dtype(dtype).itemsize
    assert result.time_fs >= result.bounds.total_fs
    # a message for every piece that has elements, and no other
    pieces = channels * (chunks or 1) if ranks > 1 else 1
    off = ~np.eye(ranks, dtype=bool)
    assert report.messages == np.minimum(counts, pieces)[off].sum()


@given(
    counts=tables(8),
    algorithm=st.sampled_from(ALGORITHMS),
    wire=st.sampled_from(["mxfp8_e4m3", "mxfp4", "nvfp4", "fp8_block128", "int4_block32"]),
)
def test_what_travels_is_rounded_once(counts, algorithm, wire):
    """Blocks of a format begin with each pair's first element; odd counts leave half a byte of FP4."""
    schedule = build_schedule("alltoallv", algorithm, len(counts), counts=counts)
    random = np.random.default_rng(1)
    data = [random.standard_normal(size).astype(np.float32) for size in counts.sum(axis=1)]
    result = emulate(schedule, SYSTEM, wire=wire, data=data)
    same(result.outputs, exchanged(counts, data, lambda block: quantize(block, wire).dequantize()))
    sizes = [
        [0 if i == j or not n else quantize(np.zeros(n), wire).nbytes for j, n in enumerate(row)]
        for i, row in enumerate(counts)
    ]
    assert result.wire_bytes_per_rank.tolist() == np.sum(sizes, axis=1).tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rack(algorithm):
    random = np.random.default_rng(2)
    counts = random.integers(0, 200, (72, 72)) * (random.random((72, 72)) < 0.7)
    schedule = build_schedule("alltoallv", algorithm, 72, counts=counts)
    verify(schedule)
    data = [random.standard_normal(size).astype(np.float32) for size in counts.sum(axis=1)]
    result = emulate(schedule, SYSTEM, data=data)
    same(result.outputs, exchanged(counts, data))
    assert result.time_fs >= result.bounds.total_fs


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("fidelity", ["packet", "flow"])
@pytest.mark.parametrize("wire", ["none", "mxfp4"])
@pytest.mark.parametrize(("ranks", "count"), [(1, 5), (2, 64), (5, 33), (12, 100)])
def test_equal_counts_are_an_alltoall(algorithm, fidelity, wire, ranks, count):
    """To the bit, and to the femtosecond."""
    data = np.random.default_rng(3).standard_normal((ranks, ranks * count)).astype(np.float32)
    plain = build_schedule("alltoall", algorithm, ranks, channels=2)
    uneven = build_schedule("alltoallv", algorithm, ranks, channels=2, counts=np.full((ranks, ranks), count))
    one = emulate(plain, SYSTEM, count=count, data=data, wire=wire, fidelity=fidelity)
    other = emulate(uneven, SYSTEM, data=data, wire=wire, fidelity=fidelity)
    assert np.array_equal(one.outputs, other.outputs)
    assert one.time_fs == other.time_fs
    assert one.bounds.total_fs == other.bounds.total_fs
    assert one.wire_bytes_per_rank.tolist() == other.wire_bytes_per_rank.tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_at_all_takes_the_launch_alone(algorithm):
    schedule = build_schedule("alltoallv", algorithm, 4, counts=np.zeros((4, 4), int))
    result = emulate(schedule, SYSTEM, data=[[]] * 4)
    assert [len(row) for row in result.outputs] == [0] * 4
    assert result.wire_bytes == 0
    assert result.time_fs == result.bounds.total_fs == SYSTEM.endpoint.launch_fs


def test_the_busiest_port_bounds_the_time():
    counts = np.zeros((8, 8), int)
    counts[:, 3] = 100_000
    assert port_elements("alltoallv", 8, 0, counts=counts)[0] == 700_000
    result = emulate(build_schedule("alltoallv", "direct", 8, counts=counts), SYSTEM)
    assert result.bounds.port_bytes == 2_800_000
    assert result.bounds.total_fs <= result.time_fs <= 1.3 * result.bounds.total_fs
    # beyond a domain: what each domain takes in crosses the network, of which every chip has a share
    far = load_system("h100_hgx@efa_p5en")
    counts = np.zeros((16, 16), int)
    counts[:8, 8:] = 1000
    bound = lower_bound("alltoallv", 16, 0, 32, far, counts=counts)
    assert (bound.name, bound.port_bytes) == ("crossing domains", 64 * 1000 * 4 / 8)
    assert emulate(build_schedule("alltoallv", "direct", 16, counts=counts), far).time_fs >= bound.total_fs


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nan_travels(algorithm):
    counts = np.array([[0, 2], [1, 1]])
    data = [np.array([np.nan, -0.0], np.float32), np.array([np.inf, np.nan], np.float32)]
    result = emulate(build_schedule("alltoallv", algorithm, 2, counts=counts), SYSTEM, data=data)
    same(result.outputs, exchanged(counts, data))
    assert np.signbit(result.outputs[1][1])


def test_codes_stay_codes():
    counts = np.array([[1, 2, 0], [0, 0, 3], [4, 0, 0]])
    data = [np.arange(size, dtype=np.uint8) for size in (3, 3, 4)]
    result = emulate(build_schedule("alltoallv", "direct", 3, counts=counts), SYSTEM, dtype="float8_e4m3fn", data=data)
    same(result.outputs, exchanged(counts, data))


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (None, "alltoallv needs counts: 2 rows of 2 elements, row i what rank i sends to each"),
        ([[1, 2]], r"counts has shape \(1, 2\); give n rows of n whole numbers"),
        ([[1, 2], [3]], "counts: rows of different lengths are no table"),
        ([[1]], "counts has 1 rows and columns; 2 ranks need 2"),
        ([[1, 2], [3, 4.5]], "counts has dtype float64; give whole numbers"),
        ([[1, 2], [-3, 4]], "counts: -3 elements from rank 1 to rank 0; give 0 to"),
        ([[1, MOST + 1], [3, 4]], "elements from rank 0 to rank 1; give 0 to"),
        ([], r"counts has shape \(0,\)"),
    ],
)
def test_counts_that_are_none_are_refused(counts, text):
    with pytest.raises(ValueError, match=text):
        build_schedule("alltoallv", "direct", 2, counts=counts)


def test_a_count_must_be_left_out_or_be_the_largest_buffer():
    counts = np.array([[0, 5], [9, 1]])
    schedule = build_schedule("alltoallv", "direct", 2, counts=counts)
    assert largest_buffer(counts) == 10
    assert emulate(schedule, SYSTEM, count=10).time_fs == emulate(schedule, SYSTEM).time_fs
    with pytest.raises(ValueError, match="count is 4; the counts of this alltoallv make it 10: leave it out"):
        emulate(schedule, SYSTEM, count=4)


def test_data_that_is_no_list_is_refused():
    schedule = build_schedule("alltoallv", "direct", 2, counts=[[1, 1], [1, 1]])
    with pytest.raises(ValueError, match="data is 5; alltoallv takes a list of arrays, one a rank"):
        emulate(schedule, SYSTEM, data=5)


def test_data_of_other_sizes_is_refused():
    schedule = build_schedule("alltoallv", "direct", 2, counts=[[0, 5], [9, 1]])
    with pytest.raises(ValueError, match=r"data of rank 1 has shape \(9,\); alltoallv over 2 ranks takes \(10,\)"):
        emulate(schedule, SYSTEM, data=[np.zeros(5), np.zeros(9)])
    with pytest.raises(ValueError, match="data of rank 0: an array of"):
        emulate(schedule, SYSTEM, dtype="int32", data=[np.zeros(5), np.zeros(10)])


def test_counts_are_the_schedules_own():
    counts = np.array([[0, 5], [9, 1]])
    schedule = build_schedule("alltoallv", "direct", 2, counts=counts)
    counts[0, 1] = 7
    assert schedule.counts[0, 1] == 5
    assert schedule.chunk_starts(kinds.INPUT, 0).tolist() == [[0, 0, 5], [0, 9, 10]]
    assert schedule.chunk_starts(kinds.OUTPUT, 0).tolist() == [[0, 0, 9], [0, 5, 6]]
    assert schedule.chunk_starts(kinds.SCRATCH, 0).tolist() == [[0], [0]]
    with pytest.raises(ValueError, match="read-only"):
        schedule.counts[0, 1] = 7


def test_verify_wants_counts_where_they_belong():
    uneven = build_schedule("alltoallv", "direct", 2, counts=[[0, 5], [9, 1]])
    with pytest.raises(ScheduleError, match="alltoallv of 2 ranks lacks counts"):
        verify(dataclasses.replace(uneven, counts=None))
    with pytest.raises(ScheduleError, match=r"counts have shape \(3, 3\); they must be 2 rows and columns"):
        verify(dataclasses.replace(uneven, counts=np.ones((3, 3), np.int64)))
    with pytest.raises(ScheduleError, match="alltoall of 2 ranks has counts, which only an alltoallv takes"):
        verify(dataclasses.replace(uneven, collective="alltoall"))


def test_verify_and_lower_find_a_block_that_goes_astray():
    schedule = build_schedule("alltoallv", "direct", 3, counts=[[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    ops = schedule.ops.copy()
    received = np.flatnonzero(ops["kind"] == kinds.RECV)
    ops["dst"][received[:2]] = ops["dst"][received[1::-1]]
    swapped = dataclasses.replace(schedule, ops=ops)
    with pytest.raises(ScheduleError, match="stores a chunk where counts have room for another"):
        verify(swapped)
    with pytest.raises(ScheduleError, match=r"sends \d elements, .* expects \d"):
        lower(swapped, 24, item_bytes=4)


def test_msccl_cannot_say_it(tmp_path):
    schedule = build_schedule("alltoallv", "direct", 2, counts=[[0, 5], [9, 1]])
    with pytest.raises(ScheduleError, match="MSCCL has no counts for pairs of ranks"):
        save_schedule(schedule, tmp_path / "mine.xml")


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 72])
@pytest.mark.parametrize("count", [0, 1, 100, 4096])
def test_the_staircase_gives_every_rank_as_much(ranks, count):
    counts = staircase(ranks, count)
    assert counts.min() >= 0
    assert counts.sum(axis=0).tolist() == counts.sum(axis=1).tolist() == [ranks * count] * ranks


def test_the_staircase_is_rccl_tests():
    """By hand for 4 ranks and 10 elements a block: steps of 5, and 10 where there are none."""
    assert staircase(4, 10).tolist() == [[10, 5, 10, 15], [5, 10, 15, 10], [10, 15, 10, 5], [15, 10, 5, 10]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("wire", ["none", "fp8_block128", "mxfp4"])
def test_check_finds_nothing_wrong(algorithm, wire):
    counts = np.random.default_rng(4).integers(0, 100, (6, 6))
    schedule = build_schedule("alltoallv", algorithm, 6, counts=counts)
    outcome = check(schedule, SYSTEM, recipe=Recipe(wire=wire))
    assert (outcome.wrong, outcome.elements, outcome.exact) == (0, counts.sum(), True)
    large = check(build_schedule("alltoallv", algorithm, 6, counts=counts * 10**7), SYSTEM, recipe=Recipe(wire=wire))
    assert large.wrong == 0
    assert large.elements * 8 < 2**27
    assert large.count < largest_buffer(counts) * 10**7


def test_the_faster_algorithm_is_chosen():
    counts = staircase(16, 4)
    task = Task("alltoallv", 16, SYSTEM, counts=counts)
    assert fastest(task, [Choice("direct"), Choice("pairwise")], 4).algorithm == "direct"


def test_files_of_counts(tmp_path):
    table = np.array([[1, 2, 3], [0, 0, 0], [7, 0, 5]])
    np.save(tmp_path / "a.npy", table)
    (tmp_path / "a.csv").write_text("1,2,3\n0, 0,0\n\n7 0 5\n")
    for name in ("a.npy", "a.csv"):
        assert load_counts(str(tmp_path / name)).tolist() == table.tolist()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", b"1,2\n3\n", "rows of different lengths are no table"),
        ("a.csv", b"1,2\n3,x\n", "invalid literal .*; give n rows of n whole numbers"),
        ("a.csv", b"", "has shape"),
        ("a.csv", b"\xff\xfe\x00", "cannot be read"),
        ("a.npy", b"nonsense", "give n rows of n whole numbers"),
        ("b.csv", None, "no such file"),
    ],
)
def test_files_that_hold_none_are_refused(name, content, text, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=text) as caught:
        load_counts(str(tmp_path / name))
    assert str(caught.value).startswith(f"counts {tmp_path / name}")
    assert "\n" not in str(caught.value)
