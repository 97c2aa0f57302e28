"""What each rank gives to a collective and gets from it: how many elements, and users' arrays of them."""

from typing import Any

from numpy.typing import NDArray

from collemu.arguments import shown
from collemu.collectives import UNEVEN
from collemu.counts import largest_buffer
from collemu.dtypes import Dtype, to_storage
from collemu.schedule import Schedule


def input_size(schedule: Schedule, count: int, rank: int) -> int:
    """Elements that a rank contributes; of a scatter only the root does."""
    if schedule.counts is not None:
        return int(schedule.counts[rank].sum())
    given = schedule.collective != "scatter" or rank == schedule.root
    return schedule.input_regions * count if given else 0


def output_size(schedule: Schedule, count: int, rank: int) -> int:
    """Elements that a rank gets; of a gather only the root does."""
    if schedule.counts is not None:
        return int(schedule.counts[:, rank].sum())
    got = schedule.collective != "gather" or rank == schedule.root
    return schedule.output_regions * count if got else 0


def settled_count(schedule: Schedule, count: int | None) -> int:
    """The count of a run. That of an alltoallv follows from its counts: the elements of the largest buffer of a rank.

    Raises
    ------
    ValueError
        If it is missing, or is given for an alltoallv and is another.
    """
    if schedule.counts is None:
        if count is None:
            raise ValueError(f"count is missing; {schedule.collective} needs the elements a rank")
        return count
    largest = largest_buffer(schedule.counts)
    if count is not None and count != largest:
        raise ValueError(f"count is {count}; the counts of this alltoallv make it {largest}: leave it out")
    return largest


def input_rows(data: Any, schedule: Schedule, count: int, dtype: Dtype) -> list[NDArray[Any]]:
    """A user's data as one row of a dtype's storage a rank.

    Parameters
    ----------
    data : array (ranks, elements), or a list of arrays
        A list where ranks give, or get, different amounts; of a scatter also the root's array alone.

    Raises
    ------
    ValueError
        If the shape is another, or the numbers are none of the dtype.
    """
    sizes = [input_size(schedule, count, rank) for rank in range(schedule.ranks)]
    what = f"{schedule.collective} over {schedule.ranks} ranks"
    if schedule.collective not in UNEVEN:
        storage = to_storage(data, dtype)
        expected = (schedule.ranks, sizes[0])
        if storage.shape != expected:
            raise ValueError(f"data has shape {storage.shape}; {what} with count {count} takes {expected}")
        return list(storage)
    given = [to_storage(row, dtype, f"data of rank {rank}") for rank, row in enumerate(listed(data, schedule))]
    if len(given) != schedule.ranks:
        raise ValueError(f"data has {len(given)} arrays; {what} takes one a rank")
    for rank, (row, size) in enumerate(zip(given, sizes, strict=True)):
        if row.shape != (size,) and (row.size or size):
            raise ValueError(f"data of rank {rank} has shape {row.shape}; {what} takes ({size},) from it")
    return given


def listed(data: Any, schedule: Schedule) -> list[Any]:
    """What a user gives for a collective of different amounts, as a list of arrays, one a rank."""
    if schedule.collective == "scatter" and getattr(data, "ndim", 0) == 1:
        return [data if rank == schedule.root else data[:0] for rank in range(schedule.ranks)]
    try:
        return list(data)
    except TypeError:
        raise ValueError(f"data is {shown(data)}; {schedule.collective} takes a list of arrays, one a rank") from None
