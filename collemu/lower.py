"""From a schedule to flat arrays: the only bridge between orchestration and the kernels.

A lowered schedule knows the elements of every chunk and the bytes of every message. It is what the emulator runs
and what real processes follow.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from collemu_kernels import kinds
from collemu_kernels.images import image_bytes
from numpy.typing import NDArray

from collemu.matching import match_messages
from collemu.schedule import READS_SRC, WRITES_DST, Schedule, ScheduleError

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

NONE = -1
MAX_BYTES = 2**53  # of a buffer over all ranks; leaves room for every sum of offsets and sizes in int64


@dataclass(frozen=True)
class Messages:
    """Every message of a schedule; those of a connection (source, destination, channel) follow each other in order."""

    source: Int32
    destination: Int32
    channel: Int32
    number: Int32  # which message of its connection, from 0
    sender: Int32  # operation
    receiver: Int32  # operation
    elements: Int64
    nbytes: Int64  # of its wire image

    def __len__(self) -> int:
        return len(self.source)

    def slot_successor(self, slots: int) -> Int32:
        """For each message the one that takes over its FIFO slot, ``slots`` later on its connection, or NONE."""
        successor = np.full(len(self), NONE, np.int32)
        later = np.flatnonzero(self.number >= slots)
        successor[later - slots] = later
        return successor


@dataclass(frozen=True)
class Pieces:
    """The chunks that operations touch, one piece a chunk, in operation order. Offsets are elements within a buffer."""

    first: Int64  # [operation + 1]
    operation: Int32
    elements: Int64
    source: Int64  # -1 where nothing is read
    target: Int64  # -1 where nothing is written
    source_chunk: Int32
    target_chunk: Int32
    image: Int64  # byte offset within the message


@dataclass(frozen=True)
class Lowered:
    """A schedule for a number of elements and a format on the wire.

    Attributes
    ----------
    schedule : Schedule
    count : int
        Elements a rank, as the collective counts them.
    rank : int32 array
        Rank of each operation.
    received, sent : int32 arrays
        Message that each operation receives and sends, or -1.
    nbytes : int64 array
        What each operation moves at its endpoint: its message's wire image, else the memory that it copies or adds.
    item_bytes : int
        Of an element in memory.
    wire : int or None
        Format id of what travels; None: the bytes of memory.
    """

    schedule: Schedule
    count: int
    rank: Int32
    received: Int32
    sent: Int32
    nbytes: Int64
    messages: Messages
    item_bytes: int
    wire: int | None

    @property
    def elements(self) -> Int64:
        """Elements that each operation sends, receives, copies or adds."""
        elements = self.nbytes // self.item_bytes
        if self.wire is not None:
            for message in (self.sent, self.received):
                here = np.flatnonzero(message != NONE)
                elements[here] = self.messages.elements[message[here]]
        return elements

    @cached_property
    def pieces(self) -> Pieces:
        """What operations touch chunk by chunk, for those who move bytes; time alone does without."""
        return _cut(
            self.schedule,
            self.count,
            self.rank,
            self.received,
            self.sent,
            self.messages.sender,
            self.item_bytes,
            self.wire,
        )


def lower(schedule: Schedule, count: int, *, item_bytes: int, wire: int | None = None) -> Lowered:
    """Resolve a schedule for ``count`` elements.

    Parameters
    ----------
    schedule : Schedule
    count : int
        Elements a rank, as nccl-tests counts them for the collective.
    item_bytes : int
        Bytes of an element in memory.
    wire : int, optional
        Format id of what travels; without one, the bytes of memory do.

    Raises
    ------
    ScheduleError
        If sends and receives do not match in number or in size, as `match_messages` says.
    """
    widest = max(schedule.input_regions, schedule.output_regions, 1) if schedule.counts is None else 1
    if count * widest * schedule.ranks * item_bytes > MAX_BYTES:
        raise ValueError(
            f"{count} elements a rank are {count * widest * schedule.ranks * item_bytes} bytes over {schedule.ranks} "
            f"ranks; the most is {MAX_BYTES}: use a smaller count"
        )
    rank = schedule.threads["rank"][schedule.thread_of_op]
    matched = match_messages(schedule)
    sender, receiver, sent, received = matched.sender, matched.receiver, matched.sent, matched.received

    amounts, pieces = _amounts(schedule, count, rank, item_bytes, wire), None
    if amounts is None:
        pieces = _cut(schedule, count, rank, received, sent, sender, item_bytes, wire)
        amounts = tuple(
            _sums(values, pieces.first) for values in (pieces.elements, _sizes(pieces.elements, item_bytes, wire))
        )
    per_operation, moved = amounts
    differing = np.flatnonzero(per_operation[sender] != per_operation[receiver])
    if len(differing):
        a, b = int(sender[differing[0]]), int(receiver[differing[0]])
        raise ScheduleError(
            f"{schedule.describe(a)} sends {per_operation[a]} elements, "
            f"{schedule.describe(b)} expects {per_operation[b]}"
        )
    nbytes = np.where((received == NONE) & (sent == NONE), per_operation * item_bytes, moved)
    lowered = Lowered(
        schedule=schedule,
        count=count,
        rank=rank,
        received=received,
        sent=sent,
        nbytes=nbytes,
        messages=Messages(
            source=rank[sender],
            destination=rank[receiver],
            channel=schedule.threads["channel"][schedule.thread_of_op[sender]].astype(np.int32),
            number=matched.ordinal,
            sender=sender,
            receiver=receiver,
            elements=per_operation[sender],
            nbytes=moved[sender],
        ),
        item_bytes=item_bytes,
        wire=wire,
    )
    if pieces is not None:
        vars(lowered)["pieces"] = pieces  # cut already
    return lowered


def _amounts(
    schedule: Schedule, count: int, rank: Int32, item_bytes: int, wire: int | None
) -> tuple[Int64, Int64] | None:
    """Elements and bytes of every operation, from those of the chunks before its first and its last.

    None where an operation touches scratch alone, whose chunks are as long as what was written there: where a region's
    chunks are not all equally long, that is.
    """
    ops = schedule.ops
    kind, chunks = ops["kind"], ops["count"]
    elements, moved = np.zeros(len(ops), np.int64), np.zeros(len(ops), np.int64)
    known = kind == kinds.NOP
    # the target's size is looked up first, so that the source's, where there is one, has the last word
    for column, buffer_column, used in (
        ("dst", "dst_buffer", WRITES_DST[kind]),
        ("src", "src_buffer", READS_SRC[kind]),
    ):
        for buffer in (kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH):
            if buffer == kinds.SCRATCH and not schedule.chunks_are_equal(count):
                continue
            here = np.flatnonzero(used & (ops[buffer_column] == buffer) & (kind != kinds.NOP))
            if not len(here):
                continue
            starts = schedule.chunk_starts(buffer, count)
            bytes_before = np.zeros_like(starts)
            np.cumsum(_sizes(np.diff(starts), item_bytes, wire), axis=-1, out=bytes_before[..., 1:])
            first = _at(starts, rank[here], ops[column][here])
            last = first + chunks[here]
            for amount, before in ((elements, starts.reshape(-1)), (moved, bytes_before.reshape(-1))):
                amount[here] = before[last] - before[first]
            known[here] = True
    return (elements, moved) if known.all() else None


def _at(starts: Int64, rank: Int32, chunk: Int32) -> NDArray[np.integer]:
    """Where the starts of chunks are in a table of one row, or of a row a rank."""
    return chunk if starts.ndim == 1 else rank.astype(np.int64) * starts.shape[1] + chunk


def _sums(values: Int64, first: Int64) -> Int64:
    """Sums of the values of each operation's pieces."""
    before = np.concatenate(([0], np.cumsum(values)))
    return before[first[1:]] - before[first[:-1]]


def _sizes(elements: Int64, item_bytes: int, wire: int | None) -> Int64:
    """Bytes of chunks on the wire; there are few different ones."""
    if wire is None:
        return elements * item_bytes
    sizes, which = np.unique(elements, return_inverse=True)
    return np.array([image_bytes(int(size), wire) for size in sizes], np.int64)[which.reshape(elements.shape)]


def _cut(
    schedule: Schedule,
    count: int,
    rank: Int32,
    received: Int32,
    sent: Int32,
    sender: Int32,
    item_bytes: int,
    wire: int | None,
) -> Pieces:
    """Operations chunk by chunk."""
    first, operation, source_chunk, target_chunk = _chunks(schedule.ops)
    elements, starts, targets = _places(schedule, count, rank, operation, source_chunk, target_chunk)
    if np.any(elements < 0):
        _follow_scratch(schedule, elements, first, operation, source_chunk, target_chunk, received, sent, sender)
    before = np.concatenate(([0], np.cumsum(_sizes(elements, item_bytes, wire))))
    return Pieces(
        first=first,
        operation=operation,
        elements=elements,
        source=starts,
        target=targets,
        source_chunk=source_chunk,
        target_chunk=target_chunk,
        image=before[:-1] - before[first[operation]],
    )


def _chunks(ops: NDArray[np.void]) -> tuple[Int64, Int32, Int32, Int32]:
    """Cut operations into pieces of one chunk."""
    counts: Int64 = np.where(ops["kind"] == kinds.NOP, 0, ops["count"]).astype(np.int64)
    first: Int64 = np.concatenate(([0], np.cumsum(counts)))
    operation = np.repeat(np.arange(len(ops), dtype=np.int32), counts)
    within: Int32 = (np.arange(int(first[-1])) - first[operation]).astype(np.int32)
    return first, operation, ops["src"][operation] + within, ops["dst"][operation] + within


def _places(
    schedule: Schedule, count: int, rank: Int32, operation: Int32, source_chunk: Int32, target_chunk: Int32
) -> tuple[Int64, Int64, Int64]:
    """Elements and buffer offsets of every piece; -1 elements where only scratch is touched."""
    kind = schedule.ops["kind"][operation]
    reads = READS_SRC[kind]
    writes = WRITES_DST[kind]
    elements = np.full(len(operation), -1, np.int64)
    places: list[Int64] = []
    # the target's size is looked up first, so that the source's, where there is one, has the last word
    for column, chunk, used in (("dst_buffer", target_chunk, writes), ("src_buffer", source_chunk, reads)):
        buffers = schedule.ops[column][operation]
        offsets = np.full(len(operation), -1, np.int64)
        for buffer in (kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH):
            here = np.flatnonzero(used & (buffers == buffer))
            if len(here):
                starts = schedule.chunk_starts(buffer, count)
                first = _at(starts, rank[operation[here]], chunk[here])
                starts = starts.reshape(-1)
                offsets[here] = starts[first]
                if buffer != kinds.SCRATCH or schedule.chunks_are_equal(count):
                    elements[here] = starts[first + 1] - starts[first]
        places.append(offsets)
    return elements, places[1], places[0]


def _follow_scratch(
    schedule: Schedule,
    elements: Int64,
    first: Int64,
    operation: Int32,
    source_chunk: Int32,
    target_chunk: Int32,
    received: Int32,
    sent: Int32,
    sender: Int32,
) -> None:
    """Find the size of pieces that only touch scratch: what was last written there, or what the message brings.

    Walks the operations in an order that respects threads, dependencies and messages, as a run would.
    """
    ops = schedule.ops
    kind = ops["kind"]
    length: dict[tuple[int, int], int] = {}
    rank = schedule.threads["rank"][schedule.thread_of_op]
    following = np.arange(1, len(ops) + 1)
    following[schedule.threads["first"] + schedule.threads["length"] - 1] = NONE
    waits = np.zeros(len(ops), np.int64)
    waits[following[following != NONE]] += 1
    waits += (ops["dep"] >= 0).astype(np.int64) + (received != NONE)
    dependents: dict[int, list[int]] = {}
    for index in np.flatnonzero(ops["dep"] >= 0):
        dependents.setdefault(int(ops["dep"][index]), []).append(int(index))
    receiver_of = np.full(len(sender), NONE, np.int64)
    receiver_of[received[received != NONE]] = np.flatnonzero(received != NONE)
    able = [int(i) for i in np.flatnonzero(waits == 0)]
    while able:
        here = able.pop()
        for piece in range(int(first[here]), int(first[here + 1])):
            if elements[piece] < 0:
                if received[here] != NONE:
                    origin = int(sender[received[here]])
                    elements[piece] = elements[first[origin] + piece - first[here]]
                else:
                    elements[piece] = length.get((int(rank[here]), int(source_chunk[piece])), 0)
            if WRITES_DST[kind[here]] and ops["dst_buffer"][here] == kinds.SCRATCH:
                own = int(rank[here])
                for each in schedule.group_of(own) if kind[here] == kinds.MULTIMEM_STORE else (own,):
                    length[each, int(target_chunk[piece])] = int(elements[piece])
        released = dependents.get(here, [])
        if following[here] != NONE:
            released = [*released, int(following[here])]
        if sent[here] != NONE:
            released = [*released, int(receiver_of[sent[here]])]
        for index in released:
            waits[index] -= 1
            if waits[index] == 0:
                able.append(index)
    np.maximum(elements, 0, out=elements)  # operations that can never run (a deadlock) move nothing
