"""The packet model of docs/timing-rules.md, a second time: slow, plain Python, written from that page alone.

Operations and packets are timed differently, because the rules differ in kind:

* The start of an operation is a maximum over moments that other rules give (section 2). No choice depends on
  the order in which they become known, so an operation is timed as soon as the last of them is.
* Links and outputs choose among what is there at a moment (sections 3 to 5), so packets follow one queue of
  events. All events of a moment happen first; only then do chips put messages in line, ports send, and
  outputs decide. Serialising takes at least 1 fs, so these three have no consequences at the same moment.

An in-switch operation is both: its finish becomes known with the arrival of its last packet.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from collemu_kernels import kinds

LOCAL = {kinds.NOP, kinds.COPY, kinds.REDUCE}
FUSED_SENDS = {kinds.RECV_COPY_SEND, kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE_COPY_SEND}
SENDS = {kinds.SEND} | FUSED_SENDS
RECEIVES = {kinds.RECV, kinds.RECV_REDUCE, kinds.RECV_REDUCE_COPY} | FUSED_SENDS
REDUCES = {
    kinds.REDUCE,
    kinds.RECV_REDUCE,
    kinds.RECV_REDUCE_SEND,
    kinds.RECV_REDUCE_COPY,
    kinds.RECV_REDUCE_COPY_SEND,
}
IN_SWITCH = {kinds.MULTIMEM_REDUCE, kinds.MULTIMEM_STORE}


@dataclass(frozen=True)
class Stage:
    """Constants of a stage, section 1. Times in fs, sizes in bytes, rates as (num, den) femtoseconds a byte."""

    widths: tuple[int, ...]  # lanes of each group; () : the stage does not exist
    latencies_fs: tuple[int, ...]  # of one link of each group
    switched: bool
    link: tuple[int, int]
    credits: int
    payload: int
    header: int
    flit: int = 1
    enable: int = 0
    extra_fs: int = 0

    @property
    def hops(self) -> int:
        return 2 if self.switched else 1

    def ser(self, size: int) -> int:
        return duration(size, self.link)


NO_STAGE = Stage(widths=(), latencies_fs=(), switched=True, link=(1, 1), credits=1, payload=1, header=1)


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Constants of sections 1 to 3, in the units of a stage."""

    domain: Stage
    network: Stage
    chips: int  # of a domain: D of the page
    topology: str  # "switched", "nested", "mesh", "torus"
    levels: tuple[int, ...] = ()  # nested: chips of a unit of each level
    shape: tuple[int, ...] = ()  # torus: chips of each dimension
    launch_fs: int = 0
    slots: int
    copy: tuple[int, int]
    reduce: tuple[int, int]
    step_fs: int
    data: int
    line: int


@dataclass(frozen=True)
class Operation:
    """One operation; its place in the list is its global index, and `dep` is the global index of another.

    `message_bytes` is the wire image of the message that it receives, sends, or passes on; `work_bytes` is
    what the endpoint works on. Peers count only where `kind` uses them.

    For an in-switch operation `message_bytes` is `b` of the page, the bytes of memory that it adds or stores, `members`
    are the ranks of its switch group in order, and `offset` is `o` of section 3; for others the two do not count.
    """

    rank: int
    thread: int
    kind: int
    send_peer: int = -1
    recv_peer: int = -1
    channel: int = 0
    work_bytes: int = 0
    work_fs: int | None = None  # instead of what the copy or reduce rate makes of work_bytes
    message_bytes: int = 0
    dep: int | None = None
    members: tuple[int, ...] = ()
    offset: int = 0


@dataclass
class Times:
    """Everything in fs and bytes; bytes and busy times count headers, and name every link, used or not."""

    start: list[int]
    finish: list[int]
    visible: dict[tuple[int, int, int, int], int]  # messages: (source, destination, channel, k)
    time_fs: int
    up_bytes: dict[tuple[int, int], int]  # (chip, lane): the domain's, group after group, then the network's
    down_bytes: dict[tuple[int, int], int]  # (lane, chip); without switches the other end of an up link
    up_busy_fs: dict[tuple[int, int], int]
    down_busy_fs: dict[tuple[int, int], int]


@dataclass
class Message:
    key: tuple[int, int, int, int]
    sender: int  # global operation index
    packets: list[int]  # bytes on a link, header included
    stage: Stage
    group: int
    first_lane: int  # of the group
    under_way: int  # packets that have not arrived
    receiver: int | None = None  # global operation index

    @property
    def source(self) -> int:
        return self.key[0]

    @property
    def destination(self) -> int:
        return self.key[1]

    @property
    def latency_fs(self) -> int:
        """Of one link of its way."""
        return self.stage.latencies_fs[self.group]


@dataclass
class InSwitch:
    """What chips and the switch send for an in-switch operation: terms and their sum, or a message and its copies."""

    operation: Operation
    sender: int  # global operation index
    packets: list[int]  # bytes on a link of every term and the sum, or of the message and every copy
    stage: Stage
    ready: int = 0
    under_way: int = 0  # packets that have not arrived at the chips where they end
    at_switch: Counter[int] = field(default_factory=Counter)  # by packet number: terms that are there
    at_chips: Counter[int] = field(default_factory=Counter)  # by packet number: copies that have arrived

    @property
    def senders(self) -> tuple[int, ...]:
        """The chips that put these packets in line."""
        op = self.operation
        return op.members if op.kind == kinds.MULTIMEM_REDUCE else (op.rank,)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The chips that the switch sends packets of this number to."""
        op = self.operation
        return (op.rank,) if op.kind == kinds.MULTIMEM_REDUCE else op.members

    @property
    def latency_fs(self) -> int:
        return self.stage.latencies_fs[0]


@dataclass(frozen=True)
class Packet:
    message: Message | InSwitch
    number: int  # of its message

    @property
    def size(self) -> int:
        return self.message.packets[self.number]


@dataclass
class Port:
    """A chip's link of a lane: into a switch, or to another chip."""

    credits: int
    queue: deque[Packet] = field(default_factory=deque)
    free_at: int = 0


@dataclass
class Output:
    """A switch's link to a chip, and the packets that wait for it by source chip.

    Those of an input are a heap of (there since, thread and step of its operation, number, packet).
    """

    pointer: int
    sharers: int  # ranks that share the switch
    waiting: dict[int, list[tuple[int, int, int, int, Packet]]] = field(default_factory=lambda: defaultdict(list))
    free_at: int = 0


def duration(size: int, rate: tuple[int, int]) -> int:
    """Time of `size` bytes: ceil(size * num / den)."""
    num, den = rate
    return -(-size * num // den)


def stage_of(fabric: Fabric, source: int, destination: int) -> Stage:
    """The stage that a message between two ranks travels in."""
    same_domain = source // fabric.chips == destination // fabric.chips
    stage = fabric.domain if same_domain else fabric.network
    if not stage.widths:
        name = "domain" if same_domain else "network"
        raise ValueError(f"no links from {source} to {destination}: the fabric has no {name} stage")
    return stage


def group_of(fabric: Fabric, source: int, destination: int) -> int:
    """The group of its stage that a message between two ranks takes."""
    if source == destination:
        raise ValueError(f"chip {source} sends to itself")
    if source // fabric.chips != destination // fabric.chips:
        return 0
    s, d = source % fabric.chips, destination % fabric.chips
    if fabric.topology == "switched":
        return 0
    if fabric.topology == "nested":
        for level, unit in enumerate(fabric.levels):
            if s // unit == d // unit:
                return level
        raise ValueError(f"no level of {fabric.levels} has both chip {s} and chip {d} in one unit")
    if fabric.topology == "mesh":
        return (d - s - 1) % fabric.chips
    if fabric.topology == "torus":
        places = coordinates(fabric.shape)
        for group, (dimension, direction) in enumerate(directions(fabric.shape)):
            moved = list(places[s])
            moved[dimension] = (moved[dimension] + direction) % fabric.shape[dimension]
            if tuple(moved) == places[d]:
                return group
        raise ValueError(f"chips {source} and {destination} are no neighbours of the torus {fabric.shape}")
    raise ValueError(f"the timing rules have no topology {fabric.topology!r}")


def first_lane_of(fabric: Fabric, source: int, destination: int) -> int:
    """The first of the lanes of the group that a message between two ranks takes."""
    group = group_of(fabric, source, destination)
    if source // fabric.chips == destination // fabric.chips:
        return sum(fabric.domain.widths[:group])
    return sum(fabric.domain.widths) + sum(fabric.network.widths[:group])


def coordinates(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where each chip of a torus is: a walk that moves in the last dimension it can, and turns back where it cannot."""
    place, heading = [0] * len(shape), [1] * len(shape)
    places = [tuple(place)]
    while True:
        for dimension in reversed(range(len(shape))):
            if 0 <= place[dimension] + heading[dimension] < shape[dimension]:
                place[dimension] += heading[dimension]
                break
            heading[dimension] = -heading[dimension]
        else:
            return places
        places.append(tuple(place))


def directions(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The groups of a torus: (dimension, +1 or -1)."""
    groups = []
    for dimension, length in enumerate(shape):
        if length > 1:
            groups.append((dimension, 1))
        if length > 2:
            groups.append((dimension, -1))
    return groups


def cut(wire_bytes: int, fabric: Fabric, stage: Stage) -> list[int]:
    """Sizes on a link of the packets of a wire image (section 3)."""
    return cut_bytes(-(-wire_bytes // fabric.data) * fabric.line, stage)


def cut_bytes(left: int, stage: Stage) -> list[int]:
    """As `cut`, of bytes that are in no lines: of memory, for an in-switch operation."""
    payloads = []
    while left > stage.payload:
        payloads.append(stage.payload)
        left -= stage.payload
    payloads.append(left)
    return [packet_size(payload, stage) for payload in payloads]


def packet_size(payload: int, stage: Stage) -> int:
    size = stage.header + -(-payload // stage.flit) * stage.flit
    return size if payload % stage.flit == 0 else size + stage.enable


def run(operations: list[Operation], fabric: Fabric) -> Times:
    """Time `operations` on `fabric`, among the chips that they name.

    Raises
    ------
    RuntimeError
        If operations are left that wait for each other, or for a message that nobody sends; it names them.
    ValueError
        If the operations break a rule of the model's input.
    """
    return _Engine(operations, fabric).run()


class _Engine:
    def __init__(self, operations: list[Operation], fabric: Fabric) -> None:
        self.operations = operations
        self.fabric = fabric
        named = [max(op.rank, op.send_peer, op.recv_peer, *op.members) for op in operations]
        self.chips = 1 + max(named, default=-1)
        self.steps = number_steps(operations)

        # Operations: what each still waits for, and what it lets go on.
        self.start = [fabric.launch_fs for _ in operations]  # the latest moment known so far
        self.finish: list[int | None] = [None for _ in operations]
        self.missing: list[set[str]] = [set() for _ in operations]
        # By operation: (a later one, what that one waits for, extra fs after the finish).
        self.after: list[list[tuple[int, str, int]]] = [[] for _ in operations]
        self.sent: dict[int, Message | InSwitch] = {}
        self.visible: dict[tuple[int, int, int, int], int] = {}
        self.connect()

        # Packets.
        self.ports: dict[tuple[int, int], Port] = {}  # by (chip, lane)
        self.outputs: dict[tuple[int, int], Output] = {}  # by (lane, chip)
        domain_lanes, network_lanes = sum(fabric.domain.widths), sum(fabric.network.widths)
        lanes = [(fabric.domain, min(fabric.chips, self.chips))] * domain_lanes
        lanes += [(fabric.network, self.chips)] * network_lanes
        for chip in range(self.chips):
            for lane, (stage, sharers) in enumerate(lanes):
                self.ports[chip, lane] = Port(stage.credits)
                self.outputs[lane, chip] = Output(chip + 1, sharers)  # without switches it never decides
        self.packets_counted: dict[tuple[int, int], int] = defaultdict(int)  # by (chip, first lane of the group)
        self.up_bytes, self.up_busy = dict.fromkeys(self.ports, 0), dict.fromkeys(self.ports, 0)
        self.down_bytes, self.down_busy = dict.fromkeys(self.outputs, 0), dict.fromkeys(self.outputs, 0)

        # Events: (time, a number that makes it unique, what happens).
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.events_made = 0
        self.now = 0
        self.ready_now: list[int] = []
        self.ports_to_try: set[tuple[int, int]] = set()
        self.outputs_to_try: set[tuple[int, int]] = set()

    def run(self) -> Times:
        for index in [index for index, missing in enumerate(self.missing) if not missing]:
            self.begin(index)
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                heapq.heappop(self.events)[2]()
            self.put_in_line()
            self.send_from_ports()
            self.decide_at_outputs()
        self.check_finished()
        return Times(
            start=self.start,
            finish=self.finish,
            visible=self.visible,
            time_fs=max(self.finish, default=self.fabric.launch_fs),
            up_bytes=self.up_bytes,
            down_bytes=self.down_bytes,
            up_busy_fs=self.up_busy,
            down_busy_fs=self.down_busy,
        )

    def at(self, time: int, event: Callable[[], None]) -> None:
        self.events_made += 1
        heapq.heappush(self.events, (time, self.events_made, event))

    # Section 2: operations.

    def connect(self) -> None:
        """Note what each operation waits for."""
        sends, receives = self.match()
        for index, op in enumerate(self.operations):
            if self.steps[index] > 0:
                self.wait_for(index, index - 1, "the operation before it")
            if op.dep is not None:
                self.wait_for(index, op.dep, "its dependency")
            if op.kind in IN_SWITCH:
                self.check_group(index)
                stage = self.fabric.domain
                self.sent[index] = InSwitch(op, index, cut_bytes(op.message_bytes, stage), stage)

        for connection, indices in receives.items():
            for k, index in enumerate(indices):
                self.missing[index].add(describe_message(*connection, k))

        for connection, indices in sends.items():
            receivers = receives.get(connection, [])
            ends = connection[:2]
            stage, group = stage_of(self.fabric, *ends), group_of(self.fabric, *ends)
            notice = stage.hops * (stage.latencies_fs[group] + stage.ser(stage.header))
            for k, index in enumerate(indices):
                packets = cut(self.operations[index].message_bytes, self.fabric, stage)
                self.sent[index] = message = Message(
                    key=(*connection, k),
                    sender=index,
                    packets=packets,
                    stage=stage,
                    group=group,
                    first_lane=first_lane_of(self.fabric, *ends),
                    under_way=len(packets),
                )
                if k < len(receivers):
                    message.receiver = receivers[k]
                    self.check_sizes(index, receivers[k])
                if k >= self.fabric.slots:
                    slot = f"the slot of {describe_message(*connection, k - self.fabric.slots)}"
                    if k - self.fabric.slots < len(receivers):
                        self.wait_for(index, receivers[k - self.fabric.slots], slot, notice)
                    else:
                        self.missing[index].add(slot)

    def match(self) -> tuple[dict[tuple[int, int, int], list[int]], dict[tuple[int, int, int], list[int]]]:
        """The operations that send on, and receive from, each connection, first to last."""
        sends, receives = defaultdict(list), defaultdict(list)
        for index, op in enumerate(self.operations):
            if op.kind not in LOCAL | SENDS | RECEIVES | IN_SWITCH:
                raise ValueError(f"operation {index} has kind {op.kind}, which the timing rules do not have")
            if op.kind in SENDS:
                sends[op.rank, op.send_peer, op.channel].append(index)
            if op.kind in RECEIVES:
                receives[op.recv_peer, op.rank, op.channel].append(index)
        for connection, indices in [*sends.items(), *receives.items()]:
            if len({self.operations[index].thread for index in indices}) > 1:
                raise ValueError(f"connection {connection}: several threads use one end of it")
        return sends, receives

    def check_sizes(self, sender: int, receiver: int) -> None:
        sent, expected = self.operations[sender].message_bytes, self.operations[receiver].message_bytes
        if sent != expected:
            ends = self.describe(sender), self.describe(receiver)
            raise ValueError(f"{ends[0]} sends {sent} bytes, {ends[1]} takes {expected}")

    def check_group(self, index: int) -> None:
        op, chips = self.operations[index], self.fabric.chips
        if self.fabric.topology != "switched":
            raise ValueError(f"{self.describe(index)}: no in-switch operation in a {self.fabric.topology} domain")
        if op.rank not in op.members or len({rank // chips for rank in op.members}) > 1:
            raise ValueError(f"{self.describe(index)}: its switch group {op.members} is not of its domain")

    def wait_for(self, index: int, other: int, cause: str, extra_fs: int = 0) -> None:
        self.missing[index].add(cause)
        self.after[other].append((index, cause, extra_fs))

    def begin(self, first: int) -> None:
        """Time an operation that waits for nothing more, and all operations that this was missing for."""
        to_begin = [first]
        while to_begin:
            index = to_begin.pop()
            op = self.operations[index]
            ready = self.start[index]
            if op.kind in SENDS:
                ready += self.fabric.step_fs + self.sent[index].stage.extra_fs
                self.at(ready, lambda index=index: self.ready_now.append(index))
            if op.kind in IN_SWITCH:
                self.sent[index].ready = ready + self.fabric.step_fs
                self.at(self.sent[index].ready, lambda index=index: self.ready_now.append(index))
            else:
                to_begin += self.end(index, ready + self.work(op))

    def end(self, index: int, time: int) -> list[int]:
        """Note the finish of an operation, and name those that this was the last thing missing for."""
        self.finish[index] = time
        return [later for later, cause, extra_fs in self.after[index] if self.learn(later, cause, time + extra_fs)]

    def learn(self, index: int, cause: str, time: int) -> bool:
        """Note one of the moments that an operation waits for; True if it was the last one missing."""
        self.start[index] = max(self.start[index], time)
        self.missing[index].remove(cause)
        return not self.missing[index]

    def work(self, op: Operation) -> int:
        if op.kind in (kinds.NOP, kinds.MULTIMEM_REDUCE):
            return 0
        if op.work_fs is not None:
            return op.work_fs
        return duration(op.work_bytes, self.fabric.reduce if op.kind in REDUCES else self.fabric.copy)

    # Section 3: from message to packets.

    def put_in_line(self) -> None:
        """Messages first; as those of a line have one rank, its place in the order means nothing to them."""
        ops = self.operations
        self.ready_now.sort(key=lambda i: (ops[i].kind in IN_SWITCH, ops[i].rank, ops[i].thread, self.steps[i]))
        for index in self.ready_now:
            message = self.sent[index]
            if isinstance(message, InSwitch):
                self.put_in_line_in_switch(message)
                continue
            line = (message.source, message.first_lane)
            for number in range(len(message.packets)):
                lane = self.packets_counted[line] % message.stage.widths[message.group]
                self.packets_counted[line] += 1
                self.queue(Packet(message, number), (message.source, message.first_lane + lane))
        self.ready_now.clear()

    def put_in_line_in_switch(self, message: InSwitch) -> None:
        """Every packet takes the lane of its address, and is not counted."""
        stage, op = message.stage, message.operation
        message.under_way = len(message.packets) * len(message.receivers)
        for chip in message.senders:
            for number in range(len(message.packets)):
                lane = (op.offset // stage.payload + number) % stage.widths[0]
                self.queue(Packet(message, number), (chip, lane))

    def queue(self, packet: Packet, link: tuple[int, int]) -> None:
        self.ports[link].queue.append(packet)
        self.ports_to_try.add(link)

    # Section 4: from the chip.

    def send_from_ports(self) -> None:
        for link in self.ports_to_try:
            port = self.ports[link]
            if port.queue and port.credits > 0 and port.free_at <= self.now:
                packet = port.queue.popleft()
                port.credits -= 1
                port.free_at = self.now + packet.message.stage.ser(packet.size)
                self.up_bytes[link] += packet.size
                self.up_busy[link] += port.free_at - self.now
                self.at(port.free_at, lambda link=link: self.ports_to_try.add(link))
                self.go_along(packet, link, port.free_at - self.now)
        self.ports_to_try.clear()

    def go_along(self, packet: Packet, link: tuple[int, int], serialising: int) -> None:
        """Let a packet whose sending begins now reach the other end of the chip's link."""
        message, lane = packet.message, link[1]
        there = self.now + serialising + message.latency_fs
        if message.stage.switched:
            self.at(there, lambda: self.reach_switch(packet, link))
        else:
            self.down_bytes[lane, message.destination] += packet.size
            self.down_busy[lane, message.destination] += serialising
            self.at(there, lambda: self.reach_chip(packet))
            self.at(there + message.latency_fs, lambda: self.return_credit(link))

    def return_credit(self, link: tuple[int, int]) -> None:
        self.ports[link].credits += 1
        self.ports_to_try.add(link)

    def reach_switch(self, packet: Packet, up_link: tuple[int, int]) -> None:
        message, lane = packet.message, up_link[1]
        if isinstance(message, Message):
            self.wait_at_output(packet, message.source, (lane, message.destination))
            return
        if message.operation.kind == kinds.MULTIMEM_REDUCE:
            self.at(self.now + message.latency_fs, lambda: self.return_credit(up_link))
            message.at_switch[packet.number] += 1
            if message.at_switch[packet.number] < len(message.senders):
                return
        for chip in message.receivers:  # of the sum or of the copies
            self.wait_at_output(packet, message.operation.rank, (lane, chip))

    # Section 5: switch to chip.

    def wait_at_output(self, packet: Packet, source: int, link: tuple[int, int]) -> None:
        sender = packet.message.sender
        order = (self.now, self.operations[sender].thread, self.steps[sender], packet.number)
        heapq.heappush(self.outputs[link].waiting[source], (*order, packet))
        self.outputs_to_try.add(link)

    def decide_at_outputs(self) -> None:
        for link in self.outputs_to_try:
            output = self.outputs[link]
            inputs = [chip for chip, packets in output.waiting.items() if packets]
            if inputs and output.free_at <= self.now:
                # Differences of ranks of one domain are those of its chips, so the pointer may be any number.
                chosen = min(inputs, key=lambda chip: (chip - output.pointer) % output.sharers)
                output.pointer = chosen + 1
                packet = heapq.heappop(output.waiting[chosen])[-1]
                output.free_at = self.now + packet.message.stage.ser(packet.size)
                self.down_bytes[link] += packet.size
                self.down_busy[link] += output.free_at - self.now
                self.at(output.free_at, lambda link=link: self.outputs_to_try.add(link))
                there = output.free_at + packet.message.latency_fs
                self.at(there, lambda packet=packet: self.reach_chip(packet))
                up_link = (chosen, link[0])
                self.at(there, lambda packet=packet, up_link=up_link: self.leave_switch(packet, up_link))
        self.outputs_to_try.clear()

    def leave_switch(self, packet: Packet, up_link: tuple[int, int]) -> None:
        """One latency after the packet's end on its output: of a store, the last of its copies returns the credit."""
        message = packet.message
        if isinstance(message, InSwitch):
            if message.operation.kind == kinds.MULTIMEM_REDUCE:
                return
            message.at_chips[packet.number] += 1
            if message.at_chips[packet.number] < len(message.receivers):
                return
        self.return_credit(up_link)

    # Section 6: delivery.

    def reach_chip(self, packet: Packet) -> None:
        packet.message.under_way -= 1
        if packet.message.under_way > 0:
            return
        if isinstance(packet.message, InSwitch):
            self.finish_in_switch(packet.message)
        else:
            self.deliver(packet.message)

    def finish_in_switch(self, message: InSwitch) -> None:
        """Section 2: the last packet is where it belongs."""
        stage, latency = message.stage, message.latency_fs
        empty_path = 2 * (stage.ser(max(message.packets)) + latency)
        visible = max(self.now, message.ready + self.work(message.operation) + empty_path)
        for later in self.end(message.sender, visible + 2 * (latency + stage.ser(stage.header))):
            self.begin(later)

    def deliver(self, message: Message) -> None:
        empty_path = message.stage.hops * (message.stage.ser(max(message.packets)) + message.latency_fs)
        visible = max(self.now, self.finish[message.sender] + empty_path)
        self.visible[message.key] = visible
        cause = describe_message(*message.key)
        if message.receiver is not None and self.learn(message.receiver, cause, visible):
            self.begin(message.receiver)

    # Errors.

    def describe(self, index: int) -> str:
        op = self.operations[index]
        return f"rank {op.rank} thread {op.thread} step {self.steps[index]}"

    def check_finished(self) -> None:
        blocked = [
            f"{self.describe(index)} (waits for {', '.join(sorted(missing))})"
            for index, missing in enumerate(self.missing)
            if missing
        ]
        if blocked:
            raise RuntimeError(f"deadlock: {len(blocked)} blocked operations: {'; '.join(blocked)}")


def number_steps(operations: list[Operation]) -> list[int]:
    """Each operation's step, its place in its thread."""
    lengths = defaultdict(int)
    steps = []
    for index, op in enumerate(operations):
        thread = (op.rank, op.thread)
        if lengths[thread] and thread != (operations[index - 1].rank, operations[index - 1].thread):
            raise ValueError(f"operation {index}: rank {op.rank} thread {op.thread} is not contiguous")
        steps.append(lengths[thread])
        lengths[thread] += 1
    return steps


def describe_message(source: int, destination: int, channel: int, k: int) -> str:
    return f"message {k} from {source} to {destination} on channel {channel}"
