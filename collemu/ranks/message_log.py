"""What a process saw of its messages and of what it had switches do, and whether the emulator saw the same."""

from typing import Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.schedule import IN_SWITCH, Schedule
from collemu.timeline import Timeline

RECEIVED = 0
SENT = 1
READ = 2
WRITE = 3

#: One message at one of its ends: ``peer`` is the other end, ``number`` counts the messages of a connection from 0,
#: ``operation`` is the one that received or sent it. Or what an in-switch operation reads or writes, if anything, of
#: the memory of rank ``peer``: channel and number are 0. A log is in the order in which operations ran.
ENTRY = np.dtype(
    [
        ("direction", "<i4"),
        ("peer", "<i4"),
        ("channel", "<i4"),
        ("number", "<i4"),
        ("nbytes", "<i8"),
        ("operation", "<i8"),
    ]
)

Log = NDArray[Any]


def emulated_log(timeline: Timeline, rank: int, schedule: Schedule) -> Log:
    """The log of a rank as the emulator ran it, in order of emulated time."""
    parts = [_emulated_accesses(timeline, rank, schedule)]
    for direction, own, peer, operation in (
        (RECEIVED, "destination", "source", "receiver"),
        (SENT, "source", "destination", "sender"),
    ):
        messages = timeline.messages[timeline.messages[own] == rank]
        part = np.zeros(len(messages), ENTRY)
        part["direction"], part["peer"], part["operation"] = direction, messages[peer], messages[operation]
        for column in ("channel", "number", "nbytes"):
            part[column] = messages[column]
        parts.append(part)
    log = np.concatenate(parts)
    finish = timeline.operations["finish_fs"][log["operation"]]
    return log[np.lexsort((log["direction"], log["operation"], finish))]


def _emulated_accesses(timeline: Timeline, rank: int, schedule: Schedule) -> Log:
    operations, members = timeline.operations, schedule.group_of(rank)
    mine = np.flatnonzero((operations["rank"] == rank) & IN_SWITCH[operations["kind"]] & (operations["nbytes"] > 0))
    part = np.zeros((len(mine), len(members)), ENTRY)
    reads = operations["kind"][mine] == kinds.MULTIMEM_REDUCE
    part["direction"] = np.where(reads, READ, WRITE)[:, None]
    part["peer"] = members
    part["nbytes"] = operations["nbytes"][mine][:, None]
    part["operation"] = mine[:, None]
    return part.reshape(-1)


def first_difference(expected: Log, seen: Log, schedule: Schedule) -> str | None:
    """Say where two logs of a rank part, or None.

    Which of two unrelated messages comes first is a matter of time, and differs. What the schedule fixes must be
    the same: on each connection every message, in order, with its bytes; and in each thread the order of its
    messages and accesses.
    """
    for lane, keys, directions in (
        ("connection", ("direction", "peer", "channel"), (RECEIVED, SENT)),
        ("thread", ("thread",), (RECEIVED, SENT, READ, WRITE)),
    ):
        wanted, had = (
            _in_lanes(log[np.isin(log["direction"], directions)], keys, schedule) for log in (expected, seen)
        )
        common = min(len(wanted), len(had))
        different = np.flatnonzero(wanted[:common] != had[:common])
        place = int(different[0]) if len(different) else common
        if place < max(len(wanted), len(had)):
            expects, got = _describe(wanted, place, schedule), _describe(had, place, schedule)
            return f"{lane} order: expected {expects}, got {got}"
    return None


def _in_lanes(log: Log, keys: tuple[str, ...], schedule: Schedule) -> Log:
    columns = [schedule.thread_of_op[log["operation"]] if key == "thread" else log[key] for key in keys]
    return log[np.lexsort(columns[::-1])]  # stable: within a lane the order stays


def _describe(log: Log, place: int, schedule: Schedule) -> str:
    if place >= len(log):
        return "nothing"
    entry = log[place]
    direction, where = entry["direction"], schedule.where(int(entry["operation"]))
    if direction in (READ, WRITE):
        deed = "read" if direction == READ else "write"
        return f"{deed} of {entry['nbytes']} bytes of rank {entry['peer']} at {where}"
    deed = "to" if direction == SENT else "from"
    return (
        f"message {entry['number']} {deed} rank {entry['peer']} on channel {entry['channel']} "
        f"with {entry['nbytes']} bytes at {where}"
    )
