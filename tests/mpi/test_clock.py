"""One clock for all processes."""

from time import perf_counter_ns

import pytest

from collemu.ranks.alone import Alone
from collemu.ranks.clock import Clock
from collemu.ranks.launch import run_under_mpi
from tests.mpi.launching import DRIVERS, NEEDS_MPIRUN

DRIVER = str(DRIVERS / "compare_clocks.py")
CLOSE_NS = 1_000_000


def test_one_process_has_its_own_clock() -> None:
    clock = Clock(Alone())
    before = perf_counter_ns()
    clock.start()
    assert clock.offset_ns == 0
    assert before <= clock.now() <= perf_counter_ns()


@pytest.mark.parametrize("ahead_s", [0.0, 3.5, -100.0], ids=str)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=NEEDS_MPIRUN)])
def test_two_processes_know_how_far_apart_they_are(ranks, ahead_s) -> None:
    process = run_under_mpi(ranks, [DRIVER, str(ahead_s)], 60.0)
    assert (process.returncode, process.stderr) == (0, "")
    first, second, *_ = map(int, process.stdout.split())
    assert first == 0
    if not ahead_s:
        assert second == 0  # one machine has one clock
    assert abs(second + ahead_s * 1e9) < CLOSE_NS
