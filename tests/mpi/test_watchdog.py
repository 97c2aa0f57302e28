"""A rank that stalls ends the job, when asked to, with a line that says who waits for whom."""

import time
from pathlib import Path

import pytest

from collemu.ranks.alone import Alone
from collemu.ranks.launch import mpirun_here, run_under_mpi
from collemu.ranks.watchdog import Watchdog

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'"),
]

DRIVER = Path(__file__).parent / "drivers" / "stall.py"
WORDS = ("crosscheck", "all_reduce", "--algorithm", "ring", "-b", "4K", "--wire", "none", "-d", "float32")


@pytest.mark.parametrize(("how", "told"), [("stop", "rank 1 does not answer; "), ("sleep", "rank 1 waits for message")])
def test_a_stalled_rank_ends_all(how, told):
    begin = time.monotonic()
    process = run_under_mpi(3, [str(DRIVER), how, *WORDS, "--timeout", "2"], timeout=60)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45
    (line,) = [text for text in process.stderr.splitlines() if text.startswith("collemu")]
    assert line.startswith("collemu crosscheck: no progress for 2 s: ")
    assert told in line
    assert "rank 2 waits for message" in line
    assert "from rank 1, at rank 2 thread 0 step" in line
    assert "Traceback" not in process.stderr


def test_what_goes_on_is_left_alone():
    words = (*WORDS, "-n", "3", "--timeout", "20")
    process = run_under_mpi(2, ["-m", "collemu", *words], timeout=60)
    assert process.returncode == 0, process.stderr
    assert "all identical" in process.stdout


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_timeout_is_a_number_of_seconds(text):
    process = run_under_mpi(2, ["-m", "collemu", *WORDS, "--timeout", text], timeout=60)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert f"--timeout {text!r} is no number of seconds above 0" in process.stderr


def test_one_process_is_not_watched():
    with Watchdog(Alone(), 0.01) as watchdog:
        watchdog.begin(lambda: "")
        time.sleep(0.1)
