"""Schedules of messages written out by hand, and what a message alone takes by docs/timing-rules.md.

The times are closed forms: they know neither events nor queues, and ask collemu only for the numbers of a system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from collemu_kernels import kinds

import collemu as ce
from collemu.builders.assembly import Assembler, steps


class Message(NamedTuple):
    """From chip to chip. It waits until message number ``after``, which comes to its source, has been received."""

    source: int
    destination: int
    nbytes: int
    after: int | None = None


def schedule_of(messages: Sequence[Message], ranks: int = 0) -> tuple[ce.Schedule, int]:
    """One thread sends and one receives every message, on a channel of its own; and the count of uint8 to run it with.

    A rank puts messages that are ready at the same time in line in the order given here.
    """
    unit = gcd(*(each.nbytes for each in messages)) or 1
    chunks = max(1, max(each.nbytes for each in messages) // unit)
    assembler = Assembler()
    for number, each in enumerate(messages):
        many = each.nbytes // unit
        waits = (-1 if each.after is None else 2 * each.after + 1, 0)
        send = steps(kinds.SEND, src=(kinds.INPUT, 0), count=many, dep=waits)
        take = steps(kinds.RECV, dst=(kinds.OUTPUT, 0), count=many)
        assembler.add(each.source, 2 * number, send, send_peer=each.destination, channel=number)
        assembler.add(each.destination, 2 * number + 1, take, recv_peer=each.source, channel=number)
    ranks = max(ranks, 1 + max(max(each.source, each.destination) for each in messages))
    schedule = assembler.schedule(
        "sendrecv", "by_hand", ranks, channels=len(messages), input_chunks=chunks, output_chunks=chunks
    )
    return schedule, chunks * unit


def run(system: ce.System, messages: Sequence[Message], ranks: int = 0, **how: object) -> ce.Result:
    """Emulate messages packet by packet; message ``i`` is on channel ``i`` of the timeline."""
    schedule, count = schedule_of(messages, ranks)
    return ce.emulate(schedule, system, count=count, dtype="uint8", fidelity="packet", **how)


def visible(result: ce.Result, system: ce.System) -> list[int]:
    """When each message of `run` could be read, in femtoseconds after the launch."""
    table = result.timeline.messages
    return (table["visible_fs"][table["channel"].argsort()] - femtoseconds(system.endpoint.launch_s)).tolist()


def femtoseconds(seconds: float) -> int:
    """A time of few digits."""
    return round(Fraction(str(seconds)) * 10**15)


def moving(nbytes: int, bytes_per_s: float) -> int:
    """``ceil`` of the time of some bytes at a rate of few digits."""
    return -(-nbytes * 10**15 // Fraction(str(bytes_per_s)))


@dataclass(frozen=True)
class Way:
    """A group of lanes, all idle, with credits enough."""

    system: ce.System
    width: int
    latency: int
    hops: int
    bytes_per_s: float
    payload: int
    header: int
    flit: int = 1
    enable: int = 0
    extra: int = 0
    protocol: str = ""

    @property
    def spoken(self) -> object:
        return self.system.protocols[self.protocol or self.system.default_protocol]

    def ser(self, nbytes: int) -> int:
        return moving(nbytes, self.bytes_per_s)

    @property
    def full(self) -> int:
        """Time of a full packet on a link."""
        return self.ser(self.payload + self.header)

    def packets(self, nbytes: int) -> list[int]:
        """Bytes of each packet on a link."""
        on_wire = -(-nbytes // self.spoken.data_bytes) * self.spoken.line_bytes
        whole, rest = divmod(on_wire, self.payload)
        payloads = [self.payload] * whole + [rest] * (rest > 0 or not whole)
        flits = [-(-each // self.flit) * self.flit for each in payloads]
        return [self.header + flit + self.enable * (flit != each) for each, flit in zip(payloads, flits, strict=True)]

    def passage(self, nbytes: int) -> int:
        """From ready to the last packet's arrival: a lane's packets go one after the other, stored and forwarded."""
        sizes = self.packets(nbytes)
        count, full, last = len(sizes), self.ser(sizes[0]), self.ser(sizes[-1])
        most = -(-count // self.width)
        again = self.hops - 1
        # the last packet's lane: it leaves its switch when it is there and the one before has left
        end = (most - 1) * full + last
        arrival = end if not again else max(end, most * full * (most > 1)) + last
        others = most if (count - 1) % self.width else most - 1  # full packets on the busiest other lane
        if others:
            arrival = max(arrival, (others + again) * full)
        return arrival + self.hops * self.latency

    def tail(self, nbytes: int) -> int:
        """What the largest packet needs on an empty path."""
        return self.hops * (max(map(self.ser, self.packets(nbytes))) + self.latency)

    def copy(self, nbytes: int) -> int:
        """A sender's work: its thread's, or, if that is longer, the memory's that is read."""
        return max(
            moving(nbytes, self.system.endpoint.copy_bytes_per_s), moving(nbytes, self.system.chip.hbm_bytes_per_s)
        )

    def store(self, nbytes: int) -> int:
        """A receiver's work when it only stores what came: read from a slot, written to its place."""
        if self.spoken.writes_destination:
            return 0
        return max(self.copy(nbytes), moving(2 * nbytes, self.system.chip.hbm_bytes_per_s))

    @property
    def begin(self) -> int:
        """From a sending operation's start until its message is ready."""
        return femtoseconds(self.spoken.step_latency_s) + self.extra

    def message(self, nbytes: int, arrival: int | None = None) -> int:
        """From the sending operation's start until its receiver can read.

        ``arrival`` is that of the last packet, from ready on, where the message is not alone on its way.
        """
        arrival = self.passage(nbytes) if arrival is None else arrival
        return self.begin + max(arrival, self.copy(nbytes) + self.tail(nbytes))


def links_of(system: ce.System, width: int, *, hops: int = 2, switches: int = 1, protocol: str = "") -> Way:
    """Lanes inside a domain. Rates must have few digits: ``domain.link_efficiency`` 1."""
    domain = system.domain
    assert domain.link_efficiency == 1
    return Way(
        system,
        width,
        femtoseconds(domain.hop_latency_s) * switches,
        hops,
        domain.link_bytes_per_s,
        domain.packet_payload_bytes,
        domain.packet_header_bytes,
        domain.packet_flit_bytes,
        domain.packet_byte_enable_bytes,
        protocol=protocol,
    )


def rails_of(system: ce.System, *, protocol: str = "") -> Way:
    """The network between domains."""
    far = system.scaleout
    return Way(
        system,
        far.rails,
        -(-femtoseconds(far.latency_s) // 2),
        2,
        far.bytes_per_s / far.rails,
        far.datagram_bytes,
        far.datagram_header_bytes,
        extra=femtoseconds(far.message_overhead_s),
        protocol=protocol,
    )
