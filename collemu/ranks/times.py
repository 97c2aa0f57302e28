"""What runs of real processes took, and where that differs from what the emulator says."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collemu.emulator import Result
from collemu.lower import NONE
from collemu.ranks.execute import Spans
from collemu.schedule import KIND_NAMES, Schedule

WAITING = "waiting for messages"

# A rank lags if its operations take so many times as long as those of the others, and that makes up half of the run and
# more than what an operating system takes a core away for.
LAGS = 4.0
LAG_S = 0.02


@dataclass(frozen=True)
class Times:
    """Seconds of some runs, from the first process's start to the last one's end.

    Attributes
    ----------
    median_s, low_s, high_s : float
        The median, and the quartiles.
    runs : int
    """

    median_s: float
    low_s: float
    high_s: float
    runs: int

    @property
    def noise(self) -> float:
        """How far the quartiles lie apart, as a share of the median: 0 for a single run."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s else 0.0


def times_of(seconds: Sequence[float]) -> Times:
    """Median and quartiles."""
    low, median, high = (float(each) for each in np.percentile(seconds, (25, 50, 75)))
    return Times(median, low, high, len(seconds))


def lagging(own_s: Sequence[float], operations: Sequence[int], median_s: float) -> str | None:
    """The rank that the others wait for, in words; None where nobody stands out.

    Parameters
    ----------
    own_s : sequence of float
        Seconds in which each rank did not wait for others.
    operations : sequence of int
        Of each rank, by which it is judged: roots have more to do than others.
    median_s : float
        Of the whole run.
    """
    each = np.array(own_s) / np.maximum(operations, 1)
    rank = int(each.argmax())
    usual = float(np.median(np.delete(each, rank))) if len(each) > 1 else np.inf
    surplus = own_s[rank] - usual * operations[rank]
    if each[rank] <= LAGS * usual or surplus < max(LAG_S, median_s / 2):
        return None
    return f"rank {rank} lags: {each[rank] * 1e6:.0f} us an operation, the others {usual * 1e6:.0f} us"


@dataclass(frozen=True)
class Phase:
    """A kind of operation, or waiting: seconds a rank, on average."""

    name: str
    model_s: float
    real_s: float

    def __str__(self) -> str:
        return f"{self.name}: {self.model_s * 1e6:.1f} us predicted, {self.real_s * 1e6:.1f} us measured a rank"


def phases_of(schedule: Schedule, result: Result, spans: Sequence[Spans]) -> tuple[Phase, ...]:
    """What ranks spent their time on in the emulator and in one real run; what differs most first.

    Parameters
    ----------
    schedule : Schedule
        As it ran, recipe included.
    result : Result
        With a timeline, on a system of processes.
    spans : sequence of Spans
        Of each rank.
    """
    assert result.timeline is not None
    operations = result.timeline.operations
    busy = operations["finish_fs"] - operations["start_fs"]
    model = _by_kind(schedule, np.arange(len(busy)), busy / 1e15)
    real: dict[str, float] = defaultdict(float)
    for of_rank in spans:
        ran = of_rank[of_rank["operation"] != NONE]
        for name, seconds in _by_kind(schedule, ran["operation"], _seconds(ran)).items():
            real[name] += seconds
        real[WAITING] += float(_seconds(of_rank[of_rank["operation"] == NONE]).sum())
    model[WAITING] = len(spans) * result.time_s - sum(model.values())
    phases = [
        Phase(name, model.get(name, 0.0) / len(spans), real.get(name, 0.0) / len(spans)) for name in {**model, **real}
    ]
    return tuple(sorted(phases, key=lambda phase: -abs(phase.model_s - phase.real_s)))


def _by_kind(schedule: Schedule, operations: NDArray[np.int64], seconds: NDArray[np.float64]) -> dict[str, float]:
    total = np.bincount(schedule.ops["kind"][operations], weights=seconds, minlength=len(KIND_NAMES))
    return {KIND_NAMES[kind]: float(total[kind]) for kind in np.flatnonzero(total)}


def _seconds(spans: Spans) -> NDArray[np.float64]:
    return (spans["end_ns"] - spans["begin_ns"]) / 1e9
