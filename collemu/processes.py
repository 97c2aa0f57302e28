"""Time of a schedule whose ranks are processes of one machine: what each operation costs one, and who waits for whom.

The rules are in docs/timing-rules.md. They are those of `collemu.ranks.execute`, which is what such processes run.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds, processes
from collemu_kernels.dataplane import DataPlane
from numpy.typing import NDArray

from collemu.catalogue import Processes, Protocol, System, femtoseconds, femtoseconds_per_byte
from collemu.endpoint import CLOCK_LIMIT_FS, TOO_LONG, conversions_of
from collemu.flow import simulate_flow
from collemu.lower import NONE, Lowered
from collemu.memory import footprint_of
from collemu.payload import Payload
from collemu.schedule import IN_SWITCH, RECEIVES, REDUCES, SENDS
from collemu.timing import Timing, deadlock, dependents_of, following_of, waits_of

Int64 = NDArray[np.int64]

BUFFERS_OF_A_MESSAGE = 4  # of the runs in which times were measured: input, output, and a slot at either end

#: Processes that share a core and do everything at once: what has them run at all.
SINGLE_CORE = Processes(
    cores=1,
    measured=1,
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
    if (IN_SWITCH[schedule.ops["kind"]]).any():
        raise ValueError(f"{system.name} has processes, and no rule for what switches do: choose another fidelity")
    slots = system.endpoint.fifo_slots
    tables = _tables(lowered, spent, slots)
    successor = messages.slot_successor(slots)
    thread, dep = schedule.thread_of_op, schedule.ops["dep"]
    first_dependent, dependents = dependents_of(dep)
    operations = processes.Operations(
        rank=np.ascontiguousarray(lowered.rank, np.int32),
        following=following_of(thread),
        received=lowered.received,
        sent=lowered.sent,
        work=_work(lowered, tables, system, payload),
        first_dependent=first_dependent,
        dependents=dependents,
        waits=waits_of(thread, dep, lowered.received, messages.sender, successor),
        behind=np.full(len(thread), NONE, np.int32),
        start=np.full(len(thread), NONE, np.int64),
        finish=np.full(len(thread), NONE, np.int64),
    )
    transfer = tables.transfer(messages.nbytes)
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
    # as if nothing went on at the same time, and all that comes, or is gone, came by itself
    besides = schedule.ranks * costs.launch + 2 * len(messages) * (costs.notice + costs.wake)
    if operations.work.sum(dtype=np.float64) + transfer.sum(dtype=np.float64) + besides > CLOCK_LIMIT_FS:
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


@dataclass(frozen=True)
class _Tables:
    """Times of copies, sums and messages of a run, as they depend on all the memory that the run goes through.

    Attributes
    ----------
    spent : Processes
    similar : int
        Bytes of the message of a measured run that goes through as much memory: smaller stretches of it are as far from
        the core as that.
    """

    spent: Processes
    similar: int

    def copy(self, nbytes: Int64) -> Int64:
        """Femtoseconds to copy so many bytes."""
        return self._times(nbytes, self.spent.copy_s)

    def reduce(self, nbytes: Int64) -> Int64:
        """Femtoseconds to add so many bytes to as many."""
        return self._times(nbytes, self.spent.reduce_s)

    def transfer(self, nbytes: Int64) -> Int64:
        """Femtoseconds to take a message of so many bytes."""
        return self._times(nbytes, self.spent.transfer_s)

    def _times(self, nbytes: Int64, seconds: tuple[float, ...]) -> Int64:
        sizes, times = self.spent.sizes_bytes, [femtoseconds(each) for each in seconds]

        def measured(size: int) -> int:
            """On straight lines between what was measured; below it that of the first, beyond at the last rate."""
            if size <= sizes[0]:
                return times[0]
            if size >= sizes[-1]:
                return times[-1] * size // sizes[-1]
            above = bisect_left(sizes, size)
            below = above - 1
            rise = (size - sizes[below]) * (times[above] - times[below]) // (sizes[above] - sizes[below])
            return times[below] + rise

        def time_of(size: int) -> int:
            return max(measured(size), measured(self.similar) * size // self.similar)

        return _of_each(nbytes, time_of)


def _tables(lowered: Lowered, spent: Processes, slots: int) -> _Tables:
    """Ranks that take turns on a core go through the memory of all of them."""
    each = int(footprint_of(lowered, slots).sum()) // min(lowered.schedule.ranks, spent.cores)
    return _Tables(spent, max(1, each // BUFFERS_OF_A_MESSAGE))


def _work(lowered: Lowered, tables: _Tables, system: System, payload: Payload) -> Int64:
    """Femtoseconds of every operation: itself, its copies, what it adds, and what it encodes and decodes.

    One that receives and sends without adding stores what came and sends it on; one that adds and sends copies the sum.
    """
    spent = tables.spent
    kind = lowered.schedule.ops["kind"]
    held = lowered.elements * lowered.item_bytes
    adds, sends, receives = REDUCES[kind], SENDS[kind], RECEIVES[kind]
    work = np.full(len(kind), femtoseconds(spent.operation_s), np.int64)
    work += sends * femtoseconds(spent.send_s)
    encoded = decoded = np.zeros_like(work)
    if payload.wire_format is not None:
        encoded, decoded = conversions_of(lowered)
        conversion = system.conversions.get(payload.wire_format.name)
        rates = (
            (system.endpoint.quantize_bytes_per_s, system.endpoint.dequantize_bytes_per_s)
            if conversion is None
            else (conversion.encode_bytes_per_s, conversion.decode_bytes_per_s)
        )
        for elements, rate in zip((encoded, decoded), rates, strict=True):
            work += _at_rate(elements * lowered.item_bytes, rate)
    work += ((kind == kinds.COPY) | (receives & ~adds & (decoded == 0))) * tables.copy(held)
    work += (sends & (encoded == 0)) * tables.copy(lowered.nbytes)
    reduction = system.reductions.get(payload.held.name)
    return work + adds * (tables.reduce(held) if reduction is None else _at_rate(held, reduction.reduce_bytes_per_s))


def _at_rate(nbytes: Int64, bytes_per_s: float) -> Int64:
    rate = femtoseconds_per_byte(bytes_per_s)
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
