"""The third opinion: what MPI's own collective makes of the same input."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from collemu.collectives import REDUCTIONS
from collemu.dtypes import Dtype
from collemu.recipe import Recipe

if TYPE_CHECKING:
    from mpi4py import MPI

MOVERS = ("all_gather", "broadcast", "alltoall", "alltoallv", "gather", "scatter", "sendrecv")
EXACT_DTYPES = (
    "int32",
    "int64",
    "float32",
)  # of small integers, every one of them; float32 sums of others depend on order
OPERATORS = ("sum", "prod", "min", "max")  # MPI has no average


def has_opinion(collective: str, dtype: str, op: str, recipe: Recipe) -> bool:
    """Whether MPI does this collective, to the same bytes."""
    if recipe.wire != "none" or recipe.dtype is not None:
        return False
    return collective in MOVERS or (collective in REDUCTIONS and dtype in EXACT_DTYPES and op in OPERATORS)


def mpi_output(
    comm: "MPI.Intracomm",
    collective: str,
    own: NDArray[Any],
    dtype: Dtype,
    *,
    op: str,
    root: int,
    counts: NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """Output of MPI's own collective at this rank; of a reduce only the root's counts, of a gather others have none.

    Parameters
    ----------
    own : array of dtype.storage
        This rank's contribution.
    counts : int64 array (ranks, ranks), optional
        Of alltoallv.
    """
    from mpi4py import MPI

    if collective in MOVERS:
        given = own.view(np.uint8)
        if collective == "broadcast":
            output = given.copy()
            comm.Bcast([output, MPI.BYTE], root)
        elif collective == "all_gather":
            output = np.empty(len(given) * comm.size, np.uint8)
            comm.Allgather([given, MPI.BYTE], [output, MPI.BYTE])
        elif collective == "gather":
            output = np.empty(len(given) * comm.size if comm.rank == root else 0, np.uint8)
            comm.Gather([given, MPI.BYTE], [output, MPI.BYTE], root)
        elif collective == "scatter":
            output = np.empty(comm.bcast(len(given) // comm.size, root), np.uint8)
            comm.Scatter([given, MPI.BYTE], [output, MPI.BYTE], root)
        elif collective == "alltoallv" and counts is not None:
            sent, received = counts[comm.rank] * dtype.item_bytes, counts[:, comm.rank] * dtype.item_bytes
            output = np.empty(int(received.sum()), np.uint8)
            comm.Alltoallv([given, sent.tolist(), MPI.BYTE], [output, received.tolist(), MPI.BYTE])
        else:
            output = np.empty_like(given)
            if collective == "alltoall":
                comm.Alltoall([given, MPI.BYTE], [output, MPI.BYTE])
            else:
                following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                comm.Sendrecv([given, MPI.BYTE], following, 0, [output, MPI.BYTE], before, 0)
        return output.view(dtype.storage)
    kind = {"int32": MPI.INT32_T, "int64": MPI.INT64_T, "float32": MPI.FLOAT}[dtype.name]
    operator = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}[op]
    if collective == "reduce_scatter":
        output = np.empty(len(own) // comm.size, own.dtype)
        comm.Reduce_scatter_block([own, kind], [output, kind], operator)
    else:
        output = np.empty_like(own)
        if collective == "reduce":
            comm.Reduce([own, kind], [output, kind], operator, root)
        else:
            comm.Allreduce([own, kind], [output, kind], operator)
    return output
