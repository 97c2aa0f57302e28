"""Time of a schedule whose ranks are processes of one machine: what each operation costs one, and who waits for whom.

The rules are in docs/timing-rules.md. They are those of `collemu.ranks.execute`, which is what such processes run.
"""

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from collemu_kernels import kinds, processes
from collemu_kernels.dataplane import DataPlane
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.catalogue.quantity import femtoseconds, femtoseconds_per_byte
from collemu.catalogue.system import Processes
from collemu.endpoint import CLOCK_LIMIT_FS, TOO_LONG, conversions_of
from collemu.flow import simulate_flow
from collemu.lower import NONE, Lowered
from collemu.payload import Payload
from collemu.schedule import RECEIVES, REDUCES, SENDS
from collemu.timing import Timing, deadlock, dependents_of, following_of, waits_of

Int64 = NDArray[np.int64]

#: Processes that share a core and do everything at once: what has them run at all.
SINGLE_CORE = Processes(
    cores=1,
    operation_s=0.0,
    send_s=0.0,
    notice_s=0.0,
    wake_s=0.0,
    eager_bytes=0,
    sizes_bytes=(1,),
    copy_s=(0.0,),
    reduce_s=(0.0,),
    transfer_s=(0.0,),
)


def simulate_processes(
    lowered: Lowered, system: System, protocol: Protocol, payload: Payload, data: DataPlane
) -> Timing:
    """Run a lowered schedule on the processes of a machine; move bytes if the data plane holds any.

    Raises
    ------
    ScheduleError
        On deadlock.
    ValueError
        If the system is not one of processes, the run is longer than its clock, or a value has no code in the wire
        format.
    """
    spent = system.processes
    if spent is None:
        raise ValueError(f"{system.name} has no [processes]: choose another fidelity; collemu calibrate host makes one")
    if data.moving:
        simulate_flow(lowered, system, protocol, data)  # bytes do not depend on time
    schedule, messages = lowered.schedule, lowered.messages
    slots = system.endpoint.fifo_slots
    successor = messages.slot_successor(slots)
    thread, dep = schedule.thread_of_op, schedule.ops["dep"]
    first_dependent, dependents = dependents_of(dep)
    operations = processes.Operations(
        rank=np.ascontiguousarray(lowered.rank, np.int32),
        following=following_of(thread),
        received=lowered.received,
        sent=lowered.sent,
        work=work_of_processes(lowered, spent, system, payload),
        first_dependent=first_dependent,
        dependents=dependents,
        waits=waits_of(thread, dep, lowered.received, messages.sender, successor),
        behind=np.full(len(thread), NONE, np.int32),
        start=np.full(len(thread), NONE, np.int64),
        finish=np.full(len(thread), NONE, np.int64),
    )
    transfer = _table(messages.nbytes, spent, spent.transfer_s)
    travelling = processes.Messages(
        source=messages.source,
        destination=messages.destination,
        sender=messages.sender,
        receiver=messages.receiver,
        successor=successor,
        transfer=transfer,
        eager=messages.nbytes <= spent.eager_bytes,
        room=np.full(len(messages), processes.NEVER),
        sent=np.full(len(messages), processes.NEVER),
        taken=np.full(len(messages), processes.NEVER),
        behind=np.full(2 * len(messages), NONE, np.int32),
        came=np.zeros(2 * len(messages), np.int64),
    )
    ranks = np.zeros((schedule.ranks, processes.RANK_COLUMNS), np.int64)
    cores = np.array([spent.cores, NONE, NONE])
    costs = processes.Costs(
        launch=system.endpoint.launch_fs, notice=femtoseconds(spent.notice_s), wake=femtoseconds(spent.wake_s)
    )
    if float(operations.work.sum()) + float(transfer.sum()) > CLOCK_LIMIT_FS:
        raise ValueError(TOO_LONG)
    status = processes.run(operations, travelling, ranks, cores, messages.number < slots, costs)
    if status == processes.DEADLOCK:
        raise deadlock(schedule, operations.finish < 0, slots)
    sent_bytes = _by_chip(messages.source, messages.nbytes, schedule.ranks)
    taken_bytes = _by_chip(messages.destination, messages.nbytes, schedule.ranks)
    taking = _by_chip(messages.destination, transfer, schedule.ranks)
    nothing = np.zeros_like(taking)
    return Timing(
        time=int(ranks[:, processes.NEXT].max(initial=costs.launch)),
        start=operations.start,
        finish=operations.finish,
        ready=travelling.sent,
        visible=travelling.taken,
        up_bytes=sent_bytes,
        up_busy=nothing,
        down_bytes=taken_bytes,
        down_busy=taking,
        up_stalled=nothing,
        down_queued=nothing,
        down_packets=nothing,
        own_work=operations.work,
    )


def work_of_processes(lowered: Lowered, spent: Processes, system: System, payload: Payload) -> Int64:
    """Femtoseconds of every operation: itself, its copies, what it adds, and what it encodes and decodes.

    One that receives and sends without adding stores what came and sends it on; one that adds and sends copies the sum.
    """
    kind = lowered.schedule.ops["kind"]
    held = lowered.elements * lowered.item_bytes
    adds, sends, receives = REDUCES[kind], SENDS[kind], RECEIVES[kind]
    work = np.full(len(kind), femtoseconds(spent.operation_s), np.int64)
    work += sends * femtoseconds(spent.send_s)
    encoded, decoded = conversions_of(lowered) if lowered.wire is not None else (np.zeros_like(work),) * 2
    copied = (kind == kinds.COPY) | (receives & ~adds & (decoded == 0))
    work += copied * _table(held, spent, spent.copy_s)
    work += (sends & (encoded == 0)) * _table(lowered.nbytes, spent, spent.copy_s)
    rate = system.reductions.get(payload.held.name)
    work += adds * (
        _table(held, spent, spent.reduce_s)
        if rate is None
        else _at_rate(held, femtoseconds_per_byte(rate.reduce_bytes_per_s))
    )
    if payload.wire_format is not None:
        conversion = system.conversions.get(payload.wire_format.name)
        endpoint = system.endpoint
        encode, decode = (
            (endpoint.quantize_fs_per_byte, endpoint.dequantize_fs_per_byte)
            if conversion is None
            else tuple(map(femtoseconds_per_byte, (conversion.encode_bytes_per_s, conversion.decode_bytes_per_s)))
        )
        work += _at_rate(encoded * lowered.item_bytes, encode) + _at_rate(decoded * lowered.item_bytes, decode)
    return work


def _table(nbytes: Int64, spent: Processes, seconds: tuple[float, ...]) -> Int64:
    """Times of sizes, on straight lines between those measured, from none for no bytes; beyond, at the last rate."""
    times = [0, *map(femtoseconds, seconds)]
    sizes = [0, *spent.sizes_bytes]

    def time_of(size: int) -> int:
        if size >= sizes[-1]:
            return times[-1] * size // sizes[-1]
        above = max(1, bisect_left(sizes, size))
        below = above - 1
        share = Fraction(size - sizes[below], sizes[above] - sizes[below])
        return times[below] + int(share * (times[above] - times[below]))

    return _of_each(nbytes, time_of)


def _at_rate(nbytes: Int64, rate: Fraction) -> Int64:
    return _of_each(nbytes, lambda size: -(-size * rate.numerator // rate.denominator))


def _of_each(nbytes: Int64, time_of: Callable[[int], int]) -> Int64:
    """The same function of every size, which are few: beyond int64 on the way, and within the clock at the end."""
    distinct, where = np.unique(nbytes, return_inverse=True)
    times = [time_of(size) for size in distinct.tolist()]
    if max(times, default=0) > CLOCK_LIMIT_FS:
        raise ValueError(TOO_LONG)
    return np.array(times, np.int64)[where]


def _by_chip(chip: NDArray[np.int32], values: Int64, chips: int) -> Int64:
    return np.bincount(chip, weights=values, minlength=chips).astype(np.int64)[:, None]
