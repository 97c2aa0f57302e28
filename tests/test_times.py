"""What is made of the times of real runs."""

from dataclasses import replace

import numpy as np
import pytest

from collemu import build_schedule, emulate, load_system
from collemu.processes import SINGLE_CORE
from collemu.ranks.execute import SPAN
from collemu.ranks.times import WAITING, lagging, phases_of, times_of


def test_median_and_quartiles():
    times = times_of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (times.median_s, times.low_s, times.high_s, times.runs) == (3.0, 2.0, 4.0, 5)
    assert times.noise == pytest.approx(2 / 3)
    assert times_of([2.0]).noise == 0.0
    assert times_of([0.0]).noise == 0.0


def test_a_rank_that_takes_long_for_each_operation_lags():
    assert lagging([0.001, 0.2, 0.001], [4, 4, 4], 0.2) == "rank 1 lags: 50000 us an operation, the others 250 us"


@pytest.mark.parametrize(
    ("own_s", "operations", "median_s"),
    [
        ([0.001, 0.2, 0.001], [4, 800, 4], 0.2),  # it has more to do
        ([0.001, 0.01, 0.001], [4, 4, 4], 0.01),  # what an operating system takes away
        ([0.001, 0.2, 0.001], [4, 4, 4], 2.0),  # it is not what the run waits for
        ([0.2, 0.2, 0.2], [4, 4, 4], 0.2),
        ([0.2], [4], 0.2),
        ([0.0, 0.0], [0, 0], 0.0),
    ],
)
def test_nobody_lags(own_s, operations, median_s):
    assert lagging(own_s, operations, median_s) is None


def test_phases_name_what_differs_most():
    """Both ranks send for 3 us and receive for 1; the real ones receive for 11 and wait for 7."""
    spent = replace(SINGLE_CORE, cores=2, operation_s=1e-6, send_s=2e-6)
    system = replace(load_system("trainium4_nvl72").with_(**{"endpoint.launch_s": 0.0}), processes=spent)
    schedule = build_schedule("sendrecv", "direct", 2)
    result = emulate(schedule, system, count=1)
    assert result.time_fs == 4 * 10**9
    spans = [
        np.array([(2 * rank, 0, 3000, 0), (-1, 3000, 10000, 4), (2 * rank + 1, 10000, 21000, 0)], SPAN)
        for rank in range(2)
    ]
    phases = {phase.name: phase for phase in phases_of(schedule, result, spans)}
    assert list(phases) == ["recv", WAITING, "send"]
    assert (phases["send"].model_s, phases["send"].real_s) == (pytest.approx(3e-6), pytest.approx(3e-6))
    assert (phases[WAITING].model_s, phases[WAITING].real_s) == (pytest.approx(0.0), pytest.approx(7e-6))
    assert str(phases["recv"]) == "recv: 1.0 us predicted, 11.0 us measured a rank"
