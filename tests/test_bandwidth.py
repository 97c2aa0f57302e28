"""Sizes and bandwidths are nccl-tests'."""

from fractions import Fraction

import pytest

from collemu.model.bandwidth import BLOCKWISE, WHOLE, algbw, busbw, busbw_factor, count_for_size, size_bytes


def test_busbw_factors() -> None:
    assert busbw_factor("all_reduce", 8) == Fraction(7, 4)
    for collective in BLOCKWISE:
        assert busbw_factor(collective, 8) == Fraction(7, 8)
    for collective in ("broadcast", "reduce", "sendrecv"):
        assert busbw_factor(collective, 8) == 1


@pytest.mark.parametrize("collective", ["all_reduce", *BLOCKWISE])
def test_one_rank_has_no_bus(collective: str) -> None:
    assert busbw(collective, 1, 1 << 20, 1e-5) == 0.0


@pytest.mark.parametrize("collective", [*WHOLE, *BLOCKWISE])
def test_no_bytes_or_no_time_is_zero_not_nan(collective: str) -> None:
    assert busbw(collective, 4, 0, 1e-5) == 0.0
    assert busbw(collective, 4, 0, 0.0) == 0.0
    assert busbw(collective, 4, 16, 0.0) == 0.0
    assert algbw(0, 0.0) == 0.0


def test_size_is_the_larger_buffer() -> None:
    assert size_bytes("all_reduce", 8, 1000, 4) == 4000
    assert size_bytes("all_gather", 8, 1000, 4) == 32000
    assert size_bytes("reduce_scatter", 8, 1000, 2) == 16000


def test_blocks_are_whole_lines() -> None:
    assert count_for_size("all_reduce", 72, 1001, 4) == 250
    assert count_for_size("all_gather", 3, 1 << 10, 4) == 84  # 85.33 elements, down to a multiple of 4
    assert count_for_size("alltoall", 72, 512, 2) == 0  # 3.6 elements: less than a line of 8
    assert count_for_size("reduce_scatter", 72, 32 << 20, 4) == 116508
    assert size_bytes("reduce_scatter", 72, 116508, 4) <= 32 << 20


@pytest.mark.parametrize("collective", [*WHOLE, *BLOCKWISE])
@pytest.mark.parametrize("ranks", [1, 3, 8, 72])
def test_size_and_count_agree(collective: str, ranks: int) -> None:
    count = count_for_size(collective, ranks, 1 << 20, 2)
    assert 0 < size_bytes(collective, ranks, count, 2) <= 1 << 20
    assert count_for_size(collective, ranks, size_bytes(collective, ranks, count, 2), 2) == count


def test_published_rows() -> None:
    """A GB200 all_reduce of 128 ranks (oci-hpc-oke), a GH200 reduce_scatter of 2 (simllm)."""
    assert algbw(32 << 30, 99745e-6) / 1e9 == pytest.approx(344.48, abs=0.01)
    assert busbw("all_reduce", 128, 32 << 30, 99745e-6) / 1e9 == pytest.approx(683.57, abs=0.01)
    assert busbw("reduce_scatter", 2, 1 << 30, 5484.6e-6) / 1e9 == pytest.approx(97.886, abs=0.001)


def test_unknown_collective() -> None:
    with pytest.raises(ValueError, match="collective 'allreduce': unknown"):
        busbw_factor("allreduce", 8)
