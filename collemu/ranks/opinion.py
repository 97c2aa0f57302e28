"""The third opinion: what MPI's own collective makes of the same input."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from collemu.collectives import REDUCTIONS
from collemu.dtypes import Dtype
from collemu.recipe import Recipe

if TYPE_CHECKING:
    from mpi4py import MPI

MOVERS = ("all_gather", "broadcast", "alltoall", "alltoallv", "gather", "scatter", "sendrecv")
EXACT_DTYPES = ("int32", "int64", "float32")  # of small integers; float32 sums of others depend on order
OPERATORS = ("sum", "prod", "min", "max")  # MPI has no average


def has_opinion(collective: str, dtype: str, op: str, recipe: Recipe) -> bool:
    """Whether MPI does this collective, to the same bytes."""
    return recipe.wire == "none" and recipe.dtype is None and is_done_by_mpi(collective, dtype, op)


def is_done_by_mpi(collective: str, dtype: str, op: str) -> bool:
    """Whether MPI has such a collective for numbers of this dtype."""
    return collective in MOVERS or (collective in REDUCTIONS and dtype in EXACT_DTYPES and op in OPERATORS)


def mpi_collective(
    comm: "MPI.Intracomm",
    collective: str,
    own: NDArray[Any],
    dtype: Dtype,
    *,
    op: str,
    root: int,
    counts: NDArray[np.int64] | None = None,
) -> tuple[Callable[[], None], NDArray[Any]]:
    """MPI's own collective, to be called by all ranks, again if need be, and the output that it fills at this rank.

    Parameters
    ----------
    own : array of dtype.storage
        This rank's contribution.
    counts : int64 array (ranks, ranks), optional
        Of alltoallv.

    Returns
    -------
    call : callable
    output : array of dtype.storage
        Of a reduce only the root's counts, of a gather others have none.
    """
    if collective in MOVERS:
        call, output = _mover(comm, collective, own.view(np.uint8), root, counts, dtype.item_bytes)
        return call, output.view(dtype.storage)
    return _reduction(comm, collective, own, dtype, op, root)


def _mover(
    comm: "MPI.Intracomm",
    collective: str,
    given: NDArray[np.uint8],
    root: int,
    counts: NDArray[np.int64] | None,
    item_bytes: int,
) -> tuple[Callable[[], None], NDArray[Any]]:
    from mpi4py import MPI

    source = [given, MPI.BYTE]
    if collective == "broadcast":
        output = given.copy()
        return lambda: comm.Bcast([output, MPI.BYTE], root), output
    if collective == "all_gather":
        output = np.zeros(len(given) * comm.size, np.uint8)
        return lambda: comm.Allgather(source, [output, MPI.BYTE]), output
    if collective == "gather":
        output = np.zeros(len(given) * comm.size if comm.rank == root else 0, np.uint8)
        return lambda: comm.Gather(source, [output, MPI.BYTE], root), output
    if collective == "scatter":
        output = np.zeros(comm.bcast(len(given) // comm.size, root), np.uint8)
        return lambda: comm.Scatter(source, [output, MPI.BYTE], root), output
    if collective == "alltoallv" and counts is not None:
        sent, received = (each.tolist() for each in (counts[comm.rank] * item_bytes, counts[:, comm.rank] * item_bytes))
        output = np.zeros(sum(received), np.uint8)
        return lambda: comm.Alltoallv([given, sent, MPI.BYTE], [output, received, MPI.BYTE]), output
    output = np.zeros_like(given)
    if collective == "alltoall":
        return lambda: comm.Alltoall(source, [output, MPI.BYTE]), output
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return lambda: comm.Sendrecv(source, following, 0, [output, MPI.BYTE], before, 0), output


def _reduction(
    comm: "MPI.Intracomm", collective: str, own: NDArray[Any], dtype: Dtype, op: str, root: int
) -> tuple[Callable[[], None], NDArray[Any]]:
    from mpi4py import MPI

    kind = {"int32": MPI.INT32_T, "int64": MPI.INT64_T, "float32": MPI.FLOAT}[dtype.name]
    operator = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}[op]
    if collective == "reduce_scatter":
        output = np.zeros(len(own) // comm.size, own.dtype)
        return lambda: comm.Reduce_scatter_block([own, kind], [output, kind], operator), output
    output = np.zeros_like(own)
    if collective == "reduce":
        return lambda: comm.Reduce([own, kind], [output, kind], operator, root), output
    return lambda: comm.Allreduce([own, kind], [output, kind], operator), output
