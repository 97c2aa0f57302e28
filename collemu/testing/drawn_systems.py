"""Hypothesis strategies of systems: those of the catalogue, and the same with other numbers.

They shrink to the first system, as the catalogue has it. What failed is shown as a call that makes it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from collemu.catalogue import System, load_system
from collemu.catalogue import systems as names_of_systems

FIRST = "trainium4_nvl72"
FACTORS = (1.0, 2.0, 0.5, 10.0, 0.1)
SCALED = (
    "domain.link_bytes_per_s",
    "domain.hop_latency_s",
    "endpoint.launch_s",
    "endpoint.copy_bytes_per_s",
    "endpoint.reduce_bytes_per_s",
    "scaleout.bytes_per_s",
    "scaleout.latency_s",
)
SMALL = {"domain.credits": (1, 2, 3), "endpoint.fifo_slots": (2, 3)}  # what makes queues wait
CHANGED = (*SCALED, *SMALL, "domain.chips", "domain.planes")
MOST_CHOICES = 5

_loaded = lru_cache(maxsize=64)(load_system)


def systems(
    names: str | Sequence[str] | None = None, *, ranks: int = 1, in_switch: bool = False, changed: bool = True
) -> SearchStrategy[System]:
    """Systems of the catalogue, and the same with fewer chips and links, other rates, latencies and queues.

    Parameters
    ----------
    names : str or sequence of str, optional
        As `collemu.load_system` takes them; the whole catalogue when left out, trainium4_nvl72 first.
    ranks : int
        They join at least so many chips.
    in_switch : bool
        Only those whose switches add and copy, for so many ranks in one domain.
    changed : bool
        Whether numbers are changed.

    Raises
    ------
    ValueError
        If no system is left.
    """
    given = (names,) if isinstance(names, str) else tuple(names or sorted(names_of_systems(), key=FIRST.__ne__))
    fitting = [name for name in given if fits(_loaded(name), ranks, in_switch)]
    if not fitting:
        what = f"{ranks} ranks in a domain whose switches add and copy" if in_switch else f"{ranks} ranks"
        raise ValueError(f"systems: none of {', '.join(given)} has {what}; allow more names, or fewer ranks")
    return _systems(tuple(fitting), ranks, in_switch, changed)


def fits(system: System, ranks: int, in_switch: bool) -> bool:
    """Whether a system joins so many ranks, in a domain whose switches add and copy if that is needed."""
    if in_switch:
        return system.domain.in_switch_reduction and system.domain.chips >= ranks
    return system.max_ranks >= ranks


def changed_system(name: str, changes: Mapping[str, Any]) -> System:
    """A system of the catalogue with some numbers changed."""
    return _loaded(name).with_(**changes)


@st.composite
def _systems(draw: DrawFn, names: Sequence[str], ranks: int, in_switch: bool, changed: bool) -> System:
    name = draw(st.sampled_from(names))
    system = _loaded(name)
    # as many draws for any system, or the one with fewest would count as the simplest
    drawn = draw(st.tuples(*[st.integers(0, MOST_CHOICES - 1)] * len(CHANGED))) if changed else (0,) * len(CHANGED)
    choices = _choices(system, ranks, in_switch)
    changes = {
        name: choices[name][number]
        for name, number in zip(CHANGED, drawn, strict=True)
        if 0 < number < len(choices.get(name, ()))
    }
    if not changes:
        return draw(st.builds(_loaded, st.just(name)))
    return draw(st.builds(changed_system, st.just(name), st.just(changes)))


def _choices(system: System, ranks: int, in_switch: bool) -> dict[str, tuple[Any, ...]]:
    """Values of the numbers that can be changed, first what they are."""
    now: dict[str, Any] = {name: quantity.value for name, quantity in system.provenance.items()}
    choices = {name: tuple(now[name] * factor for factor in FACTORS) for name in SCALED if now.get(name)}
    choices |= {name: (now[name], *small) for name, small in SMALL.items()}
    domain = system.domain
    if domain.topology in ("switched", "mesh"):
        least = ranks if in_switch or domain.chips >= system.scaleout.cluster_max_chips else 2
        fewer = (domain.chips - 1, (domain.chips + 1) // 2, 3, 2)
        choices["domain.chips"] = (domain.chips, *(chips for chips in fewer if least <= chips < domain.chips))
    if domain.topology == "switched" and isinstance(domain.links_per_plane, int):
        choices["domain.planes"] = (domain.planes, *(n for n in (domain.planes - 1, 1) if 0 < n < domain.planes))
    return choices
