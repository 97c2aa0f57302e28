"""Closed forms and fits: numbers by hand, laws, and constants that come back from times made with them."""

from dataclasses import replace

import numpy as np
import pytest

from collemu.fidelity.constants import constants_text, load_constants
from collemu.fidelity.diagnose import diagnoses
from collemu.fidelity.fit import cross_validated, fit, spread_of
from collemu.fidelity.measured import Measured, read_csv, read_nccl_tests
from collemu.fidelity.nccl import LL, NVLS, SIMPLE, Nccl, chosen
from collemu.fidelity.predict import FORMS, assigned, predict
from collemu.fidelity.score import score

HEADER = "case_id,system_id,network_id,nodes,ranks,collective,dtype,size_bytes,time_us,algo,nvls,nccl_version\n"
HAND = {
    "launch_us": 4.0, "cta_us": 0.0, "ll_step_us": 1.0, "ll_channel_GBps": 10.0, "ll128_step_us": 1.0,
    "simple_step_us": 3.0, "tail_us": 0.0, "link_GBps": 400.0, "copy_GBps": 1000.0, "nvls_us": 12.0,
    "nvls_GBps": 300.0, "nvls_chunk_us": 0.0, "p2p_peer_us": 0.5, "p2p_ll_GBps": 5.0, "p2p_channel_GBps": 20.0,
    "p2p_step_us": 6.0, "ll_store_GBps": 20.0, "narrow_GBps": 500.0,
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Read rows as a CSV."""

    def read(*rows: str, where: tuple[str, ...] = ()):
        path = tmp_path / "rows.csv"
        path.write_text(HEADER + "\n".join(rows) + "\n")
        return read_csv(str(path), where)

    return read


def row(collective: str, ranks: int, size: int, time: float = 1.0, system: str = "h100_hgx", case: str = "c") -> str:
    return f"{case},{system},none,1,{ranks},{collective},float16,{size},{time},auto,auto,2.29.2"


def by_hand(rows: Measured) -> list[float]:
    values = {name: np.full(len(rows), value) for name, value in HAND.items()}
    return Nccl().time_us(values, rows).tolist()


def test_times_by_hand(table) -> None:
    rows, skipped = table(
        row("all_gather", 2, 4096),
        row("reduce_scatter", 2, 2**30),
        row("alltoall", 4, 4096),
        row("all_reduce", 8, 2**30),
        row("alltoall", 4, 2**20),
        row("reduce_scatter", 2, 2**30).replace("float16", "int8"),
    )
    assert not skipped
    assert chosen(rows).tolist()[:2] == [LL, SIMPLE] and chosen(rows)[3] == NVLS
    half = 2**29
    assert by_hand(rows) == pytest.approx(
        [
            # a channel; a step and its data, partly at once; and the last receive, all of it stored
            4 + (1 + (2048 / 10e3 + 2048 / 20e3) ** 1.25) ** 0.8 + 2048 / 10e3 + 2048 / 20e3,
            4 + 1 + half / 400e3 + half / 1000e3,
            4 + 1.5 + 3 * 0.5 + 1024 / 5e3,
            # chunks of 128 KiB fill 16 channels of 8 heads; the start hides in part
            4 + (12**2 + ((2**30 + 2**17 * 16 * 8) * 9 / 8 / 300e3) ** 2) ** 0.5,
            # 8 channels a peer, all of 32, carry 4 parts of 256 KiB; the link is less, but close
            4 + 1.5 + 3 * 0.5 + ((2**20 / 32 / 20e3 + 6) ** 8 + (3 * 2**18 / 372e3) ** 8) ** (1 / 8),
            4 + 1 + half / 400e3 + half / 1000e3 + half / 500e3,
        ]
    )


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 72])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"])
def test_more_bytes_never_take_less_within_a_protocol(table, collective, ranks) -> None:
    system = "h100_hgx" if ranks <= 8 else "gb200_nvl72"
    rows, _ = table(*(row(collective, ranks, 2**power, system=system) for power in range(4, 34)))
    times, protocol = np.array(by_hand(rows)), chosen(rows)
    same = protocol[1:] == protocol[:-1]
    if collective in ("alltoall", "sendrecv"):
        same = (rows.size[1:] > 2**21) | (rows.size[1:] <= 2**14)
    if collective == "all_reduce" and ranks >= 5:
        same &= protocol[1:] != NVLS  # whose chunks grow with the size
    assert (np.diff(times)[same] >= 0).all() and (times > 4).all()


def synthetic(table, noise: float) -> Measured:
    sizes = [2**power for power in range(3, 33)]
    lines = [
        row(collective, ranks, size, case=f"{collective}{ranks}")
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for ranks in (2, 4, 8)
        for size in sizes
    ]
    rows, _ = table(*lines)
    truth = {constant.name: constant.start * 1.3 for constant in Nccl().constants("hopper")}
    truth |= {"link_GBps": 350.0, "nvls_GBps": 300.0}
    values = {name: np.full(len(rows), value) for name, value in truth.items()}
    wrong = np.exp(noise * np.random.default_rng(1).normal(size=len(rows)))
    return replace(rows, time_us=Nccl().time_us(values, rows) * wrong)


def test_constants_come_back_from_their_own_times(table) -> None:
    found = {each.constant.name: each for each in fit(Nccl(), "hopper", synthetic(table, 0.01))}
    assert found["link_GBps"].value == pytest.approx(350, rel=0.02)
    assert found["launch_us"].value == pytest.approx(4.5 * 1.3, rel=0.02)
    assert found["ll_step_us"].value == pytest.approx(0.82 * 1.3, rel=0.02)
    assert found["link_GBps"].uncertainty < 0.02 and found["link_GBps"].rows > 20


def test_fits_without_a_case_predict_it(table) -> None:
    rows = synthetic(table, 0.0)
    predicted = cross_validated(Nccl(), "hopper", rows, 4)
    assert np.median(np.abs(predicted / rows.time_us - 1)) < 0.03


def test_fitted_constants_are_read_as_written(table, tmp_path) -> None:
    rows = synthetic(table, 0.01)
    found = fit(Nccl(), "hopper", rows)
    path = tmp_path / "own.toml"
    path.write_text(constants_text({("nccl", "hopper"): found}, {("nccl", "hopper"): ["a"]}))
    constants = load_constants(path)
    again = spread_of(Nccl(), "hopper", constants["nccl"]["hopper"], rows)
    for each in found:
        if each.owner or not each.constant.spread:
            assert again[each.constant.name][0] == pytest.approx(each.value, rel=1e-3)
    assert np.median(np.abs(predict(rows, constants).time_us / rows.time_us - 1)) < 0.02


def test_shipped_constants_are_physical() -> None:
    """No link is faster than its line, and each form has its own names."""
    shipped = load_constants()
    for form in FORMS:
        for group, values in shipped[form.name].items():
            known = {constant.name: constant for constant in form.constants(group)}
            for (name, _), value in values.items():
                assert 0 < value <= known[name].most * 1.001


def test_every_row_is_for_one_form_at_most(table) -> None:
    rows, _ = table(row("all_reduce", 8, 2**20), row("broadcast", 4, 2**20, system="gh200_quad"), row("x", 2, 8))
    assert sum(mask.astype(int) for *_, mask in assigned(rows)).tolist() == [1, 1, 0]
    assert predict(rows, load_constants()).reasons == {2: "no model for x on h100_hgx"}


def test_a_slow_link_is_named(table) -> None:
    rows, _ = table(*(row("all_gather", 8, 2**power) for power in range(10, 34)))
    healthy = predict(rows, load_constants()).time_us
    (nothing,) = diagnoses(replace(rows, time_us=healthy), load_constants())
    assert nothing.culprit is None
    constants = load_constants()
    constants["nccl"]["hopper"]["link_GBps", ""] /= 2
    (slow,) = diagnoses(replace(rows, time_us=predict(rows, constants).time_us), load_constants())
    assert slow.culprit == "link rate" and slow.factor == pytest.approx(0.5)


def test_scores_by_hand() -> None:
    found = score("g", ["a", "a", "b"], np.array([8.0, 2.0**20, 2.0**30]), np.array([-0.5, 0.1, 0.2]))
    assert (found.rows, found.cases, found.worst) == (3, 2, 0.5)
    assert (found.median, found.bias) == pytest.approx((0.2, 0.1))
    assert found.bands == pytest.approx((0.5, 0.1, 0.2))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (row("all_reduce", 8, 8).replace(",8,1.0,", ",8,fast,"), "line 2: time_us is 'fast'"),
        (row("all_reduce", 8, 8).replace(",8,1.0,", ",-8,1.0,"), "line 2: size_bytes is '-8'"),
    ],
)
def test_bad_rows_are_refused(table, line, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        table(line)


def test_rows_are_chosen_and_skipped_with_a_reason(table) -> None:
    rows, skipped = table(row("all_reduce", 8, 8), row("all_reduce", 4, 8, system="", case="d"))
    assert len(rows) == 1 and skipped == [("d", "it names no system that is known", 1)]
    assert len(table(row("all_reduce", 8, 8), row("all_gather", 8, 8), where=("collective=all_gather",))[0]) == 1
    with pytest.raises(ValueError, match="no row meets ranks=9"):
        table(row("all_reduce", 8, 8), where=("ranks=9",))


def test_what_nccl_tests_print_is_read(tmp_path) -> None:
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(
        "# nccl-tests all_reduce_perf\n"
        "  1024   256   float   sum   -1   20.50   0.05   0.09   0   20.10   0.05   0.09   0\n"
    )
    rows = read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)
    assert (rows.size[0], rows.time_us[0], rows.dtype[0], rows.collective[0]) == (1024, 20.5, "float32", "all_reduce")


def test_prefixes_of_launchers_are_no_matter_and_warm_up_lines_none(tmp_path) -> None:
    path = tmp_path / "all_gather_perf.log"
    path.write_text(
        "[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor)\n"
        "[1,0]<stdout>:#                              out-of-place                       in-place\n"
        "[1,0]<stdout>:        1024          16      half    none      -1    20.50    0.05    0.09      0\n"
        "[1,0]<stdout>:        4096          64      half    none      -1    21.50    0.19    0.17      0\n"
        "[1,0]<stdout>:# Avg bus bandwidth    : 0.13\n"
    )
    rows = read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)
    assert rows.size.tolist() == [1024, 4096] and rows.time_us.tolist() == [20.5, 21.5]
    assert set(rows.dtype) == {"float16"} and set(rows.collective) == {"all_gather"}
    with pytest.raises(ValueError, match=r"16 ranks, but a domain of 8 chips and no network; change --system"):
        read_nccl_tests(str(path), "h100_hgx", "none", 2, 16, None)


LINE = "  1024   256   float   sum   -1   {}   0.05   0.09   0   20.10   0.05   0.09   0\n"


@pytest.mark.parametrize("time", ["nan", "inf", "-5.00", "0.00", "fast"])
def test_times_of_logs_that_are_none_are_refused(tmp_path, time) -> None:
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(LINE.format("20.5") + LINE.format(time))
    with pytest.raises(ValueError, match=f"the time '{time}'; leave its line out"):
        read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("# ./build/all_reduce_perf -b 8\n", "out.log", "all_reduce"),
        ("cd /opt/all_gather_results && ./alltoall_perf\n", "out.log", "alltoall"),
        ("on host bcast-broadcast1\n", "reduce_scatter_perf.txt", "reduce_scatter"),
        ("./all_reduce_perf; ./all_gather_perf\n", "out.log", None),
        ("alltoallv_perf\n", "out.log", None),
    ],
)
def test_a_log_says_one_collective_or_is_told(tmp_path, text, name, expected) -> None:
    path = tmp_path / name
    path.write_text("\ufeff" + text + "0: " + LINE.format("1.2e+03"))
    if expected is None:
        with pytest.raises(ValueError, match="does not say which one collective"):
            read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)
    else:
        rows = read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)
        assert (rows.collective[0], rows.time_us[0]) == (expected, 1200.0)


@pytest.mark.parametrize("text", ['{"results": [{"size": 1e999}]}', "{" * 5, '{"results": 5}', "[" * 100_000])
def test_json_that_is_none_of_nccl_tests_is_refused(tmp_path, text) -> None:
    path = tmp_path / "x.json"
    path.write_text("{" + text[1:] if text.startswith("{") else '{"results": ' + text)
    with pytest.raises(ValueError, match="no results of nccl-tests in it"):
        read_nccl_tests(str(path), "h100_hgx", "none", 1, 8, None)


def test_rows_of_the_wrong_length_are_refused_or_skipped(table) -> None:
    with pytest.raises(ValueError, match="line 2: more cells than there are columns"):
        table(row("all_reduce", 8, 8) + ",1,2")
    assert table("c,h100_hgx,none")[1] == [("c", "it has no time", 1)]


def test_experts_that_cannot_be_are_skipped(tmp_path) -> None:
    path = tmp_path / "moe.csv"
    path.write_text(
        "case_id,gpu,ep_ranks,kernel,dtype,phase,tokens_per_rank,hidden,topk,experts,time_us\n"
        "a,GB200,8,deepep,fp8,dispatch,16,4096,300,256,9\nb,GB200,64,deepep,fp8,dispatch,16,4096,1,32,9\n"
    )
    rows, skipped = read_csv(str(path))
    assert len(rows) == 0
    assert [reason for _, reason, _ in skipped] == [
        "8 ranks and 300 experts a token, of 256",
        "64 ranks and 1 experts a token, of 32",
    ]


@pytest.mark.parametrize("value", ["0", "-1.0", "nan", "true", '"7"'])
def test_constants_that_are_none_are_refused(tmp_path, value) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'[nccl."hopper"]\nlink_GBps = {{ value = {value} }}\n')
    with pytest.raises(ValueError, match="is no file of constants"):
        load_constants(path)
