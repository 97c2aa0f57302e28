"""The sizes and bandwidths that nccl-tests prints, by its conventions.

``count`` is the count of one NCCL call: per rank and, where every rank has a block for or from each rank,
per block. The printed size is the larger of a rank's send and receive buffers. algbw is size over time;
busbw scales it so that it can be compared with the rate of a link whatever the number of ranks.
"""

from fractions import Fraction

LINE_BYTES = 16  # nccl-tests rounds a block down to whole 16-byte lines

# Buffers of n blocks of count elements, and buffers of count elements.
BLOCKWISE = (
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "gather",
    "scatter",
)
WHOLE = ("all_reduce", "broadcast", "reduce", "sendrecv")


def size_bytes(collective: str, ranks: int, count: int, itemsize: int) -> int:
    """Printed size of a collective.

    Parameters
    ----------
    collective : str
    ranks, count : int
        ``count`` elements per rank or block, as in the ``count`` column.
    itemsize : int
        Bytes of an element of the dtype; a wire format does not change the size.
    """
    _known(collective)
    return count * itemsize * (ranks if collective in BLOCKWISE else 1)


def count_for_size(collective: str, ranks: int, size: int, itemsize: int) -> int:
    """The ``count`` that nccl-tests uses for a requested size in bytes.

    Blocks are rounded down to whole 16-byte lines, so a small size may give 0.
    """
    _known(collective)
    count = size // itemsize
    if collective not in BLOCKWISE:
        return count
    line = max(1, LINE_BYTES // itemsize)
    return count // ranks // line * line


def busbw_factor(collective: str, ranks: int) -> Fraction:
    """busbw over algbw: the share of the size that a rank's link must carry in a ring."""
    _known(collective)
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    if collective in BLOCKWISE:
        return Fraction(ranks - 1, ranks)
    return Fraction(1)


def algbw(size: int, time_s: float) -> float:
    """Bytes per second of a printed size; 0 where nothing moved or no time passed."""
    return size / time_s if size and time_s else 0.0


def busbw(collective: str, ranks: int, size: int, time_s: float) -> float:
    """Bytes per second of the bus by nccl-tests' factor; 0 where nothing moved or no time passed."""
    return algbw(size, time_s) * float(busbw_factor(collective, ranks))


def _known(collective: str) -> None:
    if collective not in (*BLOCKWISE, *WHOLE):
        raise ValueError(f"collective {collective!r}: unknown; there are {', '.join(sorted((*BLOCKWISE, *WHOLE)))}")
