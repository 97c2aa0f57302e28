"""What operations cost at their chips: moving, adding, converting bytes, and the memory that this goes through."""

from fractions import Fraction

import numpy as np
from collemu_kernels import kinds, symbolic
from collemu_kernels.conversions import count_encoded
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.in_switch import by_member, in_switch_of
from collemu.lower import NONE, Lowered
from collemu.schedule import READS_DST, READS_SRC, RECEIVES, REDUCES, WRITES_DST

Int64 = NDArray[np.int64]

CLOCK_LIMIT_FS = 4 * 10**18  # a little over an hour; whatever starts before still ends within int64
TOO_LONG = f"the run is longer than the clock of {CLOCK_LIMIT_FS / 1e15:.0f} s; use smaller sizes or faster links"


def work_of(lowered: Lowered, system: System, protocol: Protocol) -> Int64:
    """Femtoseconds that each operation takes at its endpoint: its thread's time, or if that is longer its memory's."""
    endpoint = system.endpoint
    kind = lowered.schedule.ops["kind"]
    work = np.where(
        REDUCES[kind],
        _duration(lowered.nbytes, endpoint.reduce_fs_per_byte),
        _duration(lowered.nbytes, endpoint.copy_fs_per_byte),
    )
    if protocol.writes_destination:
        work[kind == kinds.RECV] = 0
    work[kind == kinds.MULTIMEM_REDUCE] = 0  # the switch adds
    if lowered.wire is not None:
        encoded, decoded = conversions_of(lowered)
        work += _duration(encoded * lowered.item_bytes, endpoint.quantize_fs_per_byte)
        work += _duration(decoded * lowered.item_bytes, endpoint.dequantize_fs_per_byte)
    return np.maximum(work, _duration(memory_of(lowered, protocol), system.chip.hbm_fs_per_byte))


def _duration(nbytes: Int64, rate: Fraction) -> Int64:
    # in two parts, as the product of bytes and numerator may be beyond int64
    whole, rest = np.divmod(nbytes, rate.denominator)
    if whole.max(initial=0) > CLOCK_LIMIT_FS // rate.numerator:
        raise ValueError(TOO_LONG)
    return whole * rate.numerator - (-rest * rate.numerator // rate.denominator)


def conversions_of(lowered: Lowered, known: NDArray[np.uint8] | None = None) -> tuple[Int64, Int64]:
    """Elements that each operation encodes into the wire format, and decodes from it.

    Parameters
    ----------
    lowered : Lowered
    known : uint8 [cell], optional
        1 where a chunk remembers its wire image from the beginning; none does.
    """
    ops = lowered.schedule.ops
    encoded = np.zeros(len(ops), np.int64)
    if lowered.wire is None:
        return encoded, encoded
    pieces = lowered.pieces
    source, target = cells_of(lowered)
    count_encoded(
        order_of(lowered),
        np.ascontiguousarray(ops["kind"]),
        np.ascontiguousarray(ops["publish"]),
        pieces.first,
        pieces.elements,
        source,
        target,
        np.zeros(lowered.schedule.cell_bases()[1], np.uint8) if known is None else known.copy(),
        encoded,
    )
    return encoded, np.where(RECEIVES[ops["kind"]], lowered.elements, 0)


def cells_of(lowered: Lowered) -> tuple[Int64, Int64]:
    """Cells, as `Schedule.cell_bases` numbers chunks, that each piece reads and writes, or would."""
    ops, pieces = lowered.schedule.ops, lowered.pieces
    bases, _ = lowered.schedule.cell_bases()
    rank = lowered.rank[pieces.operation]
    source, target = (
        bases[rank, np.minimum(ops[f"{side}_buffer"][pieces.operation], kinds.SCRATCH)] + chunk
        for side, chunk in (("src", pieces.source_chunk), ("dst", pieces.target_chunk))
    )
    return source, target


def sender_of(lowered: Lowered) -> NDArray[np.int32]:
    """The operation whose message each operation receives, or NONE."""
    received = lowered.received
    sender = np.append(lowered.messages.sender, np.int32(NONE))[received]  # the last of them where nothing is received
    return np.where(received == NONE, np.int32(NONE), sender).astype(np.int32)


def order_of(lowered: Lowered) -> NDArray[np.int32]:
    """Operations in an order in which they can run, of which any will do: those that never run are left out."""
    threads, count = lowered.schedule.threads, len(lowered.received)
    order, position = np.empty(count, np.int32), np.full(count, NONE, np.int32)
    can_run = symbolic.execution_order(
        threads["first"].astype(np.int64),
        threads["length"].astype(np.int32),
        np.ascontiguousarray(lowered.schedule.ops["dep"]),
        sender_of(lowered),
        np.full(count, NONE, np.int32),
        order,
        position,
    )
    return order[:can_run]


def memory_of(lowered: Lowered, protocol: Protocol) -> Int64:
    """Bytes that each operation reads and writes in the memory of its chip.

    What it reads and writes of buffers; and its message, read from the slot in which it lies, unless the protocol has
    written it where it belongs, and nothing is to be decoded.
    """
    kind = lowered.schedule.ops["kind"]
    held = lowered.elements * lowered.item_bytes
    touched = READS_SRC[kind].astype(np.int64) + READS_DST[kind] + WRITES_DST[kind]
    memory = held * touched + np.where(RECEIVES[kind], lowered.nbytes, 0)
    memory[kind == kinds.MULTIMEM_REDUCE] = 0  # the switch reads, and writes
    memory[kind == kinds.MULTIMEM_STORE] = held[kind == kinds.MULTIMEM_STORE]
    if protocol.writes_destination and lowered.wire is None:
        memory[kind == kinds.RECV] = 0
    return memory


def memory_of_ranks(lowered: Lowered, protocol: Protocol) -> Int64:
    """Bytes that pass the memory of each rank: what operations touch, what arrives, what switches read and write."""
    ranks, messages, asked = lowered.schedule.ranks, lowered.messages, in_switch_of(lowered)
    touched = np.bincount(lowered.rank, weights=memory_of(lowered, protocol), minlength=ranks)
    arrived = np.bincount(messages.destination, weights=messages.nbytes, minlength=ranks)
    sums = np.bincount(asked.rank, weights=asked.adds * asked.nbytes, minlength=ranks)
    return (touched + arrived + sums + by_member(asked, asked.nbytes, ranks)).astype(np.int64)
