"""Memory of the emulated chips: data goes in, operations move it, results come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from collemu_kernels import kinds
from collemu_kernels.dataplane import (
    DataPlane,
    publish_inputs,  # pyright: ignore[reportUnknownVariableType]
)
from collemu_kernels.format_ids import WIRE_RULE
from collemu_kernels.images import image_bytes
from collemu_kernels.saturation import count_saturated
from numpy.typing import NDArray

from collemu.collectives import REDUCTIONS
from collemu.dtypes import INTEGER, to_storage, to_values
from collemu.in_switch import InSwitch, in_switch_of
from collemu.inputs import plain
from collemu.lower import Lowered
from collemu.payload import BAD_VALUE_TEXT, OPERATORS, Payload
from collemu.recipe import ACCUMULATE
from collemu.rows import output_size
from collemu.schedule import Schedule

ALIGNMENT = 64

_NO_INT64 = np.zeros(0, np.int64)
_NO_INT32 = np.zeros(0, np.int32)
_NO_BYTES = np.zeros(0, np.uint8)
_NO_FLOATS = np.zeros(0, np.float32)


@cache
def no_data() -> DataPlane:
    """A data plane that moves nothing: time alone is wanted."""
    return DataPlane(
        moving=False,
        quantised=False,
        round_own=False,
        dtype=0,
        wire=0,
        item_bytes=0,
        operator=0,
        accumulate=0,
        scale_mode=0,
        saturate=True,
        kind=_NO_BYTES,
        publish=_NO_BYTES,
        piece_first=_NO_INT64,
        piece_elements=_NO_INT64,
        piece_source=_NO_INT64,
        piece_target=_NO_INT64,
        piece_image=_NO_INT64,
        piece_source_cell=_NO_INT32,
        piece_target_cell=_NO_INT32,
        place_first=_NO_INT64,
        places=_NO_INT64,
        place_rank=_NO_INT32,
        memory=_NO_BYTES,
        slot=_NO_INT64,
        wire_bytes=_NO_BYTES,
        image_at=_NO_INT64,
        image_known=_NO_BYTES,
        images=_NO_BYTES,
        values=_NO_FLOATS,
        addend=_NO_FLOATS,
        saturated=_NO_INT64,
    )


@dataclass(frozen=True)
class Memory:
    """Buffers of some or all ranks in one array, and the data plane that moves bytes between them.

    Attributes
    ----------
    plane : DataPlane
        For the kernels.
    ranks : tuple of int
        Whose memory it is, in order.
    """

    plane: DataPlane
    lowered: Lowered
    payload: Payload
    ranks: tuple[int, ...]
    offsets: NDArray[np.int64]  # [rank, buffer] bytes; -1 for ranks that are not here

    def write_input(self, rank: int, storage: NDArray[Any]) -> None:
        """Put a rank's contribution, given as bytes of the dtype, into its input buffer.

        Raises
        ------
        ValueError
            If a value has no code in the wire format to which it is rounded.
        """
        held = self._held(storage)
        if self.payload.scales_first and self.lowered.schedule.collective in REDUCTIONS:
            held = self._divided(held)
        buffer = self._buffer(rank, kinds.INPUT, held.size)
        buffer[:] = np.ascontiguousarray(held).reshape(-1).view(np.uint8)
        if self.payload.rounds_input:
            self._publish_input(rank, held.size)

    def read_output(self, rank: int) -> NDArray[Any]:
        """A rank's output buffer as an array of the dtype's storage, one dimension."""
        elements = output_size(self.lowered.schedule, self.lowered.count, rank)
        held = self._buffer(rank, kinds.OUTPUT, elements).view(self.payload.held.storage)
        averages = self.payload.operator == "avg" and self.lowered.schedule.collective in REDUCTIONS
        if averages and not self.payload.scales_first:
            held = self._divided(held)
        return self._given(held)

    def read_outputs(self) -> NDArray[Any]:
        """The outputs of all ranks that are here, equally long, a row each, as bytes of the dtype's storage."""
        elements = output_size(self.lowered.schedule, self.lowered.count, 0)
        outputs = np.empty((len(self.ranks), elements), self.payload.dtype.storage)
        for row, rank in enumerate(self.ranks):
            outputs[row] = self.read_output(rank)
        return outputs

    def _buffer(self, rank: int, buffer: int, elements: int) -> NDArray[np.uint8]:
        start = int(self.offsets[rank, buffer])
        return self.plane.memory[start : start + elements * self.payload.held.item_bytes]

    def _held(self, storage: NDArray[Any]) -> NDArray[Any]:
        """Bytes of the dtype as memory holds them."""
        payload = self.payload
        if payload.runs_in != payload.dtype:
            values = to_values(storage, payload.dtype)
            if payload.runs_in.overflows_early:
                number, no_image = payload.runs_in.format_id, np.zeros(0, np.uint8)
                self.plane.saturated[-1] += count_saturated(plain(values).reshape(-1), number, WIRE_RULE, no_image)
            storage = to_storage(values, payload.runs_in)
        return to_values(storage, payload.runs_in) if payload.quantised else storage

    def _given(self, held: NDArray[Any]) -> NDArray[Any]:
        """What memory holds as bytes of the dtype."""
        payload = self.payload
        recoded = payload.held.is_codes and payload.held != payload.dtype
        return to_storage(to_values(held, payload.held) if recoded else held, payload.dtype)

    def _publish_input(self, rank: int, elements: int) -> None:
        """Round a rank's contribution to the wire format, chunk by chunk, and remember what travels."""
        schedule = self.lowered.schedule
        starts = schedule.chunk_starts_of_ranks(kinds.INPUT, self.lowered.count)[rank]
        bases, _ = schedule.cell_bases()
        whole = np.flatnonzero((np.diff(starts) > 0) & (starts[1:] <= elements))
        status = publish_inputs(
            self.plane,
            self.offsets[rank, kinds.INPUT] + starts[whole] * self.payload.held.item_bytes,
            np.diff(starts)[whole],
            (bases[rank, kinds.INPUT] + whole).astype(np.int32),
        )
        if status:
            raise ValueError(BAD_VALUE_TEXT)

    def _divided(self, held: NDArray[Any]) -> NDArray[Any]:
        """The array divided by the number of ranks; integers truncate toward zero."""
        ranks = self.lowered.schedule.ranks
        if self.payload.held.kind == "integer":
            return (np.sign(held) * (np.abs(held.astype(object)) // ranks)).astype(held.dtype) if held.size else held
        if self.payload.held.is_codes:
            values = to_values(held.view(self.payload.held.storage), self.payload.held)
            return to_storage(values / np.float32(ranks), self.payload.held)
        return held / held.dtype.type(ranks)


def build_memory(
    lowered: Lowered, payload: Payload, ranks: Sequence[int] | None = None, slots: int = 1, seed: int = 0
) -> Memory:
    """Empty buffers for all ranks, or for those given (a real process holds one), and the data plane over them.

    Parameters
    ----------
    ranks : sequence of int, optional
        Whose buffers to hold. FIFO slots are made for the messages that they send or receive.
    slots : int
        FIFO slots of a connection.
    seed : int
        Decides in which order switches add; 0: in that of ranks.
    """
    schedule = lowered.schedule
    held = payload.held
    present = tuple(range(schedule.ranks)) if ranks is None else tuple(ranks)
    within, rank_bytes = _buffer_offsets(schedule, lowered.count, held.item_bytes)
    base = np.full((schedule.ranks, 1), -1, np.int64)
    base[list(present), 0] = np.arange(len(present)) * rank_bytes
    offsets = np.where(base < 0, -1, base + within)
    pieces = lowered.pieces
    rank = lowered.rank[pieces.operation]
    ops = schedule.ops

    def place(buffer_column: str, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        base = offsets[rank, ops[buffer_column][pieces.operation]]
        return np.where((starts < 0) | (base < 0), -1, base + starts * held.item_bytes)

    image_at, source_cell, target_cell, image_total = _NO_INT64, _NO_INT32, _NO_INT32, 0
    cells = 0
    if payload.wire is not None:
        cell_bases, cells = schedule.cell_bases()
        source_cell = (cell_bases[rank, ops["src_buffer"][pieces.operation]] + pieces.source_chunk).astype(np.int32)
        target_cell = (cell_bases[rank, ops["dst_buffer"][pieces.operation]] + pieces.target_chunk).astype(np.int32)
        source_cell[pieces.source < 0] = -1
        target_cell[pieces.target < 0] = -1
        image_at, image_total = _image_places(
            lowered, payload.wire, payload.rounds_input, present, np.isin(rank, present), target_cell, cells
        )
    largest = int(pieces.elements.max(initial=0))
    in_place = held.kind == INTEGER or held.name in ("float32", "float64")
    works = payload.quantised or payload.recipe.accumulate != "float32" or not in_place
    slot, slot_bytes = _slot_places(lowered, present, slots)
    in_switch = in_switch_of(lowered)
    place_first, places, place_rank = _switch_places(
        lowered, in_switch, offsets if len(present) == schedule.ranks else within, held.item_bytes, seed
    )
    # The machine counts the beginnings of in-switch operations behind all others; they move nothing.
    beginnings = np.full(len(in_switch), kinds.NOP, np.uint8)
    plane = DataPlane(
        moving=True,
        quantised=payload.quantised,
        round_own=payload.recipe.round_own,
        dtype=held.format_id,
        wire=held.format_id if payload.wire is None else payload.wire,
        item_bytes=held.item_bytes,
        operator=OPERATORS[payload.operator],
        accumulate=ACCUMULATE[payload.recipe.accumulate],
        scale_mode=payload.scale_mode,
        saturate=payload.saturates,
        kind=np.concatenate((ops["kind"], beginnings)),
        publish=np.ascontiguousarray(ops["publish"]),
        piece_first=pieces.first,
        piece_elements=pieces.elements,
        piece_source=place("src_buffer", pieces.source),
        piece_target=place("dst_buffer", pieces.target),
        piece_image=pieces.image,
        piece_source_cell=source_cell,
        piece_target_cell=target_cell,
        place_first=place_first,
        places=places,
        place_rank=place_rank,
        memory=np.zeros(len(present) * rank_bytes, np.uint8),
        slot=slot,
        wire_bytes=np.empty(slot_bytes, np.uint8),
        image_at=image_at,
        image_known=np.zeros(cells, np.uint8),
        images=np.empty(image_total, np.uint8),
        values=np.empty(largest if works else 0, np.float32),
        addend=np.empty(largest if works else 0, np.float32),
        saturated=np.zeros(len(ops) + 1, np.int64),
    )
    return Memory(plane=plane, lowered=lowered, payload=payload, ranks=present, offsets=offsets)


def footprint_of(lowered: Lowered, slots: int) -> NDArray[np.int64]:
    """Bytes of each rank's buffers, and of the FIFO slots that it sends from and receives into, of its own each."""
    schedule, messages = lowered.schedule, lowered.messages
    _, rank_bytes = _buffer_offsets(schedule, lowered.count, lowered.item_bytes)
    in_slots = np.where(messages.number < slots, messages.nbytes, 0)
    ends = [
        np.bincount(end, weights=in_slots, minlength=schedule.ranks) for end in (messages.source, messages.destination)
    ]
    return rank_bytes + sum(ends, np.zeros(schedule.ranks)).astype(np.int64)


def _round_up(nbytes: Any) -> Any:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _buffer_offsets(schedule: Schedule, count: int, item_bytes: int) -> tuple[NDArray[np.int64], int]:
    """Where each rank's buffers lie in its own memory, and the bytes of that: as many as the largest rank needs.

    In place, input and output overlap as the collective says.
    """
    sizes = [
        int(schedule.chunk_starts(buffer, count)[..., -1].max()) * item_bytes
        for buffer in (kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH)
    ]
    own = np.arange(schedule.ranks, dtype=np.int64) * count * item_bytes
    zero = np.zeros_like(own)
    if not schedule.in_place:
        input_at, output_at = zero, zero + _round_up(sizes[0])
        shared = _round_up(sizes[0]) + _round_up(sizes[1])
    elif schedule.input_regions < schedule.output_regions:
        input_at, output_at, shared = own, zero, _round_up(sizes[1])
    elif schedule.input_regions > schedule.output_regions:
        input_at, output_at, shared = zero, own, _round_up(sizes[0])
    else:
        input_at, output_at, shared = zero, zero, _round_up(max(sizes[0], sizes[1]))
    return np.stack([input_at, output_at, zero + shared], axis=1), shared + _round_up(sizes[2])


def _switch_places(
    lowered: Lowered, in_switch: InSwitch, offsets: NDArray[np.int64], item_bytes: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Where switches read or write for each piece, member after member, and whose memory it is.

    What they read is in the order in which they add, which nobody knows: that of ranks, or, with a seed, any, drawn for
    each operation. Offsets are those of each rank's buffers: in the array of all, or, where some ranks are elsewhere,
    in the rank's own.
    """
    if not len(in_switch):
        return _NO_INT64, _NO_INT64, _NO_INT32
    pieces, ops = lowered.pieces, lowered.schedule.ops
    most = int(in_switch.members.max())
    within = np.arange(most)
    order = np.tile(within, (len(in_switch), 1))
    if seed:
        keys = np.random.default_rng(seed).random(order.shape)
        keys[within >= in_switch.members[:, None]] = 1
        order = np.where(in_switch.adds[:, None], np.argsort(keys, axis=1), order)
    number = np.full(len(ops), -1)
    number[in_switch.operation] = np.arange(len(in_switch))
    piece = np.flatnonzero(number[pieces.operation] >= 0)
    of = number[pieces.operation[piece]]
    members = in_switch.members[of].astype(np.int64)
    place_first = np.zeros(len(pieces.operation) + 1, np.int64)
    place_first[piece + 1] = members
    here = within < members[:, None]
    rank = (in_switch.first[of][:, None] + order[of])[here].astype(np.int32)
    adds = in_switch.adds[of]
    operation = pieces.operation[piece]
    buffer = np.where(adds, ops["src_buffer"][operation], ops["dst_buffer"][operation])
    element = np.where(adds, pieces.source[piece], pieces.target[piece])
    each = np.repeat(np.arange(len(piece)), members)
    return np.cumsum(place_first), offsets[rank, buffer[each]] + element[each] * item_bytes, rank


def _image_places(
    lowered: Lowered,
    wire: int,
    round_input: bool,
    ranks: tuple[int, ...],
    here: NDArray[np.bool_],
    target_cell: NDArray[np.int32],
    cells: int,
) -> tuple[NDArray[np.int64], int]:
    """Room for the wire image of every chunk that is written: as large as the largest that is written there."""
    elements = np.zeros(cells, np.int64)
    if round_input:
        mine = list(ranks)
        given = np.diff(lowered.schedule.chunk_starts_of_ranks(kinds.INPUT, lowered.count))[mine]
        bases, _ = lowered.schedule.cell_bases()
        elements[bases[mine, kinds.INPUT][:, None] + np.arange(given.shape[1])] = given
    written = here & (target_cell >= 0)
    np.maximum.at(elements, target_cell[written], lowered.pieces.elements[written])
    sizes, which = np.unique(elements, return_inverse=True)
    room = np.array([image_bytes(int(size), wire) for size in sizes], np.int64)[which]
    return np.cumsum(room) - room, int(room.sum())


def _slot_places(lowered: Lowered, ranks: tuple[int, ...], slots: int) -> tuple[NDArray[np.int64], int]:
    """FIFO slots: a connection's messages take turns in as many places as it has slots."""
    messages = lowered.messages
    if not len(messages):
        return np.zeros(0, np.int64), 0
    here = np.isin(messages.source, ranks) | np.isin(messages.destination, ranks)
    connection = np.cumsum(messages.number == 0) - 1
    room = np.zeros(connection[-1] + 1, np.int64)
    np.maximum.at(room, connection[here], _round_up(messages.nbytes[here]))
    turns = np.minimum(np.bincount(connection), slots)
    base = np.cumsum(room * turns) - room * turns
    return base[connection] + (messages.number % slots) * room[connection], int((room * turns).sum())


def replicas_identical(outputs: NDArray[Any]) -> bool:
    """Whether all rows, one a rank, hold the same bits."""
    rows = np.ascontiguousarray(outputs).view(np.uint8)
    return bool((rows == rows[:1]).all())
