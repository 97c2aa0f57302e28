"""Rules that every thread and every operation of a schedule must keep on its own."""

from __future__ import annotations

import numpy as np
from collemu_kernels import kinds

from collemu.schedule import READS_SRC, RECEIVES, SENDS, WRITES_DST, Schedule, ScheduleError


def check_structure(schedule: Schedule) -> None:
    """Raise ScheduleError for chunks, peers, dependencies and kinds that cannot be."""
    _check_geometry(schedule)
    threads, ops, ranks = schedule.threads, schedule.ops, schedule.ranks
    length = threads["length"].astype(np.int64)
    rank = threads["rank"]
    for bad, problem in (
        ((rank < 0) | (rank >= ranks), f"is not on one of the {ranks} ranks"),
        (threads["first"] != np.cumsum(length) - length, "does not begin where the thread before it ends"),
        (threads["send_peer"] >= ranks, f"sends to a rank that is not one of the {ranks}"),
        (threads["recv_peer"] >= ranks, f"receives from a rank that is not one of the {ranks}"),
        (threads["send_peer"] == rank, "sends to its own rank"),
        (threads["recv_peer"] == rank, "receives from its own rank"),
        (threads["channel"] < 0, "has a negative channel"),
    ):
        if (at := np.flatnonzero(bad)).size:
            thread = threads[at[0]]
            raise ScheduleError(f"rank {thread['rank']} thread {thread['id']} {problem}")

    kind, count = ops["kind"], ops["count"].astype(np.int64)
    dep, index = ops["dep"].astype(np.int64), np.arange(len(ops))
    of = schedule.thread_of_op
    safe_dep = np.clip(dep, 0, max(len(ops) - 1, 0))
    checks = [
        (kind > kinds.MULTIMEM_STORE, "is of no kind that there is"),
        (SENDS[kind] & (threads["send_peer"][of] < 0), "sends, but its thread has no send peer"),
        (
            RECEIVES[kind] & (threads["recv_peer"][of] < 0),
            "receives, but its thread has no recv peer",
        ),
        (count < 0, "moves less than no chunk"),
        (
            (count < 1) & (kind != kinds.NOP) & (kind != kinds.SEND) & (kind != kinds.RECV),
            "moves no chunk; only a plain send or recv may, as a signal",
        ),
        ((dep < -1) | (dep >= len(ops)), "depends on an operation that does not exist"),
        ((dep >= 0) & (rank[of[safe_dep]] != rank[of]), "depends on an operation of another rank"),
        (
            (dep >= index) & (of[safe_dep] == of),
            "depends on itself or on a later step of its own thread",
        ),
    ]
    sizes = np.array([schedule.buffer_chunks(buffer) for buffer in range(3)] + [0] * 253)
    for side, used in (("src", READS_SRC[kind]), ("dst", WRITES_DST[kind])):
        begin = ops[side].astype(np.int64)
        size = sizes[ops[f"{side}_buffer"]]
        outside = used & ((begin < 0) | (begin + count > size))
        checks.append((outside, "reaches beyond the chunks of its buffer"))
    for bad, problem in checks:
        if (at := np.flatnonzero(bad)).size:
            raise ScheduleError(f"{schedule.describe(int(at[0]))} {problem}")


def _check_geometry(schedule: Schedule) -> None:
    if schedule.group_ranks < 0:
        raise ScheduleError(
            f"group_ranks is {schedule.group_ranks}; a switch group is 1 rank or more, and 0 puts all ranks into one"
        )
    if (schedule.counts is None) == (schedule.collective == "alltoallv"):
        raise ScheduleError(
            f"{schedule.collective} of {schedule.ranks} ranks "
            + ("lacks counts" if schedule.counts is None else "has counts, which only an alltoallv takes")
        )
    if schedule.counts is not None and schedule.counts.shape != (schedule.ranks, schedule.ranks):
        raise ScheduleError(
            f"counts have shape {schedule.counts.shape}; they must be {schedule.ranks} rows and columns"
        )
    given = (schedule.input_chunks, schedule.output_chunks)
    k = schedule.region_chunks
    wanted = (k * schedule.input_regions, k * schedule.output_regions)
    if k < 1 or given != wanted:
        raise ScheduleError(
            f"{schedule.collective} of {schedule.ranks} ranks has {given[0]} input and {given[1]} output "
            f"chunks; they must be {schedule.input_regions} and {schedule.output_regions} times one number"
        )
