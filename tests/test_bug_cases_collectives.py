"""Bugs of other collective libraries and simulators, each with the value that is right.

The first words of each docstring name where the bug was; inputs are our own.
"""

import numpy as np
import pytest

import collemu as ce
from collemu.schedule import build_schedule
from tests.built_in import BUILT_IN, COLLECTIVES


def each(*collectives):
    return pytest.mark.parametrize(("collective", "algorithm"), [pair for pair in BUILT_IN if pair[0] in collectives])


@pytest.fixture(scope="module")
def system():
    return ce.load_system("trainium4_nvl72")


@pytest.fixture
def run(system):
    """Build and emulate in a line."""

    def build_and_emulate(collective, algorithm, ranks, count, data=None, *, root=0, channels=1, **how):
        schedule = build_schedule(collective, algorithm, ranks, root=root, channels=channels)
        ce.verify(schedule)
        return ce.emulate(schedule, how.pop("system", system), count=count, data=data, **how)

    return build_and_emulate


# a3: reduce_scatter gives the wrong half, or is wrong where the count does not divide.


@each("reduce_scatter")
def test_a3_reduce_scatter_gives_each_rank_its_own_half(run, collective, algorithm):
    """pytorch/gloo#303: both ranks hold 1..6, 11..16."""
    data = np.tile(np.array([*range(1, 7), *range(11, 17)], np.int32), (2, 1))
    outputs = run(collective, algorithm, 2, 6, data, dtype="int32").outputs
    assert outputs.tolist() == [[2, 4, 6, 8, 10, 12], [22, 24, 26, 28, 30, 32]]


@each("reduce_scatter")
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a3_reduce_scatter_of_a_count_that_does_not_divide(run, collective, algorithm, channels):
    """intel/mpi-benchmarks PR#11: 6 ranks, 25 elements a rank."""
    data = np.random.default_rng(3).integers(-999, 999, (6, 6 * 25), np.int32)
    outputs = run(collective, algorithm, 6, 25, data, channels=channels, dtype="int32").outputs
    assert outputs.shape == (6, 25)
    np.testing.assert_array_equal(outputs, data.sum(axis=0).reshape(6, 25))


# a5: an average overflows on the way, or a tail of one rank is left out.


@each("all_reduce", "reduce")
@pytest.mark.parametrize("wire", [None, "float16"])
def test_a5_float16_average_of_40000_is_40000(run, collective, algorithm, wire):
    """meta-pytorch/torchcomms PR#4071, horovod#1699: the sum 160000 is beyond float16, the mean is not."""
    data = np.full((4, 5), 4e4, np.float16)
    result = run(collective, algorithm, 4, 5, data, op="avg", dtype="float16", wire=wire)
    assert result.outputs.dtype == np.float16
    assert result.outputs[0].tolist() == [40000.0] * 5


@each("all_reduce", "reduce_scatter")
@pytest.mark.parametrize("wire", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn"])
def test_a5_average_on_an_unscaled_wire_does_not_saturate(run, collective, algorithm, wire):
    """The same kind of bug on narrow wires: 4 ranks of 4 have the mean 4, also where 16 has no code."""
    count = 8 if collective == "all_reduce" else 2
    result = run(collective, algorithm, 4, count, np.full((4, 8), 4, np.float32), op="avg", wire=wire)
    assert (result.outputs == 4).all()


@each("all_reduce", "reduce")
def test_a5_bfloat16_average_of_three(run, collective, algorithm):
    """meta-pytorch/torchcomms PR#4069: (1 + 2 + 3) / 3 is 2.0."""
    data = np.repeat(np.float32([[1], [2], [3]]), 10, axis=1)
    result = run(collective, algorithm, 3, 10, data, op="avg", dtype="bfloat16")
    assert result.outputs[0].tolist() == [2.0] * 10


@each("all_reduce", "reduce", "reduce_scatter")
@pytest.mark.parametrize("wire", [None, "mxfp4"])
def test_a5_average_over_one_rank_returns_every_bit(run, collective, algorithm, wire):
    """nccl#1950: 10 elements, not a multiple of 8."""
    codes = np.arange(0x3F80, 0x3F8A, dtype=np.uint16)[None]
    result = run(collective, algorithm, 1, 10, codes, op="avg", dtype="bfloat16", wire=wire)
    np.testing.assert_array_equal(result.outputs, codes, strict=True)


# a7: the root is not rank 0.


@each("reduce")
@pytest.mark.parametrize(("ranks", "root"), [(5, 3), (5, 4), (2, 1), (7, 6)])
def test_a7_reduce_ends_at_its_root(run, collective, algorithm, ranks, root):
    """LLNL/Aluminum#74."""
    data = np.arange(ranks * 9, dtype=np.int64).reshape(ranks, 9)
    outputs = run(collective, algorithm, ranks, 9, data, root=root, dtype="int64").outputs
    np.testing.assert_array_equal(outputs[root], data.sum(axis=0))


@each("broadcast")
@pytest.mark.parametrize(("ranks", "root"), [(6, 5), (6, 1), (3, 2), (2, 1)])
@pytest.mark.parametrize("wire", [None, "mxfp8_e4m3"])
def test_a7_broadcast_starts_at_its_root(run, collective, algorithm, ranks, root, wire):
    """bytedance/byteir PR#286, charmplusplus/charm#2332: all hold copies of rank 5's values."""
    data = np.repeat(np.arange(ranks, dtype=np.float32)[:, None], 11, axis=1) + 1
    outputs = run(collective, algorithm, ranks, 11, data, root=root, wire=wire).outputs
    np.testing.assert_array_equal(outputs, np.tile(data[root], (ranks, 1)))


@each("broadcast", "reduce")
@pytest.mark.parametrize("root", [-1, 6, 7])
def test_a7_a_root_that_is_no_rank_is_refused(collective, algorithm, root):
    """LLNL/Aluminum#74: root = n."""
    with pytest.raises(ValueError, match=f"root.*{root}") as caught:
        build_schedule(collective, algorithm, 6, root=root)
    assert "\n" not in str(caught.value)


# a9: nothing to send.


@each(*COLLECTIVES)
@pytest.mark.parametrize("wire", [None, "float8_e4m3fn", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a9_zero_elements(run, collective, algorithm, wire, op, ranks):
    """pytorch#85234, gloo#179, simgrid#87: no division by zero; empty outputs, a finite time."""
    result = run(collective, algorithm, ranks, 0, np.zeros((ranks, 0), np.float32), wire=wire, op=op)
    assert result.outputs.shape == (ranks, 0)
    assert result.outputs.dtype == np.float32
    assert np.isfinite(result.time_s) and result.time_s >= 0
    assert result.time_fs >= result.bounds.total_fs
    assert result.wire_bytes == 0
    assert np.isfinite(result.links.max_utilisation)


@each(*COLLECTIVES)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float64", "bfloat16", "float8_e5m2"])
def test_a9_zero_elements_of_every_kind_of_dtype(run, collective, algorithm, dtype):
    """pytorch#85234 for other dtypes."""
    data = np.zeros((3, 0), np.int8 if dtype.startswith("int") else np.float32)
    assert run(collective, algorithm, 3, 0, data, dtype=dtype, op="avg").outputs.shape == (3, 0)


# a12: sums of 8-bit floats stop after 16 elements.


@each("all_reduce")
@pytest.mark.parametrize("count", [1, 15, 17, 33, 64, 1003])
@pytest.mark.parametrize(("op", "code"), [("sum", 0x50), ("max", 0x38), ("min", 0x38), ("avg", 0x38)])
def test_a12_every_float8_is_added(run, collective, algorithm, count, op, code):
    """Azure/msccl-executor-nccl#38, ROCm/rccl PR#1556: 8 ranks of 1.0 (0x38) make 8.0 (0x50), the tail too."""
    data = np.full((8, count), 0x38, np.uint8)
    outputs = run(collective, algorithm, 8, count, data, op=op, dtype="float8_e4m3fn").outputs
    assert outputs.dtype == np.uint8
    assert (outputs == code).all()


@each("all_reduce")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_a12_tails_that_fill_no_line(run, collective, algorithm, dtype):
    """microsoft/mscclpp#682: 33 elements, 66 bytes of float16, as floats in and out."""
    outputs = run(collective, algorithm, 8, 33, np.ones((8, 33), np.float32), dtype=dtype).outputs
    assert (outputs.astype(np.float32) == 8).all()


# a13: a ring of several channels sends one share twice.


@each("all_gather")
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a13_all_gather_on_two_channels_has_every_element_once(run, collective, algorithm, ranks, channels):
    """ml-explore/mlx PR#4443, tenstorrent/tt-metal#25212: an odd count, values 1000 * rank + index."""
    data = 1000 * np.arange(ranks, dtype=np.int32)[:, None] + np.arange(7, dtype=np.int32)
    result = run(collective, algorithm, ranks, 7, data, channels=channels, dtype="int32")
    np.testing.assert_array_equal(result.outputs, np.tile(data.reshape(-1), (ranks, 1)))
    assert result.wire_bytes == ranks * (ranks - 1) * 7 * 4


# d5: bandwidth that no wire has.


def test_d5_a_ring_of_a_gibibyte_stays_below_the_wire_speed(run, system):
    """nccl-tests#312, astra-sim#296: bus bandwidth is 7/4 of algorithm bandwidth, at most 1800 GB/s."""
    nbytes = 2**30
    result = run("all_reduce", "ring", 8, nbytes // 4, timeline=False)
    bus = nbytes / result.time_s * 1.75
    assert 1e12 < bus <= 1.8e12
    assert result.time_fs >= result.bounds.total_fs
    assert result.links.max_utilisation <= 1


@each("alltoall")
def test_d5_alltoall_counts_one_ranks_buffer(run, collective, algorithm):
    """nccl-tests#181, PR#59: 8 MiB a rank; 7/8 of it leaves the chip, and what goes by way of others, twice or more."""
    nbytes = 8 * 2**20
    eighths = {"bruck": 12, "hierarchical": 10}.get(algorithm, 7)
    result = run(collective, algorithm, 8, nbytes // 4 // 8)
    assert (result.wire_bytes_per_rank == nbytes * eighths // 8).all()
    assert nbytes / result.time_s * 7 / 8 <= 1.8e12


# e1: the result does not move with sizes, ranks or rates.


def test_e1_twice_the_bytes_take_twice_the_time(run):
    """aliyun/SimAI#136, #208: ring all_reduce of 256 MiB against 512 MiB on 8 ranks."""
    small, large = (run("all_reduce", "ring", 8, size * 2**18, timeline=False).time_fs for size in (256, 512))
    assert 1.9 <= large / small <= 2.1


def test_e1_half_the_rates_take_twice_the_time(run, system):
    """astra-sim#207, simgrid#338: every link rate halved, and the endpoint's with it."""
    rates = ("domain.link_bytes_per_s", "endpoint.copy_bytes_per_s", "endpoint.reduce_bytes_per_s")
    half = system.with_(**{name: system.provenance[name].value / 2 for name in rates})
    times = [
        run("all_reduce", "ring", 8, 256 * 2**18, timeline=False, system=where).time_fs for where in (system, half)
    ]
    assert 1.9 <= times[1] / times[0] <= 2.1


def test_e1_half_the_link_rate_alone_takes_twice_the_time(run, system):
    """astra-sim#207, simgrid#338: every link rate halved in a copy, nothing else."""
    half = system.with_(**{"domain.link_bytes_per_s": 25e9})
    times = [
        run("all_reduce", "ring", 8, 256 * 2**18, timeline=False, system=where).time_fs for where in (system, half)
    ]
    assert 1.9 <= times[1] / times[0] <= 2.1


def test_e1_more_ranks_take_longer(run):
    """aliyun/SimAI#136: 32 ranks against 64."""
    results = [run("all_reduce", "ring", ranks, 2**22, timeline=False) for ranks in (8, 32, 64)]
    assert results[0].time_fs < results[1].time_fs < results[2].time_fs
    assert all(result.time_fs >= result.bounds.total_fs for result in results)


# e3: latency counted once a hop, in the right unit.


def test_e3_one_element_takes_two_hops(run):
    """astra-sim#317: at least 300 ns, less than 100 us, in seconds."""
    assert 300e-9 <= run("sendrecv", "direct", 2, 1).time_s < 100e-6


def test_e3_a_ring_of_eight_has_fourteen_steps(run):
    """astra-sim#317: at least 14 * 300 ns."""
    assert 4.2e-6 <= run("all_reduce", "ring", 8, 8).time_s < 100e-6


def test_e3_twice_the_hop_latency_moves_both_by_its_count(run, system):
    """astra-sim#317: two hops a message and no more: 300 ns for one message, 14 times that for the ring."""
    doubled = system.with_(**{"domain.hop_latency_s": 300e-9})
    for collective, algorithm, ranks, count, messages in (
        ("sendrecv", "direct", 2, 1, 1),
        ("all_reduce", "ring", 8, 8, 14),
    ):
        times = [run(collective, algorithm, ranks, count, system=where).time_fs for where in (system, doubled)]
        assert times[1] - times[0] == messages * 300_000_000
