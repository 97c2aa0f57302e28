"""Constants from measured cases: robust least squares of relative errors, and how sure each constant is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
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
WEAK = 0.5  # relative uncertainty beyond which rows say little of a constant


@dataclass(frozen=True)
class Estimate:
    """A constant as fitted.

    Attributes
    ----------
    constant : Constant
    system : str
        Whose it is; empty for the whole group.
    value : float
    uncertainty : float
        Relative: one standard deviation, from how the errors change with it; infinite where no row depends on it.
    rows : int
        Rows whose time it changes by a thousandth or more if it changes by a hundredth.
    cases : tuple of str
        Of these rows.
    """

    constant: Constant
    system: str
    value: float
    uncertainty: float
    rows: int
    cases: tuple[str, ...]

    @property
    def at_bound(self) -> bool:
        """Whether only its bound keeps it from going on."""
        return bool(np.isclose(self.value, self.constant.most, rtol=1e-3))


class Unknowns:
    """The constants of a group as one vector of logarithms.

    Parameters
    ----------
    form : Form
    group : str
    systems : sequence of str
        Those that have constants of their own.
    """

    def __init__(self, form: Form, group: str, systems: Sequence[str]) -> None:
        self.form = form
        self.each: list[tuple[Constant, str]] = []
        for constant in form.constants(group):
            owners = systems if constant.of_system else ("",)
            self.each += [(constant, owner) for owner in owners]
        self.start = np.log([constant.start for constant, _ in self.each])
        self.low = self.start - np.log(FREEDOM)
        self.high = np.minimum(self.start + np.log(FREEDOM), np.log([constant.most for constant, _ in self.each]))

    def spread(self, unknowns: Floats, rows: Measured) -> dict[str, Floats]:
        """Of every row, the values of its constants."""
        values: dict[str, Floats] = {}
        for (constant, owner), value in zip(self.each, np.exp(unknowns), strict=True):
            own = values.setdefault(constant.name, np.full(len(rows), np.nan))
            own[(rows.system == owner) if owner else slice(None)] = value
        return values

    def errors(self, unknowns: Floats, rows: Measured) -> Floats:
        """Logarithms of predicted over measured time."""
        return np.log(self.form.time_us(self.spread(unknowns, rows), rows) / rows.time_us)


def fit(form: Form, group: str, rows: Measured) -> list[Estimate]:
    """Fit the constants of a group to its rows.

    Raises
    ------
    ValueError
        If SciPy is missing.
    """
    unknowns = Unknowns(form, group, sorted(set(rows.system.tolist())))
    found = _least_squares(unknowns, rows)
    return _estimates(unknowns, found, rows)


def _least_squares(unknowns: Unknowns, rows: Measured) -> Floats:
    try:
        optimize: Any = import_module("scipy.optimize")
    except ImportError:
        raise ValueError('fits need SciPy; install it with: pip install "collemu[fit]"') from None
    rng = np.random.default_rng(0)
    inside = (unknowns.low + STEP, unknowns.high - STEP)

    def errors(each: Floats) -> Floats:
        return np.append(unknowns.errors(each, rows), PULL * (each - unknowns.start))

    best = None
    for number in range(STARTS):
        away = 0.25 * rng.normal(size=len(unknowns.start)) if number else 0.0
        result = optimize.least_squares(
            errors,
            np.clip(unknowns.start + away, *inside),
            bounds=(unknowns.low, unknowns.high),
            loss="soft_l1",
            f_scale=SCALE,
        )
        best = result if best is None or result.cost < best.cost else best
    assert best is not None
    return best.x


def _estimates(unknowns: Unknowns, found: Floats, rows: Measured) -> list[Estimate]:
    """With uncertainties from the errors' slopes, where errors beyond the scale weigh less."""
    errors = unknowns.errors(found, rows)
    slopes = np.stack(
        [
            (unknowns.errors(found + STEP * direction, rows) - unknowns.errors(found - STEP * direction, rows))
            / 2
            / STEP
            for direction in np.eye(len(found))
        ],
        axis=1,
    )
    weights = 1 / np.sqrt(1 + (errors / SCALE) ** 2)
    information = slopes.T @ (weights[:, None] * slopes) + PULL**2 * np.eye(len(found))
    freedom = max(1, len(rows) - len(found))
    variance = float((weights * errors**2).sum()) / freedom
    deviations = _deviations(information, variance)
    return [
        Estimate(
            constant,
            owner,
            float(np.exp(found[place])),
            deviations[place] if np.abs(slopes[:, place]).max() > TOLD else np.inf,
            int((np.abs(slopes[:, place]) >= 0.1).sum()),
            tuple(sorted(set(rows.case[np.abs(slopes[:, place]) >= 0.1].tolist()))),
        )
        for place, (constant, owner) in enumerate(unknowns.each)
    ]


def _deviations(information: NDArray[np.float64], variance: float) -> list[float]:
    """Standard deviations."""
    return np.sqrt(variance * np.diag(np.linalg.inv(information))).tolist()


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
    systems = sorted(set(rows.system.tolist()))
    unknowns = Unknowns(form, group, systems)
    for away in folds_of(rows, folds):
        if away.all():
            continue  # a single case says nothing of itself
        found = _least_squares(unknowns, rows.where(~away))
        left = rows.where(away)
        predicted[away] = form.time_us(unknowns.spread(found, left), left)
    return predicted


def spread_of(form: Form, group: str, constants: Mapping[tuple[str, str], float], rows: Measured) -> dict[str, Floats]:
    """Values of the constants for each row; those of a system that has none are the median of the others."""
    values: dict[str, Floats] = {}
    for constant in form.constants(group):
        own = {system: value for (name, system), value in constants.items() if name == constant.name}
        if not own:
            continue
        usual = own.get("", float(np.median(list(own.values()))))
        values[constant.name] = np.array([own.get(system, usual) for system in rows.system.tolist()])
    return values
