"""The smaller commands."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import collemu as package
from collemu import load_system, quantization_report
from collemu.accumulation import MODELS
from collemu.cli.matmul import estimated_time_s
from collemu.cli.table import lines_of, quantity
from collemu.cli.warm import OLDER_S, remove_older_caches
from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]


def test_verify_prints_a_line_an_algorithm(collemu: Collemu) -> None:
    outcome = collemu("verify", "all", "--ranks", "1-5")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    pairs = {tuple(line.split(":")[0].split()[1:]) for line in lines}
    assert pairs == {(collective, name) for collective, _ in pairs for name in package.algorithms(collective)}
    assert all(line.startswith("ok ") and "5 rank counts" in line for line in lines)
    assert any(line.startswith("ok all_reduce ring:") for line in lines)


def test_verify_of_some(collemu: Collemu) -> None:
    outcome = collemu("verify", "ring", "--collective", "all_gather", "--ranks", "7")
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == ["ok all_gather ring"]


def test_verify_in_domains(collemu: Collemu) -> None:
    outcome = collemu("verify", "hierarchical,nvls_tree", "--ranks", "7,16", "--group", "3")
    assert (outcome.code, len(outcome.out.splitlines())) == (0, 5)
    assert all("2 rank counts" in line for line in outcome.out.splitlines())
    assert collemu("verify", "hierarchical", "--group", "0").err.endswith("--group is 0; give 1 or more\n")


def test_perf_knows_the_domains_of_a_system(collemu: Collemu) -> None:
    """Two domains of 8: a region a rank goes through its port, where a direct exchange sends eight."""
    flags = ("-b", "16K", "-e", "16K", "--system", "h100_hgx@efa_p5en", "--ranks", "16", "--algorithm")
    outcome = collemu("perf", "all_gather", *flags, "hierarchical,direct")
    assert outcome.code == 0
    schedule = package.build_schedule("all_gather", "hierarchical", 16, group=8)
    time = package.emulate(schedule, package.load_system("h100_hgx@efa_p5en"), count=256).time_s
    assert f" {time * 1e6:.3f} " in outcome.out
    assert collemu("perf", "all_reduce", *flags, "nvls_tree").code == 0


def test_verify_names_what_is_wrong_and_exits_1(collemu: Collemu, monkeypatch: pytest.MonkeyPatch) -> None:
    build = package.build_schedule

    def doubled(*arguments: object, **options: object) -> package.Schedule:
        schedule = build(*arguments, **options)  # pyright: ignore
        schedule.ops.setflags(write=True)
        schedule.ops["src"][schedule.ops["kind"] == 1] = 0  # every send sends the first chunk
        return schedule

    monkeypatch.setattr(package, "build_schedule", doubled)
    outcome = collemu("verify", "ring", "--collective", "all_reduce", "--ranks", "3")
    assert outcome.code == 1
    assert outcome.out.startswith("FAILED all_reduce ring 3 ranks: ")
    assert "rank" in outcome.out


def test_systems_prints_every_number_with_its_source(collemu: Collemu) -> None:
    assert "trainium4_nvl72" in collemu("systems").out
    text = collemu("systems", "trainium4_nvl72").out
    system = package.load_system("trainium4_nvl72")
    for name, number in system.provenance.items():
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        assert f" {number.confidence} " in line
        assert number.source in line
    for key in system.sources:
        assert f"\n{key} " in text
    assert "3.6 TB/s" in text
    assert system.fingerprint in text


def test_formats_lists_all_and_the_codes_of_one(collemu: Collemu) -> None:
    text = collemu("formats").out
    assert all(name in text for name in package.formats())
    codes = collemu("formats", "float8_e4m3fn").out
    assert "448" in codes
    assert codes.count("\n0x") == 32
    assert "-6" in collemu("formats", "float4_e2m1fn").out.split()
    blocks = collemu("formats", "mxfp4").out
    assert "4.25 bits an element" in blocks
    assert "float8_e8m0fnu" in blocks


def test_algorithms_counts_steps_and_messages(collemu: Collemu) -> None:
    lines = collemu("algorithms", "--ranks", "8").out.splitlines()
    ring = next(line.split() for line in lines if line.startswith("all_reduce") and " ring " in line)
    assert ring[2:4] == ["14", "112"]  # 2(n - 1) steps, n messages each


def test_matmul_error_falls_with_more_bits(collemu: Collemu) -> None:
    def error(name: str) -> float:
        words = ("matmul", "-m", "16", "-n", "16", "-k", "64", "--a", name, "--b", name)
        return float(collemu(*words).rows()[2][3])

    assert error("none") < 1e-6 < error("mxfp8_e4m3") < error("mxfp4") < 1


def test_matmul_takes_every_model(collemu: Collemu) -> None:
    for model in MODELS:
        name = {"cdna3": "float8_e5m2fnuz", "block_exact": "mxfp4"}.get(model, "float8_e5m2")
        line = collemu(
            "matmul", "-m", "4", "-n", "4", "-k", "64", "--a", name, "--b", name, "--accumulate", model
        ).rows()
        assert line[2][:3] == [name, name, model]
        assert 0 < float(line[2][3]) < 1


def test_matmul_counts_what_formats_lose_and_estimates_the_time(collemu: Collemu) -> None:
    size = ("matmul", "-m", "4", "-n", "4", "-k", "64")
    rows = collemu(*size, "--a", "none,mxfp4,mxfp6_e2m3,mxint8").rows()[2:]
    assert [row[:2] for row in rows] == [[name] * 2 for name in ("none", "mxfp4", "mxfp6_e2m3", "mxint8")]
    assert rows[0][5:9] == ["0", "0", "no", "rate"]
    assert rows[3][7:9] == ["no", "rate"]
    random = np.random.default_rng(0)
    a, b = random.standard_normal((4, 64), np.float32), random.standard_normal((64, 4), np.float32)
    reports = [quantization_report(a, "mxfp4"), quantization_report(b, "mxfp4", axis=0)]
    assert int(rows[1][5]) == sum(report.saturated for report in reports)
    assert int(rows[1][6]) == sum(report.flushed_to_zero for report in reports) > 0
    chip = load_system("trainium4_nvl72").chip
    assert estimated_time_s(chip, 4, 4, 64, "mxfp4", "nvfp4") == 2048 / chip.fp4_dense_flop_per_s
    assert estimated_time_s(chip, 4, 4, 64, "mxfp4", "mxfp6_e2m3") == 2048 / chip.fp8_dense_flop_per_s
    assert estimated_time_s(chip, 4, 4, 64, "mxfp4", "bfloat16") is None


def test_matmul_leaves_out_what_a_model_refuses(collemu: Collemu) -> None:
    words = ("matmul", "-m", "4", "-n", "4", "-k", "64", "--accumulate", "blackwell")
    outcome = collemu(*words, "--a", "all", "--b", "mxfp4", "--promote-every", "32", "--out-dtype", "bfloat16")
    assert [row[0] for row in outcome.rows()[2:]] == ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2"]
    assert "# left out: " in outcome.out
    refused = collemu(*words, "--a", "mxint8")
    assert (refused.code, refused.out) == (2, "")
    assert "does not multiply mxint8" in refused.err


def test_tables_are_aligned() -> None:
    assert lines_of(("a", "long"), [("x", 1), ("yy", 22)], "<>") == ["a   long", "--  ----", "x      1", "yy    22"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (150e-9, "s", "150 ns"),
        (7.48e-6, "s", "7.48 us"),
        (50e9, "bytes/s", "50 GB/s"),
        (1.8e12, "bytes/s", "1.8 TB/s"),
        (309237645312, "bytes", "288 GiB"),
        (256, "bytes", "256 bytes"),
        (7.551e15, "flop/s", "7.551 Pflop/s"),
        (72, "", "72"),
        (True, "", "true"),
    ],
)
def test_quantities_read_well(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_only_caches_that_nobody_wrote_for_a_day_are_removed(tmp_path: Path) -> None:
    for name in ("current", "old", "recent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.nbi").write_text("")
    long_ago = time.time() - OLDER_S - 60
    for path in (tmp_path / "old" / "kernel.nbi", tmp_path / "old", tmp_path / "current"):
        os.utime(path, (long_ago, long_ago))
    assert remove_older_caches(tmp_path / "current") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "recent"]
