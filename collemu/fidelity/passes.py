"""What NCCL's threads do in one pass where a schedule has two operations: schedules for times alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.schedule import SENDS, Schedule


def in_one_pass(schedule: Schedule) -> Schedule:
    """Rings of a gather whose ranks copy and send their own share in one pass, which costs as much as in place."""
    ops = schedule.ops.copy()
    ops["kind"][ops["kind"] == kinds.COPY] = kinds.NOP
    return replace(schedule, ops=ops, in_place=True)


def both_ways(schedule: Schedule) -> Schedule:
    """A schedule whose threads send and receive at once: warps of their own do one and the other.

    Raises
    ------
    ValueError
        If operations depend on each other, or do both at once.
    """
    threads, ops = schedule.threads, schedule.ops
    sends = SENDS[ops["kind"]]
    if (ops["dep"] >= 0).any() or (sends & (ops["kind"] != kinds.SEND)).any():
        raise ValueError(f"the threads of {schedule.algorithm} cannot be split: an operation needs another")
    thread = np.repeat(np.arange(len(threads)), threads["length"])
    two = (threads["send_peer"] >= 0) & (threads["recv_peer"] >= 0)
    part = 2 * thread + (two[thread] & ~sends)
    order = np.argsort(part, kind="stable")
    parts, length = np.unique(part, return_counts=True)
    split = threads[parts // 2].copy()
    split["length"], split["first"] = length, np.cumsum(length) - length
    split["recv_peer"][two[parts // 2] & (parts % 2 == 0)] = -1
    split["send_peer"][parts % 2 == 1] = -1
    split["id"] = np.arange(len(split)) - np.searchsorted(split["rank"], split["rank"])
    return replace(schedule, threads=split, ops=ops[order])


def along(schedule: Schedule, orders: Sequence[Sequence[int]]) -> Schedule:
    """Rings of a schedule through other links: in channel c, place p is rank ``orders[c % len(orders)][p]``.

    Raises
    ------
    ValueError
        If operations depend on each other, or an order is no order of the ranks.
    """
    threads, ops = schedule.threads, schedule.ops
    table = np.array(orders)
    if (ops["dep"] >= 0).any() or not (np.sort(table, axis=1) == np.arange(schedule.ranks)).all():
        raise ValueError(f"the rings of {schedule.algorithm} cannot be laid through {len(orders)} orders of ranks")
    rank_at = table[threads["channel"] % len(table)]
    moved = threads.copy()
    for end in ("rank", "send_peer", "recv_peer"):
        moved[end] = np.where(threads[end] < 0, -1, rank_at[np.arange(len(threads)), threads[end]])
    order = np.lexsort((moved["id"], moved["rank"]))
    moved = moved[order]
    length = moved["length"].astype(np.int64)
    source = np.repeat(moved["first"] - (np.cumsum(length) - length), length) + np.arange(len(ops))
    moved["first"] = np.cumsum(length) - length
    placed = ops[source]
    of_op = np.repeat(rank_at[order], length, axis=0)
    pieces = schedule.region_chunks
    for side, buffer, regions in (
        ("src", kinds.INPUT, schedule.input_regions),
        ("dst", kinds.OUTPUT, schedule.output_regions),
        ("src", kinds.OUTPUT, schedule.output_regions),
    ):
        if regions > 1:
            block = of_op[np.arange(len(placed)), np.clip(placed[side] // pieces, 0, regions - 1)]
            here = placed[f"{side}_buffer"] == buffer
            placed[side] = np.where(here, block * pieces + placed[side] % pieces, placed[side])
    return replace(schedule, threads=moved, ops=placed)
