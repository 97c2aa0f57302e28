"""Which constant would have to change by how much, to explain a case that is slower than the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from collemu.fidelity.constants import Constants
from collemu.fidelity.fit import spread_of
from collemu.fidelity.form import Floats, Form
from collemu.fidelity.measured import Measured
from collemu.fidelity.networks import network_of
from collemu.fidelity.predict import assigned

#: What is wrong in one piece -> the constants that change together, by the same factor.
CULPRITS: dict[str, tuple[str, ...]] = {
    "network rate": ("nic_share", "tree_ll_GBps", "gather_ll_GBps"),
    "network latency": ("latency_share", "ll_us", "ll128_us", "simple_us", "nvls_tree_us", "p2p_us"),
    "link rate": ("link_GBps", "nvls_GBps", "one_shot_GBps", "two_shot_GBps"),
    "launch": ("launch_us", "start_us"),
    "latency of a step": ("ll_step_us", "ll128_step_us", "simple_step_us"),
    "rate": ("bus_GBps",),
}
FACTORS = np.exp2(np.arange(-8, 8.01, 0.125))
HEALTHY = 0.1  # mean errors up to it need no explanation; of a healthy case they are some percent
BETTER = 0.01  # by which a culprit must explain a case better than those before it
SOCKETS, RDMA = "tcp_", "ib_ndr_400g_per_gpu"  # networks of the first kind are compared with what could be there
SOCKETS_GBPS = 10.0  # what TCP gives a chip at most, where RDMA gives 20 and more
HALF = (0.4, 0.6)


@dataclass(frozen=True)
class Diagnosis:
    """What would explain a case.

    Attributes
    ----------
    case : str
    ratio : float
        Measured over predicted time, of its largest size.
    culprit : str or None
        What would have to change; None where nothing need.
    factor, value : float
        By how much, and to what; of a latency of several constants, the first.
    unit : str
    left : float
        Mean error that is left then, as a share.
    typical : bool
        Whether the network is unknown, and what is typical of others was taken.
    """

    case: str
    ratio: float
    culprit: str | None
    factor: float
    value: float
    unit: str
    left: float
    typical: bool

    def __str__(self) -> str:
        """A line."""
        what = f"# {self.case}: its largest size takes {self.ratio:.2f} times the predicted time"
        if self.typical:
            what += " of a typical network"
        if self.culprit is None:
            return f"{what}: nothing to explain"
        change = f"{self.culprit} {self.value:.3g} {self.unit} instead of {self.value / self.factor:.3g}"
        return f"{what}; {change} (x{self.factor:.2g}) leaves {100 * self.left:.0f} %{self._hint()}"

    def _hint(self) -> str:
        if self.culprit in ("network rate", "rate") and self.factor < HALF[1]:
            if self.value < SOCKETS_GBPS and self.factor < HALF[0]:
                return ": as TCP sockets give; is RDMA in use?"
            if self.factor >= HALF[0]:
                return ": half of it; is one of two ports or NICs in use?"
        return ""


def diagnoses(rows: Measured, constants: Constants) -> Iterator[Diagnosis]:
    """Of each case, in the order of the rows."""
    for form, group, mask in assigned(rows):
        fitted = constants.get(form.name, {}).get(group)
        if fitted is None:
            continue
        known = {owner for _, owner in fitted if owner}
        own = rows.where(mask)
        for case in dict.fromkeys(own.case.tolist()):
            each = own.where(own.case == case)
            typical = bool(known) and form.owners(each)[0] not in known
            if each.network[0].startswith(SOCKETS):
                each = replace(each, network=np.full(len(each), RDMA, object))
            yield _diagnosis(form, group, fitted, each, typical=typical)


def _diagnosis(
    form: Form, group: str, fitted: Mapping[tuple[str, str], float], rows: Measured, *, typical: bool
) -> Diagnosis:
    values = spread_of(form, group, fitted, rows)
    ratio = float((rows.time_us / form.time_us(values, rows))[rows.size.argmax()])
    healthy = _error(form, values, rows, (), 1.0)
    best: tuple[float, str, float] | None = None
    for culprit, names in CULPRITS.items():
        if not set(names) & set(values):
            continue
        left, factor = min((_error(form, values, rows, names, factor), factor) for factor in FACTORS.tolist())
        if best is None or left < best[0] - BETTER:
            best = (left, culprit, factor)
    if best is None or healthy <= HEALTHY or best[2] == 1.0:
        return Diagnosis(rows.case[0], ratio, None, 1.0, 0.0, "", healthy, typical)
    left, culprit, factor = best
    value, unit = _shown(form, group, next(name for name in CULPRITS[culprit] if name in values), values, rows)
    return Diagnosis(rows.case[0], ratio, culprit, factor, value * factor, unit, left, typical)


def _shown(form: Form, group: str, name: str, values: Mapping[str, Floats], rows: Measured) -> tuple[float, str]:
    """A constant as users know it: shares of what a network has, as that."""
    value = float(values[name][0])
    if name in ("nic_share", "latency_share"):
        rate, latency = network_of(rows.network[0])
        return (value * rate, "GB/s") if name == "nic_share" else (value * latency, "us")
    return value, next(each.unit for each in form.constants(group) if each.name == name)


def _error(form: Form, values: Mapping[str, Floats], rows: Measured, names: tuple[str, ...], factor: float) -> float:
    """Mean error if these constants are so many times what they are."""
    changed = {name: each * factor if name in names else each for name, each in values.items()}
    return float(np.mean(np.abs(np.log(form.time_us(changed, rows) / rows.time_us))))
