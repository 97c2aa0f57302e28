"""Constants from measured cases: robust least squares of relative errors, and how sure each constant is."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Form
from collemu.fidelity.measured import Measured

TOLD = 1e-6  # slopes below are none
SCALE = 0.05  # relative errors beyond it count linearly, not squared
FREEDOM = 20.0  # a constant is sought between a twentieth of where fits start, and twenty times
STARTS = 3
STEP = 1e-3
PULL = 0.02  # of where fits start, on the logarithm of a constant: it decides what no row decides
TOLERANCE = 1e-5
MOST_STEPS = 100
RESTS = 0.1
NEAR = 1e-3  # of a logarithm: no owner with rows is as near to what is usual
SURE = 0.1  # how far, as a logarithm, constants are from what other rows gave
WEAK = 0.5  # relative uncertainty beyond which rows say little of a constant

#: (name, owner or empty) -> value.
Known = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Estimate:
    """A constant as fitted.

    Attributes
    ----------
    constant : Constant
    owner : str
        Whose it is; empty for what all share, or is usual.
    value : float
    uncertainty : float
        Relative: one standard deviation, from how the errors change with it; infinite where no row depends on it.
    rows : int
        Rows whose time it changes by a thousandth or more if it changes by a hundredth.
    cases : tuple of str
        Of these rows.
    """

    constant: Constant
    owner: str
    value: float
    uncertainty: float
    rows: int
    cases: tuple[str, ...]

    @property
    def at_bound(self) -> bool:
        """Whether only its bound keeps it from going on."""
        return bool(np.isclose(self.value, self.constant.most, rtol=1e-3))


class Unknowns:
    """The constants of a group as one vector of logarithms: what is usual, then how far each owner is from it.

    Parameters
    ----------
    form : Form
    group : str
    rows : Measured
        Whose owners have constants of their own.
    known : mapping of (name, owner) to float
        Where fits start, and what decides where no row does; a form's own starts for what is not in it.
    """

    def __init__(self, form: Form, group: str, rows: Measured, known: Known = MappingProxyType({})) -> None:
        self.form = form
        self.constants = form.constants(group)
        self.owned = [constant for constant in self.constants if constant.spread]
        self.owners: list[str] = sorted(set(form.owners(rows).tolist()))
        self.shared = len(self.constants)
        starts = {constant.name: known.get((constant.name, ""), constant.start) for constant in self.constants}
        usual = np.log(list(starts.values()))
        most = np.log([constant.most for constant in self.constants])
        away = np.log(
            [
                known.get((constant.name, owner), starts[constant.name]) / starts[constant.name]
                for constant in self.owned
                for owner in self.owners
            ]
        )
        self.start = np.append(usual, away)
        self.low = self.start - np.log(FREEDOM)
        self.high = np.append(np.minimum(usual + np.log(FREEDOM), most), away + np.log(FREEDOM))
        spreads = np.repeat([constant.spread for constant in self.owned], len(self.owners))
        sure = np.array([(constant.name, "") in known for constant in self.constants])
        self.pull = np.append(np.where(sure, SCALE / SURE, PULL), SCALE / np.maximum(spreads, TOLD))

    def place(self, constant: Constant, owner: str) -> int:
        """Where the vector has how far an owner is from what is usual."""
        return self.shared + self.owned.index(constant) * len(self.owners) + self.owners.index(owner)

    def places(self, rows: Measured) -> NDArray[np.int64]:
        """The owner of each row by number; one more than there are for those that are unknown."""
        numbers = {owner: number for number, owner in enumerate(self.owners)}
        return np.array([numbers.get(owner, len(self.owners)) for owner in self.form.owners(rows).tolist()], np.int64)

    def spread(self, unknowns: Floats, owner: NDArray[np.int64]) -> dict[str, Floats]:
        """Values of the constants for rows of these owners."""
        values: dict[str, Floats] = {}
        own = np.zeros((len(self.owned), len(self.owners) + 1))
        own[:, :-1] = unknowns[self.shared :].reshape(len(self.owned), len(self.owners))
        for number, constant in enumerate(self.constants):
            logarithm = np.full(len(owner), unknowns[number])
            if constant.spread:
                logarithm += own[self.owned.index(constant)][owner]
            values[constant.name] = np.minimum(np.exp(logarithm), constant.most)
        return values

    def errors(self, unknowns: Floats, rows: Measured, owner: NDArray[np.int64]) -> Floats:
        """Logarithms of predicted over measured time."""
        return np.log(self.form.time_us(self.spread(unknowns, owner), rows) / rows.time_us)

    def slopes(self, unknowns: Floats, rows: Measured, owner: NDArray[np.int64]) -> Floats:
        """Of the errors, (rows, unknowns): a row depends on what is usual, and as much on how far its owner is."""
        columns = np.zeros((len(rows), len(unknowns)))
        for number, constant in enumerate(self.constants):
            away = np.zeros(len(unknowns))
            away[number] = STEP
            slope = self.errors(unknowns + away, rows, owner) - self.errors(unknowns - away, rows, owner)
            columns[:, number] = slope / 2 / STEP
            if constant.spread:
                for each, name in enumerate(self.owners):
                    columns[:, self.place(constant, name)] = np.where(owner == each, columns[:, number], 0)
        return columns


def fit(form: Form, group: str, rows: Measured, known: Known = MappingProxyType({})) -> list[Estimate]:
    """Fit the constants of a group to its rows.

    Parameters
    ----------
    form : Form
    group : str
    rows : Measured
    known : mapping of (name, owner) to float
        Constants of the group from other rows, if there are any: those that these rows say nothing of stay there.

    Raises
    ------
    ValueError
        If SciPy is missing.
    """
    unknowns = Unknowns(form, group, rows, known)
    return _estimates(unknowns, _least_squares(unknowns, rows), rows)


def _least_squares(unknowns: Unknowns, rows: Measured) -> Floats:
    try:
        optimize: Any = import_module("scipy.optimize")
    except ImportError:
        raise ValueError('fits need SciPy; install it with: pip install "collemu[fit]"') from None
    rng = np.random.default_rng(0)
    inside = (unknowns.low + STEP, unknowns.high - STEP)
    owner = unknowns.places(rows)

    def errors(each: Floats) -> Floats:
        return np.append(unknowns.errors(each, rows, owner), unknowns.pull * (each - unknowns.start))

    def slopes(each: Floats) -> Floats:
        return np.vstack([unknowns.slopes(each, rows, owner), np.diag(unknowns.pull)])

    best = None
    for number in range(STARTS):
        away = 0.25 * rng.normal(size=len(unknowns.start)) if number else 0.0
        result = optimize.least_squares(
            errors,
            np.clip(unknowns.start + away, *inside),
            slopes,
            bounds=(unknowns.low, unknowns.high),
            loss="soft_l1",
            f_scale=SCALE,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            max_nfev=MOST_STEPS,
        )
        best = result if best is None or result.cost < best.cost else best
    assert best is not None
    return best.x


def _estimates(unknowns: Unknowns, found: Floats, rows: Measured) -> list[Estimate]:
    """With uncertainties from the errors' slopes, where errors beyond the scale weigh less."""
    owner = unknowns.places(rows)
    errors = unknowns.errors(found, rows, owner)
    slopes = unknowns.slopes(found, rows, owner)
    weights = 1 / np.sqrt(1 + (errors / SCALE) ** 2)
    information = slopes.T @ (weights[:, None] * slopes) + np.diag(unknowns.pull**2)
    variance = float((weights * errors**2).sum()) / max(1, len(rows) - len(found))
    covariance = variance * np.linalg.inv(information)
    estimates: list[Estimate] = []
    for number, constant in enumerate(unknowns.constants):
        for each in ("", *unknowns.owners) if constant.spread else ("",):
            parts = [number] + ([unknowns.place(constant, each)] if each else [])
            slope = np.abs(slopes[:, parts[-1]])
            if each and abs(found[parts[-1]]) <= NEAR:
                continue  # nothing is known of this owner but what is usual
            deviation = float(np.sqrt(covariance[np.ix_(parts, parts)].sum()))
            rests = slope >= RESTS
            estimates.append(
                Estimate(
                    constant,
                    each,
                    min(float(np.exp(found[parts].sum())), constant.most),
                    deviation if slope.max() > TOLD else np.inf,
                    int(rests.sum()),
                    tuple(sorted(set(rows.case[rests].tolist()))),
                )
            )
    return estimates


def folds_of(rows: Measured, folds: int) -> list[NDArray[np.bool_]]:
    """Masks that part rows by whole cases, in turn by their names; of mixtures of experts, by the number of ranks."""
    moe = not np.isnan(rows.tokens).any()
    keys: list[object] = rows.ranks.tolist() if moe else rows.case.tolist()
    distinct = sorted(set(keys), key=str)
    number = {key: place % folds for place, key in enumerate(distinct)}
    mine = np.array([number[key] for key in keys])
    return [mine == fold for fold in range(min(folds, len(distinct)))]


def cross_validated(form: Form, group: str, rows: Measured, folds: int) -> Floats:
    """Microseconds of each row, from constants that were fitted without its case, and the others of its fold."""
    predicted = np.full(len(rows), np.nan)
    for away in folds_of(rows, folds):
        if away.all():
            continue  # a single case says nothing of itself
        unknowns = Unknowns(form, group, rows.where(~away))
        found = _least_squares(unknowns, rows.where(~away))
        left = rows.where(away)
        predicted[away] = form.time_us(unknowns.spread(found, unknowns.places(left)), left)
    return predicted


def spread_of(form: Form, group: str, constants: Mapping[tuple[str, str], float], rows: Measured) -> dict[str, Floats]:
    """Values of the constants for each row; an owner that has none of its own has what is usual.

    Raises
    ------
    ValueError
        If a constant of the form is missing.
    """
    missing = [constant.name for constant in form.constants(group) if (constant.name, "") not in constants]
    if missing:
        what = f"the constants of {form.name} {group} lack {', '.join(missing)}"
        raise ValueError(f"{what}; fit them anew with: collemu calibrate --from")
    values: dict[str, Floats] = {}
    owners, place = np.unique(form.owners(rows).astype(str), return_inverse=True)
    for constant in form.constants(group):
        usual = constants[constant.name, ""]
        each = [constants.get((constant.name, owner), usual) for owner in owners.tolist()]
        values[constant.name] = np.array(each, float)[place]
    return values
