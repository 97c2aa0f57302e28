"""Constants that owners share, in networks and kernels of libraries: deviations, priors, and the laws of the forms."""

from dataclasses import replace

import numpy as np
import pytest

from collemu import load_system
from collemu.fidelity.constants import load_constants
from collemu.fidelity.custom import BEYOND, Custom, kernels_of
from collemu.fidelity.fit import STEP, Unknowns, fit, spread_of
from collemu.fidelity.measured import Measured, read_csv
from collemu.fidelity.nccl import Nccl
from collemu.fidelity.networks import GROUP, Networks
from collemu.fidelity.predict import predict

HEADER = "case_id,system_id,network_id,nodes,ranks,collective,dtype,size_bytes,time_us,algo,nvls,nccl_version\n"
MIB = 2**20


@pytest.fixture
def table(tmp_path):
    """Read rows as a CSV."""

    def read(*rows: str) -> Measured:
        path = tmp_path / "rows.csv"
        path.write_text(HEADER + "\n".join(rows) + "\n")
        return read_csv(str(path))[0]

    return read


def row(
    collective: str,
    size: int,
    *,
    system: str = "h100_hgx",
    network: str = "ib_ndr_400g_per_gpu",
    nodes: int = 2,
    dtype: str = "float16",
    algo: str = "auto",
    nvls: str = "auto",
    version: str = "2.29.2",
) -> str:
    return f"c,{system},{network},{nodes},{8 * nodes},{collective},{dtype},{size},1,{algo},{nvls},{version}"


def times(rows: Measured) -> np.ndarray:
    found = predict(rows, load_constants())
    assert not found.reasons
    return found.time_us


# Networks


def test_a_network_without_tables_has_its_own_rate_and_latency(table) -> None:
    """Of p4de no table is known: an eighth of p5's rate, and as much latency."""
    slow, fast = (
        times(table(row("all_gather", 2**30, network=name), row("all_reduce", 8, network=name)))
        for name in ("efa_p4de", "efa_p5")
    )
    assert 6 < slow[0] / fast[0] < 10
    assert 0.7 < slow[1] / fast[1] < 1.4


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
@pytest.mark.parametrize("nodes", [2, 4, 32])
@pytest.mark.parametrize("network", ["efa_p5", "ib_ndr_400g_per_gpu", "roce_8x400g", "efa_p4de"])
def test_no_network_is_faster_than_its_line(table, collective, nodes, network) -> None:
    """What must leave a domain, over all of its chips' ports."""
    rows = table(*(row(collective, 2**power, network=network, nodes=nodes) for power in range(3, 35)))
    share = {"all_reduce": 2 * (nodes - 1) / nodes / 8, "alltoall": (nodes - 1) / nodes}.get(
        collective, (nodes - 1) / nodes / 8
    )
    line = load_system("h100_hgx", network).scaleout.bytes_per_s
    found = times(rows)
    assert (found >= share * rows.size / line * 1e6).all()
    assert (np.diff(found) > 0).mean() > 0.9


def test_switches_add_no_narrow_types_and_nothing_where_they_are_off(table) -> None:
    plain, narrow, off, ring = times(
        table(
            row("all_reduce", 8 * 2**30),
            row("all_reduce", 8 * 2**30, dtype="fp8_e5m2"),
            row("all_reduce", 8 * 2**30, nvls="off"),
            row("all_reduce", 8 * 2**30, algo="Ring"),
        )
    )
    assert narrow == pytest.approx(off) and narrow > 1.2 * plain and ring >= narrow


# Kernels of libraries


@pytest.mark.parametrize(
    ("algo", "version", "system", "ranks", "size", "kernel"),
    [
        ("one-shot", "", "b300_hgx", 8, 2**30, "one_shot"),
        ("Two_Shot", "", "b300_hgx", 8, 64, "two_shot"),
        ("NCCL symmetric memory", "", "b300_hgx", 8, 8 * MIB, "symmetric_small"),
        ("NCCL symmetric memory", "", "b300_hgx", 8, 8 * MIB + 16, "symmetric"),
        ("custom", "TRTLLM 1.3", "b200_hgx", 8, 4 * MIB - 16, "trtllm_one_shot"),
        ("custom", "TRTLLM 1.3", "b200_hgx", 8, 4 * MIB, "trtllm_two_shot"),
        ("custom", "TRTLLM 1.3", "b200_hgx", 8, 64 * MIB, BEYOND),
        ("custom", "TRTLLM 1.0.0", "a100_hgx", 8, MIB, BEYOND),
        ("custom", "vLLM 0.24", "h100_hgx", 8, MIB // 4 - 16, "vllm_one_shot"),
        ("custom", "vLLM 0.24", "h100_hgx", 8, MIB // 4, "vllm_multimem"),
        ("custom", "vLLM 0.24", "h100_hgx", 8, 64 * MIB, BEYOND),
        ("custom", "vLLM 0.24", "gb200_nvl72", 4, MIB, "vllm_two_shot"),
        ("custom", "vLLM 0.24", "gb200_nvl72", 4, 2 * MIB, "vllm_two_shot_copied"),
        ("auto", "MSCCL++", "h100_hgx", 8, 65536, "mscclpp_packet"),
        ("auto", "MSCCL++", "h100_hgx", 8, 65552, "mscclpp_nvls"),
        ("NVLS zero-copy", "MSCCL++", "h100_hgx", 8, 64, "mscclpp_nvls"),
    ],
)
def test_libraries_take_the_kernels_of_their_sources(table, algo, version, system, ranks, size, kernel) -> None:
    rows = table(f"c,{system},none,1,{ranks},all_reduce,float16,{size},1,{algo},auto,{version}")
    assert rows.custom[0]
    assert kernels_of(rows) == [kernel]


def test_beyond_its_kernels_a_library_is_as_nccl(table) -> None:
    custom, plain = times(
        table(
            "c,h100_hgx,none,1,8,all_reduce,float16,1073741824,1,custom,auto,vLLM 0.24",
            "c,h100_hgx,none,1,8,all_reduce,float16,1073741824,1,auto,auto,",
        )
    )
    assert custom == pytest.approx(plain)


# Fits


def made(table, rates: dict[str, float]) -> tuple[Measured, dict[tuple[str, str], float]]:
    """Rows of networks whose rates are so many times what the catalogue says, as the form has them."""
    rows = table(
        *(
            row(collective, 2**power, network=network, system=system)
            for network in rates
            for system in ("h100_hgx", "b200_hgx")
            for collective in ("all_reduce", "all_gather", "alltoall")
            for power in range(3, 34, 2)
        )
    )
    truth = {(constant.name, ""): constant.start for constant in Networks().constants(GROUP)}
    truth |= {("nic_share", network): share for network, share in rates.items()}
    time_us = Networks().time_us(spread_of(Networks(), GROUP, truth, rows), rows)
    return replace(rows, time_us=time_us), truth


def test_what_owners_have_of_their_own_comes_back(table) -> None:
    rows, _ = made(table, {"efa_p5": 0.7, "roce_8x400g": 0.95})
    found = {(each.constant.name, each.owner): each for each in fit(Networks(), GROUP, rows)}
    assert found["nic_share", "efa_p5"].value == pytest.approx(0.7, rel=0.03)
    assert found["nic_share", "roce_8x400g"].value == pytest.approx(0.95, rel=0.03)
    assert 0.7 < found["nic_share", ""].value < 0.95
    assert found["nic_share", "efa_p5"].uncertainty < 0.1


def test_an_owner_without_rows_has_what_is_usual(table) -> None:
    constants = {(constant.name, ""): constant.start for constant in Networks().constants(GROUP)}
    constants |= {("nic_share", ""): 0.9, ("nic_share", "efa_p5"): 0.5}
    rows = table(row("all_reduce", 8, network="efa_p5"), row("all_reduce", 8))
    assert spread_of(Networks(), GROUP, constants, rows)["nic_share"].tolist() == [0.5, 0.9]


def test_constants_that_lack_some_are_refused(table) -> None:
    with pytest.raises(ValueError, match=r"the constants of networks nccl lack latency_share, .*calibrate --from"):
        spread_of(Networks(), GROUP, {("nic_share", ""): 0.9}, table(row("all_reduce", 8)))


def test_slopes_are_those_of_the_errors(table) -> None:
    rows, _ = made(table, {"efa_p5": 0.7, "roce_8x400g": 0.95})
    unknowns = Unknowns(Networks(), GROUP, rows)
    rng = np.random.default_rng(2)
    at = unknowns.start + 0.05 * rng.normal(size=len(unknowns.start))
    owner = unknowns.places(rows)
    slopes = unknowns.slopes(at, rows, owner)
    for place in rng.choice(len(at), 12, replace=False):
        away = np.zeros(len(at))
        away[place] = STEP
        expected = (unknowns.errors(at + away, rows, owner) - unknowns.errors(at - away, rows, owner)) / 2 / STEP
        assert slopes[:, place] == pytest.approx(expected, abs=1e-6)


def test_custom_kernels_of_a_system_without_tables(table) -> None:
    """GB300 has none: usual flags, and a share of its links, which are Blackwell's."""
    mine, like = times(
        table(
            "c,gb300_nvl72,none,1,8,all_reduce,float16,33554432,1,one-shot,auto,",
            "c,b300_hgx,none,1,8,all_reduce,float16,33554432,1,one-shot,auto,",
        )
    )
    assert mine == pytest.approx(like, rel=0.2)
    assert Custom().owners(table("c,gb300_nvl72,none,1,8,all_reduce,float16,8,1,one-shot,auto,"))[0] == "gb300_nvl72"


def test_few_rows_of_a_slow_site_change_its_launch_alone(table) -> None:
    """What they say nothing of stays where many rows have put it."""
    shipped = load_constants()["nccl"]["hopper"]
    rows = table(*(f"c,h100_hgx,none,1,8,all_gather,float16,{2**power},1,auto,auto,2.29.2" for power in range(5, 31)))
    rows = replace(rows, time_us=times(rows) + 12)
    found = {(each.constant.name, each.owner): each.value for each in fit(Nccl(), "hopper", rows, shipped)}
    assert found["launch_us", "h100_hgx"] == pytest.approx(shipped["launch_us", "h100_hgx"] + 12, rel=0.1)
    for name in ("ll_step_us", "link_GBps", "nvls_GBps", "p2p_channel_GBps"):
        assert found[name, ""] == pytest.approx(shipped[name, ""], rel=0.1)
