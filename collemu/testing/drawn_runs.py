"""Hypothesis strategy of whole runs of the emulator: arguments that go together.

Runs shrink as schedules, systems, recipes, counts and tensors do, in this order; data to zeros.
"""

from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from collemu.catalogue import System
from collemu.collectives import UNEVEN
from collemu.in_switch import switch_types
from collemu.payload import OPERATORS
from collemu.recipe import Recipe
from collemu.rows import input_size, settled_count
from collemu.schedule import IN_SWITCH, Schedule
from collemu.testing import drawn_schedules
from collemu.testing.drawn_schedules import MOST, counts
from collemu.testing.drawn_systems import fits
from collemu.testing.drawn_systems import systems as fitting_systems
from collemu.testing.drawn_values import dtypes, is_narrow, lacks_nan, recipes, tensors
from collemu.verification import verify

TAME = 8.0  # a magnitude of which sums overflow no type, whatever it is


def runs(
    schedules: SearchStrategy[Schedule] | None = None,
    systems: SearchStrategy[System] | None = None,
    *,
    most: int = MOST,
    data: bool = True,
) -> SearchStrategy[dict[str, Any]]:
    """Whole sets of arguments that go together: ``collemu.emulate(**run)``, ``assert_same_bytes(comm=comm, **run)``.

    Parameters
    ----------
    schedules, systems : strategy, optional
        What to choose from; when left out all built-in algorithms, and the systems that can run them.
    most : int
        The largest count.
    data : bool
        Whether there is data, of hard values.
    """
    return _runs(drawn_schedules.schedules(in_switch=True) if schedules is None else schedules, systems, most, data)


@st.composite
def _runs(
    draw: DrawFn,
    schedules: SearchStrategy[Schedule],
    systems: SearchStrategy[System] | None,
    most: int,
    with_data: bool,
) -> dict[str, Any]:
    schedule = draw(schedules)
    in_switch = bool(IN_SWITCH[schedule.ops["kind"]].any())
    fitting = fitting_systems(ranks=schedule.ranks, in_switch=in_switch) if systems is None else systems
    system = draw(fitting)
    assume(fits(system, schedule.ranks, in_switch))
    run: dict[str, Any] = {"schedule": schedule, "system": system, "op": draw(st.sampled_from(tuple(OPERATORS)))}
    if in_switch:
        assume(run["op"] in switch_types(system))
        run |= {"dtype": draw(st.sampled_from(switch_types(system)[run["op"]])), "recipe": Recipe()}
    else:
        run["recipe"] = recipe = draw(recipes())
        plain = (recipe.wire, recipe.accumulate, recipe.dtype) == ("none", "float32", None)
        run["dtype"] = draw(dtypes() if plain else dtypes().filter(is_narrow))
    if schedule.counts is None:
        step = 1 if verify(schedule, system.endpoint.fifo_slots).any_count else schedule.region_chunks
        run["count"] = step * draw(counts(most // step, near=(schedule.ranks, schedule.region_chunks)))
    run["fidelity"] = draw(st.sampled_from(("auto", "flow")))
    run["protocol"] = draw(st.sampled_from(("auto", *system.protocols)))
    run["seed"] = draw(st.integers(0, 2**16))
    if with_data:
        run["data"] = draw(_data(run))
    return run


@st.composite
def _data(draw: DrawFn, run: dict[str, Any]) -> Any:
    """One tensor, cut into what each rank contributes; tame where no sum may come to a NaN."""
    schedule: Schedule = run["schedule"]
    count = settled_count(schedule, run.get("count"))
    ends = np.cumsum([input_size(schedule, count, rank) for rank in range(schedule.ranks)])
    largest = (1.0 if run["op"] == "prod" else TAME) if lacks_nan(run["recipe"]) else None
    values = draw(tensors(run["dtype"], int(ends[-1]), wire=run["recipe"].wire, largest=largest))
    rows = np.split(values, ends[:-1])
    return rows if schedule.collective in UNEVEN else np.stack(rows)
