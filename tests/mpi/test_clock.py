"""One clock for all processes."""

from pathlib import Path
from time import perf_counter_ns

import pytest

from collemu.ranks.alone import Alone
from collemu.ranks.clock import Clock
from collemu.ranks.launch import mpirun_here, run_under_mpi

DRIVER = str(Path(__file__).parent / "drivers" / "compare_clocks.py")
CLOSE_NS = 1_000_000

with_mpi = [
    pytest.mark.mpi,
    pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'"),
]


def test_one_process_has_its_own_clock() -> None:
    clock = Clock(Alone())
    before = perf_counter_ns()
    clock.start()
    assert clock.offset_ns == 0
    assert before <= clock.now() <= perf_counter_ns()


@pytest.mark.parametrize("ahead_s", [0.0, 3.5, -100.0], ids=str)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=with_mpi)])
def test_two_processes_know_how_far_apart_they_are(ranks, ahead_s) -> None:
    process = run_under_mpi(ranks, [DRIVER, str(ahead_s)], 60.0)
    assert (process.returncode, process.stderr) == (0, "")
    first, second, *_ = map(int, process.stdout.split())
    assert first == 0
    if not ahead_s:
        assert second == 0  # one machine has one clock
    assert abs(second + ahead_s * 1e9) < CLOSE_NS
