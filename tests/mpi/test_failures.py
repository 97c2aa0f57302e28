"""What users see when a process fails, dies, or was started with other arguments."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collemu.ranks.launch import mpirun_here, run_under_mpi

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'"),
]

DRIVERS = Path(__file__).parent / "drivers"
WORDS = ("crosscheck", "all_reduce", "--algorithm", "ring,two_shot", "-b", "4K", "-d", "float32")


def said(stderr: str) -> str:
    """The one line that is collemu's; launchers add theirs."""
    (line,) = [line for line in stderr.splitlines() if line.startswith("collemu")]
    assert "Traceback" not in stderr
    return line


def test_a_rank_out_of_memory_is_named_and_finished_rows_are_kept(tmp_path):
    table = tmp_path / "table.csv"
    process = run_under_mpi(3, [str(DRIVERS / "fail_late.py"), *WORDS, "--csv", str(table)])
    assert process.returncode == 1
    point = "at all_reduce two_shot 3 ranks float32 wire none 4096 B"
    assert said(process.stderr).endswith(f"rank 1 of 3: MemoryError: Unable to allocate 4.00 GiB, {point}")
    assert len(table.read_text().splitlines()) == 2


def test_a_rank_that_fails_says_what_it_was_at():
    process = run_under_mpi(3, [str(DRIVERS / "fail.py"), *WORDS])
    line = said(process.stderr)
    assert "rank 1 of 3: OSError: the cable fell out, which waits for message 0 of channel 0 from rank 0" in line
    assert "at rank 1 thread 0 step" in line
    assert line.endswith("at all_reduce ring 3 ranks float32 wire none 4096 B")


def test_a_killed_rank_ends_all():
    begin = time.monotonic()
    process = run_under_mpi(3, [str(DRIVERS / "stall.py"), "kill", *WORDS], timeout=60)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45


def test_ranks_with_other_arguments_are_refused():
    program = [sys.executable, "-m", "collemu", *WORDS]
    command = [str(mpirun_here()), "-n", "1", *program, ":", "-n", "1", *program, "--wire", "mxfp4"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 2
    assert re.search(r"rank 0 has '.*float32', rank 1 has '.*--wire mxfp4'$", said(process.stderr))


def test_an_interrupt_keeps_what_is_done(tmp_path):
    table = tmp_path / "table.csv"
    words = ("crosscheck", "all_reduce", "--algorithm", "ring,two_shot", "-b", "1K", "-n", "100000")
    command = [str(mpirun_here()), "-n", "2", sys.executable, "-m", "collemu", *words, "--csv", str(table)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode not in (0, 2)
    assert "Traceback" not in stderr


def test_a_rank_that_lags_is_named_and_the_job_completes():
    process = run_under_mpi(3, [str(DRIVERS / "lag.py"), *WORDS])
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    assert sum("rank 1 lags: " in line for line in lines) == 2
    assert lines[-1].endswith("all identical")


def test_nobody_lags_where_a_root_has_more_to_do():
    process = run_under_mpi(5, ["-m", "collemu", "crosscheck", "gather,reduce", "-b", "4K", "-d", "float32"])
    assert process.returncode == 0, process.stdout + process.stderr
    assert "lags" not in process.stdout
