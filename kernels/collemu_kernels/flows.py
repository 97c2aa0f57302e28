"""Messages through shared ports, without packets: the quick engine for what packets would take too long for.

A message goes through the ports on its way one after the other: it waits for each, first come, first served, holds it
for as long as its bytes take, and its first packet is at the next port one crossing after it began. What operations
wait for is a maximum over moments, so an operation is timed as soon as the last of them is known; only a port that
several can ask for has to be asked in the order of time. Those requests alone wait in a calendar.

A day of the calendar is no longer than the shortest crossing, so what a request brings about asks on a later day: a
day's requests are known when it begins, and are put in order at once.
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
BAD_VALUE = 2  # the data plane met a value that it cannot carry
ONE = 3  # within a run: one more operation is timed

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
FINISHED = 1  # of these, those that are timed
PENDING = 2  # requests in the calendar
TODAY = 3
SERVED = 4  # of today's requests
ASKED = 5  # today's requests
COUNTS = 6

DAYS = 4096  # of a year: a page of the calendar has the requests of one day of every year
DIGIT = 9  # bits that a pass of sorting looks at
FEW = 24  # requests that are sorted one by one


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
    first_after: Int32  # in `after`; one entry more, or none if nothing follows any message
    after: Int32  # messages that ask for their first port once a switch has added, or copied, what led to them
    parents: Int32  # how many of these are still on their way, of those that are led to


class Ports(NamedTuple):
    """Lanes of one group at one end, taken as one server."""

    private: NDArray[np.bool_]  # all requests come in the order of one thread, or of one port before it
    free: Int64  # free at


class Calendar(NamedTuple):
    """Requests that wait for their day: messages."""

    page: Int32  # [day of the year] the latest entry, or NONE
    later: Int32  # [message] the entry before it on its page, or NONE
    today: Int32  # [place] in order
    other: Int32  # work space: as many, and a place for each value of a digit and one more


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
def sort_requests(due, today, other, count):
    """Put today's requests, messages, in the order in which they are due; equal ones stay as they were entered."""
    if count <= FEW:
        for k in range(1, count):
            message = today[k]
            time = due[message]
            hole = k
            while hole > 0 and due[today[hole - 1]] > time:
                today[hole] = today[hole - 1]
                hole -= 1
            today[hole] = message
        return
    earliest = due[today[0]]
    latest = earliest
    for k in range(count):
        earliest = min(earliest, due[today[k]])
        latest = max(latest, due[today[k]])
    digits = np.int64(1) << DIGIT
    shift = 0
    while (latest - earliest) >> shift != 0:
        # `other` ends with room for where each digit begins
        begins = other[len(due) :]
        for digit in range(digits + 1):
            begins[digit] = 0
        for k in range(count):
            begins[(((due[today[k]] - earliest) >> shift) & (digits - 1)) + 1] += 1
        for digit in range(digits):
            begins[digit + 1] += begins[digit]
        for k in range(count):
            digit = ((due[today[k]] - earliest) >> shift) & (digits - 1)
            other[begins[digit]] = today[k]
            begins[digit] += 1
        for k in range(count):
            today[k] = other[k]
        shift += DIGIT


@jit_lean
def open_day(page, later, due, today, other, counts, shift):
    """Move the requests of the next day that has any out of the calendar, in order."""
    day = counts[TODAY]
    for turned in range(DAYS + 1):
        if turned == DAYS:  # nothing within a year: go to the earliest of all
            day = np.int64(np.iinfo(np.int64).max)
            for index in range(DAYS):
                message = page[index]
                while message != NONE:
                    day = min(day, due[message] >> shift)
                    message = later[message]
        count = 0
        kept = np.int32(NONE)
        message = page[day & (DAYS - 1)]
        while message != NONE:
            following = later[message]
            if due[message] >> shift == day:
                today[count] = message
                count += 1
            else:
                later[message] = kept
                kept = message
            message = following
        page[day & (DAYS - 1)] = kept
        if count > 0:
            break
        day += 1
    counts[TODAY] = day
    counts[SERVED] = 0
    counts[ASKED] = count
    counts[PENDING] -= count
    for k in range(count // 2):  # a page has its latest entry first
        today[k], today[count - 1 - k] = today[count - 1 - k], today[k]
    sort_requests(due, today, other, count)


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
def enter(page, later, counts, message, time, shift):
    """Enter a request in the calendar."""
    day = (time >> shift) & (DAYS - 1)
    later[message] = page[day]
    page[day] = message
    counts[PENDING] += 1


@jit_lean
def leads_on(messages, message):
    """Whether what comes of a message at a switch is for other messages."""
    return messages.first_after[message] < messages.first_after[message + 1]


@jit_lean
def lead_on(messages, page, later, counts, message, time, shift):
    """Let messages that follow ask for their ports, once the last of those that lead to them is there."""
    for k in range(messages.first_after[message], messages.first_after[message + 1]):
        following = messages.after[k]
        messages.due[following] = max(messages.due[following], time)
        messages.parents[following] -= 1
        if messages.parents[following] == 0:
            enter(page, later, counts, following, messages.due[following], shift)


@jit_lean
def advance(operations, messages, ports, calendar, counts, shift, one):
    """Time operations until none is left, or, with ``one``, until the next is timed; returns a status, or `ONE`.

    One long loop over arrays in local names: calls that pass so many arrays would cost more than what they do.
    """
    _, following, received, sent, work, first_dependent, dependents, waits, start, finish, able = operations
    _, kind, classes, receiver, frees, first_port, route, place, due, ready, visible, _, after, _ = messages
    in_switch = len(after) > 0
    private, free = ports
    page, later, today, other = calendar
    ables = counts[ABLE]
    finished = counts[FINISHED]
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
                known = end
                if in_switch and message != NONE and leads_on(messages, message):
                    known = visible[message]
                ables = learn(start, waits, able, ables, np.int64(following[operation]), known)
            for k in range(first_dependent[operation], first_dependent[operation + 1]):
                ables = learn(start, waits, able, ables, np.int64(dependents[k]), end)
            arrived = np.int64(received[operation])
            if arrived != NONE and frees[arrived] != NONE:
                known = end + classes[kind[arrived], NOTICE]
                ables = learn(start, waits, able, ables, np.int64(frees[arrived]), known)
            if one:
                status = ONE
        elif counts[SERVED] < counts[ASKED]:
            message = np.int64(today[counts[SERVED]])
            counts[SERVED] += 1
            asked = True
        elif counts[PENDING] > 0:
            open_day(page, later, due, today, other, counts, shift)
        else:
            status = DONE if finished == len(start) else DEADLOCK
        if message == NONE:
            continue
        if in_switch and first_port[message] == first_port[message + 1]:  # asks for its terms alone
            lead_on(messages, page, later, counts, message, due[message], shift)
            continue
        where = np.int64(place[message])
        beyond = np.int64(first_port[message + 1])
        of_kind = kind[message]
        time = due[message]
        while where < beyond:
            port = np.int64(route[where])
            if not (asked or private[port]):
                enter(page, later, counts, message, time, shift)
                break
            asked = False
            begun = max(time, free[port])
            free[port] = begun + classes[of_kind, OCCUPIES]
            where += 1
            if where < beyond:
                time = begun + classes[of_kind, CROSSING]
            elif in_switch and leads_on(messages, message):
                lead_on(messages, page, later, counts, message, begun + classes[of_kind, CROSSING], shift)
            else:
                arrival = begun + classes[of_kind, LAST] + classes[of_kind, LATENCY]
                visible[message] = max(visible[message], arrival)
                ables = learn(start, waits, able, ables, np.int64(receiver[message]), visible[message])
        due[message] = time
        place[message] = where
    counts[ABLE] = ables
    counts[FINISHED] = finished
    return status


@jit_lean
def find_able(operations, counts):
    """Operations that wait for nothing."""
    for operation in range(len(operations.start)):
        if operations.waits[operation] == 0:
            operations.able[counts[ABLE]] = operation
            counts[ABLE] += 1


@jit
def run_times(
    operations: Operations, messages: Messages, ports: Ports, calendar: Calendar, counts: Int64, shift: int
) -> int:
    """Time a program; ``shift`` is the binary logarithm of a day in femtoseconds.

    Returns DONE or what went wrong. All results are in the arrays.
    """
    find_able(operations, counts)
    return advance(operations, messages, ports, calendar, counts, shift, False)


@jit
def run(
    operations: Operations,
    messages: Messages,
    ports: Ports,
    calendar: Calendar,
    counts: Int64,
    shift: int,
    data: DataPlane,
) -> int:
    """`run_times`, and operations move their bytes, in an order that their conditions allow."""
    find_able(operations, counts)
    while True:
        status = advance(operations, messages, ports, calendar, counts, shift, True)
        if status != ONE:
            return status
        operation = operations.able[counts[FINISHED] - 1]
        received = operations.received[operation]
        sent = operations.sent[operation]
        received = received if received == NONE else messages.original[received]
        sent = sent if sent == NONE else messages.original[sent]
        if move(data, operations.original[operation], received, sent) != 0:
            return BAD_VALUE
