"""Prove that a schedule does what its collective promises, or say where it does not.

The proof is by symbolic execution. Operations wait for their thread, their dependency, their message and,
when they send, a free slot; each wait has one cause, so the waits form a marked graph, and whether it stops
and all its values are the same in every order. One order is therefore enough, once the accesses to every
chunk are known to be ordered by program order, dependencies and messages alone (a full FIFO orders nothing).

A chunk's multiset of contributions is held as two sums of random labels modulo the prime p = 2^61 - 1, and as
a count. A wrong multiset with the right count (at most n < p terms) differs from the right one by
multiplicities that are not all 0 modulo p, so one sum agrees with probability 1/p over the labels, and both
with p^-2, below 2e-37. A right multiset always agrees. A chunk that fails is computed again, exactly.

A fused operation starts when its message is there and, if it sends, a slot is free; it frees the slot of its
message when it is finished. That is the careful reading: a machine that frees the slot earlier cannot stop
where this one runs.

A switch reads and writes the memory of ranks that need not be at work on it. Their buffers are there from their
first operation to their last, so one operation of each must come before the switch's, and one after.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds, symbolic
from numpy.typing import NDArray

from collemu.arguments import instance_of, whole
from collemu.matching import Matching, match_messages
from collemu.schedule import IN_SWITCH, READS_DST, READS_SRC, WRITES_DST, Schedule, ScheduleError, chunk_name
from collemu.verification.postcondition import ALL_RANKS, ANYTHING, required_outputs
from collemu.verification.structure import check_structure
from collemu.verification.waits import Waits, describe_deadlock

_LABEL_SEED = 20_090_731  # any will do; fixed, so that a report can be repeated
MOST_SLOTS = 2**31 - 1
_NAMED = 8  # contributions that an error lists


@dataclass(frozen=True)
class VerifyReport:
    """What is true of a schedule that passed.

    Attributes
    ----------
    ranks, threads, operations, messages
        Their numbers, over all ranks.
    chunks_sent
        Chunks in all messages together.
    depth
        Messages on the longest chain of operations that follow one another.
    slots
        FIFO slots a connection that the schedule was verified for.
    least_slots
        The smallest number of slots that does; 1 when there are no messages.
    any_count
        Whether every chunk stays at its place of a region. If not, the element count must be a multiple of
        the chunks of a region, or chunks of different lengths meet.
    """

    ranks: int
    threads: int
    operations: int
    messages: int
    chunks_sent: int
    depth: int
    slots: int
    least_slots: int
    any_count: bool


def verify(schedule: Schedule, slots: int = 2) -> VerifyReport:
    """Prove that a schedule is right and runs to its end.

    Parameters
    ----------
    schedule : Schedule
    slots : int
        Messages that a connection (source, destination, channel) holds before its sender must wait.

    Returns
    -------
    VerifyReport

    Raises
    ------
    ScheduleError
        For an output that is not the exact multiset of contributions that the collective promises, a
        deadlock with that many slots, a message without partner, accesses to a chunk that nothing orders, a
        chunk that is read before it is written, an in-switch operation on memory of a rank that need not have
        begun or may have ended, or a table that breaks the rules of a schedule. The text names rank, thread,
        step and chunk, and begins with a line of the user's file if the schedule comes from one.
    TypeError, ValueError
        For what is no schedule, or no number of slots.
    """
    instance_of(schedule, Schedule, "verify: schedule", "build_schedule makes one")
    slots = whole(slots, "slots", least=1, most=MOST_SLOTS)
    try:
        return _verify(schedule, slots)
    except ScheduleError as error:
        if schedule.origin is None:
            raise
        raise ScheduleError(schedule.origin.blame(str(error))) from None


def _verify(schedule: Schedule, slots: int) -> VerifyReport:
    check_structure(schedule)
    messages = match_messages(schedule)
    waits = Waits(schedule, messages)
    order, position = waits.order(slots)
    if len(order) < len(schedule.ops):
        raise ScheduleError(describe_deadlock(schedule, waits, slots))
    least = waits.least_slots(slots)
    run = _SymbolicRun(schedule, messages, waits, order, position)
    run.check_accesses()
    run.check_presence()
    run.check_outputs()
    return VerifyReport(
        ranks=schedule.ranks,
        threads=len(schedule.threads),
        operations=len(schedule.ops),
        messages=len(messages.sender),
        chunks_sent=int(schedule.ops["count"][messages.sender].sum(dtype=np.int64)),
        depth=int(run.level.max(initial=0)),
        slots=slots,
        least_slots=least,
        any_count=run.any_count,
    )


class _SymbolicRun:
    """The cells of a schedule (chunks in buffers, then chunks in flight) and what runs on them."""

    def __init__(
        self,
        schedule: Schedule,
        messages: Matching,
        waits: Waits,
        order: NDArray[np.int32],
        position: NDArray[np.int32],
    ) -> None:
        self._schedule, self._waits = schedule, waits
        self._order, self._position = order, position
        self._bases, self._buffer_cells = schedule.cell_bases()
        ops = schedule.ops
        kind = ops["kind"]
        self._in_switch = np.flatnonzero(IN_SWITCH[kind])
        self._count = np.where(kind == kinds.NOP, 0, ops["count"]).astype(np.int32)
        self._rank = rank = schedule.threads["rank"][schedule.thread_of_op]
        self._source = self._bases[rank, np.minimum(ops["src_buffer"], 2)] + ops["src"]
        self._target = self._bases[rank, np.minimum(ops["dst_buffer"], 2)] + ops["dst"]
        self._sources, self._targets = READS_SRC[kind].astype(np.int32), WRITES_DST[kind].astype(np.int32)
        self._adds = READS_DST[kind].astype(np.uint8)
        size = self._count[messages.sender].astype(np.int64)
        # One more entry, so that "no message" (-1) finds "no cell" (-1).
        flight = np.append(self._buffer_cells + np.cumsum(size) - size, -1)
        self._outgoing, self._incoming = flight[messages.sent], flight[messages.received]
        self._cells = self._buffer_cells + int(size.sum())
        self._check_overlap()
        self._spread()

        self.level = np.zeros(len(ops), dtype=np.int32)
        self.any_count = True
        self._writer = np.full(self._buffer_cells, -1, dtype=np.int32)
        self._lanes = np.zeros((2, self._cells), dtype=np.int64)
        self._terms = np.zeros(self._cells, dtype=np.int64)
        shape = (2, schedule.ranks, schedule.input_chunks)
        self._labels = np.random.default_rng(_LABEL_SEED).integers(symbolic.PRIME, size=shape)

    def _buffer(self, buffer: int) -> NDArray[np.int64]:
        """Cells of a buffer, shape (ranks, chunks)."""
        return self._bases[:, buffer, None] + np.arange(self._schedule.buffer_chunks(buffer))

    def _check_overlap(self) -> None:
        distance = np.abs(self._source - self._target)
        both = (self._sources > 0) & (self._targets > 0)
        if (at := np.flatnonzero(both & (distance > 0) & (distance < self._count))).size:
            op = self._schedule.describe(int(at[0]))
            raise ScheduleError(f"{op} writes part of what it reads")

    def _spread(self) -> None:
        """Let in-switch operations read or write the cells of all ranks of their groups."""
        schedule, ops = self._schedule, self._schedule.ops
        self._stride = np.zeros(len(ops), dtype=np.int64)
        self._group, self._members = np.zeros((2, len(ops)), dtype=np.int32)
        if len(at := self._in_switch) == 0:
            return
        groups = [schedule.group_of(rank) for rank in range(schedule.ranks)]
        mine = np.array([(group.start, len(group)) for group in groups], dtype=np.int32)[self._rank[at]]
        self._group[at], self._members[at] = mine.T
        # From one rank to the next, the cells of a buffer are equally far apart everywhere.
        stride = self._bases[min(1, schedule.ranks - 1)] - self._bases[0]
        for kind, side, cell, cells in (
            (kinds.MULTIMEM_REDUCE, "src_buffer", self._source, self._sources),
            (kinds.MULTIMEM_STORE, "dst_buffer", self._target, self._targets),
        ):
            own = at[ops["kind"][at] == kind]
            self._stride[own] = stride[ops[side][own]]
            cell[own] += (self._group[own] - self._rank[own]) * self._stride[own]
            cells[own] = self._members[own]

    def check_presence(self) -> None:
        """Raise for what a switch does to the memory of a rank that need not have begun, or may have ended."""
        if len(self._in_switch) == 0:
            return
        fault = np.empty(2, dtype=np.int64)
        status = symbolic.unattended_access(
            self._order,
            self._waits.first,
            self._schedule.thread_of_op,
            self._waits.dep,
            self._waits.arrival,
            self._rank,
            self._group,
            self._members,
            self._schedule.ranks,
            fault,
        )
        if status == symbolic.OK:
            return
        state, cure = {
            symbolic.NOT_BEGUN: ("need not have begun", "from rank {} before"),
            symbolic.ENDED: ("may have ended", "to rank {} after"),
        }[status]
        op, rank = (int(i) for i in fault)
        raise ScheduleError(
            f"{self._schedule.describe(op)} touches memory of rank {rank}, which {state} by then; "
            f"an empty message {cure.format(rank)} it would order them"
        )

    def check_accesses(self) -> None:
        """Run all operations; raise for unset reads, mixed chunks and races."""
        schedule = self._schedule
        home = np.full(self._buffer_cells, -1, dtype=np.int32)
        for buffer in (kinds.INPUT, kinds.OUTPUT):
            home[self._buffer(buffer)] = _homes(schedule, buffer)
        place = np.full(self._cells, -1, dtype=np.int32)
        inputs = self._buffer(kinds.INPUT)
        place[inputs] = home[inputs]
        self._terms[inputs] = 1
        self._lanes[:, inputs] = self._labels
        fault = np.full(4, -1, dtype=np.int64)
        status = symbolic.execute(
            self._order,
            self._position,
            self._waits.first,
            schedule.thread_of_op,
            self._waits.dep,
            self._waits.arrival,
            self._source,
            self._target,
            self._sources,
            self._targets,
            self._stride,
            self._adds,
            self._incoming,
            self._outgoing,
            self._count,
            home,
            place,
            self._terms,
            self._lanes[0],
            self._lanes[1],
            self._writer,
            self.level,
            fault,
        )
        self.any_count = bool(fault[3] < 0)
        if status == symbolic.OK:
            if schedule.counts is not None and not self.any_count:
                here = schedule.describe(int(fault[3]))
                raise ScheduleError(f"{here} stores a chunk where counts have room for another")
            return
        op, cell = int(fault[0]), int(fault[1])
        here = schedule.describe(op)
        if status == symbolic.UNSET_READ:
            raise ScheduleError(f"{here} reads {self._cell_name(cell)}, which nothing has written yet")
        if status == symbolic.MIXED_CHUNKS:
            raise ScheduleError(f"{here} adds contributions of different chunks of a region")
        earlier = schedule.describe(int(fault[2]))
        raise ScheduleError(
            f"race on {self._cell_name(cell)}: nothing orders {earlier} and {here}; "
            "a dependency of the later on the earlier would"
        )

    def _cell_name(self, cell: int) -> str:
        if cell >= self._buffer_cells:
            return "its message"
        rank = cell // (self._buffer_cells // self._schedule.ranks)
        for buffer in (kinds.OUTPUT, kinds.INPUT, kinds.SCRATCH):
            chunk = int(cell - self._bases[rank, buffer])
            if 0 <= chunk < self._schedule.buffer_chunks(buffer):
                return f"rank {rank} {chunk_name(buffer, chunk)}"
        return f"rank {rank} cell {cell}"

    def check_outputs(self) -> None:
        """Compare every output chunk with what the collective promises."""
        schedule = self._schedule
        rank, chunk = required_outputs(schedule)
        total = np.zeros((2, schedule.input_chunks), dtype=np.int64)
        for label in self._labels.swapaxes(0, 1):
            total += label
            total -= np.where(total >= symbolic.PRIME, symbolic.PRIME, 0)
        everyone = rank == ALL_RANKS
        wanted = np.where(everyone, total[:, chunk], self._labels[:, np.maximum(rank, 0), chunk])
        cells = self._buffer(kinds.OUTPUT)
        right = (self._lanes[:, cells] == wanted).all(axis=0)
        right &= self._terms[cells] == np.where(everyone, schedule.ranks, 1)
        wrong = np.argwhere(~right & (rank != ANYTHING))
        if len(wrong):
            where, at = (int(i) for i in wrong[0])
            text = self._describe_output(where, at, int(rank[where, at]), int(chunk[where, at]))
            others = f"; {len(wrong) - 1} more output chunks are wrong" if len(wrong) > 1 else ""
            raise ScheduleError(text + others)

    def _describe_output(self, rank: int, chunk: int, wanted_rank: int, wanted_chunk: int) -> str:
        """Say exactly what an output chunk holds and should hold."""
        schedule = self._schedule
        cell = int(self._bases[rank, kinds.OUTPUT]) + chunk
        name = f"rank {rank} {chunk_name(kinds.OUTPUT, chunk)}"
        if self._terms[cell] == 0:
            return f"{name} is never written"
        weight = np.zeros(self._cells)
        weight[cell] = 1
        symbolic.multiplicities(
            self._order,
            self._source,
            self._target,
            self._sources,
            self._targets,
            self._stride,
            self._adds,
            self._incoming,
            self._outgoing,
            self._count,
            weight,
        )
        held = weight[self._buffer(kinds.INPUT)]
        wanted = np.zeros_like(held)
        wanted[slice(None) if wanted_rank == ALL_RANKS else wanted_rank, wanted_chunk] = 1
        lists = {
            "lacks": [_contribution(r, c) for r, c in np.argwhere(held < wanted)],
            "holds twice or more": [
                f"{_contribution(r, c)} {held[r, c]:.0f} times" for r, c in np.argwhere((held > 1) & (wanted > 0))
            ],
            "holds what does not belong there,": [
                _contribution(r, c) for r, c in np.argwhere((held > 0) & (wanted == 0))
            ],
        }
        parts = [
            f"{verb} {', '.join(names[:_NAMED])}{' ...' * (len(names) > _NAMED)}"
            for verb, names in lists.items()
            if names
        ]
        writer = int(self._writer[cell])
        source = f" (written last by {schedule.describe(writer)})" if writer >= 0 else ""
        return f"{name} {' and '.join(parts)}{source}"


def _homes(schedule: Schedule, buffer: int) -> NDArray[np.int64]:
    """Places that chunks may not leave: that in a region; where regions differ in length, it and the region."""
    n, k = schedule.ranks, schedule.region_chunks
    if schedule.counts is None:
        return np.arange(schedule.buffer_chunks(buffer)) % k
    regions = np.arange(n * n * k).reshape(n, n, k)
    return (regions if buffer == kinds.INPUT else regions.swapaxes(0, 1)).reshape(n, n * k)


def _contribution(rank: int, chunk: int) -> str:
    return f"rank {rank} {chunk_name(kinds.INPUT, chunk)}"
