"""What every operation waits for: in which order a schedule can run, and with how many FIFO slots."""

from __future__ import annotations

import numpy as np
from collemu_kernels import symbolic
from numpy.typing import NDArray

from collemu.matching import Matching
from collemu.schedule import Schedule

_NAMED = 8  # operations of a deadlock that are listed


class Waits:
    """What every operation waits for, and in which order the operations can run."""

    def __init__(self, schedule: Schedule, messages: Matching) -> None:
        self.first = schedule.threads["first"].astype(np.int64)
        self.length = np.ascontiguousarray(schedule.threads["length"])
        self.dep = np.ascontiguousarray(schedule.ops["dep"])
        self.arrival = messages.arrival()
        self.messages = messages

    def order(self, slots: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Operations in an order in which they can run with that many slots, and their places in it."""
        order = np.empty(len(self.dep), dtype=np.int32)
        position = np.full(len(self.dep), -1, dtype=np.int32)
        room = self.messages.room(slots)
        done = symbolic.execution_order(self.first, self.length, self.dep, self.arrival, room, order, position)
        return order[:done], position

    def runs(self, slots: int) -> bool:
        """Whether all operations can run."""
        return len(self.order(slots)[0]) == len(self.dep)

    def most_slots(self) -> int:
        """Slots that are never full."""
        return int(self.messages.ordinal.max(initial=0)) + 1

    def least_slots(self, enough: int) -> int:
        """The least number of slots with which all can run, given one that is enough."""
        too_few, enough = 0, min(enough, self.most_slots())
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            if self.runs(middle):
                enough = middle
            else:
                too_few = middle
        return enough

    def cycle(self, slots: int) -> list[tuple[int, int, str]]:
        """Operations of a deadlock, each with the one that it waits for and why."""
        order, position = self.order(slots)
        room = self.messages.room(slots)
        thread_of = np.repeat(np.arange(len(self.first)), self.length)
        ran = np.bincount(thread_of[order], minlength=len(self.first))
        chain: list[tuple[int, int, str]] = []
        seen: dict[int, int] = {}
        op = int(self.first[ran < self.length][0] + ran[ran < self.length][0])
        while op not in seen:
            seen[op] = len(chain)
            causes = (
                (int(self.dep[op]), "to finish"),
                (int(self.arrival[op]), "to send"),
                (int(room[op]), "to free a slot"),
            )
            cause, why = next((c, why) for c, why in causes if c >= 0 and position[c] < 0)
            chain.append((op, cause, why))
            thread = thread_of[cause]
            op = int(self.first[thread] + ran[thread])
        return chain[seen[op] :]


def describe_deadlock(schedule: Schedule, waits: Waits, slots: int) -> str:
    """Say which operations wait for one another with that many slots, and how many slots would do."""
    most = waits.most_slots()
    if slots < most and waits.runs(most):
        least = waits.least_slots(most)
        head = f"deadlock with {slots} slot{'s' * (slots > 1)} a connection, {least} are the least that work"
    else:
        slots, head = most, "deadlock at any slot count"
    cycle = waits.cycle(slots)
    parts = [f"{schedule.describe(op)} waits for {schedule.where(cause)} {why}" for op, cause, why in cycle[:_NAMED]]
    if len(cycle) > _NAMED:
        parts.append(f"and {len(cycle) - _NAMED} more, back to the first")
    return f"{head}: {'; '.join(parts)}"
