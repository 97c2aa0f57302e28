"""What ranks spend their time on: for every operation, which of its conditions came last, and how long it waited."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.endpoint import work_of
from collemu.fabric import crosses, steps_of
from collemu.lower import NONE, Lowered
from collemu.schedule import IN_SWITCH
from collemu.timing import Timing

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Waiting:
    """Seconds of each rank's threads, added up over its threads; arrays of one number a rank.

    The parts of a thread's time from launch to its last finish; what is left of the run is ``idle_s``.

    Attributes
    ----------
    working_s : float64 array
        Copying and adding.
    stepping_s : float64 array
        The latency of the steps that send.
    message_s, slot_s, dependency_s : float64 arrays
        Waiting, where the last thing to come was: a message, or what a switch was asked for; a free slot at the peer;
        an operation of another thread.
    idle_s : float64 array
        After a thread's last operation, until the end of the run.
    """

    working_s: NDArray[np.float64]
    stepping_s: NDArray[np.float64]
    message_s: NDArray[np.float64]
    slot_s: NDArray[np.float64]
    dependency_s: NDArray[np.float64]
    idle_s: NDArray[np.float64]


def waiting_of(lowered: Lowered, timing: Timing, system: System, protocol: Protocol) -> Waiting:
    """Account for the time of every thread of a run."""
    schedule, messages = lowered.schedule, lowered.messages
    thread = schedule.thread_of_op
    start, finish = timing.start, timing.finish
    launch = system.endpoint.launch_fs
    before = np.full(len(start), launch, np.int64)
    same = np.flatnonzero(thread[1:] == thread[:-1]) + 1
    before[same] = finish[same - 1]
    waited = start - before

    dep = schedule.ops["dep"]
    of_dependency = np.where(dep != NONE, finish[dep], launch) if len(finish) else before
    of_message = np.full(len(start), launch, np.int64)
    receives = np.flatnonzero(lowered.received != NONE)
    of_message[receives] = timing.visible[lowered.received[receives]]
    for_message = (waited > 0) & (start == of_message)
    for_dependency = (waited > 0) & ~for_message & (start == of_dependency)
    for_slot = (waited > 0) & ~for_message & ~for_dependency

    step = np.zeros(len(start), np.int64)
    sends = np.flatnonzero(lowered.sent != NONE)
    in_switch = np.flatnonzero(IN_SWITCH[schedule.ops["kind"]])
    step[in_switch] = protocol.step_latency_fs
    work = work_of(lowered, system, protocol) if timing.own_work is None else timing.own_work
    answered = np.zeros(len(start), np.int64)
    answered[in_switch] = (finish - start - step - work)[in_switch]
    if timing.own_work is None:
        step[sends] = steps_of(crosses(messages, system), system, protocol)[lowered.sent[sends]]
    last = np.full(len(schedule.threads), launch, np.int64)
    np.maximum.at(last, thread, finish)

    def by_rank(values: Int64, rank: NDArray[np.int32] = lowered.rank) -> NDArray[np.float64]:
        return np.bincount(rank, weights=values, minlength=schedule.ranks) / 1e15

    return Waiting(
        working_s=by_rank(work),
        stepping_s=by_rank(step),
        message_s=by_rank(waited * for_message + answered),
        slot_s=by_rank(waited * for_slot),
        dependency_s=by_rank(waited * for_dependency),
        idle_s=by_rank(timing.time - last, schedule.threads["rank"]),
    )
