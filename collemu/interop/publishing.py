"""Which operations of a schedule from elsewhere publish what they write: what is final and goes to other ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collemu_kernels import kinds

from collemu.collectives import REPLICATED
from collemu.matching import match_messages
from collemu.schedule import READS_SRC, WRITES_DST, Schedule, ScheduleError
from collemu.verification.waits import Waits

_NONE = -1
_WITH_IMAGE = (kinds.RECV, kinds.RECV_COPY_SEND)  # what they write has a wire image already


def publish_what_is_final(schedule: Schedule) -> Schedule:
    """Let every replica of an output hold the same bits, as far as flags of operations can.

    An operation publishes if all that it writes is an output's last value, computed or copied here, that is sent on
    from where it is written, or from where it was copied. Schedules that cannot run are left as they are.
    """
    if schedule.collective not in REPLICATED:
        return schedule
    try:
        waits = Waits(schedule, match_messages(schedule))
    except ScheduleError:
        return schedule
    order, position = waits.order(waits.most_slots())
    if len(order) < len(schedule.ops):
        return schedule

    ops = schedule.ops
    count = np.where(ops["kind"] == kinds.NOP, 0, ops["count"]).astype(np.int64)
    piece = np.repeat(np.arange(len(ops)), count)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    kind, when = ops["kind"][piece], position[piece]
    bases, cells = schedule.cell_bases()
    rank = schedule.threads["rank"][schedule.thread_of_op][piece]
    source = np.where(READS_SRC[kind], bases[rank, ops["src_buffer"][piece]] + ops["src"][piece] + within, 0)
    target = np.where(WRITES_DST[kind], bases[rank, ops["dst_buffer"][piece]] + ops["dst"][piece] + within, 0)

    written, sent = np.full((2, cells), _NONE, dtype=np.int64)
    np.maximum.at(written, target[WRITES_DST[kind]], when[WRITES_DST[kind]])
    np.maximum.at(sent, source[kind == kinds.SEND], when[kind == kinds.SEND])
    output = np.zeros(cells, dtype=np.bool_)
    output[(bases[:, kinds.OUTPUT, None] + np.arange(schedule.output_chunks)).ravel()] = True

    last_writer = np.append(order, _NONE)[written]  # of each cell
    copied = kind == kinds.COPY
    has_image = copied & (last_writer[source] >= 0) & np.isin(ops["kind"][last_writer[source]], _WITH_IMAGE)
    final = WRITES_DST[kind] & output[target] & (written[target] == when) & ~np.isin(kind, _WITH_IMAGE) & ~has_image
    goes_on = (kind == kinds.RECV_REDUCE_COPY_SEND) | (sent[target] > when) | (copied & (sent[source] >= 0))

    publishes = np.bincount(piece[final & goes_on], minlength=len(ops)) == np.maximum(count, 1)
    if not publishes.any():
        return schedule
    ops = ops.copy()
    ops["publish"] = np.where(publishes, kinds.PUBLISH_FINAL, ops["publish"])
    return replace(schedule, ops=ops)
