"""The flow model of docs/timing-rules.md, a second time: slow, plain Python, written from section 8 of that page alone.

What it shares with packets (sections 1 to 3) is taken from the slow packet engine. A port knows when it begins a
message as soon as it is asked, so the only events are the askings, in order of time.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass

from tests.oracles.slow_packets import (
    LOCAL,
    RECEIVES,
    REDUCES,
    SENDS,
    Fabric,
    Operation,
    Stage,
    coordinates,
    cut,
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
    receiver: int | None = None  # global operation index


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
        self.asks: list[tuple[int, int, Message, int]] = []  # (time, a unique number, message, place on its path)
        self.asks_made = 0
        self.connect()

    def run(self) -> Times:
        for index, missing in enumerate(self.missing):
            if not missing and self.finish[index] is None:
                self.begin(index)
        while self.asks:
            time, _, message, place = heapq.heappop(self.asks)
            self.serve(time, message, place)
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
            if op.kind not in LOCAL | SENDS | RECEIVES:
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
        return Message(key, sender, stage, path[0][3], packets, path)

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
            ready = self.start[index]
            if self.operations[index].kind in SENDS:
                message = self.sent[index]
                ready += self.fabric.step_fs + message.stage.extra_fs
                self.ask(ready, message, 0)
            self.finish[index] = ready + self.work(self.operations[index])
            for later, cause, extra_fs in self.after[index]:
                if self.learn(later, cause, self.finish[index] + extra_fs):
                    to_begin.append(later)

    def learn(self, index: int, cause: str, time: int) -> bool:
        """Note one of the moments that an operation waits for; True if it was the last one missing."""
        self.start[index] = max(self.start[index], time)
        self.missing[index].remove(cause)
        return not self.missing[index]

    def work(self, op: Operation) -> int:
        if op.kind == 0:
            return 0
        return duration(op.work_bytes, self.fabric.reduce if op.kind in REDUCES else self.fabric.copy)

    # Section 8: ports.

    def ask(self, time: int, message: Message, place: int) -> None:
        self.asks_made += 1
        heapq.heappush(self.asks, (time, self.asks_made, message, place))

    def serve(self, time: int, message: Message, place: int) -> None:
        """A message asks for a port, which begins it when those that asked before no longer occupy it."""
        link = message.path[place]
        stage, group = message.stage, link[3]
        latency = stage.latencies_fs[group]
        lanes = min(stage.widths[each[3]] for each in message.path)  # the narrowest of a long way
        count = len(message.packets)
        full = stage.ser(packet_size(stage.payload, stage))
        last, largest = stage.ser(message.packets[-1]), stage.ser(max(message.packets))
        busiest = -(-count // lanes)  # packets of the busiest lane
        pace = full
        if busiest > stage.credits:
            pace = max(full, -(-(stage.hops * full + 2 * latency) // stage.credits))
        occupies = -(-((count - 1) * pace + last) // lanes)
        until_last = (busiest - 1) * pace + (last if (count - 1) % lanes == 0 else largest)

        port = self.ports[link]
        if port.last_asked is not None and time - port.last_asked <= SAME_MOMENT_FS:
            self.tied = True
        port.last_asked = time
        self.waited += port.free_at > time
        begins = max(time, port.free_at)
        port.free_at = begins + occupies
        self.port_bytes[link] += sum(message.packets)
        if place + 1 < len(message.path):
            asks = begins + latency + (full if count > 1 else last)
            ways = link, message.path[place + 1]
            self.passed |= asks <= self.onward.get(ways, -1)
            self.onward[ways] = max(asks, self.onward.get(ways, -1))
            self.ask(asks, message, place + 1)
        else:
            self.deliver(message, begins + until_last + latency, stage.hops * (largest + latency))

    def deliver(self, message: Message, arrival: int, empty_path: int) -> None:
        visible = max(arrival, self.finish[message.sender] + empty_path)
        self.visible[message.key] = visible
        if message.receiver is not None and self.learn(message.receiver, describe_message(*message.key), visible):
            self.begin(message.receiver)
