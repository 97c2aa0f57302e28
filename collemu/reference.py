"""What a collective must give, in NumPy and without a schedule: what results are compared with."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[Any] | list[NDArray[Any]]  # equally long, or of any lengths


def reference(
    collective: str, data: Rows, op: str = "sum", root: int = 0, counts: NDArray[np.int64] | None = None
) -> NDArray[Any]:
    """Outputs of a collective, every number computed at once.

    Parameters
    ----------
    collective : str
    data : array (ranks, elements), or list of arrays
        Floats are reduced in float64; integers wrap, and an average of them truncates toward zero. A list where ranks
        give different amounts.
    op : str
        sum, prod, min, max or avg, where something is reduced.
    root : int
        Of broadcast, reduce, gather and scatter.
    counts : int64 array (ranks, ranks), optional
        Of alltoallv.

    Returns
    -------
    array (rows, elements), or (elements,)
        One row a rank, where `rows_that_count` of them may be fewer than ranks; one after the other where ranks get
        different amounts.

    Raises
    ------
    ValueError
        For a collective that has no rule here.
    """
    ranks = len(data)
    match collective:
        case "gather":
            return np.concatenate(list(data))
        case "scatter":
            return data[root]
        case "alltoallv" if counts is not None:
            blocks = [np.split(row, ends[:-1]) for row, ends in zip(data, np.cumsum(counts, axis=1), strict=True)]
            return np.concatenate([blocks[source][rank] for rank in range(ranks) for source in range(ranks)])
        case _:
            return _of_equal_rows(collective, np.asarray(data), op, root)


def _of_equal_rows(collective: str, data: NDArray[Any], op: str, root: int) -> NDArray[Any]:
    ranks = len(data)
    match collective:
        case "all_reduce":
            return np.broadcast_to(reduced(data, op), (ranks, data.shape[1]))
        case "reduce":
            return reduced(data, op)[None]
        case "reduce_scatter":
            return reduced(data, op).reshape(ranks, -1)
        case "broadcast":
            return np.broadcast_to(data[root], data.shape)
        case "all_gather":
            return np.broadcast_to(data.reshape(-1), (ranks, data.size))
        case "alltoall":
            return data.reshape(ranks, ranks, -1).swapaxes(0, 1).reshape(ranks, -1)
        case "sendrecv":
            return np.roll(data, 1, axis=0)
        case other:
            raise ValueError(f"no reference for {other!r}")


def rows_that_count(collective: str, outputs: Rows, root: int) -> NDArray[Any]:
    """The rows of a run's outputs that `reference` gives: of a reduce the root's, else all; a list in one row."""
    if isinstance(outputs, list):
        return np.concatenate(outputs)
    return outputs[root : root + 1] if collective == "reduce" else outputs


def difference(
    collective: str,
    data: Rows,
    outputs: Rows,
    op: str = "sum",
    root: int = 0,
    counts: NDArray[np.int64] | None = None,
) -> tuple[float, float]:
    """How far a run's outputs are from the reference, whose parameters the others are.

    Returns
    -------
    relative : float
        Frobenius norm of the difference over that of the reference; 0 where both are 0. NaN or infinite where
        NaN or infinities are among the data.
    largest : float
        Largest absolute difference; likewise.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinities among the data
        expected = reference(collective, data, op, root, counts).astype(np.float64)
        error = np.abs(rows_that_count(collective, outputs, root) - expected)
        norm = float(np.linalg.norm(expected))
        distance = float(np.linalg.norm(error))
        return (distance / norm if norm else distance), float(error.max(initial=0.0))


def reduced(data: NDArray[Any], op: str) -> NDArray[Any]:
    """Column by column over all ranks."""
    integers = data.dtype.kind in "iu"  # NumPy has no kind for the narrow floats of ml_dtypes
    numbers = data if integers else data.astype(np.float64)
    match op:
        case "min":
            return numbers.min(axis=0)
        case "max":
            return numbers.max(axis=0)
        case "prod":
            return numbers.prod(axis=0, dtype=numbers.dtype)
        case _:
            total = numbers.sum(axis=0, dtype=numbers.dtype)
    if op != "avg":
        return total
    if not integers:
        return total / len(data)
    # float64 would round beyond 2**53, and // rounds down where an average truncates
    quotient = total // len(data)
    return quotient + ((total < 0) & (quotient * len(data) != total)).astype(total.dtype)
