"""Assemble the tables of a schedule from blocks of threads that look alike.

A block is T threads of L steps each. Every field of a step may be a number, a row (one value a step) or a
column (one value a thread, shape (T, 1)): NumPy broadcasting writes the algorithm out. Dependencies are given
as (thread id, step) of the same rank and become indices into the table once all blocks are known. Where threads of a
block are not equally long, steps of kind `ABSENT` fill up the rows: they count as steps here, and leave no operation.
Who depends on one waits for what its thread has before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import ArrayLike, NDArray

from collemu.schedule import OP, THREAD, Schedule, ScheduleError

#: An operation before the tables are laid out: its dependency is a (thread id, step) pair.
_PLAIN = [(name, OP[name]) for name in OP.names or () if name != "dep"]
STEP = np.dtype([*_PLAIN, ("dep_thread", "<i4"), ("dep_step", "<i4")])

#: Kind of a step that is not there.
ABSENT = 255

Steps = NDArray[Any]
Place = tuple[ArrayLike, ArrayLike]


def steps(
    kind: ArrayLike,
    *,
    src: Place | None = None,
    dst: Place | None = None,
    count: ArrayLike = 1,
    dep: tuple[ArrayLike, ArrayLike] | None = None,
    publish: ArrayLike = kinds.KEEP,
) -> Steps:
    """Steps of a block: all fields broadcast against each other to (threads or 1, steps).

    Parameters
    ----------
    kind, count, publish : array_like of int
        What is done, to how many chunks, and whether the destination is published (`collemu_kernels.kinds`).
    src, dst : (buffer, chunk), optional
        First chunk that is read and written.
    dep : (thread id, step), optional
        The operation of the same rank that must have finished; thread id -1 for none.
    """
    src_buffer, source = src if src is not None else (kinds.INPUT, 0)
    dst_buffer, destination = dst if dst is not None else (kinds.INPUT, 0)
    dep_thread, dep_step = dep if dep is not None else (-1, 0)
    fields = {
        "kind": kind,
        "publish": publish,
        "src_buffer": src_buffer,
        "dst_buffer": dst_buffer,
        "src": source,
        "dst": destination,
        "count": count,
        "dep_thread": dep_thread,
        "dep_step": dep_step,
    }
    shape = np.broadcast_shapes((1, 1), *(np.shape(value) for value in fields.values()))
    block = np.empty(shape, dtype=STEP)
    for name, value in fields.items():
        block[name] = value
    return block


def interleave(*blocks: Steps) -> Steps:
    """First step of every block, then the second of every block, and so on."""
    rows, length = np.broadcast_shapes(*(block.shape for block in blocks))
    same = [np.broadcast_to(block, (rows, length)) for block in blocks]
    return np.stack(same, axis=2).reshape(rows, length * len(blocks))


def one_ahead(first: list[list[Steps]], second: list[list[Steps]]) -> list[Steps]:
    """The first half of every round, and the second after the first of the next: something to do while it waits."""
    program = [*first[0]]
    for begun, left in zip([*first[1:], []], second, strict=True):
        program += [*begun, *left]
    return program


class Assembler:
    """Collects blocks of threads, then lays them out as a schedule."""

    def __init__(self) -> None:
        self._threads: list[NDArray[Any]] = []
        self._steps: list[Steps] = []

    def add(
        self,
        rank: ArrayLike,
        thread: ArrayLike,
        *parts: Steps,
        send_peer: ArrayLike = -1,
        recv_peer: ArrayLike = -1,
        channel: ArrayLike = 0,
    ) -> None:
        """Add threads that have the same number of steps.

        Parameters
        ----------
        rank, thread, send_peer, recv_peer, channel : array_like of int
            One value a thread, broadcast against each other and flattened to T threads; peer -1 is none.
        *parts : Steps
            The steps of each thread, one part after the other; each part has one row, or T.
        """
        most = np.iinfo(THREAD["id"]).max
        if np.max(thread, initial=0) > most or np.max(channel, initial=0) > most:
            raise ScheduleError(f"a rank has threads or channels above number {most}, the largest that a table holds")
        shape = np.broadcast_shapes(*(np.shape(a) for a in (rank, thread, send_peer, recv_peer, channel)))
        table = np.zeros(shape, dtype=THREAD)
        table["rank"], table["id"], table["channel"] = rank, thread, channel
        table["send_peer"], table["recv_peer"] = send_peer, recv_peer
        table = table.reshape(-1)
        rows = len(table)
        if rows == 0:
            return
        body = [np.broadcast_to(part, (rows, part.shape[1])) for part in parts if part.shape[1]]
        block = np.concatenate(body, axis=1) if body else np.empty((rows, 0), dtype=STEP)
        table["length"] = block.shape[1]
        self._threads.append(table)
        self._steps.append(block)

    def schedule(
        self,
        collective: str,
        algorithm: str,
        ranks: int,
        *,
        input_chunks: int,
        output_chunks: int,
        scratch_chunks: int = 0,
        root: int = 0,
        channels: int = 1,
        in_place: bool = False,
    ) -> Schedule:
        """Lay the threads out by (rank, id) and resolve their dependencies.

        Raises
        ------
        ScheduleError
            When two threads of a rank have the same id, or a dependency names no (thread, step).
        """
        threads, ops = _without_absent(*_lay_out(self._threads, self._steps))
        return Schedule(
            collective,
            algorithm,
            ranks,
            root,
            channels,
            threads,
            ops,
            input_chunks,
            output_chunks,
            scratch_chunks,
            in_place,
        )


def _lay_out(tables: list[NDArray[Any]], blocks: list[Steps]) -> tuple[NDArray[Any], NDArray[Any]]:
    threads = np.concatenate(tables) if tables else np.empty(0, dtype=THREAD)
    order = np.lexsort((threads["id"], threads["rank"]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    threads = threads[order]
    threads["first"] = np.cumsum(threads["length"], dtype=np.int64) - threads["length"]
    key = _thread_key(threads["rank"], threads["id"])
    twins = np.flatnonzero(key[1:] == key[:-1])
    if len(twins):
        rank, number = threads[twins[0]][["rank", "id"]]
        raise ScheduleError(f"rank {rank} has two threads with id {number}; give each its own")

    total = int(threads["length"].sum(dtype=np.int64))
    if total > np.iinfo(np.int32).max:
        most = np.iinfo(np.int32).max
        raise ScheduleError(f"the schedule has {total} operations; a table holds at most {most}")
    ops = np.empty(total, dtype=OP)
    begin = 0
    for block in blocks:
        rows, length = block.shape
        mine = place[begin : begin + rows]
        begin += rows
        written = np.empty((rows, length), dtype=OP)
        for name in written.dtype.names or ():
            written[name] = block[name] if name != "dep" else -1
        _resolve_dependencies(written, block, threads, key, mine)
        if len(blocks) == 1 and rows * length == total and bool((np.diff(mine) == 1).all()):
            return threads, written.reshape(-1)
        ops[threads["first"][mine][:, None] + np.arange(length)] = written
    return threads, ops


def _without_absent(threads: NDArray[Any], ops: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    there = ops["kind"] != ABSENT
    if there.all():
        return threads, ops
    before = np.append(0, np.cumsum(there, dtype=np.int64))
    dep = ops["dep"][there].astype(np.int64)
    begin = np.repeat(threads["first"], threads["length"])  # of the thread of every step
    target = np.where(dep < 0, -1, before[dep + 1] - 1)
    if (lost := np.flatnonzero((dep >= 0) & (target < before[begin[dep]]))).size:
        raise ScheduleError(f"operation {lost[0]} depends on an absent step, and its thread has none before")
    ops = ops[there]
    ops["dep"] = target
    first = threads["first"].astype(np.int64)
    threads["length"] = before[first + threads["length"]] - before[first]
    threads["first"] = before[first]
    return threads[threads["length"] > 0], ops


def _thread_key(rank: NDArray[Any], thread: NDArray[Any]) -> NDArray[np.int64]:
    return (rank.astype(np.int64) << 32) + thread


def _resolve_dependencies(
    written: NDArray[Any], block: Steps, threads: NDArray[Any], key: NDArray[np.int64], mine: NDArray[Any]
) -> None:
    row, step = np.nonzero((block["dep_thread"] >= 0) & (block["kind"] != ABSENT))
    if len(row) == 0:
        return
    dependent = block[row, step]
    wanted = _thread_key(threads["rank"][mine[row]], dependent["dep_thread"])
    found = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    target = threads[found]
    outside = (dependent["dep_step"] < 0) | (dependent["dep_step"] >= target["length"])
    wrong = np.flatnonzero((key[found] != wanted) | outside)
    if len(wrong):
        at = wrong[0]
        thread = threads[mine[row[at]]]
        raise ScheduleError(
            f"rank {thread['rank']} thread {thread['id']} step {step[at]} depends on "
            f"thread {dependent['dep_thread'][at]} step {dependent['dep_step'][at]}, which its rank has not"
        )
    written["dep"][row, step] = target["first"] + dependent["dep_step"]
