"""What a switch does to the memory of its chips, done by the process of the rank that asked for it."""

from collections import Counter

import numpy as np
from collemu_kernels import kinds, switch_memory
from collemu_kernels.dataplane import DataPlane
from collemu_kernels.format_ids import FLOAT32

from collemu.ranks.transport import Transport


def carry_out(plane: DataPlane, operation: int, transport: Transport) -> tuple[int, Counter[int]]:
    """Carry out a multimem_reduce or multimem_store, whose members' memory is in other processes.

    Terms are added in the order of ``plane.places``, as the emulator does.

    Parameters
    ----------
    plane : DataPlane
        Over the memory of the operation's rank.
    operation : int
    transport : Transport

    Returns
    -------
    status : int
        As `collemu_kernels.dataplane.move` gives it.
    touched : Counter
        Bytes that were read or written, by rank.
    """
    status = 0
    touched: Counter[int] = Counter()
    for piece in range(plane.piece_first[operation], plane.piece_first[operation + 1]):
        elements = int(plane.piece_elements[piece])
        size = elements * plane.item_bytes
        if size == 0:
            continue
        members = slice(plane.place_first[piece], plane.place_first[piece + 1])
        ranks, offsets = plane.place_rank[members].tolist(), plane.places[members].tolist()
        if plane.kind[operation] == kinds.MULTIMEM_STORE:
            source = plane.piece_source[piece]
            # a copy, as one's own memory may be overwritten with itself
            transport.write(ranks, offsets, plane.memory[source : source + size].copy())
        else:
            terms = np.empty((len(ranks), size), np.uint8)
            transport.read(ranks, offsets, terms)
            target = plane.piece_target[piece]
            status |= switch_memory.add_terms(  # pyright: ignore[reportUnknownMemberType]
                terms.reshape(-1),
                np.arange(len(ranks)) * size,
                size,
                plane.dtype,
                plane.operator,
                plane.memory[target : target + size],
                plane.values[:elements],
                plane.addend[:elements],
            )
        touched.update(dict.fromkeys(ranks, size))
    return status, touched


def load_kernel() -> None:
    """Load what `carry_out` calls, so that its first time is not the time of that."""
    item, no_values = np.zeros(4, np.uint8), np.zeros(0, np.float32)
    switch_memory.add_terms(  # pyright: ignore[reportUnknownMemberType]
        item, np.zeros(1, np.int64), len(item), FLOAT32, kinds.SUM, item.copy(), no_values, no_values
    )
