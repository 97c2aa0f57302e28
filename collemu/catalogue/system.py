"""A system: chips, the switches that join them, endpoints, protocols and scale-out, as plain frozen numbers.

Fields carry their unit in the name. A property that ends in ``_fs`` is the same time in whole femtoseconds,
one in ``fs_per_byte`` the time of a byte as a ratio of integers: what the emulator computes with.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any, cast, get_args

from collemu.catalogue.quantity import (
    MIN_RATE,
    TABLES,
    USER,
    Number,
    Quantity,
    checked,
    exact,
    femtoseconds,
    femtoseconds_per_byte,
    hint,
    unit_of,
)


class SystemFileError(ValueError):
    """A system that cannot be found, read or believed; the text is one line that names every fault."""


@dataclass(frozen=True)
class Chip:
    """One accelerator: dense arithmetic rates and memory."""

    fp8_dense_flop_per_s: float
    fp4_dense_flop_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float

    @property
    def hbm_fs_per_byte(self) -> Fraction:
        """Time of a byte read from memory, or written to it."""
        return femtoseconds_per_byte(self.hbm_bytes_per_s)


@dataclass(frozen=True)
class Domain:
    """The chips that links join without a network.

    Attributes
    ----------
    topology : str
        ``switched``: every chip has links to the switch of every plane. ``mesh``: to every other chip. ``torus``: to
        its neighbours. ``nested``: to switches that reach ever more chips.
    links_per_plane : int or tuple of int
        Of a chip to the switch of each plane; one number for all, or one a plane.
    link_bytes_per_s, link_efficiency
        The nominal rate of a link in one direction, and the share of it that fitted runs reach beyond what headers
        take; the emulator's links have their product.
    hop_latency_s
        Of one link.
    credits
        Packets of a chip on its way to, or in, the switch of a lane.
    """

    topology: str
    chips: int
    link_bytes_per_s: float
    link_efficiency: float
    hop_latency_s: float
    credits: int
    packet_payload_bytes: int
    packet_header_bytes: int
    packet_flit_bytes: int
    packet_byte_enable_bytes: int
    in_switch_reduction: bool
    in_switch_float8: bool
    planes: int = 0
    links_per_plane: int | tuple[int, ...] = 1
    links_per_peer: int = 0
    shape: tuple[int, ...] = ()
    links_per_direction: tuple[int, ...] = ()
    chips_per_level: tuple[int, ...] = ()
    links_per_level: tuple[int, ...] = ()
    hops_per_level: tuple[int, ...] = ()

    @property
    def links(self) -> int:
        """Links of a chip, each way."""
        if self.topology == "mesh":
            return self.links_per_peer * (self.chips - 1)
        if self.topology == "torus":
            ways = [min(size, 3) - 1 for size in self.shape]
            return sum(each * links for each, links in zip(ways, self.links_per_direction, strict=True))
        if self.topology == "nested":
            return sum(self.links_per_level)
        per_plane = self.links_per_plane
        return sum(per_plane) if isinstance(per_plane, tuple) else self.planes * per_plane

    @property
    def groups(self) -> int:
        """Groups of lanes: sets of links that lead to the same chips."""
        if self.topology == "mesh":
            return self.chips - 1
        if self.topology == "torus":
            return sum(min(size, 3) - 1 for size in self.shape)
        return len(self.links_per_level) if self.topology == "nested" else 1

    @property
    def hop_latency_fs(self) -> int:
        """Latency of one link, chip to switch or switch to chip."""
        return femtoseconds(self.hop_latency_s)

    @property
    def link_fs_per_byte(self) -> Fraction:
        """Serialisation of a byte on one link."""
        return femtoseconds_per_byte(exact(self.link_bytes_per_s) * exact(self.link_efficiency))


@dataclass(frozen=True)
class Endpoint:
    """What a chip spends on a collective by itself."""

    launch_s: float
    copy_bytes_per_s: float
    reduce_bytes_per_s: float
    quantize_bytes_per_s: float
    dequantize_bytes_per_s: float
    fifo_slots: int

    @property
    def launch_fs(self) -> int:
        """Time before a rank's first operation."""
        return femtoseconds(self.launch_s)

    @property
    def copy_fs_per_byte(self) -> Fraction:
        """Time of a copied byte."""
        return femtoseconds_per_byte(self.copy_bytes_per_s)

    @property
    def quantize_fs_per_byte(self) -> Fraction:
        """Time of a byte of memory that is encoded into a wire format."""
        return femtoseconds_per_byte(self.quantize_bytes_per_s)

    @property
    def dequantize_fs_per_byte(self) -> Fraction:
        """Time of a byte of memory that is decoded from a wire format."""
        return femtoseconds_per_byte(self.dequantize_bytes_per_s)

    @property
    def reduce_fs_per_byte(self) -> Fraction:
        """Time of a reduced byte."""
        return femtoseconds_per_byte(self.reduce_bytes_per_s)


@dataclass(frozen=True)
class Protocol:
    """How an endpoint moves a chunk: ``data_bytes`` of every ``line_bytes`` on the wire are payload.

    Where it ``writes_destination``, a message lands where it belongs, and a receiver that only stores it has no work.
    """

    step_latency_s: float
    data_bytes: int
    line_bytes: int
    writes_destination: bool

    @property
    def step_latency_fs(self) -> int:
        """Cost of a step at the sending endpoint, without the links."""
        return femtoseconds(self.step_latency_s)


@dataclass(frozen=True)
class Scaleout:
    """A chip's ports to the network that joins domains; rates are of one direction.

    Attributes
    ----------
    bytes_per_s, rails
        Of a chip: over all its rails, which share a message's datagrams.
    latency_s
        Of a datagram from chip to chip, without serialisation.
    message_overhead_s
        What a message costs its sender beside the step of the protocol.
    window_datagrams
        Datagrams of a chip on their way, a rail.
    domains
        How many domains a system has; more, up to ``cluster_max_chips``, can be emulated.
    """

    bytes_per_s: float
    rails: int
    latency_s: float
    message_overhead_s: float
    datagram_bytes: int
    datagram_header_bytes: int
    window_datagrams: int
    domains: int
    cluster_max_chips: int

    @property
    def fs_per_byte(self) -> Fraction:
        """Serialisation of a byte at one of the chip's rails."""
        return femtoseconds_per_byte(exact(self.bytes_per_s) / self.rails)

    @property
    def message_overhead_fs(self) -> int:
        """What a message costs its sender beside a step."""
        return femtoseconds(self.message_overhead_s)

    @property
    def latency_fs(self) -> int:
        """One-way latency between two domains."""
        return femtoseconds(self.latency_s)


@dataclass(frozen=True)
class Processes:
    """What ranks that are processes of one machine spend; they share its cores.

    Attributes
    ----------
    cores : int
        Of the machine: as many processes run at once.
    operation_s, send_s
        Of any operation; of one that sends, beside that.
    notice_s
        To take what has come: messages, and notices that what was sent is gone.
    wake_s
        From something's coming to its being noticed by a process that waits.
    eager_bytes : int
        Up to so many, a message is gone once it is sent; a longer one, once its receiver has taken it.
    sizes_bytes : tuple of int
        Sizes at which the following were measured. Between them times lie on straight lines; less takes as long as the
        first, more at the rate of the last.
    copy_s, reduce_s, transfer_s : tuple of float
        To copy so many bytes of memory, to add so many to as many, to take a message of so many.
    """

    cores: int
    operation_s: float
    send_s: float
    notice_s: float
    wake_s: float
    eager_bytes: int
    sizes_bytes: tuple[int, ...]
    copy_s: tuple[float, ...]
    reduce_s: tuple[float, ...]
    transfer_s: tuple[float, ...]


@dataclass(frozen=True)
class Conversion:
    """Rates of a wire format: bytes of the memory that is encoded into it, and decoded from it."""

    encode_bytes_per_s: float
    decode_bytes_per_s: float


@dataclass(frozen=True)
class Reduction:
    """Rate at which numbers of a dtype are added: bytes of what comes in."""

    reduce_bytes_per_s: float


@dataclass(frozen=True)
class Source:
    """Where a number was read."""

    title: str
    address: str = ""


SECTIONS: dict[str, type] = {"chip": Chip, "domain": Domain, "endpoint": Endpoint, "scaleout": Scaleout}
OPTIONAL_SECTIONS: dict[str, type] = {"processes": Processes}
FAMILIES: dict[str, type] = {"protocol": Protocol, "conversion": Conversion, "reduction": Reduction}
PROTOCOLS = ("dma", "simple", "ll", "ll128")
WIRINGS = {  # numbers of a domain that only some topologies have
    "switched": ("planes", "links_per_plane"),
    "mesh": ("links_per_peer",),
    "torus": ("shape", "links_per_direction"),
    "nested": ("chips_per_level", "links_per_level", "hops_per_level"),
}


def kinds(section: type, topology: str = "switched") -> dict[str, type]:
    """Kind (int, float or bool; int of lists too) of every number of a section, in order."""
    other = {key for name, keys in WIRINGS.items() if name != topology for key in keys}
    fields = [field for field in dataclasses.fields(section) if field.name not in other and field.name != "topology"]
    return {field.name: _kind_of(field.type) for field in fields}


def _kind_of(annotation: object) -> type:
    """The type of a field, or of the numbers in its list."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation
    return float if float in get_args(annotation) else int


def section_of(name: str) -> type:
    """The section that a dotted name of a number belongs to."""
    head = name.partition(".")[0]
    return FAMILIES.get(head) or (SECTIONS | OPTIONAL_SECTIONS)[head]


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


def contradictions(quantities: Mapping[str, Quantity], topology: str) -> list[str]:
    """Faults that no number has by itself."""
    faults: list[str] = []
    for name in PROTOCOLS:
        data, line = (quantities.get(f"protocol.{name}.{key}") for key in ("data_bytes", "line_bytes"))
        if data and line and cast(int, data.value) > cast(int, line.value):
            faults.append(f"protocol.{name}: data_bytes {data.value} exceeds line_bytes {line.value}")
    values = {key: quantity.value for key, quantity in quantities.items()}
    flit, payload = values.get("domain.packet_flit_bytes"), values.get("domain.packet_payload_bytes")
    if isinstance(flit, int) and isinstance(payload, int) and payload % flit:
        faults.append(f"domain.packet_payload_bytes: {payload} is not a multiple of packet_flit_bytes {flit}")
    link, share = values.get("domain.link_bytes_per_s"), values.get("domain.link_efficiency")
    if isinstance(link, float) and isinstance(share, float) and not link * share >= MIN_RATE:
        faults.append(f"domain.link_efficiency: {share:g} leaves less than {MIN_RATE:g} bytes/s of a link")
    rate, rails = values.get("scaleout.bytes_per_s"), values.get("scaleout.rails")
    if isinstance(rate, float) and isinstance(rails, int) and rate / rails < MIN_RATE:
        faults.append(f"scaleout.rails: {rails} leave each less than {MIN_RATE:g} bytes/s")
    chips, domains, most = (
        values.get(key) for key in ("domain.chips", "scaleout.domains", "scaleout.cluster_max_chips")
    )
    if isinstance(chips, int) and isinstance(domains, int) and isinstance(most, int) and 1 < domains * chips > most:
        faults += [f"scaleout.domains: {domains} of {chips} chips exceed cluster_max_chips {most}"] * (domains > 1)
    if values.get("domain.in_switch_reduction") is True and topology != "switched":
        faults.append(f"domain.in_switch_reduction: switches of topology {topology} cannot; set it to false")
    return faults + _wiring_faults(values, topology) + _table_faults(values)


def _table_faults(values: Mapping[str, Any]) -> list[str]:
    sizes: tuple[int, ...] | None = values.get("processes.sizes_bytes")
    if sizes is None:
        return []
    if any(after <= before for before, after in pairwise(sizes)):
        return [f"processes.sizes_bytes: {list(sizes)} must grow"]
    tables = [(name, values[name]) for name in (f"processes.{key}" for key in TABLES[1:]) if name in values]
    return [
        f"{name}: {len(table)} numbers for {len(sizes)} sizes" for name, table in tables if len(table) != len(sizes)
    ]


def _wiring_faults(values: Mapping[str, Any], topology: str) -> list[str]:
    chips = values.get("domain.chips")
    if any(f"domain.{key}" not in values for key in WIRINGS[topology]) or chips is None:
        return []  # named as missing
    per_plane = values.get("domain.links_per_plane")
    if topology == "switched" and isinstance(per_plane, tuple):
        given = len(cast(tuple[int, ...], per_plane))
        if given == values["domain.planes"]:
            return []
        return [f"domain.links_per_plane: {given} numbers for {values['domain.planes']} planes"]
    if topology == "mesh" and chips < 2:
        return ["domain.chips: a mesh has at least 2"]
    if topology == "torus":
        shape, links = values["domain.shape"], values["domain.links_per_direction"]
        if prod(shape) != chips:
            return [f"domain.shape: {' x '.join(map(str, shape))} is {prod(shape)} chips, not {chips}"]
        if len(shape) != len(links):
            return [f"domain.links_per_direction: {len(links)} numbers for {len(shape)} dimensions"]
        return ["domain.chips: a torus has at least 2"] if chips < 2 else []
    if topology == "nested":
        levels = [cast(tuple[int, ...], values[f"domain.{key}"]) for key in WIRINGS[topology]]
        if len({len(each) for each in levels}) != 1:
            return ["domain: chips_per_level, links_per_level and hops_per_level need as many numbers as each other"]
        sizes = levels[0]
        if sizes[-1] != chips or any(b % a or b <= a for a, b in pairwise(sizes)):
            return [f"domain.chips_per_level: {list(sizes)} must grow by whole factors to chips, {chips}"]
    return []


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
