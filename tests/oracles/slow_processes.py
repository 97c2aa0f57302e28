"""Processes of docs/timing-rules.md, a second time: slow, plain Python, written from section 9 of that page alone.

A process decides at its own moments only: when it gets a core, and when what it was busy with has ended. What it then
begins has its end at once, so all that follows for others is known from that moment on. There are no other events.
"""

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

from collemu_kernels import kinds

from tests.oracles import slow_packets
from tests.oracles.slow_packets import RECEIVES, REDUCES, SENDS, describe_message, number_steps

Key = tuple[int, int, int, int]  # of a message: source, destination, channel, number


@dataclass(frozen=True)
class Operation(slow_packets.Operation):
    """`work_bytes` are those that it holds in memory; of memory, too, are those that it encodes and decodes."""

    encoded: int = 0
    decoded: int = 0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Constants of section 9. Times in fs, tables in fs at `sizes`, rates in fs a byte."""

    cores: int
    launch: int
    operation: int
    send: int
    notice: int
    wake: int
    eager: int
    slots: int
    sizes: tuple[int, ...]
    copy: tuple[int, ...]
    add: tuple[int, ...]
    take: tuple[int, ...]
    encode: Fraction
    decode: Fraction
    add_rate: Fraction | None = None  # of what memory holds, where the system has one
    buffers: tuple[int, ...] = ()  # bytes of every buffer of every rank


@dataclass
class Times:
    """Everything in fs."""

    start: list[int | None]
    finish: list[int | None]
    ready: dict[Key, int]
    visible: dict[Key, int]
    time_fs: int


@dataclass
class Message:
    key: Key
    nbytes: int
    sender: int  # global operation index
    receiver: int = -1
    sent: int | None = None  # when, once that is known
    room: int | None = None

    @property
    def to_oneself(self) -> bool:
        return self.key[0] == self.key[1]


@dataclass
class Coming:
    """A message that comes, or notice that one is gone."""

    moment: int
    message: Message
    gone: bool


@dataclass
class Process:
    rank: int
    to_run: int  # operations
    to_go: int = 0  # messages sent that it has not noticed to be gone
    ready: deque[int] = field(default_factory=deque)
    coming: list[Coming] = field(default_factory=list)  # in the order in which it came to be known
    next: int | None = 0  # when it wants a core, or, with one, when it has ended what it does
    has_core: bool = False
    in_line: bool = False  # for a core
    launched: bool = False
    running: int | None = None
    taking: list[Coming] = field(default_factory=list)
    ended: int | None = None


def table(sizes: tuple[int, ...], times: tuple[int, ...], size: int) -> int:
    """The value of a table."""
    if size <= sizes[0]:
        return times[0]
    if size > sizes[-1]:
        return floor(Fraction(times[-1] * size, sizes[-1]))
    for (x, at_x), (y, at_y) in pairwise(zip(sizes, times, strict=True)):
        if x < size <= y:
            return at_x + floor(Fraction((size - x) * (at_y - at_x), y - x))
    raise AssertionError(f"{size} is between no two of {sizes}")


def run(operations: list[Operation], machine: Machine, ranks: int) -> Times:
    """Time `operations` of `ranks` processes.

    Raises
    ------
    RuntimeError
        If operations are left that wait for each other.
    """
    return _Engine(operations, machine, ranks).run()


class _Engine:
    def __init__(self, operations: list[Operation], machine: Machine, ranks: int) -> None:
        self.operations, self.machine = operations, machine
        self.steps = number_steps(operations)
        self.processes = [Process(rank, sum(op.rank == rank for op in operations)) for rank in range(ranks)]
        self.messages: dict[Key, Message] = {}
        self.sends: list[Message | None] = [None for _ in operations]
        self.receives: list[Message | None] = [None for _ in operations]
        self.match()
        self.start: list[int | None] = [None for _ in operations]
        self.finish: list[int | None] = [None for _ in operations]
        self.visible: dict[Key, int] = {}
        self.conditions = [self.count_conditions(index) for index in range(len(operations))]
        for index, conditions in enumerate(self.conditions):
            if not conditions:
                self.processes[operations[index].rank].ready.append(index)
        self.through = self.memory_gone_through(ranks)
        self.free_cores = machine.cores
        self.line: deque[Process] = deque()

    def match(self) -> None:
        sent: dict[tuple[int, int, int], int] = {}
        received: dict[tuple[int, int, int], int] = {}
        for index, op in enumerate(self.operations):
            if op.kind in SENDS:
                ends = op.rank, op.send_peer, op.channel
                number = sent.setdefault(ends, 0)
                sent[ends] += 1
                room = self.machine.launch if number < self.machine.slots else None
                message = Message((*ends, number), op.message_bytes, index, room=room)
                self.messages[message.key] = self.sends[index] = message
        for index, op in enumerate(self.operations):
            if op.kind in RECEIVES:
                ends = op.recv_peer, op.rank, op.channel
                number = received.setdefault(ends, 0)
                received[ends] += 1
                self.receives[index] = self.messages[*ends, number]
                self.receives[index].receiver = index

    def count_conditions(self, index: int) -> int:
        message = self.sends[index]
        needs_slot = message is not None and message.key[3] >= self.machine.slots
        has_dependency = self.operations[index].dep is not None
        return (self.steps[index] > 0) + has_dependency + (self.receives[index] is not None) + needs_slot

    def memory_gone_through(self, ranks: int) -> int:
        """The size `v` of messages of a measured run that goes through as much memory."""
        buffers = sum(-(-nbytes // 64) * 64 for nbytes in self.machine.buffers)
        slots = sum(message.nbytes for key, message in self.messages.items() if key[3] < self.machine.slots)
        return max(1, floor(Fraction(buffers + 2 * slots, min(ranks, self.machine.cores)) / 4))

    def next_of_slot(self, message: Message) -> Message | None:
        return self.messages.get((*message.key[:3], message.key[3] + self.machine.slots))

    # How long things take.

    def time_of(self, times: tuple[int, ...], size: int) -> int:
        in_measured_run = Fraction(table(self.machine.sizes, times, self.through) * size, self.through)
        return max(table(self.machine.sizes, times, size), floor(in_measured_run))

    def work(self, op: Operation) -> int:
        machine, total = self.machine, self.machine.operation
        if op.kind in SENDS:
            total += machine.send
        keeps = op.kind in RECEIVES and op.kind not in REDUCES and not op.decoded
        if op.kind == kinds.COPY or keeps:
            total += self.time_of(machine.copy, op.work_bytes)
        if op.kind in SENDS and not op.encoded:
            total += self.time_of(machine.copy, op.message_bytes)
        if op.kind in REDUCES:
            by_rate = machine.add_rate
            total += self.time_of(machine.add, op.work_bytes) if by_rate is None else ceil(by_rate * op.work_bytes)
        return total + ceil(machine.encode * op.encoded) + ceil(machine.decode * op.decoded)

    # The moments of processes.

    def run(self) -> Times:
        while due := [(process.next, process.rank) for process in self.processes if process.next is not None]:
            moment, rank = min(due)
            self.go_on(self.processes[rank], moment)
        self.check_ended()
        return Times(
            start=self.start,
            finish=self.finish,
            ready={key: message.sent for key, message in self.messages.items() if message.sent is not None},
            visible=self.visible,
            time_fs=max(process.ended for process in self.processes if process.ended is not None),
        )

    def go_on(self, process: Process, now: int) -> None:
        process.next = None
        if not process.has_core:
            self.want_core(process, now)
            return
        if not process.launched:
            process.launched = True
            process.next = now + self.machine.launch
            return
        self.end(process, now)
        come = [each for each in process.coming if each.moment <= now]
        if process.ready:
            self.begin(process, process.ready.popleft(), now)
        elif come:
            self.take(process, come, now)
        else:
            self.leave_core(process, now)
            if process.to_run == 0 and process.to_go == 0:
                process.ended = now
            elif process.coming:
                process.next = min(each.moment for each in process.coming) + self.machine.wake

    def want_core(self, process: Process, now: int) -> None:
        process.in_line = True
        self.line.append(process)
        self.give_cores(now)

    def leave_core(self, process: Process, now: int) -> None:
        process.has_core = False
        self.free_cores += 1
        self.give_cores(now)

    def give_cores(self, now: int) -> None:
        while self.free_cores and self.line:
            first = self.line.popleft()
            self.free_cores -= 1
            first.in_line, first.has_core, first.next = False, True, now

    def end(self, process: Process, now: int) -> None:
        """What a process knows at the end of what it was busy with."""
        if process.running is not None:
            index, process.running = process.running, None
            process.to_run -= 1
            received, sent = self.receives[index], self.sends[index]
            if received is not None and received.to_oneself and (later := self.next_of_slot(received)):
                self.one_condition_less(later.sender)
            if sent is not None and sent.to_oneself:
                self.visible[sent.key] = now
                self.one_condition_less(sent.receiver)
            for other, op in enumerate(self.operations):
                if op.dep == index:
                    self.one_condition_less(other)
            following = index + 1
            if following < len(self.operations) and self.steps[following] > 0:
                self.one_condition_less(following)
        for each in process.taking:
            if each.gone:
                process.to_go -= 1
                if later := self.next_of_slot(each.message):
                    self.one_condition_less(later.sender)
            else:
                self.visible[each.message.key] = now
                self.one_condition_less(each.message.receiver)
        process.taking = []

    def one_condition_less(self, index: int) -> None:
        self.conditions[index] -= 1
        if self.conditions[index] == 0:
            self.processes[self.operations[index].rank].ready.append(index)

    def begin(self, process: Process, index: int, now: int) -> None:
        finish = now + self.work(self.operations[index])
        self.start[index], self.finish[index] = now, finish
        process.running, process.next = index, finish
        received, sent = self.receives[index], self.sends[index]
        if received is not None and not received.to_oneself and (later := self.next_of_slot(received)):
            later.room = finish
            self.tell_receiver(later)
        if sent is not None:
            sent.sent = finish
            if not sent.to_oneself:
                process.to_go += 1
                self.tell_receiver(sent)
                if sent.nbytes <= self.machine.eager:
                    self.tell(process, Coming(finish, sent, gone=True))

    def take(self, process: Process, come: list[Coming], now: int) -> None:
        process.taking = come
        process.coming = [each for each in process.coming if each.moment > now]
        taken = [each.message for each in come if not each.gone]
        process.next = now + self.machine.notice
        process.next += sum(self.time_of(self.machine.take, message.nbytes) for message in taken)
        for message in taken:
            if message.nbytes > self.machine.eager:
                self.tell(self.processes[message.key[0]], Coming(process.next, message, gone=True))

    def tell_receiver(self, message: Message) -> None:
        """A message comes when it has been sent and there is room for it, as soon as both are known."""
        if message.sent is not None and message.room is not None:
            comes = Coming(max(message.sent, message.room), message, gone=False)
            self.tell(self.processes[message.key[1]], comes)

    def tell(self, process: Process, coming: Coming) -> None:
        process.coming.append(coming)
        if not process.has_core and not process.in_line and process.launched:
            process.next = min(each.moment for each in process.coming) + self.machine.wake

    # Errors.

    def check_ended(self) -> None:
        if any(process.ended is None for process in self.processes):
            blocked = [
                f"rank {op.rank} thread {op.thread} step {self.steps[index]}"
                for index, op in enumerate(self.operations)
                if self.start[index] is None
            ]
            messages = [describe_message(*key) for key, message in self.messages.items() if message.sent is None]
            raise RuntimeError(f"deadlock: {len(blocked)} blocked operations: {blocked}; never sent: {messages}")
