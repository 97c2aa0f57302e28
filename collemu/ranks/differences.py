"""Where two outputs part, and who wrote what lies there: a chunk, an operation, a message."""

import numpy as np
from collemu_kernels import kinds

from collemu.endpoint import order_of
from collemu.lower import NONE, Lowered
from collemu.ranks.transport import Bytes
from collemu.schedule import WRITES_DST, chunk_name


def first_differing_byte(expected: Bytes, got: Bytes) -> str | None:
    """Say where two stretches of bytes part, or None."""
    if len(expected) != len(got):
        return f"{len(expected)} bytes expected, got {len(got)}"
    differing = np.flatnonzero(expected != got)
    if not len(differing):
        return None
    first = int(differing[0])
    values = f"expected 0x{expected[first]:02x}, got 0x{got[first]:02x}"
    return f"first differing byte {first} of {len(got)}: {values} ({len(differing)} differ)"


def written_by(lowered: Lowered, rank: int, element: int) -> str:
    """Name the chunk of a rank's output that holds an element, and what of the rank's own operations writes it last.

    As in ``output[2], written by rank 1 thread 0 step 3 (recv to output[2]) from message 1 of rank 0 on channel 0``.
    Without such an operation, as where another rank's switch writes it, the chunk alone.
    """
    schedule, ops = lowered.schedule, lowered.schedule.ops
    starts = schedule.chunk_starts_of_ranks(kinds.OUTPUT, lowered.count)[rank]
    chunk = int(np.searchsorted(starts, element, "right")) - 1
    name = chunk_name(kinds.OUTPUT, chunk)
    order = order_of(lowered)
    here = ops[order]
    covers = (here["dst"] <= chunk) & (chunk < here["dst"].astype(np.int64) + here["count"])
    writes = WRITES_DST[here["kind"]] & (here["dst_buffer"] == kinds.OUTPUT) & covers & (lowered.rank[order] == rank)
    if not writes.any():
        return name
    last = int(order[np.flatnonzero(writes)[-1]])
    text = f"{name}, written by {schedule.describe(last)}"
    message = int(lowered.received[last])
    if message == NONE:
        return text
    messages = lowered.messages
    number, source, channel = (int(each[message]) for each in (messages.number, messages.source, messages.channel))
    return f"{text} from message {number} of rank {source} on channel {channel}"
