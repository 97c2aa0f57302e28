"""How many elements go from each rank to each: the n x n table of an alltoallv, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

MOST = 2**40  # elements of one pair: sums over all ranks then stay within int64

Counts = NDArray[np.int64]


def counts_matrix(collective: str, ranks: int, counts: Sequence[Sequence[int]] | NDArray[Any] | None) -> Counts | None:
    """What a user gives as ``counts``, as a table that nobody writes to; None for collectives that take none.

    Raises
    ------
    ValueError
        If they are missing, are for another collective, or are not n x n whole numbers from 0 to `MOST`.
    """
    if collective != "alltoallv":
        if counts is not None:
            raise ValueError(f"counts belong to alltoallv; {collective} takes none")
        return None
    if counts is None:
        raise ValueError(f"alltoallv needs counts: {ranks} rows of {ranks} elements, row i what rank i sends to each")
    table = counts_table(counts, "counts")
    if len(table) != ranks:
        raise ValueError(f"counts has {len(table)} rows and columns; {ranks} ranks need {ranks}")
    return table


def counts_table(counts: Any, what: str) -> Counts:
    """A square table of whole numbers, its own read-only copy.

    Raises
    ------
    ValueError
        If it is no such table; the text calls it ``what``.
    """
    try:
        given = np.asarray(counts)
    except ValueError:
        raise ValueError(f"{what}: rows of different lengths are no table; give n rows of n whole numbers") from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or not given.size:
        raise ValueError(f"{what} has shape {given.shape}; give n rows of n whole numbers")
    if given.dtype.kind not in "iu":
        raise ValueError(f"{what} has dtype {given.dtype}; give whole numbers")
    wrong = np.argwhere((given < 0) | (given > MOST))
    if len(wrong):
        i, j = (int(each) for each in wrong[0])
        raise ValueError(f"{what}: {given[i, j]} elements from rank {i} to rank {j}; give 0 to {MOST}")
    table = given.astype(np.int64)
    table.setflags(write=False)
    return table


def largest_buffer(counts: Counts) -> int:
    """Elements of the largest input or output of a rank."""
    return int(max(counts.sum(axis=1).max(), counts.sum(axis=0).max()))


def uneven_starts(counts: Counts, buffer: int, region_chunks: int, chunks: int) -> NDArray[np.int64]:
    """Element offsets at which the chunks of a buffer begin at each rank, and the buffer's end.

    Input region j of rank i is what it sends to rank j, and output region i of rank j what comes of it. A region is
    cut as those of other collectives are; a scratch chunk has room for the largest chunk.

    Returns
    -------
    ndarray of int64, shape (ranks, chunks + 1)
    """
    starts = np.zeros((len(counts), chunks + 1), np.int64)
    if buffer == kinds.SCRATCH:
        starts += np.arange(chunks + 1) * -(-int(counts.max()) // region_chunks)
        return starts
    regions = counts if buffer == kinds.INPUT else counts.T
    short, longer = np.divmod(regions[:, :, None], region_chunks)
    lengths = short + (np.arange(region_chunks) < longer)
    np.cumsum(lengths.reshape(len(counts), -1), axis=1, out=starts[:, 1:])
    return starts


def staircase(ranks: int, count: int) -> Counts:
    """The uneven table of rccl-tests' alltoallv_perf, by its convention.

    Rank i sends ``(i + j) mod n`` steps of ``2 * count // n`` elements to rank j; and where that is none, what is left
    of ``n * count``. Every rank sends and receives ``n * count`` elements.
    """
    rank = np.arange(ranks, dtype=np.int64)
    steps = (rank[:, None] + rank) % ranks
    step = 2 * count // ranks
    return np.where(steps == 0, ranks * count - step * (ranks * (ranks - 1) // 2), steps * step)


def load_counts(path: str) -> Counts:
    """Read a table from a ``.npy`` file, or from text with a row a line and commas or spaces between.

    Raises
    ------
    ValueError
        If it cannot be read, or is no square table of whole numbers.
    """
    what = f"counts {path}"
    if not Path(path).is_file():
        raise ValueError(f"{what}: no such file; give a .npy or .csv file with n rows of n whole numbers")
    try:
        if path.endswith(".npy"):
            return counts_table(np.load(path, allow_pickle=False), what)
        lines = Path(path).read_text(encoding="utf-8").replace(",", " ").splitlines()
        return counts_table([[int(word) for word in line.split()] for line in lines if line.strip()], what)
    except (OSError, EOFError, UnicodeError) as error:
        raise ValueError(f"{what}: cannot be read ({str(error).splitlines()[0]})") from None
    except ValueError as error:
        if str(error).startswith(what):
            raise
        raise ValueError(f"{what}: {str(error).splitlines()[0]}; give n rows of n whole numbers") from None
