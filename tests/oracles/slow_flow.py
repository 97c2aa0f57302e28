"""The flow model of docs/timing-rules.md, a second time: slow, plain Python, written from section 8 of that page alone.

What it shares with packets (sections 1 to 3) is taken from the slow packet engine. A port knows when it begins a
message as soon as it is asked, so the only events are the askings, in order of time.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from collemu_kernels import kinds

from tests.oracles.slow_packets import (
    IN_SWITCH,
    LOCAL,
    RECEIVES,
    REDUCES,
    SENDS,
    Fabric,
    Operation,
    Stage,
    coordinates,
    cut,
    cut_bytes,
    describe_message,
    directions,
    duration,
    group_of,
    number_steps,
    packet_size,
    stage_of,
)

SAME_MOMENT_FS = 0  # requests of one moment may be served in any order

Link = tuple[str, str, int, int]  # "up" or "down", stage, chip, group


@dataclass
class Times:
    """Everything in fs and bytes; bytes of a port are those of all its lanes, headers included."""

    start: list[int]
    finish: list[int]
    visible: dict[tuple[int, int, int, int], int]  # (source, destination, channel, k)
    time_fs: int
    port_bytes: dict[Link, int]  # only of ports that were used; those of a direct link are "up", at its source
    far: bool  # whether a message passed chips of a torus on its way
    waited: int  # askings that found a port occupied
    passed: bool  # whether a message asked for its second port before one that began earlier at its first
    tied: bool  # whether two messages asked for a port so close together that either may go first


@dataclass
class Message:
    key: tuple[int, int, int, int]
    sender: int  # global operation index
    stage: Stage
    group: int  # of its connection
    packets: list[int]  # bytes on a link, header included
    path: list[Link]  # ports in the order of asking
    passage: "Passage"
    receiver: int | None = None  # global operation index


@dataclass
class InSwitch:
    """An in-switch operation: a term of each chip of the group and the sum, or a store and a copy to each chip."""

    index: int  # of the operation
    ready: int
    packets: list[int]  # bytes on a link of each term and the sum, or of the store and each copy
    passage: "Passage"
    to_begin: int = 0  # terms that have not begun
    sum_asks: int = 0  # at the earliest
    to_arrive: int = 0  # sum, or copies
    arrival: int = 0  # the latest so far


@dataclass(frozen=True)
class Passage:
    """How packets pass a port, all of one message at once; times in fs."""

    occupies: int
    until_last: int
    crossing: int
    latency: int
    largest: int  # of its packets


@dataclass
class Port:
    free_at: int = 0
    last_asked: int | None = None


def path_of(fabric: Fabric, source: int, destination: int) -> list[Link]:
    """The ports of a message, in the order in which it asks for them."""
    if source // fabric.chips != destination // fabric.chips:
        return [("up", "network", source, 0), ("down", "network", destination, 0)]
    if fabric.topology == "torus":
        return torus_path(fabric, source, destination)
    group = group_of(fabric, source, destination)
    way = [("up", "domain", source, group)]
    return [*way, ("down", "domain", destination, group)] if fabric.domain.switched else way


def torus_path(fabric: Fabric, source: int, destination: int) -> list[Link]:
    """Dimension by dimension, the shorter way round, ahead if both are equal."""
    first = source // fabric.chips * fabric.chips
    places = coordinates(fabric.shape)
    groups = directions(fabric.shape)
    here, there = list(places[source - first]), places[destination - first]
    way = []
    for dimension, length in enumerate(fabric.shape):
        ahead = (there[dimension] - here[dimension]) % length
        direction, hops = (1, ahead) if ahead <= length - ahead else (-1, length - ahead)
        for _ in range(hops):
            chip = first + places.index(tuple(here))
            way.append(("up", "domain", chip, groups.index((dimension, direction))))
            here[dimension] = (here[dimension] + direction) % length
    return way


def run(operations: list[Operation], fabric: Fabric) -> Times:
    """Time `operations` on `fabric`.

    Raises
    ------
    RuntimeError
        If operations are left that wait for each other, or for a message that nobody sends; it names them.
    """
    return _Engine(operations, fabric).run()


class _Engine:
    def __init__(self, operations: list[Operation], fabric: Fabric) -> None:
        self.operations = operations
        self.fabric = fabric
        self.steps = number_steps(operations)
        self.start = [fabric.launch_fs for _ in operations]  # the latest moment known so far
        self.finish: list[int | None] = [None for _ in operations]
        self.missing: list[set[str]] = [set() for _ in operations]
        # By operation: (a later one, what that one waits for, extra fs after the finish).
        self.after: list[list[tuple[int, str, int]]] = [[] for _ in operations]
        self.sent: dict[int, Message] = {}
        self.visible: dict[tuple[int, int, int, int], int] = {}
        self.ports: dict[Link, Port] = defaultdict(Port)
        self.port_bytes: dict[Link, int] = defaultdict(int)
        self.waited = 0
        self.passed = False
        self.tied = False
        self.onward: dict[tuple[Link, Link], int] = {}  # the latest asking for the second after the first
        # (time, a unique number, port, how it is passed, bytes, what comes of the moment when the port begins)
        self.asks: list[tuple[int, int, Link, Passage, int, Callable[[int], None]]] = []
        self.asks_made = 0
        self.connect()

    def run(self) -> Times:
        for index in [index for index, missing in enumerate(self.missing) if not missing]:
            self.begin(index)
        while self.asks:
            time, _, link, passage, nbytes, onward = heapq.heappop(self.asks)
            onward(self.serve(time, link, passage, nbytes))
        blocked = [index for index, missing in enumerate(self.missing) if missing]
        if blocked:
            named = "; ".join(f"operation {i} (waits for {', '.join(sorted(self.missing[i]))})" for i in blocked)
            raise RuntimeError(f"deadlock: {len(blocked)} blocked operations: {named}")
        return Times(
            start=self.start,
            finish=self.finish,
            visible=self.visible,
            time_fs=max(self.finish, default=self.fabric.launch_fs),
            port_bytes=dict(self.port_bytes),
            far=any(len(message.path) > message.stage.hops for message in self.sent.values()),
            waited=self.waited,
            passed=self.passed,
            tied=self.tied,
        )

    # Section 2: operations.

    def connect(self) -> None:
        """Note what each operation waits for."""
        sends, receives = defaultdict(list), defaultdict(list)
        for index, op in enumerate(self.operations):
            if op.kind not in LOCAL | SENDS | RECEIVES | IN_SWITCH:
                raise ValueError(f"operation {index} has kind {op.kind}, which the timing rules do not have")
            if op.kind in SENDS:
                sends[op.rank, op.send_peer, op.channel].append(index)
            if op.kind in RECEIVES:
                receives[op.recv_peer, op.rank, op.channel].append(index)
            if self.steps[index] > 0:
                self.wait_for(index, index - 1, "the operation before it")
            if op.dep is not None:
                self.wait_for(index, op.dep, "its dependency")
        for connection, indices in receives.items():
            for k, index in enumerate(indices):
                self.missing[index].add(describe_message(*connection, k))
        for connection, indices in sends.items():
            receivers = receives.get(connection, [])
            for k, index in enumerate(indices):
                message = self.sent[index] = self.message_of((*connection, k), index)
                message.receiver = receivers[k] if k < len(receivers) else None
                if (freeing := k - self.fabric.slots) >= 0:
                    slot = f"the slot of {describe_message(*connection, freeing)}"
                    if freeing < len(receivers):
                        self.wait_for(index, receivers[freeing], slot, self.notice(message))
                    else:
                        self.missing[index].add(slot)

    def message_of(self, key: tuple[int, int, int, int], sender: int) -> Message:
        source, destination, _, _ = key
        stage, path = stage_of(self.fabric, source, destination), path_of(self.fabric, source, destination)
        packets = cut(self.operations[sender].message_bytes, self.fabric, stage)
        lanes = min(stage.widths[link[3]] for link in path)  # the narrowest of a long way
        passage = passage_of(packets, stage, path[0][3], lanes)
        return Message(key, sender, stage, path[0][3], packets, path, passage)

    def notice(self, message: Message) -> int:
        stage = message.stage
        return stage.hops * (stage.latencies_fs[message.group] + stage.ser(stage.header))

    def wait_for(self, index: int, other: int, cause: str, extra_fs: int = 0) -> None:
        self.missing[index].add(cause)
        self.after[other].append((index, cause, extra_fs))

    def begin(self, first: int) -> None:
        """Time an operation that waits for nothing more, and all operations that this was missing for."""
        to_begin = [first]
        while to_begin:
            index = to_begin.pop()
            op, ready = self.operations[index], self.start[index]
            if op.kind in IN_SWITCH:
                self.begin_in_switch(index, ready + self.fabric.step_fs)
                continue
            if op.kind in SENDS:
                message = self.sent[index]
                ready += self.fabric.step_fs + message.stage.extra_fs
                self.ask_for_place(ready, message, 0)
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

    # Section 8: ports.

    def ask(self, time: int, link: Link, passage: Passage, nbytes: int, onward: Callable[[int], None]) -> None:
        self.asks_made += 1
        heapq.heappush(self.asks, (time, self.asks_made, link, passage, nbytes, onward))

    def serve(self, time: int, link: Link, passage: Passage, nbytes: int) -> int:
        """When a port begins what asks for it now: when those that asked before no longer occupy it."""
        port = self.ports[link]
        if port.last_asked is not None and time - port.last_asked <= SAME_MOMENT_FS:
            self.tied = True
        port.last_asked = time
        self.waited += port.free_at > time
        begins = max(time, port.free_at)
        port.free_at = begins + passage.occupies
        self.port_bytes[link] += nbytes
        return begins

    # Messages.

    def ask_for_place(self, time: int, message: Message, place: int) -> None:
        """Ask for the next port of the path of a message."""
        link, nbytes = message.path[place], sum(message.packets)
        self.ask(time, link, message.passage, nbytes, lambda begins: self.go_on(begins, message, place))

    def go_on(self, begins: int, message: Message, place: int) -> None:
        passage = message.passage
        if place + 1 < len(message.path):
            asks = begins + passage.crossing
            ways = message.path[place], message.path[place + 1]
            self.passed |= asks <= self.onward.get(ways, -1)
            self.onward[ways] = max(asks, self.onward.get(ways, -1))
            self.ask_for_place(asks, message, place + 1)
        else:
            self.deliver(message, begins + passage.until_last + passage.latency)

    def deliver(self, message: Message, arrival: int) -> None:
        empty_path = message.stage.hops * (message.passage.largest + message.passage.latency)
        visible = max(arrival, self.finish[message.sender] + empty_path)
        self.visible[message.key] = visible
        if message.receiver is not None and self.learn(message.receiver, describe_message(*message.key), visible):
            self.begin(message.receiver)

    # In-switch operations.

    def begin_in_switch(self, index: int, ready: int) -> None:
        op, stage = self.operations[index], self.fabric.domain
        assert self.fabric.topology == "switched" and op.rank in op.members
        packets = cut_bytes(op.message_bytes, stage)
        reduces = op.kind == kinds.MULTIMEM_REDUCE
        # The credit of a term comes from the switch, and that of a store from the other end of its copies.
        passage = passage_of(packets, stage, 0, stage.widths[0], links_to_credit=1 if reduces else 2)
        in_switch = InSwitch(index, ready, packets, passage)
        if reduces:
            in_switch.to_begin, in_switch.to_arrive = len(op.members), 1
            for chip in op.members:
                self.ask_in_switch(ready, in_switch, ("up", "domain", chip, 0), self.term_begins)
        else:
            in_switch.to_arrive = len(op.members)
            self.ask_in_switch(ready, in_switch, ("up", "domain", op.rank, 0), self.store_begins)

    def ask_in_switch(
        self, time: int, in_switch: InSwitch, link: Link, onward: Callable[[int, InSwitch], None]
    ) -> None:
        nbytes = sum(in_switch.packets)
        self.ask(time, link, in_switch.passage, nbytes, lambda begins: onward(begins, in_switch))

    def term_begins(self, begins: int, in_switch: InSwitch) -> None:
        in_switch.sum_asks = max(in_switch.sum_asks, begins + in_switch.passage.crossing)
        in_switch.to_begin -= 1
        if in_switch.to_begin == 0:
            link = ("down", "domain", self.operations[in_switch.index].rank, 0)
            self.ask_in_switch(in_switch.sum_asks, in_switch, link, self.last_port_begins)

    def store_begins(self, begins: int, in_switch: InSwitch) -> None:
        for chip in self.operations[in_switch.index].members:
            link = ("down", "domain", chip, 0)
            self.ask_in_switch(begins + in_switch.passage.crossing, in_switch, link, self.last_port_begins)

    def last_port_begins(self, begins: int, in_switch: InSwitch) -> None:
        """The port of the chip where a sum or a copy ends."""
        passage, stage = in_switch.passage, self.fabric.domain
        in_switch.arrival = max(in_switch.arrival, begins + passage.until_last + passage.latency)
        in_switch.to_arrive -= 1
        if in_switch.to_arrive == 0:
            worked = in_switch.ready + self.work(self.operations[in_switch.index])
            visible = max(in_switch.arrival, worked + 2 * (passage.largest + passage.latency))
            for later in self.end(in_switch.index, visible + 2 * (passage.latency + stage.ser(stage.header))):
                self.begin(later)


def passage_of(packets: list[int], stage: Stage, group: int, lanes: int, links_to_credit: int | None = None) -> Passage:
    """The formulas of section 8; `links_to_credit` are those that a packet passes until it gives its credit back."""
    if links_to_credit is None:
        links_to_credit = stage.hops
    latency = stage.latencies_fs[group]
    count = len(packets)
    full = stage.ser(packet_size(stage.payload, stage))
    last, largest = stage.ser(packets[-1]), stage.ser(max(packets))
    busiest = -(-count // lanes)  # packets of the busiest lane
    pace = full
    if busiest > stage.credits:
        pace = max(full, -(-(links_to_credit * full + 2 * latency) // stage.credits))
    return Passage(
        occupies=-(-((count - 1) * pace + last) // lanes),
        until_last=(busiest - 1) * pace + (last if (count - 1) % lanes == 0 else largest),
        crossing=latency + (full if count > 1 else last),
        latency=latency,
        largest=largest,
    )
