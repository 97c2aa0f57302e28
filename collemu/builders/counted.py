"""An exchange of equal blocks turned into one of blocks of any size, as counts say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.schedule import READS_SRC, Schedule


def with_counts(schedule: Schedule, counts: NDArray[np.int64]) -> Schedule:
    """The schedule with those counts; operations on chunks without elements become nops, at both ends of a message."""
    counted = replace(schedule, counts=counts)
    ops = schedule.ops.copy()
    rank = schedule.threads["rank"][schedule.thread_of_op]
    reads = READS_SRC[ops["kind"]]
    for buffer, side, used in ((kinds.INPUT, "src", reads), (kinds.OUTPUT, "dst", ~reads)):
        starts = counted.chunk_starts(buffer, 0)
        here = np.flatnonzero(used)
        first = ops[side][here]
        empty = starts[rank[here], first] == starts[rank[here], first + ops["count"][here]]
        ops["kind"][here[empty]] = kinds.NOP
    return replace(counted, ops=ops)
