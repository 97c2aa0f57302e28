"""Trains of packets and of credits: the pool they come from, the queues of outputs, the credits on their way back.

Equal packets that follow each other without a gap are one *train*: one entry for up to a window's worth of packets.
"""

import numpy as np

from collemu_kernels._jit import jit_lean
from collemu_kernels.bits import has_bit, set_bit
from collemu_kernels.stage import (
    COUNT,
    CREDITS,
    EXPECTED,
    FIRST,
    HEAD,
    LISTED,
    MESSAGE,
    NEVER,
    NEXT,
    NONE,
    OUTPUTS,
    RETURNING,
    SIZE,
    SPACING,
    TAIL,
    WHEN,
    WHICH,
)


@jit_lean
def take_train(trains):
    """A row of the pool. It never runs dry: packets and credits of a port are never more than its credits."""
    pool = trains.shape[0] - 1
    train = trains[pool, NEXT]
    trains[pool, NEXT] = trains[train, NEXT]
    return train


@jit_lean
def give_train(trains, train):
    """Put a row back into the pool."""
    pool = trains.shape[0] - 1
    trains[train, NEXT] = trains[pool, NEXT]
    trains[pool, NEXT] = train


@jit_lean
def return_credits(ports, trains, port, credit, first, count, spacing):
    """Put credits on their way back to a port, as a train of their own (row ``credit``) or longer than the last one."""
    last = ports[port, RETURNING]
    if last != NONE:
        pace = first - trains[last, FIRST] if trains[last, COUNT] == 1 else trains[last, SPACING]
        steady = count == 1 or spacing == pace
        if steady and pace > 0 and trains[last, FIRST] + trains[last, COUNT] * pace == first:
            trains[last, SPACING] = pace
            trains[last, COUNT] += count
            give_train(trains, credit)
            return
    trains[credit, FIRST] = first
    trains[credit, COUNT] = count
    trains[credit, SPACING] = spacing
    trains[credit, NEXT] = last
    ports[port, RETURNING] = credit


@jit_lean
def collect_credits(ports, trains, port, now):
    """Move the credits that are back by ``now`` to those at hand; return when the next one comes (NEVER if unknown)."""
    earliest = NEVER
    previous = NONE
    train = ports[port, RETURNING]
    while train != NONE:
        following = trains[train, NEXT]
        first = trains[train, FIRST]
        count = trains[train, COUNT]
        if first <= now:
            back = count
            if count > 1:
                spacing = trains[train, SPACING]
                back = min((now - first) // spacing + 1, count)
                first += back * spacing
                trains[train, FIRST] = first
            ports[port, CREDITS] += back
            count -= back
            trains[train, COUNT] = count
        if count == 0:
            if previous == NONE:
                ports[port, RETURNING] = following
            else:
                trains[previous, NEXT] = following
            give_train(trains, train)
        else:
            earliest = min(earliest, first)
            previous = train
        train = following
    return earliest


@jit_lean
def expect(outputs, expected, output, arrival, source):
    """Note when the oldest packet of an input will be there."""
    hole = outputs[output, EXPECTED]
    outputs[output, EXPECTED] = hole + 1
    while hole > 0:
        parent = (hole - 1) >> 1
        if expected[WHEN, output, parent] <= arrival:
            break
        expected[WHEN, output, hole] = expected[WHEN, output, parent]
        expected[WHICH, output, hole] = expected[WHICH, output, parent]
        hole = parent
    expected[WHEN, output, hole] = arrival
    expected[WHICH, output, hole] = source


@jit_lean
def admit_arrivals(outputs, expected, ready, output, now):
    """Bring the inputs whose oldest packet is there by ``now`` into the ready mask; return when the next one is."""
    size = outputs[output, EXPECTED]
    while size > 0 and expected[WHEN, output, 0] <= now:
        set_bit(ready, output, expected[WHICH, output, 0])
        size -= 1
        arrival = expected[WHEN, output, size]
        source = expected[WHICH, output, size]
        hole = 0
        child = 1
        while child < size:
            if child + 1 < size and expected[WHEN, output, child + 1] < expected[WHEN, output, child]:
                child += 1
            if expected[WHEN, output, child] >= arrival:
                break
            expected[WHEN, output, hole] = expected[WHEN, output, child]
            expected[WHICH, output, hole] = expected[WHICH, output, child]
            hole = child
            child = 2 * hole + 1
        expected[WHEN, output, hole] = arrival
        expected[WHICH, output, hole] = source
    outputs[output, EXPECTED] = size
    return expected[WHEN, output, 0] if size > 0 else NEVER


@jit_lean
def enqueue(
    serialisation,
    reach,
    outputs,
    expected,
    queues,
    trains,
    active,
    counts,
    output,
    chip,
    arrival,
    count,
    size,
    message,
):
    """Queue a train at the switch output that leads to its destination."""
    source = chip % reach
    queue = output * reach + source
    if queues[queue, HEAD] != NONE:
        tail = queues[queue, TAIL]
        if (
            trains[tail, MESSAGE] == message
            and trains[tail, SIZE] == size
            and trains[tail, FIRST] + trains[tail, COUNT] * serialisation[size] == arrival
        ):
            trains[tail, COUNT] += count
            return
    train = take_train(trains)
    trains[train, FIRST] = arrival
    trains[train, COUNT] = count
    trains[train, SIZE] = size
    trains[train, MESSAGE] = message
    trains[train, NEXT] = NONE
    if queues[queue, HEAD] == NONE:
        queues[queue, HEAD] = train
        expect(outputs, expected, output, arrival, source)
        if outputs[output, LISTED] == 0:
            outputs[output, LISTED] = 1
            active[OUTPUTS, counts[OUTPUTS]] = output
            counts[OUTPUTS] += 1
    else:
        trains[queues[queue, TAIL], NEXT] = train
    queues[queue, TAIL] = train


@jit_lean
def enqueue_part(reach, outputs, expected, ready, queues, trains, active, counts, output, arrival, size, code):
    """Queue a packet at the output to a chip as one from the chip itself: by arrival, equal ones by their parts.

    A sum is there once the latest of its terms is, so what is queued later may be there sooner.
    """
    source = output % reach
    queue = output * reach + source
    train = take_train(trains)
    trains[train, FIRST] = arrival
    trains[train, COUNT] = 1
    trains[train, SIZE] = size
    trains[train, MESSAGE] = code
    previous = queues[queue, TAIL] if queues[queue, HEAD] != NONE else np.int64(NONE)
    following = np.int64(NONE)
    if previous != NONE and not is_before(trains, previous, arrival, code):
        previous = np.int64(NONE)
        following = queues[queue, HEAD]
        while is_before(trains, following, arrival, code):
            previous = following
            following = trains[following, NEXT]
    trains[train, NEXT] = following
    if following == NONE:
        queues[queue, TAIL] = train
    if previous != NONE:
        trains[previous, NEXT] = train
        return
    queues[queue, HEAD] = train
    if following == NONE:
        expect(outputs, expected, output, arrival, source)
        if outputs[output, LISTED] == 0:
            outputs[output, LISTED] = 1
            active[OUTPUTS, counts[OUTPUTS]] = output
            counts[OUTPUTS] += 1
    elif not has_bit(ready, output, source):
        hasten(outputs, expected, output, arrival, source)


@jit_lean
def is_before(trains, train, arrival, code):
    """Whether a packet in the queue goes before one with this arrival and code; codes of later parts are less."""
    return trains[train, FIRST] < arrival or (trains[train, FIRST] == arrival and trains[train, MESSAGE] > code)


@jit_lean
def hasten(outputs, expected, output, arrival, source):
    """Note that the oldest packet of an input, which is still expected, will be there sooner than was known."""
    hole = np.int64(0)
    while expected[WHICH, output, hole] != source:
        hole += 1
    while hole > 0:
        parent = (hole - 1) >> 1
        if expected[WHEN, output, parent] <= arrival:
            break
        expected[WHEN, output, hole] = expected[WHEN, output, parent]
        expected[WHICH, output, hole] = expected[WHICH, output, parent]
        hole = parent
    expected[WHEN, output, hole] = arrival
    expected[WHICH, output, hole] = source
