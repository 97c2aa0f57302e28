"""What one operation does to memory: copy, decode, reduce, encode. Time plays no part here.

Two modes. *Raw* (no wire format): memory holds the dtype, messages are its bytes. *Quantised*: memory holds float32,
messages are wire images, and a chunk that came from a message, or was published, remembers its image, so that sending
it on copies bytes and never rounds twice.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.combine import accumulate_floats, reduce_memory
from collemu_kernels.format_ids import FIRST_ELEMENT_FORMAT, WIRE_RULE
from collemu_kernels.images import copy_bytes, decode_image, encode_image, image_bytes
from collemu_kernels.kinds import (
    COPY,
    KEEP,
    MULTIMEM_REDUCE,
    MULTIMEM_STORE,
    NOP,
    PUBLISH_FINAL,
    RECV,
    RECV_COPY_SEND,
    RECV_REDUCE,
    RECV_REDUCE_COPY,
    RECV_REDUCE_COPY_SEND,
    RECV_REDUCE_SEND,
    REDUCE,
    SEND,
)
from collemu_kernels.saturation import count_saturated
from collemu_kernels.switch_memory import carry_out


class DataPlane(NamedTuple):
    """Memory of the ranks, bytes in flight, and what each operation does to them. Offsets are bytes."""

    moving: bool  # False: no data, only time
    quantised: bool
    round_own: bool  # PUBLISH_OWN rounds the rank's own term
    dtype: int  # format id of what memory holds
    wire: int  # format id of what travels
    item_bytes: int
    operator: int
    accumulate: int  # format id of what values are added in
    scale_mode: int  # of block formats on the wire
    saturate: bool  # what overflows an element format on the wire becomes its largest number
    kind: NDArray[np.uint8]  # [operation]
    publish: NDArray[np.uint8]  # [operation]
    piece_first: NDArray[np.int64]  # [operation + 1] its pieces: one a chunk
    piece_elements: NDArray[np.int64]
    piece_source: NDArray[np.int64]  # in memory; -1 where the kind reads none
    piece_target: NDArray[np.int64]
    piece_image: NDArray[np.int64]  # in the message
    piece_source_cell: NDArray[np.int32]  # chunk that can remember an image, or -1
    piece_target_cell: NDArray[np.int32]
    place_first: NDArray[np.int64]  # [piece + 1] where its places begin; empty if no switch does anything
    places: NDArray[np.int64]  # in memory: what a switch adds, in that order, or writes
    place_rank: NDArray[np.int32]  # whose memory it is
    memory: NDArray[np.uint8]
    slot: NDArray[np.int64]  # [message] where it lies in `wire_bytes`
    wire_bytes: NDArray[np.uint8]  # FIFO slots of all connections
    image_at: NDArray[np.int64]  # [cell] in `images`
    image_known: NDArray[np.uint8]  # [cell]
    images: NDArray[np.uint8]
    values: NDArray[np.float32]  # work space for the largest chunk
    addend: NDArray[np.float32]
    saturated: NDArray[np.int64]  # [operation + 1] numbers that were cut down; the last of inputs; empty: not counted


@jit
def move(data, operation, received, sent):
    """Carry out an operation that receives and sends the given messages (-1: none); returns an image status."""
    status = 0
    if data.kind[operation] == NOP:
        return status
    if data.kind[operation] >= MULTIMEM_REDUCE:
        return carry_out(data, data.kind[operation] == MULTIMEM_STORE, operation)
    for piece in range(data.piece_first[operation], data.piece_first[operation + 1]):
        if data.quantised:
            status |= move_quantised(data, operation, piece, received, sent)
        else:
            status |= move_raw(data, operation, piece, received, sent)
    return status


@jit
def count_sums(data, operation, sums, result):
    """Count the sums that were beyond the largest number of a narrow dtype."""
    if data.saturated.size > 0 and data.item_bytes <= 2 and data.dtype >= FIRST_ELEMENT_FORMAT:
        data.saturated[operation] += count_saturated(sums, data.dtype, WIRE_RULE, result)


@jit
def move_raw(data, operation, piece, received, sent):
    """One chunk of an operation when the dtype itself travels."""
    kind = data.kind[operation]
    size = data.piece_elements[piece] * data.item_bytes
    if size == 0:
        return 0
    source = data.piece_source[piece]
    target = data.piece_target[piece]
    image = data.piece_image[piece]
    memory = data.memory
    values = data.values[: data.piece_elements[piece]] if len(data.values) > 0 else data.values
    addend = data.addend[: data.piece_elements[piece]] if len(data.addend) > 0 else data.addend

    if kind == COPY:
        copy_bytes(memory[source : source + size], memory[target : target + size])
        return 0
    if kind == REDUCE:
        here = memory[target : target + size]
        other = memory[source : source + size]
        status = reduce_memory(here, here, other, data.dtype, data.operator, data.accumulate, values, addend)
        count_sums(data, operation, values, here)
        return status
    if kind == SEND:
        slot = data.slot[sent] + image
        copy_bytes(memory[source : source + size], data.wire_bytes[slot : slot + size])
        return 0

    slot = data.slot[received] + image
    arrived = data.wire_bytes[slot : slot + size]
    if kind in (RECV, RECV_COPY_SEND):
        copy_bytes(arrived, memory[target : target + size])
        if kind == RECV_COPY_SEND:
            slot = data.slot[sent] + image
            copy_bytes(arrived, data.wire_bytes[slot : slot + size])
        return 0
    own = target if kind == RECV_REDUCE else source
    if kind == RECV_REDUCE_SEND:
        slot = data.slot[sent] + image
        result = data.wire_bytes[slot : slot + size]
    else:
        result = memory[target : target + size]
    mine = memory[own : own + size]
    status = reduce_memory(result, mine, arrived, data.dtype, data.operator, data.accumulate, values, addend)
    count_sums(data, operation, values, result)
    if kind == RECV_REDUCE_COPY_SEND:
        slot = data.slot[sent] + image
        copy_bytes(result, data.wire_bytes[slot : slot + size])
    return status


@jit
def encode(data, operation, values, image):
    """Write the wire image of what an operation sends or publishes; returns an image status."""
    status = encode_image(values, data.wire, data.saturate, image, data.scale_mode)
    if data.saturated.size > 0:
        data.saturated[operation] += count_saturated(values, data.wire, data.scale_mode, image)
    return status


@jit
def publish_inputs(data, places, elements, cells):
    """Encode chunks of the inputs before anything runs, and keep the decoded copies; returns an image status."""
    status = 0
    for chunk in range(len(cells)):
        memory = data.memory[places[chunk] : places[chunk] + 4 * elements[chunk]].view(np.float32)
        image = remembered_image(data, cells[chunk], image_bytes(elements[chunk], data.wire))
        status |= encode(data, len(data.saturated) - 1, memory, image)
        status |= decode_image(image, data.wire, memory)
        data.image_known[cells[chunk]] = 1
    return status


@jit
def remembered_image(data, cell, size):
    """Where a chunk remembers its wire image."""
    return data.images[data.image_at[cell] : data.image_at[cell] + size]


@jit
def store(data, operation, publish, values, target, cell, size):
    """Write values to memory, and publish them if the operation says so; returns an image status."""
    memory = data.memory[target : target + 4 * len(values)].view(np.float32)
    memory[:] = values
    if publish == KEEP:
        data.image_known[cell] = 0
        return 0
    image = remembered_image(data, cell, size)
    status = encode(data, operation, values, image)
    data.image_known[cell] = 1
    if publish == PUBLISH_FINAL or data.round_own:
        status |= decode_image(image, data.wire, memory)
    return status


@jit
def move_quantised(data, operation, piece, received, sent):
    """One chunk of an operation when wire images travel."""
    kind = data.kind[operation]
    publish = data.publish[operation]
    elements = data.piece_elements[piece]
    if elements == 0:
        return 0
    size = image_bytes(elements, data.wire)
    source = data.piece_source[piece]
    target = data.piece_target[piece]
    source_cell = data.piece_source_cell[piece]
    target_cell = data.piece_target_cell[piece]
    memory = data.memory
    values = data.values[:elements]

    if kind == COPY:
        values[:] = memory[source : source + 4 * elements].view(np.float32)
        if source_cell < 0 or data.image_known[source_cell] == 0:
            return store(data, operation, publish, values, target, target_cell, size)
        status = store(data, operation, KEEP, values, target, target_cell, size)
        copy_bytes(remembered_image(data, source_cell, size), remembered_image(data, target_cell, size))
        data.image_known[target_cell] = 1
        if publish == PUBLISH_FINAL or (publish != KEEP and data.round_own):
            copied = memory[target : target + 4 * elements].view(np.float32)
            status |= decode_image(remembered_image(data, target_cell, size), data.wire, copied)
        return status
    if kind == REDUCE:
        here = memory[target : target + 4 * elements].view(np.float32)
        other = memory[source : source + 4 * elements].view(np.float32)
        accumulate_floats(values, here, other, data.operator, data.accumulate, data.addend[:elements])
        return store(data, operation, publish, values, target, target_cell, size)
    if kind == SEND:
        slot = data.slot[sent] + data.piece_image[piece]
        image = data.wire_bytes[slot : slot + size]
        if source_cell >= 0 and data.image_known[source_cell] == 1:
            copy_bytes(remembered_image(data, source_cell, size), image)
            return 0
        return encode(data, operation, memory[source : source + 4 * elements].view(np.float32), image)

    slot = data.slot[received] + data.piece_image[piece]
    arrived = data.wire_bytes[slot : slot + size]
    if kind in (RECV, RECV_COPY_SEND):
        status = decode_image(arrived, data.wire, memory[target : target + 4 * elements].view(np.float32))
        copy_bytes(arrived, remembered_image(data, target_cell, size))
        data.image_known[target_cell] = 1
        if kind == RECV_COPY_SEND:
            slot = data.slot[sent] + data.piece_image[piece]
            copy_bytes(arrived, data.wire_bytes[slot : slot + size])
        return status

    own = target if kind == RECV_REDUCE else source
    addend = data.addend[:elements]
    status = decode_image(arrived, data.wire, addend)
    mine = memory[own : own + 4 * elements].view(np.float32)
    accumulate_floats(values, mine, addend, data.operator, data.accumulate, addend)
    if kind in (RECV_REDUCE, RECV_REDUCE_COPY, RECV_REDUCE_COPY_SEND):
        status |= store(data, operation, publish, values, target, target_cell, size)
    if kind in (RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND):
        slot = data.slot[sent] + data.piece_image[piece]
        image = data.wire_bytes[slot : slot + size]
        if kind == RECV_REDUCE_COPY_SEND and publish != KEEP:
            copy_bytes(remembered_image(data, target_cell, size), image)
        else:
            status |= encode(data, operation, values, image)
    return status
