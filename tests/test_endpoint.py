"""What operations cost at their chips: conversions, and what passes the memory."""

import numpy as np
import pytest

import collemu as ce
from collemu.endpoint import conversions_of, memory_of
from collemu.lower import lower
from collemu.number_formats import find_format

SYSTEM = ce.load_system("b200_hgx")
SIMPLE = SYSTEM.protocols["simple"]
M = 4 * 1000  # bytes of a region of 1000 float32


def lowered(collective, algorithm, ranks, wire=None, count=1000):
    schedule = ce.build_schedule(collective, algorithm, ranks)
    return lower(schedule, count, item_bytes=4, wire=None if wire is None else find_format(wire).format_id)


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "of_a_rank"),
    [
        # sent: read. Come: written into a slot, read, written to its place.
        ("sendrecv", "direct", "simple", 4 * M),
        # sent: read. Come: written to its place.
        ("sendrecv", "direct", "dma", 2 * M),
        # read by two switches' reductions of half; half written as a sum, read and stored; all of it stored to
        ("all_reduce", "nvls", "simple", M + M // 2 + M // 2 + M),
        # read, and stored to by both
        ("all_gather", "nvls", "simple", M + 2 * M),
    ],
)
def test_what_passes_the_memory(collective, algorithm, protocol, of_a_rank):
    dma = ce.load_system("trainium4_nvl72").with_(**{"domain.in_switch_reduction": True})
    result = ce.emulate(
        ce.build_schedule(collective, algorithm, 2), dma if protocol == "dma" else SYSTEM, count=1000, protocol=protocol
    )
    assert result.memory_bytes.tolist() == [of_a_rank] * 2
    chip = dma.chip if protocol == "dma" else SYSTEM.chip
    assert result.memory_utilisation == pytest.approx(of_a_rank / chip.hbm_bytes_per_s / result.time_s)


def test_fused_operations_save_passes():
    """A ring of three: send reads; what adds and sends reads its slot and the own term; and so on."""
    each = M // 4
    ring = lower(ce.build_schedule("all_reduce", "ring", 4), 1000, item_bytes=4)
    passes = memory_of(ring, SIMPLE).reshape(4, -1) // each
    # send, 2 recv_reduce_send, recv_reduce_copy_send, 2 recv_copy_send, recv
    assert passes.tolist() == [[1, 2, 2, 3, 2, 2, 2]] * 4


def test_a_slow_memory_is_the_time():
    slow = SYSTEM.with_(**{"chip.hbm_bytes_per_s": 1e9, "endpoint.launch_s": 0})
    result = ce.emulate(ce.build_schedule("reduce", "tree", 1), slow, count=10**6)
    assert result.time_fs == 2 * 4 * 10**6 * 10**6  # a copy reads and writes; 1e6 fs a byte
    assert result.memory_utilisation == pytest.approx(1)


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "encoded", "decoded"),
    [
        # n - 1 of n chunks are added to and sent, 1 is sent before; 2(n - 1) are received
        ("all_reduce", "ring", 4, 4, 6),
        # what a rank sends to each: its own blocks, 3; and the sum of its block, once for all of them
        ("all_reduce", "two_shot", 4, 4, 6),
        ("all_gather", "ring", 4, 4, 12),  # the own region alone, which is as long as four of the others' chunks
        ("all_gather", "direct", 4, 4, 12),
        ("alltoall", "pairwise", 4, 12, 12),
        ("broadcast", "ring", 4, None, None),
    ],
)
def test_what_is_encoded_and_decoded(collective, algorithm, ranks, encoded, decoded):
    """In quarters of a region, over one rank."""
    low = lowered(collective, algorithm, ranks, "mxfp8_e4m3")
    enc, dec = conversions_of(low)
    if encoded is None:  # the root encodes, all others decode
        assert np.bincount(low.rank, weights=enc).tolist() == [1000, 0, 0, 0]
        assert np.bincount(low.rank, weights=dec).tolist() == [0, 1000, 1000, 1000]
        return
    assert np.bincount(low.rank, weights=enc).tolist() == [encoded * 250] * ranks
    assert np.bincount(low.rank, weights=dec).tolist() == [decoded * 250] * ranks


def test_conversions_take_their_time():
    """Of a message that is sent and stored: once at each end, at rates of their own."""
    schedule = ce.build_schedule("sendrecv", "direct", 2)
    slow = {"endpoint.quantize_bytes_per_s": 1e9, "endpoint.dequantize_bytes_per_s": 2e9}
    free = {"endpoint.quantize_bytes_per_s": 1e15, "endpoint.dequantize_bytes_per_s": 1e15}
    times = [ce.emulate(schedule, SYSTEM.with_(**rates), count=10**6, wire="mxfp4").time_fs for rates in (slow, free)]
    assert times[0] - times[1] == pytest.approx(4 * 10**6 * (10**6 + 10**6 // 2), rel=1e-2)
