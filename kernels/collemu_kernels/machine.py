"""The loop that runs a lowered schedule: operations move bytes, bytes take time (docs/timing-rules.md).

A window begins with what happens at chips (``events``); then, plane by plane, chip ports send and switch outputs send
(``links``).
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
    OUTPUTS,
    PACKETS,
    PORTS,
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
MESSAGE_LEAVES = 1
MESSAGE_ARRIVES = 2
SLOT_IS_FREE = 3

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
def begin(operations, messages, event_times, event_codes, counts, operation, now, step):
    """Start an operation: all that will come of it at its own chip is known at once."""
    operations[operation, START] = now
    finish = now + operations[operation, WORK]
    message = operations[operation, SENT]
    if message != NONE:
        messages[message, READY] = now + step
        finish += step
        post(event_times, event_codes, counts, now + step, message, MESSAGE_LEAVES)
    operations[operation, FINISH] = finish
    post(event_times, event_codes, counts, finish, operation, OPERATION_ENDS)


@jit_lean
def satisfy(operations, messages, event_times, event_codes, counts, operation, now, step):
    """A condition of an operation has come true; events come in time order, so the last one starts it."""
    operations[operation, WAITS] -= 1
    if operations[operation, WAITS] == 0:
        begin(operations, messages, event_times, event_codes, counts, operation, now, step)


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
    delivered,
    end,
):
    """Let all links send what starts before ``end``; return how many messages have left the switches for good, and
    when the first link could go on."""
    fabric_next = NEVER
    deliveries = 0
    for plane in range(fabric.planes):
        if active_counts[plane, PORTS] > 0:
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
                end,
            )
            fabric_next = min(fabric_next, first_on)
        if active_counts[plane, OUTPUTS] > 0:
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
                end,
            )
            fabric_next = min(fabric_next, first_on)
    return deliveries, fabric_next


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
    delivered: Table,
    counts: Table,
    event_times: Table,
    event_codes: Table,
    data: DataPlane,
) -> int:
    """Run a program to its end; returns DONE or what went wrong. All results are in the arrays."""
    latency = fabric.latency
    step = endpoint.step
    window = latency + serialisation[fabric.header]
    total = operations.shape[0] - 1

    for operation in range(total):
        if operations[operation, WAITS] == 0:
            begin(operations, messages, event_times, event_codes, counts, operation, endpoint.launch, step)

    fabric_next = NEVER
    while True:
        now = fabric_next
        if counts[PENDING] > 0:
            now = min(now, event_times[0])
        if now == NEVER:
            break
        if now > endpoint.limit:
            return TOO_LONG
        end = now + window

        lined_up = False
        while counts[PENDING] > 0 and event_times[0] < end:
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
                    satisfy(operations, messages, event_times, event_codes, counts, following, time, step)
                for place in range(operations[index, DEPENDENTS], operations[index + 1, DEPENDENTS]):
                    satisfy(operations, messages, event_times, event_codes, counts, dependents[place], time, step)
                if received != NONE and messages[received, SUCCESSOR] != NONE:
                    freed = time + endpoint.notice
                    post(event_times, event_codes, counts, freed, messages[received, SUCCESSOR], SLOT_IS_FREE)
            elif kind == MESSAGE_LEAVES:
                line_up(messages, line, chips, index)
                lined_up = True
            else:
                operation = messages[index, RECEIVER if kind == MESSAGE_ARRIVES else SENDER]
                satisfy(operations, messages, event_times, event_codes, counts, operation, time, step)
        if lined_up:
            number_packets(messages, line, chips, ports, active, active_counts)

        deliveries, fabric_next = advance_links(
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
            delivered,
            end,
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
