"""How often numbers were rounded on their way: what `dataplane` does, counted instead of computed."""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
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
    RECV_REDUCE_COPY_SEND,
    RECV_REDUCE_SEND,
    REDUCE,
    SEND,
)


@jit
def count_roundings(
    order: NDArray[np.int32],
    kind: NDArray[np.uint8],
    publish: NDArray[np.uint8],
    sender: NDArray[np.int32],
    group_first: NDArray[np.int32],
    group_ranks: NDArray[np.int32],
    rank_cells: int,
    piece_first: NDArray[np.int64],
    source_cell: NDArray[np.int64],
    target_cell: NDArray[np.int64],
    quantised: bool,
    per_sum: int,
    round_own: bool,
    known: NDArray[np.uint8],
    held: NDArray[np.int32],
    travelled: NDArray[np.int32],
    sent: NDArray[np.int32],
) -> None:
    """Most roundings that any contribution in a chunk, or in its wire image, has been through.

    Parameters
    ----------
    order
        Operations in an order in which they can run.
    kind, publish
        Of each operation.
    sender : int32 [operation]
        The operation whose message it receives, or -1.
    group_first, group_ranks : int32 [operation]
        First rank of its switch group, relative to its own rank, and how many there are.
    rank_cells : int
        Cells of a rank.
    piece_first, source_cell, target_cell
        Pieces of operations, one a chunk, and the cells that they read and write.
    quantised : bool
        Whether wire images travel; else what memory holds does.
    per_sum : int
        Roundings of a sum that stays in memory.
    round_own : bool
        Whether the recipe rounds a rank's own term.
    known : uint8 [cell], in and out
        Whether a chunk remembers its wire image.
    held, travelled : int32 [cell], in and out
        Roundings of what memory holds, and of the image.
    sent : int32 [piece]
        Work space: roundings of what operations send.
    """
    for operation in order:
        deed = kind[operation]
        if deed == NOP:
            continue
        published = quantised and publish[operation] != KEEP
        keeps_decoded = publish[operation] == PUBLISH_FINAL or round_own
        first = piece_first[operation]
        for piece in range(first, piece_first[operation + 1]):
            source = source_cell[piece]
            target = target_cell[piece]
            arrived = np.int32(0)
            if sender[operation] >= 0:
                arrived = sent[piece_first[sender[operation]] + piece - first]
            members = range(group_first[operation], group_first[operation] + group_ranks[operation])
            if deed == MULTIMEM_REDUCE:
                most = np.int32(0)
                for member in members:
                    most = max(most, held[source + member * rank_cells])
                held[target] = most + per_sum
                continue
            if deed == MULTIMEM_STORE:
                for member in members:
                    held[target + member * rank_cells] = held[source]
                continue
            if deed == SEND:
                fresh = held[source] + np.int32(quantised)
                sent[piece] = travelled[source] if known[source] == 1 else fresh
                continue
            if deed in (RECV, RECV_COPY_SEND):
                held[target] = arrived
                travelled[target] = arrived
                known[target] = quantised
                sent[piece] = arrived
                continue
            if deed == COPY:
                total = held[source]
                if known[source] == 1 or not published:
                    held[target] = travelled[source] if published and keeps_decoded else total
                    known[target] = known[source]
                    travelled[target] = travelled[source]
                    continue
            elif deed == REDUCE:
                total = max(held[source], held[target]) + per_sum
            else:
                total = max(held[target if deed == RECV_REDUCE else source], arrived) + per_sum
            if deed == RECV_REDUCE_SEND:
                sent[piece] = total + np.int32(quantised)
                continue
            held[target] = total
            known[target] = published
            travelled[target] = total + np.int32(1)
            if published and keeps_decoded:
                held[target] = travelled[target]
            if deed == RECV_REDUCE_COPY_SEND:
                sent[piece] = total + np.int32(quantised)
