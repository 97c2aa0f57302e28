"""Times of measured cases by the emulator, with the constants of the closed forms and none of their arithmetic."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from collemu.catalogue import load_system
from collemu.fidelity import custom_runs, mesh_runs, nccl_runs
from collemu.fidelity.constants import Constants
from collemu.fidelity.fit import spread_of
from collemu.fidelity.form import Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.predict import Predictions, assigned, families_of
from collemu.fidelity.runs import Case, Run, time_us

#: By form, the runs of rows. Others have closed forms alone.
RUNS: Mapping[str, Callable[[Values, Measured], list[Run | None]]] = {
    "nccl": nccl_runs.runs,
    "mesh": mesh_runs.runs,
    "custom": custom_runs.runs,
}


def emulated(rows: Measured, constants: Constants, count: Callable[[], None]) -> Predictions:
    """Emulate rows.

    Parameters
    ----------
    rows : Measured
    constants : Constants
    count : callable
        Called as each row is done.
    """
    found = np.full(len(rows), np.nan)
    family = np.full(len(rows), "", object)
    reasons: dict[int, str] = {}
    load = cache(load_system)
    for form, group, mask in assigned(rows):
        own, places = rows.where(mask), np.flatnonzero(mask).tolist()
        if form.name not in RUNS:
            reasons |= dict.fromkeys(
                places, f"the emulator does not run {families_of(form, group, own)[0]} yet: --engine model"
            )
            continue
        fitted = constants.get(form.name, {}).get(group)
        if fitted is None:
            reasons |= dict.fromkeys(places, f"no constants are fitted for {form.name} {group}")
            continue
        runs = RUNS[form.name](spread_of(form, group, fitted, own), own)
        for number, (place, run) in enumerate(zip(places, runs, strict=True)):
            count()
            if run is None:
                continue
            case = Case(own.collective[number], int(own.ranks[number]), int(own.size[number]))
            try:
                found[place] = time_us(run, case, load(own.system[number]))
            except ValueError as error:
                reasons[place] = str(error)
        family[mask] = families_of(form, group, own)
    family[np.isnan(found)] = ""
    for place in np.flatnonzero(np.isnan(found)).tolist():
        reasons.setdefault(place, f"the emulator runs no such {rows.collective[place]} on {rows.system[place]}")
    return Predictions(found, family, reasons)
