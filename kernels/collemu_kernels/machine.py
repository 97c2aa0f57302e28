"""The loop that runs a lowered schedule: operations move bytes, bytes take time (docs/timing-rules.md).

Chips and links take turns. Where links have run up to ``done``, nothing that they do later is noticed at a chip within
one crossing of a link, so everything that happens at chips before ``done`` + crossing is known; and what starts there
sends only one step latency later, so links can run on to ``done`` + crossing + step. Within that stretch lanes know
nothing of each other: each runs through it by itself, in windows (``links``).

Why no message comes too late: all messages of a line have the same step latency, so none that is made ready in a later
round is ready before those of this round, and a line only grows behind what has been numbered. Bytes move when an
operation finishes; operations that nothing orders and that finish together move theirs in no particular order, as races
do.
"""

from typing import NamedTuple

import numpy as np

from collemu_kernels._jit import jit, jit_lean
from collemu_kernels.dataplane import DataPlane, move
from collemu_kernels.events import pop, push
from collemu_kernels.links import number_packets, send_from_ports, serve_outputs
from collemu_kernels.stage import (
    ARRIVAL,
    DESTINATION,
    LAST_BYTES,
    LENGTH,
    LINE,
    NETWORK,
    NEVER,
    NONE,
    OUTPUTS,
    PACKETS,
    PATH,
    PORTS,
    QUEUE,
    READY,
    RECEIVER,
    SENDER,
    STEP,
    SUCCESSOR,
    VISIBLE,
    Stage,
    Table,
)

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
    step: int  # the shortest of a message
    limit: int  # the clock's end


@jit_lean
def post(event_times, event_codes, counts, time, index, kind):
    """Schedule an event."""
    counts[PENDING] = push(event_times, event_codes, counts[PENDING], time, np.int64(index) * 4 + kind)


@jit_lean
def line_up(messages, line, lines, message):
    """Put a ready message into its line: by ready time, equal ones by (thread, step), as operations are."""
    own_line = messages[message, QUEUE]
    first = lines[own_line, LINE]
    place = first + lines[own_line, LENGTH]
    lines[own_line, LENGTH] += 1
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
def begin(operations, messages, line, lines, event_times, event_codes, counts, operation, now):
    """Start an operation: all that will come of it at its own chip is known at once."""
    operations[operation, START] = now
    finish = now + operations[operation, WORK]
    message = operations[operation, SENT]
    if message != NONE:
        finish += messages[message, STEP]
        messages[message, READY] = now + messages[message, STEP]
        line_up(messages, line, lines, message)
        if messages[message, DESTINATION] < 0:  # the terms of other members follow, if they are to be added
            while message + 1 < messages.shape[0] and messages[message + 1, SENDER] == operation:
                message += 1
                messages[message, READY] = now + messages[message, STEP]
                line_up(messages, line, lines, message)
    operations[operation, FINISH] = finish
    post(event_times, event_codes, counts, finish, operation, OPERATION_ENDS)


@jit_lean
def satisfy(operations, messages, line, lines, event_times, event_codes, counts, operation, now):
    """A condition of an operation has come true; events come in time order, so the last one starts it."""
    operations[operation, WAITS] -= 1
    if operations[operation, WAITS] == 0:
        begin(operations, messages, line, lines, event_times, event_codes, counts, operation, now)


@jit_lean
def advance_links(stage, messages, line, lines, delivered, deliveries, window, end):
    """Let all links of a stage send what starts before ``end``; messages that have left for good join ``delivered``."""
    for lane in range(stage.lanes.shape[0]):
        while True:
            start = min(stage.lane_next[lane, PORTS], stage.lane_next[lane, OUTPUTS])
            if start >= end:
                break
            window_end = min(start + window, end)
            if stage.lane_next[lane, PORTS] < window_end:
                deliveries = send_from_ports(stage, lane, messages, line, lines, delivered, deliveries, window_end)
            if stage.lane_next[lane, OUTPUTS] < window_end:
                deliveries = serve_outputs(stage, lane, messages, delivered, deliveries, window_end)
    return deliveries


@jit_lean
def next_start(stage):
    """When the first lane of a stage has something to do."""
    first = NEVER
    for lane in range(stage.lane_next.shape[0]):
        first = min(first, stage.lane_next[lane, PORTS], stage.lane_next[lane, OUTPUTS])
    return first


@jit_lean
def empty_path(domain, network, messages, message, notice):
    """Time on an empty path of a message's largest packet, or of a notice, which is a header."""
    stage_of = messages[message, NETWORK]
    if notice:
        size = network.header if stage_of == 1 else domain.header
    else:
        size = messages[message, LAST_BYTES]  # may be the largest, if what fills no flit takes more
        if messages[message, PACKETS] > 1:
            size = max(size, network.full if stage_of == 1 else domain.full)
    if stage_of == 1:
        return messages[message, PATH] + network.hops * network.serialisation[size]
    return messages[message, PATH] + domain.hops * domain.serialisation[size]


@jit
def run(
    endpoint: Endpoint,
    domain: Stage,
    network: Stage,
    operations: Table,
    dependents: Table,
    messages: Table,
    line: Table,
    lines: Table,
    delivered: Table,
    counts: Table,
    event_times: Table,
    event_codes: Table,
    data: DataPlane,
) -> int:
    """Run a program to its end; returns DONE or what went wrong. All results are in the arrays."""
    crossing = min(domain.crossing, network.crossing)  # a window
    total = operations.shape[0] - 1

    for operation in range(total):
        if operations[operation, WAITS] == 0:
            begin(operations, messages, line, lines, event_times, event_codes, counts, operation, endpoint.launch)

    done = np.int64(0)
    while True:
        now = min(next_start(domain), next_start(network))
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
                    satisfy(operations, messages, line, lines, event_times, event_codes, counts, following, time)
                for place in range(operations[index, DEPENDENTS], operations[index + 1, DEPENDENTS]):
                    dependent = dependents[place]
                    satisfy(operations, messages, line, lines, event_times, event_codes, counts, dependent, time)
                if received != NONE and messages[received, SUCCESSOR] != NONE:
                    known = time + empty_path(domain, network, messages, received, True)
                    post(event_times, event_codes, counts, known, messages[received, SUCCESSOR], SLOT_IS_FREE)
            else:
                operation = messages[index, RECEIVER if kind == MESSAGE_ARRIVES else SENDER]
                satisfy(operations, messages, line, lines, event_times, event_codes, counts, operation, time)
        number_packets(domain, messages, line, lines)
        number_packets(network, messages, line, lines)

        done += crossing + endpoint.step
        deliveries = advance_links(domain, messages, line, lines, delivered, 0, crossing, done)
        deliveries = advance_links(network, messages, line, lines, delivered, deliveries, crossing, done)
        for place in range(deliveries):
            message = delivered[place]
            sent = operations[messages[message, SENDER], FINISH]
            visible = max(messages[message, ARRIVAL], sent + empty_path(domain, network, messages, message, False))
            messages[message, VISIBLE] = visible
            post(event_times, event_codes, counts, visible, message, MESSAGE_ARRIVES)
    if counts[FINISHED] < total:
        return DEADLOCK
    return DONE
