"""Commands on collectives whose ranks give or get different amounts: alltoallv, gather, scatter, moe."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    path = tmp_path / "counts.csv"
    path.write_text("1,2,3\n0,0,0\n700,0,5\n")
    return path


def test_perf_knows_them(collemu: Collemu) -> None:
    size = ("-b", "12K", "-e", "12K")
    done = collemu("perf", "gather,scatter,alltoallv", "--ranks", "6", *size, "--algorithm", "all", "-r", "2")
    assert (done.code, done.err) == (0, "")
    rows = done.rows()
    assert [row[9] for row in rows] == ["direct", "chain", "binomial"] * 2 + ["direct", "pairwise"]
    for row in rows:
        assert row[:3] == ["12288", "512", "float32"]
        assert row[8] == "0"
        assert float(row[7]) == pytest.approx(float(row[6]) * 5 / 6, abs=0.02)
    assert [row[4] for row in rows] == ["2"] * 6 + ["-1"] * 2


def test_perf_takes_counts_from_a_file(collemu: Collemu, counts: Path, tmp_path: Path) -> None:
    records = tmp_path / "out.json"
    flags = ("--algorithm", "all", "-d", "float32,int8", "--json", records)
    done = collemu("perf", "alltoallv", "--counts", counts, *flags)
    assert (done.code, done.err) == (0, "")
    rows = done.rows()
    assert [row[0] for row in rows] == ["2820", "705", "2820", "705"]  # the largest buffer is rank 2's input
    assert {row[1] for row in rows} == {"235"}  # of a block on average
    assert [row[14] for row in rows] == ["2820", "705"] * 2  # 2, 3 and 700 elements travel
    assert all(result["ranks"] == 3 for result in json.loads(records.read_text())["results"])


def test_auto_takes_counts_from_a_file(collemu: Collemu, counts: Path) -> None:
    done = collemu("perf", "alltoallv", "--counts", counts)
    assert (done.code, done.rows()[0][9]) == (0, "direct")


def test_verify_and_algorithms_know_them(collemu: Collemu, counts: Path) -> None:
    done = collemu("verify", "all", "--collective", "alltoallv,gather,scatter", "--ranks", "1-5,72")
    assert done.code == 0
    assert len([line for line in done.out.splitlines() if line.startswith("ok ")]) == 8
    done = collemu("verify", "direct", "--collective", "alltoallv", "--counts", counts)
    assert done.out == "ok alltoallv direct: 1 rank counts, 15 operations, 3 messages, runs with 1 FIFO slot\n"
    done = collemu("algorithms", "--ranks", "5")
    messages = {tuple(line.split()[:2]): line.split()[3] for line in done.out.splitlines() if line}
    assert messages["alltoallv", "direct"] == messages["alltoall", "direct"] == "20"
    found = [line.split()[:2] for line in done.out.splitlines() if line.startswith(("alltoallv", "gather", "scatter"))]
    assert found == [
        *(["alltoallv", name] for name in ("direct", "pairwise")),
        *([collective, name] for collective in ("gather", "scatter") for name in ("direct", "chain", "binomial")),
    ]


@pytest.mark.parametrize("wire", ["none", "mxfp4"])
def test_perf_deals_out_a_tensor(collemu: Collemu, tmp_path: Path, wire: str) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32))
    done = collemu("perf", "gather,scatter", "--ranks", "4", "--data", tmp_path / "x.npy", "--wire", wire, "-r", "1")
    assert (done.code, done.err) == (0, "")
    for row in done.rows():
        assert row[:2] == ["2800", "175"]
        assert (float(row[18]) == 0) == (wire == "none")
    assert "the root has it, and gives each rank a part" in done.out


def test_crosscheck_of_one_rank(collemu: Collemu) -> None:
    done = collemu("crosscheck", "alltoallv,gather,scatter", "--ranks", "1", "-b", "1000")
    assert done.code == 0
    assert done.out.endswith("all identical\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("perf", "all_reduce", "--counts", "FILE"), "--counts is for alltoallv; all_reduce would not use"),
        (("perf", "alltoallv", "--counts", "FILE", "--ranks", "4"), "is for 3 ranks, not 4"),
        (("perf", "alltoallv", "--counts", "nothing.csv"), "counts nothing.csv: no such file"),
        (("perf", "alltoallv", "--ranks", "4", "--data", "DATA"), "--data does not say what goes to which rank"),
        (
            ("verify", "direct", "--collective", "alltoallv", "--counts", "FILE", "--ranks", "4"),
            "is for 3 ranks, not 4",
        ),
        (("export", "pairwise", "--collective", "alltoallv", "--ranks", "4", "-"), "MSCCL has no counts for pairs"),
        (("moe", "--topk", "9", "--experts", "8"), "top 9 of 8 experts"),
        (("moe", "--routing", "zipf:x"), "routing 'zipf:x': the exponent is no number; give zipf:1.2"),
        (("moe", "--routing", "zipf:-1"), "zipf exponent -1.0"),
        (("moe", "--routing", "nothing.npy"), "routing nothing.npy: no such file"),
        (("moe", "--routing", "nothing.npy", "--tokens", "4"), "--tokens is for drawn routings"),
        (
            ("moe", "--ranks", "4", "--check", "-d", "float64", "--dispatch-wire", "none", "--combine-wire", "none"),
            "--check sends floats of at",
        ),
        (("moe", "--ranks", "4", "--dispatch-wire", "fp7"), "fp7"),
        (("moe", "--ranks", "4", "--algorithm", "ring"), "no algorithm 'ring' for alltoallv"),
    ],
)
def test_what_does_not_go_is_one_line(collemu: Collemu, counts: Path, tmp_path: Path, words: tuple, text: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros(100, np.float32))
    given = {"FILE": counts, "DATA": tmp_path / "x.npy"}
    done = collemu(*(given.get(word, word) for word in words))
    assert done.code == 2
    assert text in done.err
    assert done.err.count("\n") == 1


def test_moe_prints_both_phases(collemu: Collemu) -> None:
    done = collemu("moe", "--ranks", "4,8", "--tokens", "3,16", "--hidden", "256", "--experts", "16", "--topk", "2")
    assert (done.code, done.err) == (0, "")
    rows = [row for row in done.rows() if row[0].isdigit()]
    assert [row[:4] for row in rows] == [
        [ranks, tokens, phase, wire]
        for ranks in ("4", "8")
        for tokens in ("3", "16")
        for phase, wire in (("dispatch", "deepep_dispatch"), ("combine", "deepep_combine"))
    ]
    for row in rows:
        time, bound, nbytes, bandwidth, imbalance = map(float, row[4:9])
        assert time >= bound
        assert bandwidth == pytest.approx(nbytes / time / 1e3, abs=0.01)
        assert imbalance >= 1
    assert "routing uniform seed 0, top 2, 16 experts, hidden 256, bfloat16; a token goes once to a rank" in done.out


def test_moe_counts_bytes_as_deepep_does(collemu: Collemu) -> None:
    """Low latency: every selection is a copy, of 7168 codes and 56 scales there, and of bfloat16 back."""
    done = collemu("moe", "--ranks", "4", "--tokens", "8", "--per-expert", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["bytes_a_rank"] for row in rows] == [str(8 * 8 * (7168 + 224)), str(8 * 8 * 14336)]


def test_moe_shows_what_wires_lose(collemu: Collemu) -> None:
    flags = ("--ranks", "8", "--tokens", "16", "--hidden", "512", "--check")
    errors = []
    for wire in ("none", "fp8_block128", "mxfp4"):
        done = collemu("moe", *flags, "--dispatch-wire", wire)
        assert done.code == 0
        errors.append(float(done.out.split("relative error ")[1].split(",")[0]))
    assert errors[0] < 1e-6
    assert 0.01 < errors[1] < 0.04
    assert 0.04 < errors[2] < 0.2


def test_moe_takes_the_dtype_as_a_wire(collemu: Collemu) -> None:
    done = collemu("moe", "--ranks", "4", "--tokens", "4", "--hidden", "128", "--dispatch-wire", "dtype", "--csv", "-")
    first, second = csv.DictReader(io.StringIO(done.out))
    assert (first["wire"], second["wire"]) == ("dtype", "deepep_combine")
    assert first["bytes_a_rank"] == second["bytes_a_rank"]


def test_moe_cuts_long_tokens_for_the_check(collemu: Collemu) -> None:
    done = collemu("moe", "--ranks", "16", "--tokens", "512", "--check", "--routing", "zipf:1.2")
    assert done.code == 0
    assert "of 128 of 7168 elements a token; experts return what they get" in done.out


def test_moe_takes_a_routing_from_a_file(collemu: Collemu, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((12, 3), np.int64))
    done = collemu("moe", "--ranks", "4", "--routing", tmp_path / "ids.npy", "--experts", "4", "--hidden", "100")
    assert done.code == 0
    rows = [row for row in done.rows() if row[0].isdigit()]
    assert [row[8] for row in rows] == ["4.000", "1.000"]  # all tokens go to rank 0, and come back evenly
    assert [int(row[1]) for row in rows] == [3, 3]
