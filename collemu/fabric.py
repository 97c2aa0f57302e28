"""A system's links as arrays for the kernels: the domain's stage and the network's, and messages on them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from collemu_kernels import stage as tables
from collemu_kernels.stage import Stage
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.in_switch import InSwitch
from collemu.lower import Messages
from collemu.wiring import Wiring, group_of, wiring_of

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MAX_PAIRS = 2**26  # of chips that share a switch, over all lanes, whose queues a run keeps: about 2 GB
MAX_PACKETS = 2**31 - 1  # of a run, 550 GB on the wire: a ring all_reduce of 3.8 GiB over 72 ranks


class StageRules(NamedTuple):
    """What a stage is built to, before anything travels on it."""

    wiring: Wiring
    reach: int  # chips that share a switch
    credits: int
    header: int
    full: int  # bytes of a full packet with its header
    serialisation: Int64  # [bytes] femtoseconds of a packet on a link


class Routes(NamedTuple):
    """How messages travel; arrays of an entry a message."""

    network: NDArray[np.bool_]
    group: Int64  # of lanes in its stage
    packets: Int64
    last_bytes: Int64  # of the last packet on a link
    step_fs: Int64  # from the operation's start to the message's being offered


class Shared(NamedTuple):
    """How in-switch operations travel; arrays of an entry an operation."""

    thread: Int32
    adds: NDArray[np.bool_]
    rank: Int32
    first: Int32  # rank of the switch group
    members: Int32
    packets: Int64
    last_bytes: Int64
    lane: Int64  # of the first packet
    step_fs: int

    @property
    def rows(self) -> Int64:
        """Messages that each is to the fabric: a sum and its terms, or what is stored."""
        return np.where(self.adds, self.members + 1, 1).astype(np.int64)


@dataclass(frozen=True)
class FabricState:
    """Stages and messages that `collemu_kernels.machine` works on.

    After the schedule's messages come those of its in-switch operations: of each first the sum, or what is stored, at
    ``whole``, then the terms.
    """

    domain: Stage
    network: Stage
    messages: Int64
    whole: Int64
    line: Int64
    lines: Int64
    delivered: Int64


def packets_of(
    nbytes: Int64, data: int, line: int, payload: int, header: int, flit: int = 1, byte_enable: int = 0
) -> tuple[Int64, Int64]:
    """Packets of each message, and the bytes of its last packet on a link.

    Parameters
    ----------
    nbytes : int64 array
        Wire image bytes of each message.
    data, line : int
        Bytes of a protocol's lines that are payload, and all bytes of one.
    payload, header, flit, byte_enable : int
        Of a packet: its most payload; what every packet has beside it; what payload takes whole multiples of; what a
        payload that is no whole multiple has besides.
    """
    line_bytes = -(-nbytes // data) * line
    packets = np.maximum(1, -(-line_bytes // payload))
    last = line_bytes - (packets - 1) * payload
    whole = -(-last // flit) * flit
    return packets, header + whole + np.where(whole != last, byte_enable, 0)


def crosses(messages: Messages, system: System) -> NDArray[np.bool_]:
    """Whether each message leaves its domain, and so travels on the network."""
    chips = system.domain.chips
    return messages.source // chips != messages.destination // chips


def steps_of(network: NDArray[np.bool_], system: System, protocol: Protocol) -> Int64:
    """Femtoseconds from the start of a message's operation to its being offered."""
    overhead = np.where(network, system.scaleout.message_overhead_fs, 0)
    return (protocol.step_latency_fs + overhead).astype(np.int64)


def routes_of(messages: Messages, system: System, protocol: Protocol, *, far: bool = False) -> Routes:
    """Which stage and lanes each message takes, and as how many packets.

    Parameters
    ----------
    far : bool
        Whether a message may pass several chips of a torus, whose group is then -1, and there is no limit of packets.

    Raises
    ------
    ValueError
        If there are more packets than one can wait for, or chips of a torus are no neighbours.
    """
    domain, scaleout = system.domain, system.scaleout
    network = crosses(messages, system)
    lines = protocol.data_bytes, protocol.line_bytes
    packets, last_bytes = packets_of(
        messages.nbytes,
        *lines,
        domain.packet_payload_bytes,
        domain.packet_header_bytes,
        domain.packet_flit_bytes,
        domain.packet_byte_enable_bytes,
    )
    datagrams = packets_of(messages.nbytes, *lines, scaleout.datagram_bytes, scaleout.datagram_header_bytes)
    packets, last_bytes = (
        np.where(network, far, near) for far, near in zip(datagrams, (packets, last_bytes), strict=True)
    )
    if (total := int(packets.sum())) > MAX_PACKETS and not far:
        raise ValueError(
            f"{messages.nbytes.sum()} bytes on the wire are {total} packets, minutes of emulation; the most is "
            f"{MAX_PACKETS}: use fidelity flow, smaller sizes or fewer ranks"
        )
    group = np.zeros(len(messages), np.int64)
    inside = np.flatnonzero(~network)
    own, peer = (ends[inside].astype(np.int64) % domain.chips for ends in (messages.source, messages.destination))
    group[inside] = group_of(domain, own, peer)
    if not far and (apart := np.flatnonzero(group < 0)).size:
        a, b = int(messages.source[apart[0]]), int(messages.destination[apart[0]])
        raise ValueError(
            f"ranks {a} and {b} are no neighbours in a torus of {' x '.join(map(str, domain.shape))}, and packets are "
            f"emulated from neighbour to neighbour; use fidelity flow, or a ring over all chips"
        )
    return Routes(network, group, packets, last_bytes, steps_of(network, system, protocol))


def domain_rules(system: System, ranks: int) -> StageRules:
    """The lanes of a system's domains, with ``ranks`` of its chips taking part."""
    domain = system.domain
    longest = domain.packet_payload_bytes + domain.packet_header_bytes + domain.packet_byte_enable_bytes
    rate = domain.link_fs_per_byte
    return StageRules(
        wiring=wiring_of(domain),
        reach=min(domain.chips, ranks),
        credits=domain.credits,
        header=domain.packet_header_bytes,
        full=domain.packet_payload_bytes + domain.packet_header_bytes,
        serialisation=-(-np.arange(longest + 1, dtype=np.int64) * rate.numerator // rate.denominator),
    )


def network_rules(system: System, ranks: int) -> StageRules:
    """The rails of a system's chips, which meet at their receivers; none if one domain has all ranks."""
    scaleout = system.scaleout
    latency = scaleout.latency_fs
    longest = scaleout.datagram_bytes + scaleout.datagram_header_bytes
    rate = scaleout.fs_per_byte
    rails = scaleout.rails if ranks > system.domain.chips else 0
    return StageRules(
        wiring=Wiring((rails,) if rails else (), (latency - latency // 2,) if rails else (), direct=False),
        reach=ranks,
        credits=scaleout.window_datagrams,
        header=scaleout.datagram_header_bytes,
        full=longest,
        serialisation=-(-np.arange(longest + 1, dtype=np.int64) * rate.numerator // rate.denominator),
    )


def shared_of(in_switch: InSwitch, thread: Int32, system: System, protocol: Protocol) -> Shared:
    """Packets and lanes of in-switch operations; ``thread`` is that of every operation of the schedule."""
    domain = system.domain
    packets, last_bytes = packets_of(
        in_switch.nbytes,
        1,
        1,
        domain.packet_payload_bytes,
        domain.packet_header_bytes,
        domain.packet_flit_bytes,
        domain.packet_byte_enable_bytes,
    )
    return Shared(
        thread=thread[in_switch.operation],
        adds=in_switch.adds,
        rank=in_switch.rank,
        first=in_switch.first,
        members=in_switch.members,
        packets=packets,
        last_bytes=last_bytes,
        lane=in_switch.offset // domain.packet_payload_bytes % domain.links,
        step_fs=protocol.step_latency_fs,
    )


NOTHING_SHARED = Shared(*(np.zeros(0, np.int64) for _ in range(8)), step_fs=0)  # pyright: ignore[reportArgumentType]


def fresh_state(
    ranks: int,
    domain: StageRules,
    network: StageRules,
    source: Int32,
    destination: Int32,
    routes: Routes,
    shared: Shared = NOTHING_SHARED,
) -> FabricState:
    """Idle links, full credits, and messages that nobody has offered yet.

    Parameters
    ----------
    ranks : int
    domain, network : StageRules
    source, destination : int32 arrays
        Chips of each message.
    routes : Routes
    shared : Shared
        In-switch operations, if there are any.

    Raises
    ------
    ValueError
        If the switches have more queues than memory should hold.
    """
    groups = len(domain.wiring.widths), len(network.wiring.widths)
    queue = np.where(routes.network, ranks * groups[0] + source * groups[1], source * groups[0]) + routes.group
    ordinary = np.zeros((len(source), tables.MESSAGE_COLUMNS), np.int64)
    ordinary[:, tables.SOURCE], ordinary[:, tables.DESTINATION] = source, destination
    ordinary[:, tables.PACKETS], ordinary[:, tables.LAST_BYTES] = routes.packets, routes.last_bytes
    ordinary[:, tables.REMAINING] = routes.packets
    ordinary[:, tables.VISIBLE] = tables.NEVER
    ordinary[:, tables.QUEUE], ordinary[:, tables.NETWORK] = queue, routes.network
    ordinary[:, tables.STEP] = routes.step_fs
    for rules, here in ((domain, ~routes.network), (network, routes.network)):
        if here.any():
            latencies = np.array(rules.wiring.latencies_fs, np.int64)
            ordinary[here, tables.PATH] = rules.wiring.hops * latencies[routes.group[here]]
    whole = len(source) + np.cumsum(shared.rows) - shared.rows
    messages = np.concatenate((ordinary, _shared_messages(domain, shared))) if len(whole) else ordinary

    in_line = np.ones(len(messages), bool)
    in_line[whole[shared.adds]] = False  # sums begin in the switch
    queue = messages[in_line, tables.QUEUE]
    sends = np.bincount(queue, minlength=ranks * sum(groups))
    lines = np.zeros((ranks * sum(groups), tables.LINE_COLUMNS), np.int64)
    lines[:, tables.LINE] = np.cumsum(sends) - sends

    def busiest(rules: StageRules, first_line: int) -> int:
        """Rows of a lane's pool: what a port has on its way is never more than its credits, nor than its packets."""
        widths = np.array(rules.wiring.widths, np.int64)
        if not len(widths):
            return 0
        line = queue - first_line
        here = (line >= 0) & (line < ranks * len(widths))
        shares = -(-messages[in_line, tables.PACKETS][here] // widths[line[here] % len(widths)])
        most = np.bincount(line[here], weights=shares, minlength=ranks * len(widths))
        return int(np.minimum(most.reshape(ranks, -1), rules.credits).sum(axis=0).max())

    pool = busiest(domain, 0)
    if len(whole):
        pool += _parts_on_a_lane(domain, shared)
    return FabricState(
        domain=_stage(domain, ranks, 0, pool, *_shared_tables(shared, whole)),
        network=_stage(network, ranks, ranks * groups[0], busiest(network, ranks * groups[0])),
        messages=messages,
        whole=whole,
        line=np.zeros(len(messages), np.int64),
        lines=lines,
        delivered=np.zeros(len(messages), np.int64),
    )


def _shared_messages(domain: StageRules, shared: Shared) -> Int64:
    """Rows of the table of messages for what in-switch operations send."""
    rows = shared.rows
    number = np.repeat(np.arange(len(rows)), rows)
    place = np.arange(len(number)) - (np.cumsum(rows) - rows)[number]  # within the operation
    adds = shared.adds[number]
    terms = adds & (place > 0)
    messages = np.zeros((len(number), tables.MESSAGE_COLUMNS), np.int64)
    source = np.where(terms, shared.first[number] + place - 1, shared.rank[number])
    messages[:, tables.SOURCE] = source
    messages[:, tables.DESTINATION] = np.where(adds & ~terms, source, -1 - number)
    messages[:, tables.PACKETS], messages[:, tables.LAST_BYTES] = shared.packets[number], shared.last_bytes[number]
    messages[:, tables.REMAINING] = shared.packets[number] * np.where(adds, 1, shared.members[number])
    messages[:, tables.FIRST_PACKET] = shared.lane[number]
    messages[:, tables.QUEUE] = source  # a switched domain has one group of lanes
    messages[:, tables.STEP] = shared.step_fs
    messages[:, tables.PATH] = domain.wiring.hops * domain.wiring.latencies_fs[0]
    messages[:, tables.SUCCESSOR], messages[:, tables.VISIBLE] = tables.NONE, tables.NEVER
    return messages


def _shared_tables(shared: Shared, whole: Int64) -> tuple[Int64, Int64]:
    """What in-switch operations ask for, and their packets."""
    table = np.zeros((len(whole), tables.SHARED_COLUMNS), np.int64)
    table[:, tables.ADDS], table[:, tables.WHOLE] = shared.adds, whole
    table[:, tables.FIRST_MEMBER], table[:, tables.MEMBERS] = shared.first, shared.members
    table[:, tables.FIRST_PART] = np.cumsum(shared.packets) - shared.packets
    if (total := int(shared.packets.sum())) > MAX_PAIRS:
        raise ValueError(
            f"{total} packets that switches add or copy; the most is {MAX_PAIRS}: use fidelity flow or smaller sizes"
        )
    parts = np.zeros((total, tables.PART_COLUMNS), np.int64)
    parts[:, tables.LEFT] = np.repeat(shared.members, shared.packets)
    parts[:, tables.OWNER] = np.repeat(whole, shared.packets)
    return table, parts


def _parts_on_a_lane(domain: StageRules, shared: Shared) -> int:
    """Sums and copies that can be on a lane at once: a thread asks for one thing at a time; stores hold credits."""
    share = -(-shared.packets // domain.wiring.widths[0])
    sums = np.zeros(int(shared.thread.max()) + 1, np.int64)
    np.maximum.at(sums, shared.thread[shared.adds], share[shared.adds])
    stores, copies = np.zeros_like(sums), np.zeros(int(shared.rank.max()) + 1, np.int64)
    np.maximum.at(stores, shared.thread[~shared.adds], share[~shared.adds])
    rank_of = np.zeros(len(sums), np.int64)
    rank_of[shared.thread] = shared.rank
    np.add.at(copies, rank_of, stores)
    return int(sums.sum() + np.minimum(copies, domain.credits).sum() * shared.members.max())


def _stage(
    rules: StageRules, ranks: int, first_line: int, pool: int, shared: Int64 | None = None, parts: Int64 | None = None
) -> Stage:
    """An idle stage."""
    wiring = rules.wiring
    count = sum(wiring.widths)
    reach = 0 if wiring.direct or not count else rules.reach
    if ranks * reach * count > MAX_PAIRS:
        raise ValueError(
            f"{ranks} ranks on {count} lanes are {ranks * reach * count} queues in the switches; the most is "
            f"{MAX_PAIRS}: use fewer ranks, or fidelity flow"
        )
    if (rows := count * (pool + ranks)) > MAX_PAIRS:
        raise ValueError(
            f"{ranks} ranks with {rules.credits} credits on {count} lanes need {rows} rows for packets under way; "
            f"the most is {MAX_PAIRS}: use fewer credits, or fidelity flow"
        )
    widths = np.array(wiring.widths, np.int64)
    group = np.repeat(np.arange(len(widths)), widths)
    lanes = np.zeros((count, tables.LANE_COLUMNS), np.int64)
    lanes[:, tables.GROUP] = group
    lanes[:, tables.FIRST_LANE] = (np.cumsum(widths) - widths)[group]
    lanes[:, tables.LANES] = widths[group]
    lanes[:, tables.LATENCY] = np.array(wiring.latencies_fs, np.int64)[group]

    ports = np.zeros((count, ranks, tables.PORT_COLUMNS), np.int64)
    ports[..., tables.CREDITS], ports[..., tables.RETURNING] = rules.credits, tables.NONE
    outputs = np.zeros((count, ranks, tables.OUTPUT_COLUMNS), np.int64)
    if reach:
        outputs[..., tables.POINTER] = (np.arange(ranks) % reach + 1) % reach
    trains = np.empty((count, pool + 1, tables.TRAIN_COLUMNS), np.int64)
    trains[..., tables.NEXT] = np.arange(1, pool + 2)
    trains[:, pool, tables.NEXT] = 0
    shortest = min(wiring.latencies_fs, default=0) + int(rules.serialisation[rules.header])
    return Stage(
        direct=wiring.direct,
        hops=wiring.hops,
        groups=len(widths),
        first_line=first_line,
        reach=max(reach, 1),
        credits=rules.credits,
        header=rules.header,
        full=rules.full,
        crossing=shortest if count else int(tables.NEVER),
        serialisation=rules.serialisation,
        lanes=lanes,
        ports=ports,
        port_traffic=np.zeros((count, ranks, tables.TRAFFIC_COLUMNS), np.int64),
        outputs=outputs,
        output_traffic=np.zeros((count, ranks, tables.TRAFFIC_COLUMNS), np.int64),
        expected=np.zeros((count, 2, ranks, reach), np.int64),
        ready=np.zeros((count, ranks, (reach + 63) // 64), np.uint64),
        queues=np.full((count, ranks * reach, 2), tables.NONE, np.int64),
        trains=trains,
        active=np.zeros((count, 2, ranks), np.int64),
        active_counts=np.zeros((count, 2), np.int64),
        lane_next=np.full((count, 2), tables.NEVER, np.int64),
        shared=np.zeros((0, tables.SHARED_COLUMNS), np.int64) if shared is None else shared,
        parts=np.zeros((0, tables.PART_COLUMNS), np.int64) if parts is None else parts,
    )
