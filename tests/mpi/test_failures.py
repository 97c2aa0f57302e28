"""What users see when a process fails, dies, or was started with other arguments."""

import re
import signal
import time

from collemu.ranks.launch import run_under_mpi
from tests.mpi.launching import COLLEMU, DRIVERS, MPIRUN, NEEDS_MPIRUN, left_running, refusal, run, said, start

pytestmark = NEEDS_MPIRUN

WORDS = ("crosscheck", "all_reduce", "--algorithm", "ring,two_shot", "-b", "4K", "-d", "float32")


def test_a_rank_out_of_memory_is_named_and_finished_rows_are_kept(tmp_path):
    table = tmp_path / "table.csv"
    process = run_under_mpi(3, [str(DRIVERS / "fail_late.py"), *WORDS, "--csv", str(table)])
    assert process.returncode not in (0, 2)  # that of who is ended may come before that of who ends it
    point = "at all_reduce two_shot 3 ranks float32 wire none 4096 B"
    assert said(process).endswith(f"rank 1 of 3: MemoryError: Unable to allocate 4.00 GiB, {point}")
    assert len(table.read_text().splitlines()) == 2
    assert not left_running(str(table))


def test_a_rank_that_fails_says_what_it_was_at():
    line = said(run_under_mpi(3, [str(DRIVERS / "fail.py"), *WORDS]))
    assert "rank 1 of 3: OSError: the cable fell out, which waits for message 0 of channel 0 from rank 0" in line
    assert "at rank 1 thread 0 step" in line
    assert line.endswith("at all_reduce ring 3 ranks float32 wire none 4096 B")


def test_a_killed_rank_ends_all(tmp_path):
    begin = time.monotonic()
    table = str(tmp_path / "table.csv")
    process = run_under_mpi(3, [str(DRIVERS / "stall.py"), "kill", *WORDS, "--csv", table], timeout=60)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45
    assert not left_running(table)


def test_ranks_with_other_arguments_are_refused():
    program = (*COLLEMU, *WORDS)
    process = run(MPIRUN, "-n", "1", *program, ":", "-n", "1", *program, "--wire", "mxfp4")
    assert re.search(r"rank 0 has '.*float32', rank 1 has '.*--wire mxfp4'$", refusal(process))


def test_an_interrupt_ends_all(tmp_path):
    """Whatever their order: mpirun passes it on to all at once, and may end them before they say anything."""
    table = str(tmp_path / "table.csv")
    process = start(MPIRUN, "-n", "2", *COLLEMU, *WORDS, "-n", "100000", "--csv", table)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode not in (0, 2)
    assert "Traceback" not in stderr
    assert not left_running(table)


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
