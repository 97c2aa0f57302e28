"""The packet model of docs/timing-rules.md, a second time: slow, plain Python, written from that page alone.

Operations and packets are timed differently, because the rules differ in kind:

* The start of an operation is a maximum over moments that other rules give (section 2). No choice depends on
  the order in which they become known, so an operation is timed as soon as the last of them is.
* Links and outputs choose among what is there at a moment (sections 3 to 5), so packets follow one queue of
  events. All events of a moment happen first; only then do chips put messages in line, ports send, and
  outputs decide. Serialising takes at least 1 fs, so these three have no consequences at the same moment.
"""

import heapq
from collections import defaultdict, deque
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


@dataclass(frozen=True)
class Fabric:
    """Constants of section 1. Times in fs, sizes in bytes, rates as (num, den) femtoseconds a byte."""

    planes: int
    latency_fs: int
    link: tuple[int, int]
    credits: int
    payload: int
    header: int
    launch_fs: int
    slots: int
    copy: tuple[int, int]
    reduce: tuple[int, int]
    step_fs: int
    data: int
    line: int

    def ser(self, size: int) -> int:
        return duration(size, self.link)


@dataclass(frozen=True)
class Operation:
    """One operation; its place in the list is its global index, and `dep` is the global index of another.

    `message_bytes` is the wire image of the message that it receives, sends, or passes on; `work_bytes` is
    what the endpoint works on. Peers count only where `kind` uses them.
    """

    rank: int
    thread: int
    kind: int
    send_peer: int = -1
    recv_peer: int = -1
    channel: int = 0
    work_bytes: int = 0
    message_bytes: int = 0
    dep: int | None = None


@dataclass
class Times:
    """Everything in fs and bytes; bytes and busy times count headers, and name every link, used or not."""

    start: list[int]
    finish: list[int]
    visible: dict[tuple[int, int, int, int], int]  # (source, destination, channel, k)
    time_fs: int
    up_bytes: dict[tuple[int, int], int]  # (chip, plane)
    down_bytes: dict[tuple[int, int], int]  # (plane, chip)
    up_busy_fs: dict[tuple[int, int], int]
    down_busy_fs: dict[tuple[int, int], int]


@dataclass
class Message:
    key: tuple[int, int, int, int]
    sender: int  # global operation index
    packets: list[int]  # bytes on a link, header included
    under_way: int  # packets that have not arrived
    receiver: int | None = None  # global operation index

    @property
    def source(self) -> int:
        return self.key[0]

    @property
    def destination(self) -> int:
        return self.key[1]


@dataclass(frozen=True)
class Packet:
    message: Message
    size: int


@dataclass
class Port:
    """A chip's link into a plane."""

    credits: int
    queue: deque[Packet] = field(default_factory=deque)
    free_at: int = 0


@dataclass
class Output:
    """A plane's link to a chip, and the packets that wait for it by source chip."""

    pointer: int
    waiting: dict[int, deque[Packet]] = field(default_factory=lambda: defaultdict(deque))
    free_at: int = 0


def duration(size: int, rate: tuple[int, int]) -> int:
    """Time of `size` bytes: ceil(size * num / den)."""
    num, den = rate
    return -(-size * num // den)


def cut(wire_bytes: int, fabric: Fabric) -> list[int]:
    """Sizes on a link of the packets of a wire image (section 3)."""
    left = -(-wire_bytes // fabric.data) * fabric.line
    sizes = []
    while left > fabric.payload:
        sizes.append(fabric.payload + fabric.header)
        left -= fabric.payload
    return [*sizes, left + fabric.header]


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
        self.chips = 1 + max((max(op.rank, op.send_peer, op.recv_peer) for op in operations), default=-1)
        self.steps = number_steps(operations)

        # Operations: what each still waits for, and what it lets go on.
        self.start = [fabric.launch_fs for _ in operations]  # the latest moment known so far
        self.finish: list[int | None] = [None for _ in operations]
        self.missing: list[set[str]] = [set() for _ in operations]
        # By operation: (a later one, what that one waits for, extra fs after the finish).
        self.after: list[list[tuple[int, str, int]]] = [[] for _ in operations]
        self.sent: dict[int, Message] = {}
        self.visible: dict[tuple[int, int, int, int], int] = {}
        self.connect()

        # Packets.
        links = [(chip, plane) for chip in range(self.chips) for plane in range(fabric.planes)]
        self.ports = {link: Port(fabric.credits) for link in links}
        self.outputs = {(plane, chip): Output((chip + 1) % self.chips) for chip, plane in links}
        self.packets_counted = dict.fromkeys(range(self.chips), 0)
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
        for index, missing in enumerate(self.missing):
            if not missing and self.finish[index] is None:
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

        for connection, indices in receives.items():
            for k, index in enumerate(indices):
                self.missing[index].add(describe_message(*connection, k))

        notice = 2 * (self.fabric.latency_fs + self.fabric.ser(self.fabric.header))
        for connection, indices in sends.items():
            receivers = receives.get(connection, [])
            for k, index in enumerate(indices):
                packets = cut(self.operations[index].message_bytes, self.fabric)
                self.sent[index] = message = Message((*connection, k), index, packets, len(packets))
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
            if op.kind not in LOCAL | SENDS | RECEIVES:
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
                ready += self.fabric.step_fs
                self.at(ready, lambda index=index: self.ready_now.append(index))
            self.finish[index] = ready + self.work(op)
            for later, cause, extra_fs in self.after[index]:
                if self.learn(later, cause, self.finish[index] + extra_fs):
                    to_begin.append(later)

    def learn(self, index: int, cause: str, time: int) -> bool:
        """Note one of the moments that an operation waits for; True if it was the last one missing."""
        self.start[index] = max(self.start[index], time)
        self.missing[index].remove(cause)
        return not self.missing[index]

    def work(self, op: Operation) -> int:
        if op.kind == kinds.NOP:
            return 0
        return duration(op.work_bytes, self.fabric.reduce if op.kind in REDUCES else self.fabric.copy)

    # Section 3: from message to packets.

    def put_in_line(self) -> None:
        self.ready_now.sort(key=lambda index: (self.operations[index].thread, self.steps[index]))
        for index in self.ready_now:
            message = self.sent[index]
            for size in message.packets:
                link = (message.source, self.packets_counted[message.source] % self.fabric.planes)
                self.packets_counted[message.source] += 1
                self.ports[link].queue.append(Packet(message, size))
                self.ports_to_try.add(link)
        self.ready_now.clear()

    # Section 4: chip to switch.

    def send_from_ports(self) -> None:
        for link in self.ports_to_try:
            port = self.ports[link]
            if port.queue and port.credits > 0 and port.free_at <= self.now:
                packet = port.queue.popleft()
                port.credits -= 1
                port.free_at = self.now + self.fabric.ser(packet.size)
                self.up_bytes[link] += packet.size
                self.up_busy[link] += port.free_at - self.now
                self.at(port.free_at, lambda link=link: self.ports_to_try.add(link))
                self.at(
                    port.free_at + self.fabric.latency_fs,
                    lambda packet=packet, plane=link[1]: self.reach_switch(packet, plane),
                )
        self.ports_to_try.clear()

    def reach_switch(self, packet: Packet, plane: int) -> None:
        link = (plane, packet.message.destination)
        self.outputs[link].waiting[packet.message.source].append(packet)
        self.outputs_to_try.add(link)

    # Section 5: switch to chip.

    def decide_at_outputs(self) -> None:
        for link in self.outputs_to_try:
            output = self.outputs[link]
            inputs = [chip for chip, packets in output.waiting.items() if packets]
            if inputs and output.free_at <= self.now:
                chosen = min(inputs, key=lambda chip: (chip - output.pointer) % self.chips)
                output.pointer = (chosen + 1) % self.chips
                packet = output.waiting[chosen].popleft()
                output.free_at = self.now + self.fabric.ser(packet.size)
                self.down_bytes[link] += packet.size
                self.down_busy[link] += output.free_at - self.now
                self.at(output.free_at, lambda link=link: self.outputs_to_try.add(link))
                self.at(
                    output.free_at + self.fabric.latency_fs,
                    lambda packet=packet, plane=link[0]: self.reach_chip(packet, plane),
                )
        self.outputs_to_try.clear()

    def reach_chip(self, packet: Packet, plane: int) -> None:
        """One latency after its end on the output link, a packet is there, and its credit is back."""
        source = (packet.message.source, plane)
        self.ports[source].credits += 1
        self.ports_to_try.add(source)
        packet.message.under_way -= 1
        if packet.message.under_way == 0:
            self.deliver(packet.message)

    # Section 6: delivery.

    def deliver(self, message: Message) -> None:
        empty_path = 2 * (self.fabric.ser(max(message.packets)) + self.fabric.latency_fs)
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
