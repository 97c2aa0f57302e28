"""What a switch does to the memory of its chips: add the same stretch of all of them, or write it to all of them."""

from collemu_kernels._jit import jit
from collemu_kernels.combine import accumulate_floats, reduce_memory
from collemu_kernels.format_ids import FLOAT16, FLOAT32, FLOAT64, INT32, INT64
from collemu_kernels.images import copy_bytes, decode_image, encode_image


@jit
def add_terms(memory, places, size, dtype, operator, target, values, addend):
    """Add up stretches of ``size`` bytes in the order of ``places``; returns an image status.

    As switches do: wide types in themselves, float16 and bfloat16 in float32, 8-bit floats in float16, and rounded to
    their type at the end. ``values`` and ``addend`` are float32 work space for types below 32 bits.
    """
    first = memory[places[0] : places[0] + size]
    if dtype in (FLOAT32, FLOAT64, INT32, INT64):
        total = first.copy()  # the target may be the memory of a later term
        for k in range(1, len(places)):
            term = memory[places[k] : places[k] + size]
            reduce_memory(total, total, term, dtype, operator, FLOAT32, values, addend)
        copy_bytes(total, target)
        return 0
    bytewide = len(values) == size
    accumulate = FLOAT16 if bytewide else FLOAT32
    status = decode_image(first, dtype, values)
    for k in range(1, len(places)):
        status |= decode_image(memory[places[k] : places[k] + size], dtype, addend)
        accumulate_floats(values, values, addend, operator, accumulate, addend)
    return status | encode_image(values, dtype, bytewide, target)


@jit
def carry_out(data, store, operation):
    """A multimem_reduce or multimem_store of a rank whose fellow members' memory is here too; returns a status."""
    status = 0
    for piece in range(data.piece_first[operation], data.piece_first[operation + 1]):
        elements = data.piece_elements[piece]
        size = elements * data.item_bytes
        if size == 0:
            continue
        places = data.places[data.place_first[piece] : data.place_first[piece + 1]]
        if store:
            source = data.piece_source[piece]
            given = data.memory[source : source + size].copy()  # which may be overwritten with itself
            for place in places:
                copy_bytes(given, data.memory[place : place + size])
            continue
        target = data.piece_target[piece]
        narrow = len(data.values) > 0
        status |= add_terms(
            data.memory,
            places,
            size,
            data.dtype,
            data.operator,
            data.memory[target : target + size],
            data.values[:elements] if narrow else data.values,
            data.addend[:elements] if narrow else data.addend,
        )
    return status
