"""A slow, plain interpreter of schedules: real numbers, real queues, any legal interleaving.

It shares nothing with the package but the tables and the numbers of the kinds. One operation at a time runs
to its end; which of those that could run is the business of a ``choose`` function.
"""

from collections import deque
from collections.abc import Callable
from random import Random

import numpy as np
from collemu_kernels import kinds

Choose = Callable[[list[int]], int]

READS = {  # kind -> operands, of source S, destination D, incoming message I, sources of the whole group G
    kinds.NOP: "",
    kinds.SEND: "S",
    kinds.RECV: "I",
    kinds.COPY: "S",
    kinds.REDUCE: "DS",
    kinds.RECV_COPY_SEND: "I",
    kinds.RECV_REDUCE: "DI",
    kinds.RECV_REDUCE_SEND: "SI",
    kinds.RECV_REDUCE_COPY: "SI",
    kinds.RECV_REDUCE_COPY_SEND: "SI",
    kinds.MULTIMEM_REDUCE: "G",
    kinds.MULTIMEM_STORE: "S",
}
WRITES = {  # kind -> results, of destination D, outgoing message O, destinations of the whole group A
    kinds.NOP: "",
    kinds.SEND: "O",
    kinds.RECV: "D",
    kinds.COPY: "D",
    kinds.REDUCE: "D",
    kinds.RECV_COPY_SEND: "DO",
    kinds.RECV_REDUCE: "D",
    kinds.RECV_REDUCE_SEND: "O",
    kinds.RECV_REDUCE_COPY: "D",
    kinds.RECV_REDUCE_COPY_SEND: "DO",
    kinds.MULTIMEM_REDUCE: "D",
    kinds.MULTIMEM_STORE: "A",
}


class StuckError(Exception):
    """Nothing can run any more, and not all has run."""


class NonsenseError(Exception):
    """A chunk is read that was never written, pieces of different lengths meet, or a rank's memory is not there."""


def any_order(random: Random) -> Choose:
    """Each time any of the threads that can run."""
    return random.choice


def by_priority(random: Random, threads: int, changes: int = 3) -> Choose:
    """Always the most urgent thread; now and then the one that ran last becomes the least urgent."""
    urgency = [random.random() for _ in range(threads)]
    switch = {random.randrange(1, 40) for _ in range(changes)}
    step = 0

    def choose(ready: list[int]) -> int:
        nonlocal step
        step += 1
        thread = max(ready, key=lambda t: urgency[t])
        if step in switch:
            urgency[thread] = -step
        return thread

    return choose


def interpret(schedule, data: np.ndarray, count: int, choose: Choose, slots: int = 2) -> list[np.ndarray]:
    """Run a schedule.

    ``data`` is (ranks, elements of an input), int64 or float64 or object; ``count`` the elements of a region.
    Returns the outputs of all ranks; what was never written there is poison.
    """
    memory = [_Memory(schedule, rank, data[rank], count) for rank in range(schedule.ranks)]
    threads = [dict(zip(schedule.threads.dtype.names, row, strict=True)) for row in schedule.threads.tolist()]
    ops = [dict(zip(schedule.ops.dtype.names, row, strict=True)) for row in schedule.ops.tolist()]
    queues: dict[tuple[int, int, int], deque] = {}
    cursor = [thread["first"] for thread in threads]
    finished = [False] * len(ops)
    ops_of = [
        [op for thread in threads if thread["rank"] == rank for op in range(thread["first"], _end(thread))]
        for rank in range(schedule.ranks)
    ]

    def group(rank: int) -> list[_Memory]:
        """Memory of all ranks of a switch group, which must be at work, for only then is it there."""
        size = schedule.group_ranks or schedule.ranks
        members = [other for other in range(schedule.ranks) if other // size == rank // size]
        for other in members:
            if other != rank and len({finished[op] for op in ops_of[other]}) < 2:
                raise NonsenseError(f"memory of rank {other} is touched before its first or after its last operation")
        return [memory[other] for other in members]

    def ready(number: int) -> bool:
        thread = threads[number]
        if cursor[number] == _end(thread):
            return False
        op = ops[cursor[number]]
        if op["dep"] >= 0 and not finished[op["dep"]]:
            return False
        if "I" in READS[op["kind"]] and not queues.get(_in(thread)):
            return False
        return "O" not in WRITES[op["kind"]] or len(queues.get(_out(thread), ())) < slots

    while not all(finished):
        runnable = [number for number in range(len(threads)) if ready(number)]
        if not runnable:
            raise StuckError
        number = choose(runnable)
        thread, op = threads[number], ops[cursor[number]]
        here = memory[thread["rank"]]
        operands = []
        for what in READS[op["kind"]]:
            if what == "I":
                operands.append(queues[_in(thread)].popleft())
            elif what == "S":
                operands.append(here.load(op["src_buffer"], op["src"], op["count"]))
            elif what == "G":
                operands += [each.load(op["src_buffer"], op["src"], op["count"]) for each in group(thread["rank"])]
            else:
                operands.append(here.load(op["dst_buffer"], op["dst"], op["count"]))
        value = _add(operands)
        if "D" in WRITES[op["kind"]]:
            here.store(op["dst_buffer"], op["dst"], value)
        if "A" in WRITES[op["kind"]]:
            for each in group(thread["rank"]):
                each.store(op["dst_buffer"], op["dst"], value)
        if "O" in WRITES[op["kind"]]:
            queues.setdefault(_out(thread), deque()).append(value)
        finished[cursor[number]] = True
        cursor[number] += 1
    if any(queues.values()):
        raise NonsenseError("messages are left over")
    return [each.output for each in memory]


def _end(thread: dict) -> int:
    return thread["first"] + thread["length"]


def _in(thread: dict) -> tuple[int, int, int]:
    return thread["recv_peer"], thread["rank"], thread["channel"]


def _out(thread: dict) -> tuple[int, int, int]:
    return thread["rank"], thread["send_peer"], thread["channel"]


def _add(operands: list[list[np.ndarray]]) -> list[np.ndarray]:
    total = operands[0] if operands else []
    for operand in operands[1:]:
        if [len(chunk) for chunk in operand] != [len(chunk) for chunk in total]:
            raise NonsenseError("chunks of different lengths are added")
        total = [a + b for a, b in zip(total, operand, strict=True)]
    return total


class _Memory:
    """Buffers of one rank, chunk by chunk; in place, input and output are views of one array."""

    def __init__(self, schedule, rank: int, data: np.ndarray, count: int) -> None:
        wide_input = schedule.collective in ("reduce_scatter", "alltoall", "scatter")
        wide_output = schedule.collective in ("all_gather", "alltoall", "gather")
        regions = schedule.ranks if wide_input else 1
        k = schedule.input_chunks // regions
        output_regions = schedule.ranks if wide_output else 1
        mine = slice(rank * count, (rank + 1) * count)
        source = data.copy()
        poison = np.full(output_regions * count, -(10**9) - rank, dtype=data.dtype)
        if not schedule.in_place:
            self.output = poison
        elif wide_output and not wide_input:
            self.output = poison
            self.output[mine] = source
            source = self.output[mine]
        elif wide_input and not wide_output:
            self.output = source[mine]
        else:
            self.output = source
        self._chunks = {
            kinds.INPUT: _cut(source, regions, count, k),
            kinds.OUTPUT: _cut(self.output, output_regions, count, k),
        }
        self._scratch: list[np.ndarray | None] = [None] * schedule.scratch_chunks

    def load(self, buffer: int, first: int, count: int) -> list[np.ndarray]:
        chunks = self._scratch if buffer == kinds.SCRATCH else self._chunks[buffer]
        found = chunks[first : first + count]
        if len(found) < count or any(chunk is None for chunk in found):
            raise NonsenseError("a chunk is read that is not there")
        return [chunk.copy() for chunk in found]

    def store(self, buffer: int, first: int, value: list[np.ndarray]) -> None:
        for chunk, piece in enumerate(value, start=first):
            if buffer == kinds.SCRATCH:
                self._scratch[chunk] = piece.copy()
            elif len(self._chunks[buffer][chunk]) != len(piece):
                raise NonsenseError("a chunk is stored where another length belongs")
            else:
                self._chunks[buffer][chunk][:] = piece


def _cut(array: np.ndarray, regions: int, count: int, k: int) -> list[np.ndarray]:
    pieces = []
    for region in range(regions):
        begin = region * count
        for chunk in range(k):
            end = begin + count // k + (chunk < count % k)
            pieces.append(array[begin:end])
            begin = end
    return pieces
