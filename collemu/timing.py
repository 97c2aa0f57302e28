"""Run the machine: arrays of a program and a fabric in, times out."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collemu_kernels import machine
from collemu_kernels.dataplane import DataPlane
from numpy.typing import NDArray

from collemu.fabric import FabricState, fabric_of, fresh_state, packets_of
from collemu.lower import Lowered
from collemu.schedule import KIND_NAMES, ScheduleError
from collemu.systems import Protocol, System

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

NONE = -1
CLOCK_LIMIT_FS = 4 * 10**18  # a little over an hour; a window beyond it still fits in int64
REDUCES = np.array(["reduce" in name for name in KIND_NAMES])


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
    up_bytes, up_busy : int64 arrays, (chips, planes)
        Bytes that each chip-to-switch link carried, headers included, and for how long it was busy.
    down_bytes, down_busy : int64 arrays, (chips, planes)
        The same of the links from switch to chip.
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


def work_of(lowered: Lowered, system: System) -> Int64:
    """Femtoseconds that each operation takes at its endpoint."""

    def duration(rate: Fraction) -> Int64:
        return -(-lowered.nbytes * rate.numerator // rate.denominator)

    endpoint = system.endpoint
    reduces = REDUCES[lowered.schedule.ops["kind"]]
    return np.where(reduces, duration(endpoint.reduce_fs_per_byte), duration(endpoint.copy_fs_per_byte))


def program_of(
    *,
    thread: Int32,
    dep: Int32,
    received: Int32,
    sent: Int32,
    sender: Int32,
    receiver: Int32,
    successor: Int32,
    work: Int64,
    launch: int,
    step: int,
    notice: int,
) -> tuple[machine.Program, machine.Progress]:
    """What waits for what, and a clean sheet of progress.

    Parameters
    ----------
    thread, dep, received, sent, work : arrays, one entry an operation
        Thread number; operation that must finish before (-1: none); messages that it receives and sends (-1: none);
        femtoseconds at the endpoint.
    sender, receiver, successor : arrays, one entry a message
        Operations at its two ends; the message that takes over its FIFO slot (-1: none).
    launch, step, notice : int
        Femtoseconds.
    """
    operations = len(thread)
    following = np.arange(1, operations + 1, dtype=np.int32)
    last_of_thread = np.ones(operations, bool)
    last_of_thread[:-1] = thread[1:] != thread[:-1]
    following[last_of_thread] = NONE

    waits = np.zeros(operations, np.int8)
    waits[following[following != NONE]] += 1
    waits += dep != NONE
    waits += received != NONE
    waits[sender[successor[successor != NONE]]] += 1

    dependent = np.flatnonzero(dep != NONE).astype(np.int32)
    dependent = dependent[np.argsort(dep[dependent], kind="stable")]
    dependents_first = np.searchsorted(dep[dependent], np.arange(operations + 1)).astype(np.int64)

    # Pending at once: a READY and a FINISHED a thread; VISIBLE or FREED at most once a message.
    threads = int(last_of_thread.sum())
    pending = 2 * threads + 2 * len(sender) + 1
    program = machine.Program(
        following=following,
        received=received,
        sent=sent,
        work=work,
        dependents_first=dependents_first,
        dependents=dependent,
        sender=sender,
        receiver=receiver,
        successor=successor,
        launch=launch,
        step=step,
        notice=notice,
        limit=CLOCK_LIMIT_FS,
    )
    progress = machine.Progress(
        waits=waits,
        start=np.full(operations, machine.NEVER, np.int64),
        finish=np.full(operations, machine.NEVER, np.int64),
        visible=np.full(len(sender), machine.NEVER, np.int64),
        event_times=np.zeros(pending, np.int64),
        event_codes=np.zeros(pending, np.int64),
        counts=np.zeros(5, np.int64),
    )
    return program, progress


def simulate(lowered: Lowered, system: System, protocol: Protocol, plane: DataPlane) -> Timing:
    """Run a lowered schedule on a system, packet by packet; move bytes if the data plane holds any.

    Raises
    ------
    ScheduleError
        On deadlock; the text names operations that nothing can start.
    ValueError
        If the run is longer than the clock, or a value has no code in the wire format.
    """
    endpoint, domain = system.endpoint, system.domain
    messages = lowered.messages
    fabric = fabric_of(system, lowered.schedule.ranks)
    state = fresh_state(
        fabric, messages.source, messages.destination, *packets_of(messages.nbytes, system, protocol)
    )
    program, progress = program_of(
        thread=lowered.schedule.thread_of_op,
        dep=np.ascontiguousarray(lowered.schedule.ops["dep"]),
        received=lowered.received,
        sent=lowered.sent,
        sender=messages.sender,
        receiver=messages.receiver,
        successor=messages.slot_successor(endpoint.fifo_slots),
        work=work_of(lowered, system),
        launch=endpoint.launch_fs,
        step=protocol.step_latency_fs,
        notice=2 * (domain.hop_latency_fs + int(fabric.serialisation[domain.packet_header_bytes])),
    )
    status = machine.run(
        program, progress, fabric, state.messages, state.ports, state.outputs, state.trains, plane
    )
    if status == machine.DEADLOCK:
        stuck = np.flatnonzero(progress.finish == machine.NEVER)
        schedule = lowered.schedule
        first_of_thread = stuck[np.unique(schedule.thread_of_op[stuck], return_index=True)[1]]
        names = "; ".join(schedule.describe(int(op)) for op in first_of_thread[:4])
        raise ScheduleError(
            f"{schedule.collective} {schedule.algorithm} deadlocks with {endpoint.fifo_slots} FIFO slots: "
            f"{len(stuck)} operations never start, first {names}"
        )
    if status == machine.TOO_LONG:
        raise ValueError(
            f"the run is longer than the clock of {CLOCK_LIMIT_FS / 1e15:.0f} s; use smaller sizes or faster links"
        )
    if status == machine.BAD_VALUE:
        raise ValueError("a value on the wire has no code in the wire format")
    return timing_of(program, progress, state)


def timing_of(program: machine.Program, progress: machine.Progress, state: FabricState) -> Timing:
    """Read the results of a finished run."""
    ranks, planes = state.fabric.ranks, state.fabric.planes
    return Timing(
        time=int(progress.finish.max(initial=program.launch)),
        start=progress.start,
        finish=progress.finish,
        ready=state.messages.ready,
        visible=progress.visible,
        up_bytes=state.ports.sent_bytes.reshape(ranks, planes),
        up_busy=state.ports.busy.reshape(ranks, planes),
        down_bytes=state.outputs.sent_bytes.reshape(planes, ranks).T,
        down_busy=state.outputs.busy.reshape(planes, ranks).T,
    )
