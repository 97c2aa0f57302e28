"""Run the machine: arrays of a program and a fabric in, times out."""

from dataclasses import dataclass

import numpy as np
from collemu_kernels import machine
from collemu_kernels import stage as tables
from collemu_kernels.dataplane import DataPlane
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.endpoint import CLOCK_LIMIT_FS, TOO_LONG, work_of
from collemu.fabric import FabricState, domain_rules, fresh_state, network_rules, routes_of, shared_of
from collemu.in_switch import in_switch_of
from collemu.lower import NONE, Lowered
from collemu.payload import BAD_VALUE_TEXT
from collemu.schedule import Schedule, ScheduleError

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """When everything happened, in femtoseconds.

    Attributes
    ----------
    time : int
        The last operation's finish.
    start, finish : int64 arrays
        Of each operation.
    ready, visible : int64 arrays
        When each message could leave its chip, and when its receiver could read it.
    up_bytes, up_busy : int64 arrays, (chips, lanes)
        Bytes that each link from a chip carried, headers included, and for how long it was busy. The lanes of the
        domain come first, then the rails of the network, if it takes part.
    down_bytes, down_busy : int64 arrays, (chips, lanes)
        The same of the links to a chip.
    up_stalled : int64 array, (chips, lanes)
        For how long a port had a packet to send, a free link and no credit.
    down_queued, down_packets : int64 arrays, (chips, lanes)
        How long the packets of an output waited for it, added up; and how many they were.
    own_work : int64 array, optional
        What each operation took, where the engine has costs of its own: steps are in it.
    """

    time: int
    start: Int64
    finish: Int64
    ready: Int64
    visible: Int64
    up_bytes: Int64
    up_busy: Int64
    down_bytes: Int64
    down_busy: Int64
    up_stalled: Int64
    down_queued: Int64
    down_packets: Int64
    own_work: Int64 | None = None


def following_of(thread: Int32) -> Int32:
    """The next operation of the thread of each, or -1."""
    following = np.arange(1, len(thread) + 1, dtype=np.int32)
    following[:-1][thread[1:] != thread[:-1]] = NONE
    following[-1:] = NONE
    return following


@dataclass(frozen=True)
class Waits:
    """Which operation follows which, and how many conditions each waits for.

    An in-switch operation is two: its beginning, which comes after all operations of the schedule, and its end, which
    waits for its packets, and keeps its place.
    """

    following: Int32
    dep: Int32
    waits: Int64

    def begun_apart(self, operation: Int32, arrivals: Int64) -> "Waits":
        """Split operations, the ends of which wait for so many arrivals."""
        if not len(operation):
            return self
        begin = np.arange(len(self.dep), len(self.dep) + len(operation), dtype=np.int32)
        place = np.arange(len(self.dep), dtype=np.int32)
        place[operation] = begin
        following = np.where(self.following == NONE, np.int32(NONE), place[self.following])
        dep, waits = self.dep.copy(), self.waits.copy()
        dep[operation] = NONE
        waits[operation] = 1 + arrivals
        return Waits(
            np.concatenate((following, operation)),
            np.concatenate((dep, self.dep[operation])),
            np.concatenate((waits, self.waits[operation])),
        )


def dependents_of(dep: Int32) -> tuple[Int32, Int32]:
    """Where the dependents of each operation begin in a list of all, one entry more at the end; and that list."""
    dependent = np.flatnonzero(dep != NONE)
    dependent = dependent[np.argsort(dep[dependent], kind="stable")]
    first = np.searchsorted(dep[dependent], np.arange(len(dep) + 1))
    return first.astype(np.int32), dependent.astype(np.int32)


def waits_of(thread: Int32, dep: Int32, received: Int32, sender: Int32, successor: Int32) -> Int64:
    """How many conditions each operation waits for: the one before it, a dependency, a message, a slot."""
    waits = np.zeros(len(thread), np.int64)
    waits[1:] += thread[1:] == thread[:-1]
    waits += dep != NONE
    waits += received != NONE
    waits[sender[successor[successor != NONE]]] += 1
    return waits


@dataclass(frozen=True)
class Program:
    """Tables that `collemu_kernels.machine` works on, beside those of the fabric."""

    endpoint: machine.Endpoint
    operations: Int64
    dependents: Int64
    counts: Int64
    event_times: Int64
    event_codes: Int64


def program_of(
    endpoint: machine.Endpoint,
    messages: Int64,
    *,
    thread: Int32,
    dep: Int32,
    received: Int32,
    sent: Int32,
    work: Int64,
    sender: Int32,
    receiver: Int32,
    successor: Int32,
    in_switch: Int32 | None = None,
    whole: Int64 | None = None,
    answer_fs: int = 0,
) -> Program:
    """What waits for what; also writes the ends of the messages into the fabric's table.

    Parameters
    ----------
    messages : int64 array
        The fabric's table of messages.
    thread, dep, received, sent, work : arrays, one entry an operation
        Thread number; operation that must finish before (-1: none); messages that it receives and sends (-1: none);
        femtoseconds at the endpoint.
    sender, receiver, successor : arrays, one entry a message
        Operations at its two ends; the message that takes over its FIFO slot (-1: none).
    in_switch, whole : arrays, one entry an in-switch operation
        Which operation it is, and its first row in ``messages``.
    answer_fs : int
        How much later than its packets an in-switch operation ends.
    """
    in_switch = np.zeros(0, np.int32) if in_switch is None else in_switch
    whole = np.zeros(0, np.int64) if whole is None else whole
    messages[: len(sender), tables.SENDER], messages[: len(sender), tables.RECEIVER] = sender, receiver
    messages[: len(sender), tables.SUCCESSOR] = successor
    rows = np.diff(np.append(whole, len(messages)))
    messages[len(sender) :, tables.SENDER] = np.repeat(len(thread) + np.arange(len(whole)), rows)
    messages[len(sender) :, tables.RECEIVER] = np.repeat(in_switch, rows)

    following = following_of(thread)
    waits = Waits(following, dep, waits_of(thread, dep, received, sender, successor))
    waits = waits.begun_apart(in_switch, np.ones(len(in_switch), np.int64))
    first_dependent, dependents = dependents_of(waits.dep)
    operations = np.zeros((len(waits.dep) + 1, machine.OPERATION_COLUMNS), np.int64)
    table = operations[:-1]
    table[:, machine.RECEIVED] = table[:, machine.SENT] = NONE
    table[:, machine.FOLLOWING] = waits.following
    table[: len(thread), machine.RECEIVED], table[: len(thread), machine.SENT] = received, sent
    table[len(thread) :, machine.SENT] = whole + (rows > 1)  # the first term, or what is stored
    table[: len(thread), machine.WORK] = work
    table[len(thread) :, machine.WORK] = work[in_switch]
    table[in_switch, machine.WORK] = answer_fs
    table[:, machine.START] = table[:, machine.FINISH] = tables.NEVER
    operations[:, machine.DEPENDENTS] = first_dependent
    table[:, machine.WAITS] = waits.waits

    # Pending at once: the end of an operation a thread; an arrival or a free slot a message.
    pending = int(np.count_nonzero(following == NONE)) + 2 * len(messages) + 1
    return Program(
        endpoint=endpoint,
        operations=operations,
        dependents=dependents.astype(np.int64),
        counts=np.zeros(machine.COUNTS, np.int64),
        event_times=np.zeros(pending, np.int64),
        event_codes=np.zeros(pending, np.int64),
    )


def run_program(program: Program, state: FabricState, data: DataPlane) -> int:
    """Run the machine; returns its status."""
    with np.errstate(all="ignore"):  # plain Python warns where sums of the data overflow
        return machine.run(
            program.endpoint,
            state.domain,
            state.network,
            program.operations,
            program.dependents,
            state.messages,
            state.line,
            state.lines,
            state.delivered,
            program.counts,
            program.event_times,
            program.event_codes,
            data,
        )


def simulate(lowered: Lowered, system: System, protocol: Protocol, data: DataPlane) -> Timing:
    """Run a lowered schedule on a system, packet by packet; move bytes if the data plane holds any.

    Raises
    ------
    ScheduleError
        On deadlock; the text names operations that nothing can start.
    ValueError
        If the run is longer than the clock, or a value has no code in the wire format.
    """
    schedule, messages = lowered.schedule, lowered.messages
    ranks = schedule.ranks
    routes = routes_of(messages, system, protocol)
    rules = domain_rules(system, ranks), network_rules(system, ranks)
    in_switch = in_switch_of(lowered)
    shared = shared_of(in_switch, schedule.thread_of_op, system, protocol)
    state = fresh_state(ranks, *rules, messages.source, messages.destination, routes, shared)
    endpoint = machine.Endpoint(launch=system.endpoint.launch_fs, step=protocol.step_latency_fs, limit=CLOCK_LIMIT_FS)
    program = program_of(
        endpoint,
        state.messages,
        thread=schedule.thread_of_op,
        dep=schedule.ops["dep"],
        received=lowered.received,
        sent=lowered.sent,
        work=work_of(lowered, system, protocol),
        sender=messages.sender,
        receiver=messages.receiver,
        successor=messages.slot_successor(system.endpoint.fifo_slots),
        in_switch=in_switch.operation,
        whole=state.whole,
        answer_fs=answer_of(system),
    )
    status = run_program(program, state, data)
    if status == machine.DEADLOCK:
        never = program.operations[: len(schedule.ops), machine.FINISH] == tables.NEVER
        raise deadlock(schedule, never, system.endpoint.fifo_slots)
    if status == machine.TOO_LONG:
        raise ValueError(TOO_LONG)
    if status == machine.BAD_VALUE:
        raise ValueError(BAD_VALUE_TEXT)
    return timing_of(program, state, in_switch.operation)


def answer_of(system: System) -> int:
    """Femtoseconds of a header on an empty path through the switch: a sum was asked for, a store is acknowledged."""
    domain = system.domain
    header = -(-domain.packet_header_bytes * domain.link_fs_per_byte.numerator // domain.link_fs_per_byte.denominator)
    return 2 * (domain.hop_latency_fs + header)


def deadlock(schedule: Schedule, never: NDArray[np.bool_], slots: int) -> ScheduleError:
    """The error that names operations that nothing can start."""
    stuck = np.flatnonzero(never)
    first_of_thread = stuck[np.unique(schedule.thread_of_op[stuck], return_index=True)[1]]
    names = "; ".join(schedule.describe(int(op)) for op in first_of_thread[:4])
    return ScheduleError(
        f"{schedule.collective} {schedule.algorithm} deadlocks with {slots} FIFO slots: {len(stuck)} operations never "
        f"start, first {names}"
    )


def timing_of(program: Program, state: FabricState, in_switch: Int32 | None = None) -> Timing:
    """Read the results of a finished run; ``in_switch`` are the operations whose beginnings stand apart."""
    in_switch = np.zeros(0, np.int32) if in_switch is None else in_switch
    count = len(program.operations) - 1 - len(in_switch)
    messages = len(state.messages) if not len(in_switch) else int(state.whole[0])
    start, finish = (program.operations[:count, column] for column in (machine.START, machine.FINISH))
    start[in_switch] = program.operations[count:-1, machine.START]
    up, down = (
        np.concatenate((near, far)).transpose(1, 0, 2)
        for near, far in (
            (state.domain.port_traffic, state.network.port_traffic),
            (state.domain.output_traffic, state.network.output_traffic),
        )
    )
    return Timing(
        time=int(finish.max(initial=program.endpoint.launch)),
        start=start,
        finish=finish,
        ready=state.messages[:messages, tables.READY],
        visible=state.messages[:messages, tables.VISIBLE],
        up_bytes=up[..., tables.BYTES],
        up_busy=up[..., tables.BUSY],
        down_bytes=down[..., tables.BYTES],
        down_busy=down[..., tables.BUSY],
        up_stalled=up[..., tables.WAITED],
        down_queued=down[..., tables.WAITED],
        down_packets=down[..., tables.SENT],
    )
