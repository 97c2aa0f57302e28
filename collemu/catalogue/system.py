"""A system: its sections, and where every number of them comes from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from collemu.catalogue.contradictions import contradictions
from collemu.catalogue.quantity import USER, Number, Quantity, checked, hint, unit_of
from collemu.catalogue.sections import (
    FAMILIES,
    Chip,
    Conversion,
    Domain,
    Endpoint,
    Processes,
    Protocol,
    Reduction,
    Scaleout,
    kinds,
    section_of,
)


class SystemFileError(ValueError):
    """A system that cannot be found, read or believed; the text is one line that names every fault."""


@dataclass(frozen=True)
class Source:
    """Where a number was read."""

    title: str
    address: str = ""


@dataclass(frozen=True)
class System:
    """A system, its numbers as plain attributes and their origin beside them.

    Attributes
    ----------
    name, title, status : str
        What it is called, and whether one can buy it.
    chip, domain, endpoint, scaleout
        Its parts.
    protocols : mapping of str to Protocol
        By name: dma, simple, ll, ll128, or some of them.
    default_protocol : str
        The one that ``protocol="auto"`` stands for.
    processes : Processes or None
        Where ranks are processes of one machine, what these spend.
    conversions, reductions : mappings of str to Conversion and to Reduction
        By wire format and by dtype, where a system of processes says so.
    provenance : mapping of str to Quantity
        Origin of every number, by dotted name: ``domain.chips``, ``protocol.ll.data_bytes``.
    sources : mapping of str to Source
        What the keys in ``Quantity.source`` stand for.
    """

    name: str
    title: str
    status: str
    chip: Chip
    domain: Domain
    endpoint: Endpoint
    protocols: Mapping[str, Protocol]
    default_protocol: str
    scaleout: Scaleout
    processes: Processes | None
    conversions: Mapping[str, Conversion]
    reductions: Mapping[str, Reduction]
    provenance: Mapping[str, Quantity]
    sources: Mapping[str, Source]

    def __hash__(self) -> int:
        return hash((self.name, self.fingerprint))

    @property
    def chip_bytes_per_s(self) -> float:
        """Nominal rate of a chip into its domain, of one direction: all its links."""
        return self.domain.links * self.domain.link_bytes_per_s

    @property
    def max_ranks(self) -> int:
        """Chips that can take part in a collective: those of a domain, or of all that its network joins."""
        return max(self.domain.chips, self.scaleout.cluster_max_chips)

    @property
    def chips(self) -> int:
        """Chips of the system as it is built."""
        return self.domain.chips * self.scaleout.domains

    def group_of(self, ranks: int) -> int | None:
        """Ranks of a domain where so many ranks need several: what `build_schedule` takes as ``group``."""
        return self.domain.chips if ranks > self.domain.chips else None

    @property
    def chip_bytes_per_s_both_directions(self) -> float:
        """What a vendor's headline calls a chip's bandwidth: in and out added."""
        return 2 * self.chip_bytes_per_s

    @property
    def domain_bytes_per_s_both_directions(self) -> float:
        """What a headline calls the domain's bandwidth: every chip, in and out added; not the bisection."""
        return self.domain.chips * self.chip_bytes_per_s_both_directions

    @property
    def domain_fp8_dense_flop_per_s(self) -> float:
        """Dense FP8 rate of all the domain's chips."""
        return self.domain.chips * self.chip.fp8_dense_flop_per_s

    @property
    def domain_fp4_dense_flop_per_s(self) -> float:
        """Dense FP4 rate of all the domain's chips."""
        return self.domain.chips * self.chip.fp4_dense_flop_per_s

    @property
    def domain_hbm_bytes_per_s(self) -> float:
        """Memory rate of all the domain's chips."""
        return self.domain.chips * self.chip.hbm_bytes_per_s

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any value; names, notes and sources do not count."""
        values = [f"{name}={quantity.value!r}" for name, quantity in sorted(self.provenance.items())]
        text = "\n".join([*values, f"default_protocol={self.default_protocol}", f"topology={self.domain.topology}"])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def estimates(self) -> tuple[str, ...]:
        """Names of the numbers that nobody published for this system. A run that uses one says so."""
        return self._with_confidence("estimate")

    def changed(self) -> tuple[str, ...]:
        """Names of the numbers that ``with_`` set."""
        return self._with_confidence(USER)

    def _with_confidence(self, confidence: str) -> tuple[str, ...]:
        return tuple(name for name, quantity in self.provenance.items() if quantity.confidence == confidence)

    def with_(self, **changes: Number) -> "System":
        """A copy with some numbers changed; their confidence becomes ``user``.

        Parameters
        ----------
        **changes
            By dotted name: ``system.with_(**{"domain.hop_latency_s": 3e-7})``.

        Raises
        ------
        SystemFileError
            For an unknown name or a value that its field cannot hold.
        """
        quantities = dict(self.provenance)
        faults: list[str] = []
        for name, value in changes.items():
            if name not in quantities:
                faults.append(f"{name}: no such number{hint(name, quantities)}")
                continue
            key = name.rpartition(".")[2]
            try:
                plain = checked(key, kinds(section_of(name), self.domain.topology)[key], _plain(value))
            except ValueError as error:
                faults.append(f"{name}: {error}")
                continue
            quantities[name] = Quantity(plain, unit_of(key), USER, USER)
        faults = faults or contradictions(quantities, self.domain.topology)
        if faults:
            raise SystemFileError(f"system {self.name}: " + "; ".join(faults))
        return assemble(
            self.name, self.title, self.status, self.default_protocol, self.domain.topology, quantities, self.sources
        )


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python number it holds, in a list too; anything else as it is."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast(list[Any], value)]
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def assemble(
    name: str,
    title: str,
    status: str,
    default_protocol: str,
    topology: str,
    quantities: Mapping[str, Quantity],
    sources: Mapping[str, Source],
) -> System:
    """A system from its numbers by dotted name; every number has been checked."""

    def part(prefix: str, section: type, **more: str) -> Any:
        return section(**{key: quantities[f"{prefix}.{key}"].value for key in kinds(section, topology)}, **more)

    def family(prefix: str) -> dict[str, Any]:
        present = dict.fromkeys(key.split(".")[1] for key in quantities if key.startswith(f"{prefix}."))
        return {each: part(f"{prefix}.{each}", FAMILIES[prefix]) for each in present}

    return System(
        name=name,
        title=title,
        status=status,
        chip=part("chip", Chip),
        domain=part("domain", Domain, topology=topology),
        endpoint=part("endpoint", Endpoint),
        protocols=family("protocol"),
        default_protocol=default_protocol,
        scaleout=part("scaleout", Scaleout),
        processes=part("processes", Processes) if "processes.cores" in quantities else None,
        conversions=family("conversion"),
        reductions=family("reduction"),
        provenance=dict(quantities),
        sources=dict(sources),
    )
