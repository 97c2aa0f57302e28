"""`collemu calibrate host`: what it writes serves crosscheck, and what it refuses is one line. No time is asserted."""

import json
import re
import subprocess
import sys

import pytest

import collemu as ce
from collemu.number_formats import wire_formats
from collemu.ranks.launch import run_under_mpi
from tests.mpi.launching import NEEDS_MPIRUN, refusal

QUICK = ("-n", "3", "-e", "64K")


def calibrate(ranks: int, *flags: str, timeout: float = 400.0):
    return run_under_mpi(ranks, ["-m", "collemu", "calibrate", "host", *flags], timeout)


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=NEEDS_MPIRUN) for ranks in (2, 3)])
def test_a_machine_is_measured_and_its_file_serves_a_crosscheck(ranks, tmp_path) -> None:
    """Also with more processes than cores."""
    path, records = tmp_path / "this_host.toml", tmp_path / "rows.json"
    process = calibrate(ranks, *QUICK, "-o", str(path))
    assert (process.returncode, process.stderr) == (0, ""), process.stdout + process.stderr
    assert re.match(rf"# [2-{ranks}] processes measured at once, ", process.stdout)  # as many as there are cores
    assert process.stdout.endswith(f"# written: {path}\n")
    system = ce.load_system(path)
    assert system.name == "this_host"
    assert system.processes.sizes_bytes[-1] == 2**16
    assert 2 <= system.processes.measured <= ranks
    assert set(system.conversions) <= set(wire_formats()) and system.conversions
    flags = ("--algorithm", "ring,two_shot", "-b", "4K", "-n", "3", "--system", str(path), "--against", "mpi")
    words = ["-m", "collemu", "crosscheck", "all_reduce", *flags, "--json", str(records)]
    process = run_under_mpi(ranks, words, 200.0)
    assert process.returncode == 0, process.stdout + process.stderr
    rows = json.loads(records.read_text())["results"]
    assert {row["algorithm"] for row in rows} == {"ring", "two_shot"}
    for row in rows:
        assert row["bytes_identical"] and row["messages_identical"]
        assert row["runs"] == 3 and row["real_low_us"] <= row["real_us"] <= row["real_high_us"]
        assert row["noise"] == pytest.approx((row["real_high_us"] - row["real_low_us"]) / row["real_us"])
        assert row["error"] == pytest.approx(row["model_us"] / row["real_us"] - 1)
        assert row["mpi_us"] > 0
        assert re.fullmatch(r".+: \d+\.\d us predicted, \d+\.\d us measured a rank", row["differs_most"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-o", "host.txt"), "-o host.txt must end in .toml, as systems do"),
        (("-o", "no/such/folder/host.toml"), "no/such/folder"),
        (("-n", "1"), "-n is 1; give 3 or more"),
        (("-n", "many"), "-n"),
        (("-e", "1Q"), "is not a size"),
    ],
)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=NEEDS_MPIRUN)])
def test_what_cannot_be_is_refused_in_one_line(ranks, flags, expected) -> None:
    assert expected in refusal(calibrate(ranks, *flags, timeout=60.0))


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=NEEDS_MPIRUN)])
def test_one_process_is_too_few(ranks) -> None:
    assert "one process sends nothing, start two or more: mpirun -n 2 collemu" in refusal(
        calibrate(ranks, timeout=60.0)
    )


def test_without_a_launcher_it_says_how_to_start(tmp_path) -> None:
    command = [sys.executable, "-m", "collemu", "calibrate", "host"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "real processes are needed: mpirun -n 2 collemu calibrate host" in refusal(process)
    assert not list(tmp_path.iterdir())
