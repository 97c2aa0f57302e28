"""Times of measured cases, by whichever closed form is for them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.constants import Constants
from collemu.fidelity.custom import Custom
from collemu.fidelity.fit import cross_validated, spread_of
from collemu.fidelity.form import Floats, Form
from collemu.fidelity.measured import Measured
from collemu.fidelity.mesh import Mesh
from collemu.fidelity.moe import Moe
from collemu.fidelity.nccl import Nccl
from collemu.fidelity.networks import FAMILIES, Networks
from collemu.fidelity.trainium import Trainium

FORMS: tuple[Form, ...] = (Moe(), Trainium(), Nccl(), Mesh(), Custom(), Networks())
FOLDS = 10


@dataclass(frozen=True)
class Predictions:
    """Times of rows, and who they come from.

    Attributes
    ----------
    time_us : float array
        NaN where there is none.
    family : str array
        Form, and network or kernel where each has its own line in a summary; empty where there is no time.
    reasons : dict of int to str
        Why a row has none.
    """

    time_us: Floats
    family: NDArray[np.object_]
    reasons: dict[int, str] = field(default_factory=dict[int, str])


def assigned(rows: Measured) -> Iterator[tuple[Form, str, NDArray[np.bool_]]]:
    """Form, group and mask: each row comes once at most."""
    free = np.ones(len(rows), bool)
    for form in FORMS:
        groups = form.groups(rows)
        for group in sorted(set(groups[free].tolist()) - {""}):
            yield form, group, free & (groups == group)
        free &= groups == ""


def predict(rows: Measured, constants: Constants, *, cross_validate: bool = False) -> Predictions:
    """Predict rows from constants; or from others of the same rows, fitted without the case that is predicted.

    Parameters
    ----------
    rows : Measured
    constants : Constants
    cross_validate : bool
        Whether to fit again without each fold of whole cases; of mixtures of experts, without each number of ranks.
    """
    time_us = np.full(len(rows), np.nan)
    family = np.full(len(rows), "", object)
    reasons: dict[int, str] = {}
    for form, group, mask in assigned(rows):
        own = rows.where(mask)
        fitted = constants.get(form.name, {}).get(group)
        if fitted is None and not cross_validate:
            reasons |= dict.fromkeys(np.flatnonzero(mask).tolist(), f"no constants are fitted for {form.name} {group}")
            continue
        if cross_validate:
            found = cross_validated(form, group, own, FOLDS)
            alone = np.flatnonzero(mask)[np.isnan(found)].tolist()
            reasons |= dict.fromkeys(alone, f"{form.name} {group} has this case alone")
        else:
            found = form.time_us(spread_of(form, group, fitted or {}, own), own)
        time_us[mask] = found
        family[mask] = families_of(form, group, own)
    family[np.isnan(time_us)] = ""
    for place in np.flatnonzero(np.isnan(time_us)).tolist():
        reasons.setdefault(place, f"no model for {rows.collective[place]} on {rows.system[place]}")
    return Predictions(time_us, family, reasons)


def families_of(form: Form, group: str, rows: Measured) -> NDArray[np.object_]:
    """The line of a summary that each row belongs to."""
    if form.name == "networks":
        kinds = ["racks" if system.endswith("nvl72") else FAMILIES[system] for system in rows.system.tolist()]
        return np.array(
            [f"NCCL over {network} {kind}" for network, kind in zip(rows.network, kinds, strict=True)], object
        )
    names = {
        "nccl": "NCCL, NVSwitch",
        "mesh": "NCCL, direct mesh",
        "custom": "custom kernels",
        "trainium": "Trainium",
        "moe": f"MoE {group}",
    }
    return np.full(len(rows), names[form.name], object)
