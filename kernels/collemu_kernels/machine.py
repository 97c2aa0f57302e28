"""The loop that runs a lowered schedule: operations move bytes, bytes take time (docs/timing-rules.md).

Chips and links take turns. Where links have run up to ``done``, nothing that they do later is noticed at a chip within
one crossing of a link, so everything that happens at chips before ``done`` + crossing is known; and what starts there
sends only one step latency later, so links can run on to ``done`` + crossing + step. Within that stretch planes know
nothing of each other: each runs through it by itself, in windows (``links``).

Why no message comes too late: one that is made ready in a round is ready before that round's end, and no later round
makes one ready before it, so a line only grows behind what has been numbered. Bytes move when an operation finishes;
operations that nothing orders and that finish together move theirs in no particular order, as races do.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit, jit_lean
from collemu_kernels.dataplane import DataPlane, move
from collemu_kernels.events import pop, push
from collemu_kernels.links import (
    ARRIVAL,
    LAST_BYTES,
    LENGTH,
    LINE,
    NEVER,
    NONE,
    PACKETS,
    READY,
    RECEIVER,
    SENDER,
    SOURCE,
    SUCCESSOR,
    VISIBLE,
    Fabric,
    number_packets,
    send_from_ports,
    serve_outputs,
)

Table = NDArray[np.int64]
Mask = NDArray[np.uint64]

# What a run returns.
DONE = 0
DEADLOCK = 1  # operations are left that nothing can start
TOO_LONG = 2  # past the end of the clock
BAD_VALUE = 3  # the data plane met a value that it cannot carry

# Columns of `operations`, in (rank, thread, step) order; one row more ends the last one's dependents.
FOLLOWING = 0  # next operation of its thread, or NONE
RECEIVED = 1  # message that it receives, or NONE
SENT = 2  # message that it sends, or NONE
WORK = 3  # time at the endpoint
DEPENDENTS = 4  # where those that depend on it begin in `dependents`; they end where the next operation's begin
WAITS = 5  # conditions that do not hold yet
START = 6  # NEVER before
FINISH = 7
OPERATION_COLUMNS = 8

# Kinds of events; a code is 4 * index + kind.
OPERATION_ENDS = 0
MESSAGE_ARRIVES = 1
SLOT_IS_FREE = 2

# Entries of `counts`.
PENDING = 0  # events
FINISHED = 1  # operations
COUNTS = 2


class Endpoint(NamedTuple):
    """Constants of the chips."""

    launch: int
    step: int
    notice: int  # from a slot's release to its sender's knowing
    limit: int  # the clock's end


@jit_lean
def post(event_times, event_codes, counts, time, index, kind):
    """Schedule an event."""
    counts[PENDING] = push(event_times, event_codes, counts[PENDING], time, np.int64(index) * 4 + kind)


@jit_lean
def line_up(messages, line, chips, message):
    """Put a ready message into its chip's line: by ready time, equal ones by (thread, step), as operations are."""
    chip = messages[message, SOURCE]
    first = chips[chip, LINE]
    place = first + chips[chip, LENGTH]
    chips[chip, LENGTH] += 1
    while place > first:
        before = line[place - 1]
        if messages[before, READY] < messages[message, READY] or (
            messages[before, READY] == messages[message, READY] and messages[before, SENDER] < messages[message, SENDER]
        ):
            break
        line[place] = before
        place -= 1
    line[place] = message


@jit_lean
def begin(operations, messages, line, chips, event_times, event_codes, counts, operation, now, step):
    """Start an operation: all that will come of it at its own chip is known at once."""
    operations[operation, START] = now
    finish = now + operations[operation, WORK]
    message = operations[operation, SENT]
    if message != NONE:
        messages[message, READY] = now + step
        finish += step
        line_up(messages, line, chips, message)
    operations[operation, FINISH] = finish
    post(event_times, event_codes, counts, finish, operation, OPERATION_ENDS)


@jit_lean
def satisfy(operations, messages, line, chips, event_times, event_codes, counts, operation, now, step):
    """A condition of an operation has come true; events come in time order, so the last one starts it."""
    operations[operation, WAITS] -= 1
    if operations[operation, WAITS] == 0:
        begin(operations, messages, line, chips, event_times, event_codes, counts, operation, now, step)


@jit_lean
def advance_links(
    fabric,
    serialisation,
    messages,
    line,
    chips,
    ports,
    port_traffic,
    outputs,
    output_traffic,
    expected,
    ready,
    queues,
    trains,
    active,
    active_counts,
    plane_next,
    delivered,
    window,
    end,
):
    """Let all links send what starts before ``end``; return how many messages have left the switches for good."""
    deliveries = 0
    for plane in range(fabric.planes):
        while plane_next[plane] < end:
            window_end = min(plane_next[plane] + window, end)
            first_on = send_from_ports(
                plane,
                fabric,
                serialisation,
                messages,
                line,
                chips,
                ports[plane],
                port_traffic[plane],
                outputs[plane],
                expected[plane],
                queues[plane],
                trains[plane],
                active[plane],
                active_counts[plane],
                window_end,
            )
            plane_next[plane] = first_on
            deliveries, first_on = serve_outputs(
                fabric,
                serialisation,
                messages,
                ports[plane],
                outputs[plane],
                output_traffic[plane],
                expected[plane],
                ready[plane],
                queues[plane],
                trains[plane],
                active[plane],
                active_counts[plane],
                delivered,
                deliveries,
                window_end,
            )
            plane_next[plane] = min(plane_next[plane], first_on)
    return deliveries


@jit
def run(
    endpoint: Endpoint,
    fabric: Fabric,
    serialisation: Table,
    operations: Table,
    dependents: Table,
    messages: Table,
    line: Table,
    chips: Table,
    ports: Table,
    port_traffic: Table,
    outputs: Table,
    output_traffic: Table,
    expected: Table,
    ready: Mask,
    queues: Table,
    trains: Table,
    active: Table,
    active_counts: Table,
    plane_next: Table,
    delivered: Table,
    counts: Table,
    event_times: Table,
    event_codes: Table,
    data: DataPlane,
) -> int:
    """Run a program to its end; returns DONE or what went wrong. All results are in the arrays."""
    latency = fabric.latency
    step = endpoint.step
    crossing = latency + serialisation[fabric.header]  # the shortest, and a window
    total = operations.shape[0] - 1

    for operation in range(total):
        if operations[operation, WAITS] == 0:
            begin(operations, messages, line, chips, event_times, event_codes, counts, operation, endpoint.launch, step)

    done = np.int64(0)
    while True:
        now = plane_next.min()
        if counts[PENDING] > 0:
            now = min(now, event_times[0])
        if now == NEVER:
            break
        if now > endpoint.limit:
            return TOO_LONG
        done = max(done, now)

        while counts[PENDING] > 0 and event_times[0] < done + crossing:
            time = event_times[0]
            code = event_codes[0]
            counts[PENDING] = pop(event_times, event_codes, counts[PENDING])
            index = code >> 2
            kind = code & 3
            if kind == OPERATION_ENDS:
                received = operations[index, RECEIVED]
                if data.moving and move(data, index, received, operations[index, SENT]) != 0:
                    return BAD_VALUE
                counts[FINISHED] += 1
                following = operations[index, FOLLOWING]
                if following != NONE:
                    satisfy(operations, messages, line, chips, event_times, event_codes, counts, following, time, step)
                for place in range(operations[index, DEPENDENTS], operations[index + 1, DEPENDENTS]):
                    satisfy(
                        operations,
                        messages,
                        line,
                        chips,
                        event_times,
                        event_codes,
                        counts,
                        dependents[place],
                        time,
                        step,
                    )
                if received != NONE and messages[received, SUCCESSOR] != NONE:
                    freed = time + endpoint.notice
                    post(event_times, event_codes, counts, freed, messages[received, SUCCESSOR], SLOT_IS_FREE)
            else:
                operation = messages[index, RECEIVER if kind == MESSAGE_ARRIVES else SENDER]
                satisfy(operations, messages, line, chips, event_times, event_codes, counts, operation, time, step)
        number_packets(messages, line, chips, ports, active, active_counts, plane_next)

        done += crossing + step
        deliveries = advance_links(
            fabric,
            serialisation,
            messages,
            line,
            chips,
            ports,
            port_traffic,
            outputs,
            output_traffic,
            expected,
            ready,
            queues,
            trains,
            active,
            active_counts,
            plane_next,
            delivered,
            crossing,
            done,
        )
        for place in range(deliveries):
            message = delivered[place]
            largest = fabric.full if messages[message, PACKETS] > 1 else messages[message, LAST_BYTES]
            sent = operations[messages[message, SENDER], FINISH]
            visible = max(messages[message, ARRIVAL], sent + 2 * (serialisation[largest] + latency))
            messages[message, VISIBLE] = visible
            post(event_times, event_codes, counts, visible, message, MESSAGE_ARRIVES)
    if counts[FINISHED] < total:
        return DEADLOCK
    return DONE
