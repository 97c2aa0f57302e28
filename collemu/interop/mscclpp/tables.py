"""Threads of a schedule that grow an operation at a time, on any rank and in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.interop.mscclpp.plan import Chunks
from collemu.schedule import OP, THREAD

Handle = tuple[int, int]  # an operation: its thread and its place there
NOWHERE = Chunks(0, kinds.INPUT, 0, 0)
_MOST_THREADS = int(np.iinfo(THREAD["id"]).max)
_MOST_OPERATIONS = 2**22


@dataclass
class _Thread:
    rank: int
    send_peer: int
    recv_peer: int
    channel: int
    rows: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    awaited: list[Handle | None] = field(default_factory=list["Handle | None"])
    known: dict[int, int] = field(default_factory=dict[int, int])  # how far other threads are, by what it waited for


class Tables:
    """The tables of a schedule in the making."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._lanes: dict[tuple[int, int], int] = {}  # channels in use from a rank to another
        self._operations = 0

    def thread(self, rank: int) -> int:
        """A new thread for what a rank does by itself."""
        self._threads.append(_Thread(rank, -1, -1, 0))
        return len(self._threads) - 1

    def lane(self, source: int, target: int) -> tuple[int, int]:
        """Two new threads, one that sends and one that receives, with a connection of their own."""
        channel = self._lanes.get((source, target), 0)
        self._lanes[source, target] = channel + 1
        self._threads += [_Thread(source, target, -1, channel), _Thread(target, -1, source, channel)]
        return len(self._threads) - 2, len(self._threads) - 1

    def emit(
        self, thread: int, kind: int, after: Iterable[Handle] = (), src: Chunks = NOWHERE, dst: Chunks = NOWHERE
    ) -> Handle:
        """Append an operation that waits for others of its rank."""
        here = self._threads[thread]
        latest: dict[int, int] = {}
        for other, place in after:
            if other != thread and place > max(here.known.get(other, -1), latest.get(other, -1)):
                latest[other] = place
        here.known |= latest
        *earlier, last = [*latest.items()] or [None]
        for each in earlier:
            self._append(here, (kinds.NOP, kinds.KEEP, 0, 0, 0, 0, 0), each)
        count = max(src.length, dst.length)
        self._append(here, (kind, kinds.KEEP, src.buffer, dst.buffer, src.first, dst.first, count), last)
        return thread, len(here.rows) - 1

    def _append(self, thread: _Thread, row: tuple[int, ...], awaited: Handle | None) -> None:
        thread.rows.append(row)
        thread.awaited.append(awaited)
        self._operations += 1
        if self._operations > _MOST_OPERATIONS:
            raise ValueError(f"plan: more than {_MOST_OPERATIONS:,} operations as a schedule")

    def finish(self) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Threads, operations, and the number of channels."""
        order = sorted(range(len(self._threads)), key=lambda number: self._threads[number].rank)  # stable
        first = np.zeros(len(order) + 1, dtype=np.int64)
        threads = np.zeros(len(order), dtype=THREAD)
        begins = 0
        for number in order:
            first[number] = begins
            begins += len(self._threads[number].rows)
        ops: list[tuple[int, ...]] = []
        rank = identity = -1
        for place, number in enumerate(order):
            thread = self._threads[number]
            identity = identity + 1 if thread.rank == rank else 0
            rank = thread.rank
            if identity > _MOST_THREADS:
                raise ValueError(f"plan: gpu {rank} needs more than {_MOST_THREADS} threads as a schedule")
            threads[place] = (
                rank, thread.send_peer, thread.recv_peer, len(thread.rows), first[number], identity, thread.channel,
            )  # fmt: skip
            for row, awaited in zip(thread.rows, thread.awaited, strict=True):
                ops.append((*row, -1 if awaited is None else int(first[awaited[0]]) + awaited[1]))
        return threads, np.array(ops, dtype=OP), max(self._lanes.values(), default=1)
