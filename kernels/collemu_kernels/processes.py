"""Ranks that are processes of one machine: each does one thing after another, and needs a core to do it.

A process runs its operations in the order in which they come to wait for nothing more. When none is ready, it takes
what has come: messages for which it has room, and notices that what it sent is gone. When nothing has come either, it
leaves its core to others and waits.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit, jit_lean

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

NONE = -1
NEVER = np.int64(np.iinfo(np.int64).max)

# What a run returns.
DONE = 0
DEADLOCK = 1  # operations are left that nothing can start

# What a process is at.
WAITS = 0  # for something to come, without a core
QUEUES = 1  # for a core
RUNS = 2
ENDED = 3

# Columns of `ranks`.
STATE = 0
NEXT = 1  # when it is to be looked at again; NEVER: when another rank says so
FIRST_READY = 2  # operation, or NONE
LAST_READY = 3
FIRST_COME = 4  # entry, or NONE: twice the message; one more for the notice that it is gone
LAST_COME = 5
LEFT = 6  # operations that have not run, and transfers that have not ended
BEHIND = 7  # the rank that gets a core after it, or NONE
RANK_COLUMNS = 8

# Entries of `cores`.
FREE = 0
FIRST_IN_LINE = 1  # rank, or NONE
LAST_IN_LINE = 2
CORE_ENTRIES = 3


class Costs(NamedTuple):
    """Femtoseconds of what every process does."""

    launch: int  # before the first operation
    notice: int  # to take what has come, however much
    wake: int  # from something's coming to its being noticed by a process that waits


class Operations(NamedTuple):
    """Operations in (rank, thread, step) order."""

    rank: Int32
    following: Int32  # next of its thread, or NONE
    received: Int32  # message, or NONE
    sent: Int32
    work: Int64  # femtoseconds
    first_dependent: Int32  # in `dependents`; one entry more
    dependents: Int32
    waits: Int64  # conditions that do not hold yet
    behind: Int32  # the operation that runs after it, among those that are ready
    start: Int64
    finish: Int64


class Messages(NamedTuple):
    """Messages by connection. A message to oneself does not travel."""

    source: Int32
    destination: Int32
    sender: Int32  # operation
    receiver: Int32
    successor: Int32  # message that takes over its slots, or NONE
    transfer: Int64  # what it costs its receiver to take it
    eager: NDArray[np.bool_]  # it is gone when it is sent; otherwise, when its receiver has taken it
    room: Int64  # since when its receiver has room for it
    sent: Int64
    taken: Int64
    behind: Int32  # [entry] what came after it
    came: Int64  # [entry] when


@jit_lean
def satisfy(operations, ranks, operation):
    """One condition of an operation holds; the last makes it ready."""
    operations.waits[operation] -= 1
    if operations.waits[operation] != 0:
        return
    rank = operations.rank[operation]
    operations.behind[operation] = NONE
    if ranks[rank, FIRST_READY] == NONE:
        ranks[rank, FIRST_READY] = operation
    else:
        operations.behind[ranks[rank, LAST_READY]] = operation
    ranks[rank, LAST_READY] = operation


@jit_lean
def comes(messages, ranks, rank, entry, time, wake):
    """Something comes to a rank, which is woken if it waits."""
    messages.came[entry] = time
    messages.behind[entry] = NONE
    if ranks[rank, FIRST_COME] == NONE:
        ranks[rank, FIRST_COME] = entry
    else:
        messages.behind[ranks[rank, LAST_COME]] = entry
    ranks[rank, LAST_COME] = entry
    if ranks[rank, STATE] == WAITS:
        ranks[rank, NEXT] = min(ranks[rank, NEXT], time + wake)


@jit_lean
def has_room(messages, ranks, message, time, wake):
    """The receiver of a message has room for it from now on."""
    messages.room[message] = time
    ranks[messages.destination[message], LEFT] += 1
    if messages.sent[message] != NEVER:
        comes(messages, ranks, messages.destination[message], 2 * message, max(time, messages.sent[message]), wake)


@jit_lean
def run_operation(operations, messages, ranks, rank, time, wake):
    """Run the first operation of a rank that is ready; returns when it ends."""
    operation = ranks[rank, FIRST_READY]
    ranks[rank, FIRST_READY] = operations.behind[operation]
    end = time + operations.work[operation]
    operations.start[operation] = time
    operations.finish[operation] = end
    ranks[rank, LEFT] -= 1
    received = np.int64(operations.received[operation])
    if received != NONE and messages.successor[received] != NONE:
        following = np.int64(messages.successor[received])
        if messages.source[received] == rank:
            satisfy(operations, ranks, np.int64(messages.sender[following]))
        else:
            has_room(messages, ranks, following, end, wake)
    message = np.int64(operations.sent[operation])
    if message != NONE:
        messages.sent[message] = end
        if messages.destination[message] == rank:
            messages.taken[message] = end
            satisfy(operations, ranks, np.int64(messages.receiver[message]))
        else:
            ranks[rank, LEFT] += 1
            if messages.room[message] != NEVER:
                comes(messages, ranks, messages.destination[message], 2 * message, end, wake)
            if messages.eager[message]:
                comes(messages, ranks, rank, 2 * message + 1, end, wake)
    for k in range(operations.first_dependent[operation], operations.first_dependent[operation + 1]):
        satisfy(operations, ranks, np.int64(operations.dependents[k]))
    if operations.following[operation] != NONE:
        satisfy(operations, ranks, np.int64(operations.following[operation]))
    return end


@jit_lean
def take(operations, messages, ranks, rank, time, notice, wake):
    """Take what has come to a rank; returns when that is done, or NEVER if nothing has."""
    end = time + notice
    some = False
    entry = ranks[rank, FIRST_COME]
    while entry != NONE:
        if messages.came[entry] <= time:
            some = True
            if entry % 2 == 0:
                end += messages.transfer[entry // 2]
        entry = np.int64(messages.behind[entry])
    if not some:
        return NEVER
    entry = ranks[rank, FIRST_COME]
    ranks[rank, FIRST_COME] = NONE
    while entry != NONE:
        after = np.int64(messages.behind[entry])
        message = entry // 2
        if messages.came[entry] > time:
            comes(messages, ranks, rank, entry, messages.came[entry], wake)
        elif entry % 2 == 0:
            ranks[rank, LEFT] -= 1
            messages.taken[message] = end
            satisfy(operations, ranks, np.int64(messages.receiver[message]))
            if not messages.eager[message]:
                comes(messages, ranks, messages.source[message], entry + 1, end, wake)
        else:
            ranks[rank, LEFT] -= 1
            if messages.successor[message] != NONE:
                satisfy(operations, ranks, np.int64(messages.sender[messages.successor[message]]))
        entry = after
    return end


@jit_lean
def leave_core(ranks, cores, rank, state, time):
    """A rank has nothing to do: the first in line for a core gets its own."""
    ranks[rank, STATE] = state
    ranks[rank, NEXT] = NEVER
    heir = cores[FIRST_IN_LINE]
    if heir == NONE:
        cores[FREE] += 1
        return
    cores[FIRST_IN_LINE] = ranks[heir, BEHIND]
    ranks[heir, STATE] = RUNS
    ranks[heir, NEXT] = time


@jit_lean
def ask_for_core(ranks, cores, rank):
    """A rank that waited has something to do: it runs at once, or stands in line."""
    if cores[FREE] > 0:
        cores[FREE] -= 1
        ranks[rank, STATE] = RUNS
        return
    ranks[rank, STATE] = QUEUES
    ranks[rank, NEXT] = NEVER
    ranks[rank, BEHIND] = NONE
    if cores[FIRST_IN_LINE] == NONE:
        cores[FIRST_IN_LINE] = rank
    else:
        ranks[cores[LAST_IN_LINE], BEHIND] = rank
    cores[LAST_IN_LINE] = rank


@jit_lean
def next_arrival(messages, ranks, rank):
    """When the first of what is still to come to a rank, as far as that is known, comes."""
    first = NEVER
    entry = ranks[rank, FIRST_COME]
    while entry != NONE:
        first = min(first, messages.came[entry])
        entry = np.int64(messages.behind[entry])
    return first


@jit_lean
def begin(operations, messages, ranks, slots_of, costs):
    """Every process wants a core at once; receivers have room for the first messages of each connection."""
    for rank in range(len(ranks)):
        ranks[rank, STATE] = WAITS
        ranks[rank, NEXT] = 0
        ranks[rank, FIRST_READY] = NONE
        ranks[rank, FIRST_COME] = NONE
        ranks[rank, LEFT] = 0
    for operation in range(len(operations.waits)):
        ranks[operations.rank[operation], LEFT] += 1
        if operations.waits[operation] == 0:
            operations.waits[operation] = 1
            satisfy(operations, ranks, operation)
    for message in range(len(messages.source)):
        if slots_of[message] and messages.source[message] != messages.destination[message]:
            has_room(messages, ranks, message, costs.launch, costs.wake)


@jit
def run(operations: Operations, messages: Messages, ranks: Int64, cores: Int64, first: NDArray[np.bool_], costs: Costs):
    """Time a program.

    Parameters
    ----------
    operations, messages
    ranks : int64 array, (ranks, RANK_COLUMNS)
    cores : int64 array, (CORE_ENTRIES,)
        How many are free; the rest is work space.
    first : bool array
        Messages for which there is room from the beginning.
    costs : Costs

    Returns
    -------
    int
        DONE or DEADLOCK. When each rank is done is left in its NEXT.
    """
    cores[FIRST_IN_LINE] = NONE
    begin(operations, messages, ranks, first, costs)
    launched = np.zeros(len(ranks), np.bool_)
    ended = np.zeros(len(ranks), np.int64)
    while True:
        rank = np.int64(0)
        for other in range(1, len(ranks)):  # few ranks share a machine, and equal times fall to the lowest
            if ranks[other, NEXT] < ranks[rank, NEXT]:
                rank = np.int64(other)
        time = ranks[rank, NEXT]
        if time == NEVER:
            break
        if ranks[rank, STATE] == WAITS:
            ask_for_core(ranks, cores, rank)
            if ranks[rank, STATE] != RUNS:
                continue
        if not launched[rank]:
            launched[rank] = True
            ranks[rank, NEXT] = time + costs.launch
        elif ranks[rank, FIRST_READY] != NONE:
            ranks[rank, NEXT] = run_operation(operations, messages, ranks, rank, time, costs.wake)
        elif ranks[rank, LEFT] == 0:
            ended[rank] = time
            leave_core(ranks, cores, rank, ENDED, time)
        else:
            end = take(operations, messages, ranks, rank, time, costs.notice, costs.wake)
            if end != NEVER:
                ranks[rank, NEXT] = end
                continue
            leave_core(ranks, cores, rank, WAITS, time)
            arrival = next_arrival(messages, ranks, rank)
            if arrival != NEVER:
                ranks[rank, NEXT] = arrival + costs.wake
    status = DONE
    for rank in range(len(ranks)):
        if ranks[rank, STATE] != ENDED:
            status = DEADLOCK
        ranks[rank, NEXT] = ended[rank]
    return status
