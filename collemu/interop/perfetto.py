"""A run as a trace: open it at https://ui.perfetto.dev or in chrome://tracing.

Trace Event JSON: a process is a rank, its threads are the schedule's, a slice is an operation, an arrow is a message
from the operation that sends to the one that receives. A counter shows the wire bytes on their way. Times are rounded
to nanoseconds, so that slices which touch do not overlap.
"""

import json
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from collemu.interop.in_flight import on_their_way
from collemu.schedule import KIND_NAMES
from collemu.timeline import Timeline

FS_PER_NS = 10**6
COUNTER_POINTS = 500


def write_trace(timeline: Timeline, file: TextIO) -> int:
    """Write a timeline as Trace Event JSON.

    Parameters
    ----------
    timeline : Timeline
        Of a `collemu.Result`.
    file : text file

    Returns
    -------
    int
        Number of events.
    """
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    events = 0
    for event in trace_events(timeline):
        file.write(("," if events else "") + json.dumps(event) + "\n")
        events += 1
    file.write("]}\n")
    return events


def trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Events of a trace: names, slices, arrows, counter. Times are in microseconds, as the format has them."""
    operations, messages = timeline.operations, timeline.messages
    start, finish = (_nanoseconds(operations[column]) for column in ("start_fs", "finish_fs"))
    ranks, threads = operations["rank"].tolist(), operations["thread"].tolist()
    fabric = max(ranks, default=-1) + 1
    for rank in sorted(set(ranks)):
        yield _name("process_name", rank, 0, f"rank {rank}")
    for rank, thread in sorted(set(zip(ranks, threads, strict=True))):
        yield _name("thread_name", rank, thread, f"thread {thread}")
    yield _name("process_name", fabric, 0, "fabric")

    columns = ("kind", "step", "nbytes", "received", "sent")
    for place, (kind, step, nbytes, received, sent) in enumerate(
        zip(*(operations[column].tolist() for column in columns), strict=True)
    ):
        details: dict[str, Any] = {"kind": KIND_NAMES[kind], "step": step, "bytes": nbytes}
        if received >= 0:
            details["from rank"] = int(messages["source"][received])
        if sent >= 0:
            details["to rank"] = int(messages["destination"][sent])
        yield {
            "name": KIND_NAMES[kind],
            "cat": "operation",
            "ph": "X",
            "ts": start[place] / 1000,
            "dur": (finish[place] - start[place]) / 1000,
            "pid": ranks[place],
            "tid": threads[place],
            "args": details,
        }
    columns = ("sender", "receiver", "channel", "number", "nbytes")
    for place, (sender, receiver, channel, number, nbytes) in enumerate(
        zip(*(messages[column].tolist() for column in columns), strict=True)
    ):
        details = {"channel": channel, "number": number, "bytes": nbytes}
        for phase, operation in (("s", sender), ("f", receiver)):
            yield {
                "name": "message",
                "cat": "message",
                "ph": phase,
                "id": place,
                "ts": start[operation] / 1000,
                "pid": ranks[operation],
                "tid": threads[operation],
                "args": details,
            } | ({"bp": "e"} if phase == "f" else {})
    yield from _counter(timeline, fabric)


def _counter(timeline: Timeline, pid: int) -> Iterator[dict[str, Any]]:
    """Wire bytes on their way, at equally spaced times."""
    end = int(timeline.messages["visible_fs"].max(initial=0))
    times = -(-np.linspace(0, end, COUNTER_POINTS).astype(np.int64) // FS_PER_NS) * FS_PER_NS
    for time, value in zip(_nanoseconds(times), on_their_way(timeline, times).tolist(), strict=True):
        yield {
            "name": "wire bytes on their way",
            "ph": "C",
            "ts": time / 1000,
            "pid": pid,
            "tid": 0,
            "args": {"bytes": value},
        }


def _nanoseconds(femtoseconds: Any) -> list[int]:
    return ((femtoseconds + FS_PER_NS // 2) // FS_PER_NS).tolist()


def _name(kind: str, rank: int, thread: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": text}}
