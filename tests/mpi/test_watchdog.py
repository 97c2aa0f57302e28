"""A process that stalls ends the job, when asked to, with a line that says who waits for whom, or is at what."""

import time

import pytest

from collemu.ranks.alone import Alone
from collemu.ranks.launch import run_under_mpi
from collemu.ranks.watchdog import Watchdog
from tests.mpi.launching import DRIVERS, NEEDS_MPIRUN, left_running, refusal, said

pytestmark = NEEDS_MPIRUN

WORDS = ("crosscheck", "all_reduce", "--algorithm", "ring", "-b", "4K", "--wire", "none", "-d", "float32")
POINTS = ("perf", "all_reduce", "--algorithm", "ring", "-b", "1K", "-e", "4K", "-f", "2", "--ranks", "3,4")


def stalled(ranks, how, *words):
    """What is said of a job of which rank 1 stalls; it must end in time, and leave no process."""
    begin = time.monotonic()
    process = run_under_mpi(ranks, [str(DRIVERS / "stall.py"), how, *words, "--timeout", "2"], timeout=60)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45
    assert not left_running(words[-1])
    return said(process)


@pytest.mark.parametrize(("how", "told"), [("stop", "rank 1 does not answer"), ("sleep", "rank 1 waits for message")])
def test_a_stalled_rank_ends_all(how, told, tmp_path):
    line = stalled(3, how, *WORDS, "--csv", str(tmp_path / "table.csv"))
    assert line.startswith("collemu crosscheck: no progress for 2 s: ")
    assert told in line
    assert "rank 2 waits for message" in line
    assert "from rank 1, at rank 2 thread 0 step" in line


@pytest.mark.parametrize("how", ["stop", "sleep"])
def test_a_stalled_process_of_perf_ends_all(how, tmp_path):
    table = tmp_path / "table.csv"
    line = stalled(2, how, *POINTS, "--csv", str(table))
    assert line.startswith("collemu perf: no progress for 2 s: process 1 ")
    assert ("does not answer" in line) == (how == "stop")
    assert "is at all_reduce ring" in line
    assert "process 0" not in line  # it has done its part, and waits for the other


def test_what_goes_on_is_left_alone():
    for words in ((*WORDS, "-n", "3", "--timeout", "20"), (*POINTS, "--timeout", "20")):
        process = run_under_mpi(2, ["-m", "collemu", *words], timeout=60)
        assert (process.returncode, process.stderr) == (0, ""), process.stdout


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("words", [WORDS, POINTS], ids=["crosscheck", "perf"])
def test_a_timeout_is_a_number_of_seconds(words, text):
    process = run_under_mpi(2, ["-m", "collemu", *words, "--timeout", text], timeout=60)
    assert f"--timeout {text!r} is no number of seconds above 0" in refusal(process)


def test_one_process_is_not_watched():
    with Watchdog(Alone(), 0.01) as watchdog:
        watchdog.begin(lambda: "")
        time.sleep(0.1)
