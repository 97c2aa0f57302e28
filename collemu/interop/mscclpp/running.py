"""Runs a plan to see what its flags order, and writes that down as sends and receives.

A plan writes to, and reads from, the memory of other GPUs, and flags tell when. So a write becomes a message that a
thread of its own receives at its target, and whoever is told by the flag waits for that; a read becomes a message that
a thread of its own sends at its source. Each pair of a thread block and a peer has its own connection: nothing waits
for a slot that the plan would not wait for. A flag that no data precede is an empty message.

Thread blocks run one after the other, each as far as it can. Which order is found does not matter where a plan is
right; where it is not, `verify` says so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from typing import Any

from collemu_kernels import kinds

from collemu.interop.mscclpp import plan
from collemu.interop.mscclpp.plan import Chunks, Gpu, Op
from collemu.interop.mscclpp.tables import NOWHERE, Handle, Tables
from collemu.schedule import ScheduleError

_MOST_WORK = 2**22  # of what thread blocks know of each other, as it is handed on

Seen = dict[int, tuple[int, tuple[Handle, ...]]]  # how far each thread block was, and its last operations
_Mail = tuple[tuple[Handle, ...], Seen]  # what to wait for, and what the sender knew


class _Block:
    """A thread block: how far it is, and what its next operation waits for."""

    def __init__(self, number: int, gpu: int, ops: list[Op]) -> None:
        self.number, self.gpu, self.ops, self.at = number, gpu, ops, 0
        self.after: list[Handle] = []
        self.before: list[Handle] | None = None  # what the messages of a run wait for, which do not wait for each other
        self.seen: Seen = {}
        self.landed: dict[int, dict[int, Handle]] = {}  # by peer and connection: what it wrote there last
        self.fresh: set[int] = set()  # peers that data alone tell how far it is
        self.main = -1
        self.lanes: dict[tuple[str, int], tuple[int, int]] = {}
        self.trace: dict[int, tuple[Handle, ...]] = {}
        self.met: Hashable = None  # the barrier that it has come to


class Running:
    """A plan and how far it has run."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.tables = Tables()
        self._blocks: list[_Block] = []
        self._of_gpu: list[list[_Block]] = []
        for gpu in gpus:
            blocks = [_Block(len(self._blocks) + n, gpu.rank, ops) for n, ops in enumerate(gpu.blocks)]
            self._blocks += blocks
            self._of_gpu.append(blocks)
        self._mail: dict[Hashable, deque[_Mail]] = {}
        self._free: dict[Hashable, int] = {}  # what semaphores have from the beginning
        for gpu in gpus:
            for number, value in enumerate(gpu.semaphores):
                self._free["semaphore", gpu.rank, number] = value
        self._packets: dict[tuple[int, int, int], tuple[Handle, Seen]] = {}  # by rank, buffer and chunk
        self._barriers: dict[Hashable, list[_Block]] = {}
        self._asleep: dict[Hashable, list[_Block]] = {}
        self._ready: deque[_Block] = deque(self._blocks)
        self._traced = any(op.steps for block in self._blocks for op in block.ops)
        self._work = 0

    def run(self) -> Tables:
        """Run all of it.

        Raises
        ------
        ScheduleError
            If thread blocks wait for ever; the text names the first.
        """
        while self._ready:
            block = self._ready.popleft()
            while block.at < len(block.ops):
                op = block.ops[block.at]
                awaited = self._step(block, op)
                if awaited is not None:
                    self._asleep.setdefault(awaited, []).append(block)
                    break
                if self._traced:
                    block.trace[op.step] = tuple(block.after)
                block.at += 1
                if self._traced:
                    self._wake(("step", block.number))
        for block in self._blocks:
            if block.at < len(block.ops):
                raise ScheduleError(f"{block.ops[block.at].place} waits for ever: {_missing(block.ops[block.at])}")
        return self.tables

    def _wake(self, key: Hashable) -> None:
        self._ready += self._asleep.pop(key, ())

    def _step(self, block: _Block, op: Op) -> Hashable:
        """Do an operation; or say what it has to wait for first."""
        match op.verb:
            case plan.SIGNAL:
                for peer, mailbox in op.signals:
                    self._signal(block, op, peer, mailbox)
            case plan.WAIT:
                return self._take(block, op.keys)
            case plan.ACQUIRE:
                return self._take(block, [("semaphore", block.gpu, key) for key in op.keys])
            case plan.RELEASE:
                for key in op.keys:
                    self._post(("semaphore", block.gpu, key), tuple(block.after), block)
            case plan.BARRIER:
                return self._barrier(block, op)
            case plan.AFTER:
                return self._after(block, op)
            case plan.SWITCH_SUM | plan.SWITCH_STORE:
                self._switch(block, op)
            case _:
                flagged = op.reads[op.packets_read :]
                if any(read.rank != block.gpu for read in flagged):
                    raise ValueError(f"{op.place}: it reads packets of another gpu; packets are read where they arrive")
                packets = [cell for read in flagged for cell in self._cells(read)]
                if (missing := next((cell for cell in packets if cell not in self._packets), None)) is not None:
                    return ("packet", missing)
                for handle, seen in {self._packets[cell][0]: self._packets[cell][1] for cell in packets}.items():
                    block.after.append(handle)
                    self._learn(block, seen)
                (self._move if op.verb == plan.MOVE else self._sum)(block, op)
        return None

    # What thread blocks tell each other.

    def _snapshot(self, block: _Block) -> Seen:
        self._spend(len(block.seen) + 1)
        return block.seen | {block.number: (block.at, tuple(block.after))}

    def _learn(self, block: _Block, seen: Seen) -> None:
        self._spend(len(seen))
        for number, news in seen.items():
            if number != block.number and block.seen.get(number, (-1,))[0] < news[0]:
                block.seen[number] = news
        self._pause(block)

    def _pause(self, block: _Block) -> None:
        """What follows is later than all that was sent so far."""
        block.fresh.clear()
        block.before = None

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > _MOST_WORK:
            raise ValueError("plan: too many thread blocks tell each other too much; give a smaller plan")

    def _post(self, key: Hashable, handles: tuple[Handle, ...], block: _Block) -> None:
        self._spend(len(handles))
        self._mail.setdefault(key, deque()).append((handles, self._snapshot(block)))
        self._wake(key)

    def _take(self, block: _Block, keys: Iterable[Hashable]) -> Hashable:
        keys = list(keys)
        self._spend(len(keys))
        for key, count in Counter(keys).items():
            if self._free.get(key, 0) + len(self._mail.get(key, ())) < count:
                return key
        for key in keys:
            if self._free.get(key, 0):
                self._free[key] -= 1
                continue
            handles, seen = self._mail[key].popleft()
            block.after += handles
            self._learn(block, seen)
        return None

    def _signal(self, block: _Block, op: Op, peer: int, mailbox: Hashable) -> None:
        if mailbox is None:
            raise ValueError(f"{op.place}: gpu {peer} has no channel back to gpu {block.gpu} whose wait could see it")
        landed = block.landed.setdefault(peer, {})
        if peer not in block.fresh:
            receive = self._send(block, peer)
            landed[receive] = self.tables.emit(receive, kinds.RECV)
        block.fresh.discard(peer)
        self._post(mailbox, tuple(landed.values()), block)

    def _barrier(self, block: _Block, op: Op) -> Hashable:
        if op.blocks < 2:
            return None
        key = ("barrier", block.gpu, op.keys[0])
        if block.met == key:  # all others have come, and went on
            block.met = None
            return None
        here = self._barriers.setdefault(key, [])
        here.append(block)
        block.met = key
        if len(here) < op.blocks:
            return key
        after = [handle for each in here for handle in each.after]
        joined = [self.tables.emit(self._main(block), kinds.NOP, after)] if after else []
        together = [self._snapshot(each) for each in here]
        landed = [each.landed for each in here]
        union: dict[int, dict[int, Handle]] = {}
        for peers in landed:
            for peer, lanes in peers.items():
                union.setdefault(peer, {}).update(lanes)
        for each in here:
            for seen in together:
                self._learn(each, seen)
            each.after = list(joined)
            each.landed = {peer: dict(lanes) for peer, lanes in union.items()}
            self._spend(sum(map(len, union.values())))
        block.met = None
        self._barriers[key] = []
        self._wake(key)
        return None

    def _after(self, block: _Block, op: Op) -> Hashable:
        others = self._of_gpu[block.gpu]
        for number, step in op.steps:
            if number >= len(others) or not others[number].ops or step > others[number].ops[-1].step:
                raise ValueError(f"{op.place}: it waits for step {step} of threadblock {number}, which is not there")
            other = others[number]
            if other is not block and other.at < len(other.ops) and other.ops[other.at].step <= step:
                return ("step", other.number)
        for number, step in op.steps:
            if (other := others[number]) is not block:
                block.after += other.trace.get(step, ())
                self._learn(block, self._snapshot(other))
        return None

    # What they do to memory.

    def _main(self, block: _Block) -> int:
        if block.main < 0:
            block.main = self.tables.thread(block.gpu)
        return block.main

    def _lane(self, block: _Block, use: str, source: int, target: int) -> tuple[int, int]:
        key = (use, target if source == block.gpu else source)
        if key not in block.lanes:
            block.lanes[key] = self.tables.lane(source, target)
        return block.lanes[key]

    def _known_of(self, block: _Block, rank: int) -> list[Handle]:
        """The last operations of a rank that came before, as a thread block knows."""
        self._spend(len(block.seen))
        return [
            handle
            for number, (_, handles) in block.seen.items()
            if self._blocks[number].gpu == rank
            for handle in handles
        ]

    def _locally(self, block: _Block, kind: int, src: Chunks, dst: Chunks) -> None:
        block.after = [self.tables.emit(self._main(block), kind, block.after, src, dst)]
        self._pause(block)

    def _send(self, block: _Block, peer: int, src: Chunks = NOWHERE) -> int:
        """Send a message, empty or not; say which thread is to receive it."""
        send, receive = self._lane(block, "write", block.gpu, peer)
        if block.before is None:
            block.before, block.after = block.after, []
        block.after.append(self.tables.emit(send, kinds.SEND, block.before, src))
        return receive

    def _write(self, block: _Block, src: Chunks, dst: Chunks) -> Handle:
        receive = self._send(block, dst.rank, src)
        handle = self.tables.emit(receive, kinds.RECV, self._known_of(block, dst.rank), dst=dst)
        block.landed.setdefault(dst.rank, {})[receive] = handle
        block.fresh.add(dst.rank)
        return handle

    def _read(self, block: _Block, kind: int, there: Chunks, dst: Chunks, src: Chunks | None = None) -> None:
        send, receive = self._lane(block, "read", there.rank, block.gpu)
        self.tables.emit(send, kinds.SEND, self._known_of(block, there.rank), there)
        more: dict[str, Any] = {} if src is None else {"src": src}
        block.after = [self.tables.emit(receive, kind, block.after, dst=dst, **more)]
        self._pause(block)

    def _cells(self, chunks: Chunks) -> list[tuple[int, int, int]]:
        self._spend(chunks.length)
        return [(chunks.rank, chunks.buffer, chunks.first + each) for each in range(chunks.length)]

    def _put(self, block: _Block, op: Op, number: int, src: Chunks, dst: Chunks) -> None:
        """Let a write have what a read, or the first write, of this GPU has."""
        if dst.rank != block.gpu:
            handle = self._write(block, src, dst)
        elif src != dst:
            self._locally(block, kinds.COPY, src, dst)
            handle = block.after[0]
        else:
            return
        if number >= op.packets_written:
            seen = self._snapshot(block)
            for cell in self._cells(dst):
                self._packets[cell] = handle, seen
                self._wake(("packet", cell))

    def _move(self, block: _Block, op: Op) -> None:
        reads = op.reads * len(op.writes) if len(op.reads) == 1 else op.reads
        if len(reads) != len(op.writes) or not reads:
            raise ValueError(
                f"{op.place}: {len(op.reads)} sources and {len(op.writes)} destinations; give each its own"
            )
        for number, (src, dst) in enumerate(zip(reads, op.writes, strict=True)):
            _refuse_other_count(op, src, dst)
            if src.rank == block.gpu:
                self._put(block, op, number, src, dst)
            elif dst.rank == block.gpu:
                self._read(block, kinds.RECV, src, dst)
            else:
                raise ValueError(f"{op.place}: from another gpu to another; one of them must be gpu {block.gpu}")

    def _sum(self, block: _Block, op: Op) -> None:
        if not op.reads or not op.writes or op.writes[0].rank != block.gpu:
            raise ValueError(f"{op.place}: it needs sources, and a first destination of gpu {block.gpu} itself")
        target = op.writes[0]
        reads = list(op.reads)
        for each in (*reads, *op.writes):
            _refuse_other_count(op, each, target)
        if target in reads:  # it is added to
            reads.remove(target)
        else:
            local = next((each for each in reads if each.rank == block.gpu), None)
            remote = next((each for each in reads if each.rank != block.gpu), None)
            if local is None and remote is not None:
                reads.remove(remote)
                self._read(block, kinds.RECV, remote, target)
            elif local is not None and remote is not None:
                reads.remove(local)
                reads.remove(remote)
                self._read(block, kinds.RECV_REDUCE_COPY, remote, target, local)
            elif local is not None:
                reads.remove(local)
                self._locally(block, kinds.COPY, local, target)
        for each in reads:
            if each.rank == block.gpu and _overlap(each, target):
                raise ValueError(f"{op.place}: a source and the first destination share some of their chunks, not all")
        for each in reads:
            if each.rank == block.gpu:
                self._locally(block, kinds.REDUCE, each, target)
            else:
                self._read(block, kinds.RECV_REDUCE, each, target)
        for number, write in enumerate(op.writes[1:], start=1):
            self._put(block, op, number, target, write)

    def _switch(self, block: _Block, op: Op) -> None:
        if len(op.reads) != 1 or len(op.writes) != 1:
            raise ValueError(f"{op.place}: it needs one source and one destination")
        src, dst = op.reads[0], op.writes[0]
        _refuse_other_count(op, src, dst)
        if op.verb == plan.SWITCH_SUM:
            self._locally(block, kinds.MULTIMEM_REDUCE, src, dst)
            src = dst
        self._locally(block, kinds.MULTIMEM_STORE, src, dst)


def _overlap(one: Chunks, other: Chunks) -> bool:
    return one[:2] == other[:2] and one.first < other.first + other.length and other.first < one.first + one.length


def _refuse_other_count(op: Op, src: Chunks, dst: Chunks) -> None:
    if src.length != dst.length:
        raise ValueError(f"{op.place}: sources and destinations are of different sizes")


def _missing(op: Op) -> str:
    return {
        plan.WAIT: "nobody signals a channel of it, or not often enough",
        plan.ACQUIRE: "nobody releases its semaphore, or not often enough",
        plan.BARRIER: f"not all of {op.blocks} threadblocks come to its barrier",
        plan.AFTER: "a step that it depends on is never done",
    }.get(op.verb, "nobody puts the packets that it reads")
