"""The sections of a system as plain frozen numbers, and which numbers each has.

Fields carry their unit in the name. A property that ends in ``_fs`` is the same time in whole femtoseconds,
one in ``fs_per_byte`` the time of a byte as a ratio of integers: what the emulator computes with.
"""

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from collemu.catalogue.quantity import exact, femtoseconds, femtoseconds_per_byte


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
    measured : int
        How many processes measured together what does not depend on sizes; more than the cores, if cores were shared.
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
    measured: int
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
