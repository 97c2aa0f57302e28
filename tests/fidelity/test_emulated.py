"""The emulator as the second engine: its schedules are proved, and it agrees with the closed forms."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from collemu import build_schedule, verify
from collemu.fidelity.constants import load_constants
from collemu.fidelity.emulated import emulated
from collemu.fidelity.measured import Measured, read_csv
from collemu.fidelity.passes import along, both_ways, in_one_pass
from collemu.fidelity.predict import predict

HEADER = "case_id,system_id,network_id,nodes,ranks,collective,dtype,size_bytes,time_us,algo,nvls,nccl_version\n"
SIZES = [16, 2048, 65536, 2**20, 2**23, 2**26, 2**29]


@pytest.fixture
def table(tmp_path):
    """Rows of a system: collectives, ranks and sizes, one with another."""

    def rows(
        system: str,
        collectives,
        ranks,
        sizes=SIZES,
        *,
        dtype: str = "float16",
        algo: str = "auto",
        version: str = "2.29.2",
    ) -> Measured:
        path = tmp_path / "rows.csv"
        lines = [
            f"c,{system},none,1,{n},{collective},{dtype},{size},1,{algo},auto,{version}"
            for collective in collectives
            for n in ranks
            for size in sizes
        ]
        path.write_text(HEADER + "\n".join(lines) + "\n")
        return read_csv(str(path))[0]

    return rows


def both(rows: Measured) -> np.ndarray:
    """The emulator's times over those of the closed forms."""
    constants = load_constants()
    found = emulated(rows, constants, lambda: None)
    assert not found.reasons
    return found.time_us / predict(rows, constants).time_us


@pytest.mark.parametrize("collective", ["alltoall", "sendrecv"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("channels", "chunks"), [(1, 1), (3, 1), (2, 4)])
def test_threads_that_send_and_receive_at_once_do_the_same(collective, ranks, channels, chunks) -> None:
    schedule = build_schedule(collective, "direct", ranks, channels=channels, chunks=chunks)
    split = both_ways(schedule)
    assert verify(split).messages == verify(schedule).messages
    assert sorted(split.ops.tolist()) == sorted(schedule.ops.tolist())
    one_way = (split.threads["send_peer"] < 0) | (split.threads["recv_peer"] < 0)
    assert one_way.all()


def test_threads_whose_operations_need_each_other_are_not_split() -> None:
    with pytest.raises(ValueError, match="the threads of ring cannot be split"):
        both_ways(build_schedule("all_reduce", "ring", 4))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_gather_in_one_pass_is_one_in_place(ranks) -> None:
    schedule = build_schedule("all_gather", "ring", ranks, channels=2, chunks=2)
    assert verify(in_one_pass(schedule)).messages == verify(schedule).messages


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize(("turns", "chunks"), [(1, 1), (2, 3)])
def test_rings_through_all_orders_use_all_links_alike(collective, ranks, turns, chunks) -> None:
    orders = [(0, *rest) for rest in permutations(range(1, ranks))]
    schedule = build_schedule(collective, "ring", ranks, channels=turns * len(orders), chunks=chunks)
    laid = along(schedule, orders)
    assert verify(laid).messages == verify(schedule).messages
    uses = Counter(zip(laid.threads["rank"].tolist(), laid.threads["send_peer"].tolist(), strict=True))
    assert set(uses) == set(permutations(range(ranks), 2)) and len(set(uses.values())) == 1
    if collective == "all_gather":
        assert verify(in_one_pass(laid)).messages == verify(schedule).messages


def test_orders_that_are_none_are_refused() -> None:
    schedule = build_schedule("all_reduce", "ring", 3)
    for orders in ([(0, 1, 1)], [(0, 1, 3)]):
        with pytest.raises(ValueError, match="the rings of ring cannot be laid through 1 orders"):
            along(schedule, orders)
    with pytest.raises(ValueError, match="the rings of two_shot cannot"):
        along(build_schedule("all_reduce", "two_shot", 3), [(0, 1, 2)])


@pytest.mark.parametrize("system", ["a100_quad", "gh200_quad"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_both_engines_agree_on_meshes(table, system, collective) -> None:
    ratio = both(table(system, [collective], [2, 3, 4]))
    assert np.median(np.abs(ratio - 1)) < 0.03
    assert np.abs(ratio - 1).max() < 0.25


@pytest.mark.parametrize("system", ["a100_hgx", "h100_hgx", "b200_hgx", "gb300_nvl72"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"])
def test_both_engines_agree(table, system, collective) -> None:
    ratio = both(table(system, [collective], [2, 4, 8]))
    assert np.median(np.abs(ratio - 1)) < 0.03
    assert np.abs(ratio - 1).max() < 0.2


@pytest.mark.parametrize(
    ("system", "algo", "version"),
    [
        ("h100_hgx", "one-shot", ""),
        ("b300_hgx", "two-shot", ""),
        ("h200_hgx", "multimem", ""),
        ("b200_hgx", "custom", "trtllm 1.3"),
        ("gb200_nvl72", "custom", "vllm 0.24"),
        ("a100_hgx", "custom", "trtllm 1.0"),
    ],
)
def test_both_engines_agree_on_kernels_of_libraries(table, system, algo, version) -> None:
    ratio = both(table(system, ["all_reduce"], [2, 8], algo=algo, version=version))
    assert np.median(np.abs(ratio - 1)) < 0.03
    assert np.abs(ratio - 1).max() < 0.25


@pytest.mark.parametrize("system", ["h100_hgx", "a100_quad"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_one_rank_copies(table, system, collective) -> None:
    assert both(table(system, [collective], [1], [16, 2**20, 2**30])) == pytest.approx(1, abs=0.01)


def test_what_would_take_too_long_has_a_reason(table) -> None:
    found = emulated(table("h100_hgx", ["all_reduce"], [8], [10**13]), load_constants(), lambda: None)
    assert "operations, more than the" in found.reasons[0]


def test_one_byte_sums_are_slower_in_both(table) -> None:
    narrow, wide = (
        emulated(table("gb200_nvl72", ["reduce_scatter"], [2], [2**30], dtype=each), load_constants(), lambda: None)
        for each in ("int8", "float16")
    )
    assert narrow.time_us[0] > 1.02 * wide.time_us[0]


def test_what_the_emulator_does_not_run_has_a_reason(table) -> None:
    found = emulated(table("trainium1", ["all_reduce"], [8], [1024]), load_constants(), lambda: None)
    assert found.reasons == {0: "the emulator does not run Trainium yet: --engine model"}
    found = emulated(table("a100_quad", ["broadcast"], [4], [1024]), load_constants(), lambda: None)
    assert found.reasons == {0: "the emulator runs no such broadcast on a100_quad"} and found.family[0] == ""
    found = emulated(table("a100_hgx", ["all_reduce"], [8], [1024], algo="nvls"), load_constants(), lambda: None)
    assert found.reasons == {0: "the emulator runs no such all_reduce on a100_hgx"}
    assert emulated(table("h100_hgx", ["reduce"], [8], [1024]), {}, lambda: None).reasons
