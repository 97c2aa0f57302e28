"""What operations have a switch do: for which chips, and where it can."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.arguments import whole
from collemu.catalogue import System
from collemu.lower import Lowered
from collemu.schedule import IN_SWITCH, Schedule, ScheduleError

if TYPE_CHECKING:
    from collemu.payload import Payload

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

#: What NVLink switches add, and what they find the least and the greatest of, by PTX's table of multimem.ld_reduce.
ADDED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
COMPARED = ("float16", "bfloat16", "int32", "int64")
ADDED_IN_FLOAT16 = ("float8_e4m3fn", "float8_e5m2")  # by some generations


@dataclass(frozen=True)
class InSwitch:
    """The in-switch operations of a schedule, in the order of the table; arrays of an entry each.

    Attributes
    ----------
    operation : int32 array
    adds : bool array
        Whether it is a multimem_reduce; else it is a multimem_store.
    rank, first, members : int32 arrays
        Whose operation it is; the first rank of its switch group, and how many there are.
    nbytes : int64 array
        Of memory, at each member.
    offset : int64 array
        Of its first byte in the buffer that the group reads or writes.
    """

    operation: Int32
    adds: NDArray[np.bool_]
    rank: Int32
    first: Int32
    members: Int32
    nbytes: Int64
    offset: Int64

    def __len__(self) -> int:
        return len(self.operation)


def in_switch_of(lowered: Lowered) -> InSwitch:
    """The in-switch operations of a lowered schedule."""
    schedule, ops = lowered.schedule, lowered.schedule.ops
    operation = np.flatnonzero(IN_SWITCH[ops["kind"]]).astype(np.int32)
    adds = ops["kind"][operation] == kinds.MULTIMEM_REDUCE
    size = _group_size(schedule)
    rank = lowered.rank[operation]
    first = rank // size * size
    here = ops[operation]
    buffer = np.where(adds, here["src_buffer"], here["dst_buffer"])
    chunk = np.where(adds, here["src"], here["dst"])
    offset = np.zeros(len(operation), np.int64)
    for each in np.unique(buffer):
        at = np.flatnonzero(buffer == each)
        offset[at] = schedule.chunk_starts(int(each), lowered.count)[chunk[at]]
    return InSwitch(
        operation=operation,
        adds=adds,
        rank=rank,
        first=first.astype(np.int32),
        members=np.minimum(size, schedule.ranks - first).astype(np.int32),
        nbytes=lowered.nbytes[operation],
        offset=offset * lowered.item_bytes,
    )


def _group_size(schedule: Schedule) -> int:
    """Ranks of a switch group; the last group may have fewer."""
    return min(whole(schedule.group_ranks, "group_ranks") or schedule.ranks, schedule.ranks)


def by_member(asked: InSwitch, values: NDArray[np.int64], ranks: int) -> NDArray[np.float64]:
    """Add up a value of each operation at every member of its group; an entry a rank."""
    change = np.zeros(ranks + 1)
    np.add.at(change, asked.first, values)
    np.subtract.at(change, asked.first + asked.members, values)
    return np.cumsum(change)[:ranks]


def refuse_in_switch(schedule: Schedule, system: System, payload: "Payload") -> None:
    """Raise if a schedule has in-switch operations that the system's switches cannot carry out.

    Raises
    ------
    ScheduleError
        With the reason, and what to change.
    """
    kind = schedule.ops["kind"]
    if not IN_SWITCH[kind].any():
        return
    if not system.domain.in_switch_reduction:
        raise ScheduleError(
            f"{schedule.algorithm} needs switches that add and copy; those of {system.name} do not, or nobody knows: "
            f"choose another algorithm, or set domain.in_switch_reduction"
        )
    size, chips = _group_size(schedule), system.domain.chips
    if schedule.ranks > chips and chips % size != 0:
        raise ScheduleError(
            f"{schedule.algorithm} has switch groups of {size} ranks, which do not fit into domains of {chips} chips; "
            f"use fewer ranks"
        )
    if payload.quantised:
        raise ScheduleError(
            f"{schedule.algorithm} over wire {payload.recipe.wire}: switches add and copy what memory holds; use wire "
            f"none, and an 8-bit dtype if that is what should travel"
        )
    if (kind == kinds.MULTIMEM_REDUCE).any():
        _refuse_type(schedule, system, payload)


def switch_adds(system: System, payload: "Payload") -> bool:
    """Whether a system's switches add, or find the least or greatest, of what travels."""
    return not payload.quantised and payload.runs_in.name in switch_types(system).get(payload.operator, ())


def switch_types(system: System) -> dict[str, tuple[str, ...]]:
    """Types in which a system's switches do each operation."""
    if not system.domain.in_switch_reduction:
        return {}
    eight_bit = ADDED_IN_FLOAT16 if system.domain.in_switch_float8 else ()
    added, compared = (*ADDED, *eight_bit), (*COMPARED, *eight_bit)
    return {"sum": added, "avg": added, "min": compared, "max": compared}


def _refuse_type(schedule: Schedule, system: System, payload: "Payload") -> None:
    can = switch_types(system)
    if payload.operator not in can:
        raise ScheduleError(f"{schedule.algorithm}: no switch forms a {payload.operator}; choose {', '.join(can)}")
    if payload.runs_in.name not in can[payload.operator]:
        raise ScheduleError(
            f"{schedule.algorithm}: the switches of {system.name} form no {payload.operator} of "
            f"{payload.runs_in.name}, only of {', '.join(can[payload.operator])}; use one of these, or another "
            f"algorithm"
        )
    if payload.recipe.accumulate != "float32":
        raise ScheduleError(
            f"{schedule.algorithm}: switches add in types of their own, not in {payload.recipe.accumulate}; leave "
            f"accumulate at float32, or use another algorithm"
        )
