"""What each collective means, in a line of NumPy each."""

import numpy as np


def reference(collective: str, data: np.ndarray, root: int = 0) -> list[np.ndarray | None]:
    """Outputs of all ranks for the inputs ``data[rank]``; None where nothing is promised."""
    n = len(data)
    regions = data.reshape(n, n, data.shape[1] // n) if collective in ("reduce_scatter", "alltoall") else None
    match collective:
        case "all_reduce":
            return [data.sum(axis=0)] * n
        case "reduce":
            return [data.sum(axis=0) if rank == root else None for rank in range(n)]
        case "broadcast":
            return [data[root]] * n
        case "all_gather":
            return [data.reshape(-1)] * n
        case "reduce_scatter":
            return list(regions.sum(axis=0))
        case "alltoall":
            return [regions[:, rank].reshape(-1) for rank in range(n)]
        case "gather":
            return [data.reshape(-1) if rank == root else None for rank in range(n)]
        case "scatter":
            return np.split(data[root], n)
        case "sendrecv":
            return [data[rank - 1] for rank in range(n)]
    raise KeyError(collective)


def input_elements(collective: str, ranks: int, count: int) -> int:
    """Elements of one rank's input."""
    return ranks * count if collective in ("reduce_scatter", "alltoall", "scatter") else count
