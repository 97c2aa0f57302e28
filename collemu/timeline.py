"""What happened when: operations and messages of a run, as tables."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.lower import Lowered
from collemu.timing import Timing

OPERATION = np.dtype(
    [
        ("rank", "<i4"),
        ("thread", "<i4"),
        ("step", "<i4"),
        ("kind", "u1"),
        ("start_fs", "<i8"),
        ("finish_fs", "<i8"),
        ("nbytes", "<i8"),
        ("received", "<i4"),
        ("sent", "<i4"),
    ]
)
MESSAGE = np.dtype(
    [
        ("source", "<i4"),
        ("destination", "<i4"),
        ("channel", "<i4"),
        ("number", "<i4"),
        ("nbytes", "<i8"),
        ("ready_fs", "<i8"),
        ("visible_fs", "<i8"),
        ("sender", "<i4"),
        ("receiver", "<i4"),
    ]
)


@dataclass(frozen=True)
class Timeline:
    """Operations and messages of a run with their times.

    Attributes
    ----------
    operations : structured array of OPERATION
        In (rank, thread, step) order; ``received`` and ``sent`` index ``messages``, or are -1.
    messages : structured array of MESSAGE
        By connection; ``sender`` and ``receiver`` index ``operations``. A message is ready when its chip may send its
        packets, and visible when its receiver may read it.
    """

    operations: NDArray[Any]
    messages: NDArray[Any]


def timeline_of(lowered: Lowered, timing: Timing) -> Timeline:
    """Put the times of a run beside what ran."""
    schedule = lowered.schedule
    operations = np.zeros(len(schedule.ops), OPERATION)
    thread = schedule.threads[schedule.thread_of_op]
    operations["rank"] = thread["rank"]
    operations["thread"] = thread["id"]
    operations["step"] = np.arange(len(operations)) - thread["first"]
    operations["kind"] = schedule.ops["kind"]
    operations["start_fs"], operations["finish_fs"] = timing.start, timing.finish
    operations["nbytes"] = lowered.nbytes
    operations["received"], operations["sent"] = lowered.received, lowered.sent
    messages = np.zeros(len(lowered.messages), MESSAGE)
    for column in ("source", "destination", "channel", "number", "nbytes", "sender", "receiver"):
        messages[column] = getattr(lowered.messages, column)
    messages["ready_fs"], messages["visible_fs"] = timing.ready, timing.visible
    return Timeline(operations=operations, messages=messages)
