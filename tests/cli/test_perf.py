"""``collemu perf``: the table, JSON and CSV, and that the numbers in them hang together."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collemu as package
from collemu.cli.main import main
from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]
BUSBW = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "alltoallv": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "sendrecv": lambda _: 1.0,
}


def results(collemu: Collemu, path: Path, *words: object) -> list[dict[str, Any]]:
    """Run perf and read its JSON."""
    outcome = collemu("perf", *words, "--json", path)
    assert outcome.code == 0, outcome.err
    return json.loads(path.read_text())["results"]


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("-b 64M -e 70M -i 2M", [67108864, 69206016, 71303168, 73400320]),
        ("-b 192K -e 200K -f 1 -i 1024", list(range(196608, 204801, 1024))),
        ("-b 1k -e 8k -f 2", [1024, 2048, 4096, 8192]),
        ("-b 0.5M -e 0.5M", [524288]),
    ],
)
def test_step_flags(collemu: Collemu, tmp_path: Path, words: str, sizes: list[int]) -> None:
    rows = results(collemu, tmp_path / "o.json", "all_reduce", *words.split(), "--ranks", 8, "--algorithm", "ring")
    assert [row["size"] for row in rows] == sizes


def test_json_has_the_shape_of_nccl_tests(collemu: Collemu, tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    words = ("perf", "all_reduce", "-b", "1K", "-e", "1K", "--ranks", "4", "--algorithm", "ring", "--wire", "mxfp4")
    outcome = collemu(*words, "--json", path)
    assert outcome.code == 0
    document = json.loads(path.read_text())
    assert document["version"] == 2
    assert document["schema_version"] == 1
    assert document["args"][:3] == ["collemu", "perf", "all_reduce"]
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    header = document["header"]
    assert header["system"] == "trainium4_nvl72"
    assert len(header["system_fingerprint"]) == 12
    assert "domain.hop_latency_s" in header["estimates"]
    (row,) = document["results"]
    assert (row["size"], row["count"], row["type"], row["redop"], row["root"]) == (1024, 256, "float32", "sum", -1)
    assert set(row["out_of_place"]) == {"time", "alg_bw", "bus_bw", "nwrong"}
    assert row["out_of_place"]["nwrong"] == 0
    assert (row["algorithm"], row["wire"], row["protocol"]) == ("ring", "mxfp4", "dma")
    # 4 ranks x 2 x 3 messages of 64 elements: 32 bytes of codes and 2 scales each
    assert row["wire_bytes"] == 4 * 6 * (32 + 2)
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(row["out_of_place"]["bus_bw"])


def test_the_same_arguments_give_the_same_bytes(collemu: Collemu, tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    results(collemu, path, "all_reduce", "-b", "4K", "-e", "4K", "--ranks", "5")
    first = path.read_bytes()
    results(collemu, path, "all_reduce", "-b", "4K", "-e", "4K", "--ranks", "5")
    assert path.read_bytes() == first


def test_csv_is_one_tidy_row_a_point(collemu: Collemu, tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    outcome = collemu(
        "perf", "all_reduce,all_gather", "-b", "1K", "-e", "2K", "-f", "2", "--ranks", "2,3", "--csv", path
    )
    assert outcome.code == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2
    assert {row["collective"] for row in rows} == {"all_reduce", "all_gather"}
    for row in rows:
        assert float(row["time_us"]) >= float(row["bound_us"]) > 0
        assert row["nwrong"] == "0"
        assert row["relative_error"] == ""
        assert None not in row.values()


def test_json_on_stdout_is_nothing_but_json(collemu: Collemu) -> None:
    outcome = collemu("perf", "broadcast", "-b", "1K", "-e", "1K", "--ranks", "4", "-r", "2", "--json", "-")
    (row,) = json.loads(outcome.out)["results"]
    assert (row["redop"], row["root"]) == ("none", 2)


def test_the_table_is_comments_and_rows(collemu: Collemu) -> None:
    outcome = collemu("perf", "all_reduce", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "4", "--algorithm", "ring")
    assert outcome.err == ""
    assert [row[:5] for row in outcome.rows()] == [
        [str(size), str(size // 4), "float32", "sum", "-1"] for size in (1024, 2048, 4096)
    ]
    assert "# Out of bounds values : 0 OK" in outcome.out
    assert "# Avg bus bandwidth" in outcome.out
    assert "estimates: " in outcome.out
    heading = next(line for line in outcome.out.splitlines() if "algbw" in line)
    assert heading.split()[:10] == ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]


@pytest.mark.parametrize("collective", BUSBW)
def test_bandwidths_follow_from_size_and_time(collemu: Collemu, tmp_path: Path, collective: str) -> None:
    for row in results(
        collemu, tmp_path / "o.json", collective, "-b", "8K", "-e", "1M", "-f", "128", "--ranks", "1,2,5"
    ):
        got = row["out_of_place"]
        algbw = row["size"] / got["time"] / 1e3
        assert got["alg_bw"] == pytest.approx(algbw)
        assert got["bus_bw"] == pytest.approx(algbw * BUSBW[collective](row["ranks"]))
        assert got["time"] >= row["bound_us"]
        assert 0 <= row["max_link_utilisation"] <= 1
        assert got["nwrong"] == 0


def test_ring_at_1_gib_stays_below_the_rate_of_a_chip(collemu: Collemu, tmp_path: Path) -> None:
    words = ("all_reduce", "-b", "1G", "-e", "1G", "--ranks", "8", "--algorithm", "ring")
    (row,) = results(collemu, tmp_path / "o.json", *words)
    got = row["out_of_place"]
    assert got["bus_bw"] == pytest.approx(1.75 * got["alg_bw"])
    assert got["bus_bw"] <= 1800
    assert row["max_link_utilisation"] <= 1


@pytest.mark.parametrize("collective", BUSBW)
def test_zero_bytes_are_legal(collemu: Collemu, tmp_path: Path, collective: str) -> None:
    (row,) = results(collemu, tmp_path / "o.json", collective, "-b", "0", "-e", "0", "--ranks", "4")
    assert row["count"] == 0
    assert row["out_of_place"]["bus_bw"] == 0
    assert row["out_of_place"]["time"] >= 0


def test_all_leaves_out_what_does_not_go_together(collemu: Collemu, tmp_path: Path) -> None:
    words = ("all", "-b", "64", "-e", "64", "--ranks", "3", "--algorithm", "all", "--wire", "none,mxfp4")
    rows = results(collemu, tmp_path / "o.json", *words, "-d", "float32,int32", "-o", "sum,max")
    assert {row["collective"] for row in rows} == set(BUSBW)
    assert not [row for row in rows if row["type"] == "int32" and row["wire"] == "mxfp4"]
    keys = [(row["collective"], row["algorithm"], row["type"], row["redop"], row["wire"]) for row in rows]
    assert len(set(keys)) == len(keys)  # operators do not repeat what reduces nothing
    assert all(row["out_of_place"]["nwrong"] == 0 for row in rows)


def test_what_has_no_such_algorithm_is_said_to_be_left_out(collemu: Collemu) -> None:
    outcome = collemu("perf", "all_reduce,alltoall", "-b", "64", "-e", "64", "--ranks", "3", "--algorithm", "ring")
    assert len(outcome.rows()) == 1
    assert "# note: alltoall is left out: it has no ring" in outcome.out


def test_what_switches_cannot_do_is_left_out_or_refused_before_anything_runs(collemu: Collemu) -> None:
    words = ("perf", "all_reduce", "-b", "1K", "-e", "1K", "--system", "h100_hgx", "--algorithm")
    outcome = collemu(*words, "ring,nvls", "--wire", "none,mxfp4")
    assert outcome.code == 0 and len(outcome.rows()) == 3
    assert "# note: left out: nvls over wire mxfp4" in outcome.out
    for others in (("nvls", "-d", "float16,int8"), ("nvls", "--wire", "none,mxfp4"), ("nvls", "-o", "sum,prod")):
        refused = collemu(*words, *others)
        assert (refused.code, refused.out) == (2, ""), others
        assert "switch" in refused.err
    outcome = collemu("perf", "all_reduce", "-b", "64", "-e", "64", "--system", "all", "--algorithm", "nvls")
    assert outcome.code == 0 and "those of trainium2 do not" in outcome.out


def test_auto_names_an_algorithm_that_is_about_the_fastest(collemu: Collemu, tmp_path: Path) -> None:
    for size in ("256", "32K", "1M", "8M"):
        words = ("all_reduce", "-b", size, "-e", size, "--ranks", "16", "-c", "0", "--algorithm")
        (chosen,) = results(collemu, tmp_path / "o.json", *words, "auto")
        times = {
            row["algorithm"]: row["out_of_place"]["time"]
            for row in results(collemu, tmp_path / "o.json", *words, "all")
        }
        assert chosen["algorithm"] in times
        assert chosen["out_of_place"]["time"] <= 1.1 * min(times.values())


def test_the_check_can_be_off(collemu: Collemu, tmp_path: Path) -> None:
    words = ("perf", "all_reduce", "-b", "64", "-e", "64", "--ranks", "3", "-c", "0", "--json", tmp_path / "o.json")
    outcome = collemu(*words)
    assert outcome.code == 0
    assert outcome.rows()[0][8] == "N/A"
    assert json.loads((tmp_path / "o.json").read_text())["results"][0]["out_of_place"]["nwrong"] is None


def test_a_wrong_element_is_counted_and_exit_1(collemu: Collemu, monkeypatch: pytest.MonkeyPatch) -> None:
    from collemu import check
    from collemu.reference import reference

    def off_by_one(*arguments: Any) -> Any:
        expected = np.array(reference(*arguments))
        expected[0, 0] += 1
        return expected

    monkeypatch.setattr(check, "reference", off_by_one)
    outcome = collemu("perf", "all_reduce", "-b", "64", "-e", "64", "--ranks", "3")
    assert outcome.code == 1
    assert outcome.rows()[0][8] == "1"
    assert "# Out of bounds values : 1 FAILED" in outcome.out


def test_large_points_are_checked_at_a_smaller_count(collemu: Collemu) -> None:
    outcome = collemu("perf", "all_reduce", "-b", "16M", "-e", "16M", "--ranks", "4", "--algorithm", "ring")
    assert outcome.rows()[0][8] == "0"
    assert "smaller count" in outcome.out


def test_own_rows_are_what_ranks_contribute(collemu: Collemu, tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
    np.save(tmp_path / "x.npy", data)
    words = ("all_reduce", "--ranks", "4", "--algorithm", "ring", "--data", tmp_path / "x.npy")
    plain, wide, narrow = results(collemu, tmp_path / "o.json", *words, "--wire", "none,mxfp8_e4m3,mxfp4")
    assert plain["count"] == wide["count"] == 96
    assert plain["relative_error"] < 1e-6 < wide["relative_error"] < narrow["relative_error"] < 1
    assert plain["identical"] is True
    outcome = collemu("perf", *words)
    assert outcome.rows()[0][-3:] == ["identical", "0", "0"]
    assert "row r of it is what rank r contributes" in outcome.out


def test_a_single_tensor_is_said_to_be_everybodys(collemu: Collemu, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", text=np.array(["a"]), w=np.ones((3, 5), np.float64))
    outcome = collemu("perf", "all_reduce", "--ranks", "4", "--data", tmp_path / "x.npz")
    assert outcome.code == 0
    assert "every rank contributes the same tensor" in outcome.out
    assert outcome.rows()[0][1] == "15"


def test_another_systems_numbers_move_the_time(collemu: Collemu, tmp_path: Path) -> None:
    text = next(Path(package.__file__).parent.rglob("trainium4_nvl72.toml")).read_text()
    assert "link_bytes_per_s = { value = 50e9" in text
    half = tmp_path / "half.toml"
    half.write_text(text.replace("link_bytes_per_s = { value = 50e9", "link_bytes_per_s = { value = 25e9"))
    words = ("all_reduce", "-b", "64M", "-e", "64M", "--ranks", "8", "--algorithm", "ring", "-c", "0")
    full, halved = results(collemu, tmp_path / "o.json", *words, "--system", f"trainium4_nvl72,{half}")
    assert halved["out_of_place"]["time"] > 1.3 * full["out_of_place"]["time"]


@pytest.mark.mpi
def test_processes_share_the_points_and_give_the_same_file(tmp_path: Path) -> None:
    from collemu.ranks.launch import run_under_mpi

    words = ["perf", "all_reduce", "-b", "1K", "-e", "8K", "-f", "2", "--ranks", "4", "--algorithm", "ring,tree"]
    together = tmp_path / "together.csv"
    done = run_under_mpi(3, ["-m", "collemu", *words, "--csv", str(together)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Avg bus bandwidth") == 1
    alone = tmp_path / "alone.csv"
    assert main([*words, "--csv", str(alone)]) == 0
    assert together.read_bytes() == alone.read_bytes()


def test_own_bfloat16_is_measured_against_float64(collemu: Collemu, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(ml_dtypes.bfloat16)
    save_file({"w": x}, tmp_path / "x.safetensors")
    words = ("all_reduce", "--ranks", "4", "--data", tmp_path / "x.safetensors", "-d", "bfloat16,float32")
    narrow, wide = results(collemu, tmp_path / "o.json", *words)
    assert wide["relative_error"] < 1e-6
    assert 1e-4 < narrow["relative_error"] < 2**-7


def test_own_codes_are_taken_as_numbers(collemu: Collemu, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((8, 33), 0x38, np.uint8))  # 1.0 in float8_e4m3fn
    words = ("all_reduce", "--ranks", "8", "--data", tmp_path / "x.npy", "-d", "float8_e4m3fn", "--algorithm", "all")
    for row in results(collemu, tmp_path / "o.json", *words):
        assert (row["relative_error"], row["max_abs_error"], row["identical"]) == (0, 0, True)


def test_all_ranks_are_those_of_the_system(collemu) -> None:
    """Also beside others, and though its network could join a million."""
    outcome = collemu("perf", "sendrecv", "--system", "a100_quad", "--ranks", "8,all", "-b", "64", "-e", "64")
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines() if line and not line.startswith("#")]
    assert [row[13] for row in rows] == ["8", "1", "2", "3", "4"]


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_the_model_that_was_asked_for_runs_also_where_it_is_checked(collemu, fidelity) -> None:
    words = ("perf", "all_reduce", "--ranks", "8", "-b", "64K", "-e", "64K", "--algorithm", "two_shot")
    rows = [collemu(*words, "--fidelity", fidelity, *more).out.splitlines() for more in ((), ("-c", "0"))]
    first, second = (next(line.split() for line in lines if not line.startswith("#")) for lines in rows)
    assert first[11] == second[11] == fidelity
    assert first[5] == second[5]


def test_packets_on_a_long_way_through_a_torus_are_refused(collemu) -> None:
    words = ("perf", "all_reduce", "--system", "trainium2", "--ranks", "8", "-b", "64K", "-e", "64K")
    outcome = collemu(*words, "--algorithm", "two_shot", "--fidelity", "packet")
    assert outcome.code == 2
    assert "no neighbours in a torus" in outcome.err


def test_rows_name_their_network(collemu) -> None:
    systems = "h100_hgx@efa_p5,h100_hgx@tcp_slingshot"
    outcome = collemu("perf", "all_reduce", "--system", systems, "--ranks", "16", "-b", "64K", "-e", "64K", "-c", "0")
    assert outcome.code == 0
    for name in systems.split(","):
        assert f"# system {name} fingerprint" in outcome.out


def test_auto_has_the_algorithms_of_a_library(collemu: Collemu) -> None:
    words = ("perf", "all_reduce", "-b", "1K", "-e", "4M", "-f", "64", "--ranks", "8")
    rows = collemu(*words, "--like", "rccl").rows()
    assert {row[9] for row in rows} <= {"ring", "tree"}
    assert {row[9] for row in collemu(*words).rows()} & {"one_shot", "two_shot"}
    other = collemu(*words, "--like", "gloo")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "choose nccl, rccl, custom, all" in other.err
