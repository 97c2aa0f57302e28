"""How much of what operations send, or publish, has to be encoded first: what `dataplane` does, without the data."""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.kinds import (
    COPY,
    KEEP,
    MULTIMEM_REDUCE,
    RECV,
    RECV_COPY_SEND,
    RECV_REDUCE_COPY_SEND,
    RECV_REDUCE_SEND,
    SEND,
)


@jit
def count_encoded(
    order: NDArray[np.int32],
    kind: NDArray[np.uint8],
    publish: NDArray[np.uint8],
    piece_first: NDArray[np.int64],
    piece_elements: NDArray[np.int64],
    source_cell: NDArray[np.int64],
    target_cell: NDArray[np.int64],
    known: NDArray[np.uint8],
    encoded: NDArray[np.int64],
) -> None:
    """Add up the elements that each operation encodes.

    Parameters
    ----------
    order
        Operations in an order in which they can run.
    kind, publish
        Of each operation.
    piece_first, piece_elements, source_cell, target_cell
        Pieces of operations, one a chunk, and the cells that they read and write.
    known : uint8 [cell]
        Work space of zeros: whether a chunk remembers its wire image.
    encoded : int64 [operation], out
        Must come in as zeros.
    """
    for operation in order:
        deed = kind[operation]
        if deed >= MULTIMEM_REDUCE:
            continue
        published = publish[operation] != KEEP
        for piece in range(piece_first[operation], piece_first[operation + 1]):
            source = source_cell[piece]
            target = target_cell[piece]
            if deed == SEND:
                if known[source] == 0:
                    encoded[operation] += piece_elements[piece]
            elif deed in (RECV, RECV_COPY_SEND):
                known[target] = 1
            elif deed == COPY and (known[source] == 1 or not published):
                known[target] = known[source]
            else:
                if deed != RECV_REDUCE_SEND:
                    known[target] = published
                if published or deed in (RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND):
                    encoded[operation] += piece_elements[piece]
