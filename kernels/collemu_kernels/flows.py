"""Messages through shared ports, without packets: the quick engine for what packets would take too long for.

A message goes through the ports on its way one after the other: it waits for each, first come, first served, holds it
for as long as its bytes take, and its first packet is at the next port one crossing after it began. What operations
wait for is a maximum over moments, so an operation is timed as soon as the last of them is known; only a port that
several can ask for has to be asked in the order of time. Those requests alone pass through a queue of events.

Keys of that queue are one int64: the time in quanta above the message's number. Requests within one quantum are served
by number; all times stay exact.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit, jit_lean
from collemu_kernels.dataplane import DataPlane, move

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

NONE = -1

# What a run returns.
DONE = 0
DEADLOCK = 1  # operations are left that nothing can start
TOO_LONG = 2  # past the last quantum that a key holds
BAD_VALUE = 3  # the data plane met a value that it cannot carry
ONE = 4  # within a run: one more operation is timed

# Columns of `classes`: what messages of one size on one kind of path have in common. Femtoseconds.
STEP = 0  # from its operation's start to its being offered
OCCUPIES = 1  # it holds a port for
LAST = 2  # from the start of its first packet to the end of its last one on the busiest lane
CROSSING = 3  # from the start of its first packet at a port to its arrival at the next
LATENCY = 4  # of the last link
EMPTY_PATH = 5  # of its largest packet alone
NOTICE = 6  # from a slot's release to its sender's knowing
CLASS_COLUMNS = 7

# Entries of `counts`.
ABLE = 0  # operations that have waited for nothing more so far
PENDING = 1  # requests in the queue
FINISHED = 2  # of the able ones, those that are timed
COUNTS = 3


class Operations(NamedTuple):
    """Operations by step, then by thread: what runs at about the same time is near in memory."""

    original: Int32  # its number in (rank, thread, step) order
    following: Int32  # next of its thread, or NONE
    received: Int32  # message, or NONE
    sent: Int32
    work: Int64  # femtoseconds
    first_dependent: Int32  # in `dependents`; one entry more
    dependents: Int32
    waits: Int32  # conditions that do not hold yet
    start: Int64  # the latest moment known so far
    finish: Int64
    able: Int32  # in the order in which they came to wait for nothing more; near ones then lie near in memory


class Messages(NamedTuple):
    """Messages in the order of the operations that send them."""

    original: Int32  # its number in the order of connections
    kind: Int32  # class
    classes: Int64  # [class, column]
    receiver: Int32  # operation
    frees: Int32  # operation that sends into its slot next, or NONE
    first_port: Int32  # in `route`; one entry more
    route: Int32  # ports
    place: Int32  # where in `route` it is
    due: Int64  # when it asks for that port
    ready: Int64
    visible: Int64


class Ports(NamedTuple):
    """Lanes of one group at one end, taken as one server."""

    private: NDArray[np.bool_]  # all requests come in the order of one thread, or of one port before it
    free: Int64  # free at


@jit
def by_step(first: Int64, length: Int64) -> Int32:
    """Numbers of the operations of threads, of which ``first`` begins each, by step, then by thread."""
    steps = 0
    total = 0
    for thread in range(len(first)):
        steps = max(steps, length[thread])
        total += length[thread]
    place = np.zeros(steps + 1, np.int64)
    for thread in range(len(first)):
        place[length[thread]] -= 1
    wide = np.int64(len(first))  # threads that have this step
    begin = np.int64(0)
    for step in range(steps):
        wide += place[step]
        place[step] = begin
        begin += wide
    order = np.empty(total, np.int32)
    for thread in range(len(first)):
        for step in range(length[thread]):
            order[place[step]] = first[thread] + step
            place[step] += 1
    return order


@jit_lean
def push(keys, size, key):
    """Put a key into a 4-ary heap; returns its size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 2
        if keys[parent] <= key:
            break
        keys[hole] = keys[parent]
        hole = parent
    keys[hole] = key
    return size + 1


@jit_lean
def pop(keys, size):
    """Take the least key, ``keys[0]``, off a 4-ary heap; returns its size."""
    size -= 1
    key = keys[size]
    hole = 0
    child = 1
    while child < size:
        least = child
        for other in range(child + 1, min(child + 4, size)):
            if keys[other] < keys[least]:
                least = other
        if keys[least] >= key:
            break
        keys[hole] = keys[least]
        hole = least
        child = 4 * hole + 1
    keys[hole] = key
    return size


@jit_lean
def learn(start, waits, able, ables, operation, time):
    """One of the moments that an operation waits for is known; returns how many operations are able."""
    start[operation] = max(start[operation], time)
    waits[operation] -= 1
    if waits[operation] == 0:
        able[ables] = operation
        return ables + 1
    return ables


@jit_lean
def advance(operations, messages, ports, counts, keys, shift, bits, one):
    """Time operations until none is left, or, with ``one``, until the next is timed; returns a status, or `ONE`.

    One long loop over arrays in local names: calls that pass so many arrays would cost more than what they do.
    """
    _, following, received, sent, work, first_dependent, dependents, waits, start, finish, able = operations
    _, kind, classes, receiver, frees, first_port, route, place, due, ready, visible = messages
    private, free = ports
    ables = counts[ABLE]
    finished = counts[FINISHED]
    pending = counts[PENDING]
    mask = (np.int64(1) << bits) - 1
    status = NONE
    while status == NONE:
        message = np.int64(NONE)
        asked = False  # whether the message is served at a port that it has waited for
        if finished < ables:
            operation = np.int64(able[finished])
            finished += 1
            end = start[operation] + work[operation]
            message = np.int64(sent[operation])
            if message != NONE:
                step = classes[kind[message], STEP]
                end += step
                ready[message] = start[operation] + step
                due[message] = ready[message]
                visible[message] = end + classes[kind[message], EMPTY_PATH]
            finish[operation] = end
            if following[operation] != NONE:
                ables = learn(start, waits, able, ables, np.int64(following[operation]), end)
            for k in range(first_dependent[operation], first_dependent[operation + 1]):
                ables = learn(start, waits, able, ables, np.int64(dependents[k]), end)
            arrived = np.int64(received[operation])
            if arrived != NONE and frees[arrived] != NONE:
                known = end + classes[kind[arrived], NOTICE]
                ables = learn(start, waits, able, ables, np.int64(frees[arrived]), known)
            if one:
                status = ONE
        elif pending > 0:
            message = keys[0] & mask
            pending = pop(keys, pending)
            asked = True
        else:
            status = DONE if finished == len(start) else DEADLOCK
        if message == NONE:
            continue
        where = np.int64(place[message])
        beyond = np.int64(first_port[message + 1])
        of_kind = kind[message]
        time = due[message]
        while where < beyond:
            port = np.int64(route[where])
            if not (asked or private[port]):
                quantum = time >> shift
                if quantum >> (63 - bits) != 0:
                    status = TOO_LONG
                    break
                pending = push(keys, pending, (quantum << bits) | message)
                break
            asked = False
            begun = max(time, free[port])
            free[port] = begun + classes[of_kind, OCCUPIES]
            where += 1
            if where == beyond:
                arrival = begun + classes[of_kind, LAST] + classes[of_kind, LATENCY]
                visible[message] = max(visible[message], arrival)
                ables = learn(start, waits, able, ables, np.int64(receiver[message]), visible[message])
            else:
                time = begun + classes[of_kind, CROSSING]
        due[message] = time
        place[message] = where
    counts[ABLE] = ables
    counts[FINISHED] = finished
    counts[PENDING] = pending
    return status


@jit
def run(
    operations: Operations,
    messages: Messages,
    ports: Ports,
    counts: Int64,
    keys: Int64,
    shift: int,
    bits: int,
    data: DataPlane,
) -> int:
    """Time a program; ``shift`` is the binary logarithm of a quantum in femtoseconds, ``bits`` hold a message's number.

    Operations move their bytes in an order that their conditions allow. Returns DONE or what went wrong. All results
    are in the arrays.
    """
    for operation in range(len(operations.start)):
        if operations.waits[operation] == 0:
            operations.able[counts[ABLE]] = operation
            counts[ABLE] += 1
    if not data.moving:
        return advance(operations, messages, ports, counts, keys, shift, bits, False)
    while True:
        status = advance(operations, messages, ports, counts, keys, shift, bits, True)
        if status != ONE:
            return status
        operation = operations.able[counts[FINISHED] - 1]
        received = operations.received[operation]
        sent = operations.sent[operation]
        received = received if received == NONE else messages.original[received]
        sent = sent if sent == NONE else messages.original[sent]
        if move(data, operations.original[operation], received, sent) != 0:
            return BAD_VALUE
