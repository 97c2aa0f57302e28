"""`collemu sweep` under mpirun: the same table whoever shares the work, and whoever is killed."""

import os
import signal
import time
from pathlib import Path

import pytest

from collemu.ranks.alone import Alone
from collemu.ranks.launch import run_under_mpi
from collemu.ranks.sharing import share
from tests.mpi.launching import COLLEMU, DRIVERS, MPIRUN, NEEDS_MPIRUN, left_running, refusal, run, said, start

PLAN = """
[defaults]
minbytes = "1K"
maxbytes = "64K"
stepfactor = 2

[[sweep]]
collective = ["all_reduce", "reduce_scatter"]
algorithm = "ring"
wire = ["none", "mxfp4"]
ranks = [2, 3, 4, 5]
"""
POINTS = 2 * 2 * 4 * 7
KILLS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def whole(folder: Path) -> bytes:
    """The table of one process."""
    process = run(*COLLEMU, "sweep", "plan.toml", "-o", "whole.csv")
    assert process.returncode == 0, process.stderr
    return Path("whole.csv").read_bytes()


def sweep(ranks: int, *flags: str):
    return run_under_mpi(ranks, ["-m", "collemu", "sweep", "plan.toml", *flags], 120.0)


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=NEEDS_MPIRUN) for ranks in (1, 2, 3)])
def test_any_number_of_processes_write_the_same_bytes(ranks: int, whole: bytes) -> None:
    process = sweep(ranks, "-o", "shared.csv")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == f"# sweep plan: {POINTS} points, 0 failed, 0 wrong elements: shared.csv\n"
    assert Path("shared.csv").read_bytes() == whole
    assert not Path("shared.csv.journal").exists()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=NEEDS_MPIRUN)])
def test_killed_again_and_again_it_comes_to_the_same_bytes(ranks: int, whole: bytes) -> None:
    """All processes at once, without a word, later and later; one process alone also goes on with what several did."""
    journal = Path("again.csv.journal")
    command = (*COLLEMU, "sweep", "plan.toml", "-o", "again.csv")
    launched = command if ranks == 1 else (MPIRUN, "-n", str(ranks), *command)
    for kill in range(1, KILLS + 1):
        process = start(*launched)
        _wait_until(lambda kill=kill: _lines(journal) > kill * POINTS // (KILLS + 2) or Path("again.csv").exists())
        for pid in _processes("again.csv"):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert not left_running("again.csv")
    assert _lines(journal) > 0 or Path("again.csv").exists()
    assert run(*command).returncode == 0
    assert Path("again.csv").read_bytes() == whole


def _wait_until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _processes(word: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if word in (path / "cmdline").read_text(errors="replace") and int(path.name) != os.getpid():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("ranks", [pytest.param(3, marks=NEEDS_MPIRUN)])
def test_bad_input_is_one_line(ranks: int, folder: Path) -> None:
    assert "cannot read none.toml" in refusal(run_under_mpi(ranks, ["-m", "collemu", "sweep", "none.toml"], 60.0))
    assert "must end in .csv or .parquet" in refusal(sweep(ranks, "-o", "x.json"))
    assert [path.name for path in folder.iterdir()] == ["plan.toml"]


@pytest.mark.parametrize("how", ["sleep", "kill"])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=NEEDS_MPIRUN)])
def test_a_process_that_stalls_or_dies_ends_all_and_what_is_done_is_kept(ranks: int, how: str, whole: bytes) -> None:
    words = ("sweep", "plan.toml", "-o", "again.csv", "--timeout", "5")
    begin = time.monotonic()
    process = run_under_mpi(ranks, [str(DRIVERS / "stall.py"), how, *words], 60.0)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45
    if how == "sleep":
        assert "process 1 is at" in said(process)
    assert not left_running("again.csv")
    assert _lines(Path("again.csv.journal")) > 1
    assert sweep(ranks, "-o", "again.csv").returncode == 0
    assert Path("again.csv").read_bytes() == whole


@pytest.mark.parametrize("pieces", [0, 1, 2, 5, 40])
def test_one_process_does_all_in_order(pieces: int) -> None:
    kept: list[tuple[int, int]] = []
    share(Alone(), pieces, lambda piece: 2 * piece, lambda *pair: kept.append(pair))
    assert kept == [(piece, 2 * piece) for piece in range(pieces)]


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=NEEDS_MPIRUN) for ranks in (2, 3, 5)])
def test_each_piece_is_done_once(ranks: int) -> None:
    process = run_under_mpi(ranks, ["-m", "mpi4py", str(DRIVERS / "share_work.py")], 60.0)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "0 1 2 7 100 pieces, each once\nOSError: the disk is full\n"
