"""The loop that runs a lowered schedule: operations move bytes, bytes take time (docs/timing-rules.md).

A window has three phases: what happens at chips (``events``), what chip ports send, what switch outputs send (``links``).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.dataplane import move
from collemu_kernels.events import pop, push
from collemu_kernels.links import LAST_BYTES, NEVER, NONE, PACKETS, SOURCE, send_from_port, serve_output, wake_ports

DONE = 0
DEADLOCK = 1  # operations are left that nothing can start
TOO_LONG = 2  # past the range of the clock
BAD_VALUE = 3  # the data plane met a value that it cannot carry

# Kinds of events; a code is 4 * index + kind.
FINISHED = 0  # an operation
READY = 1  # a message may leave its chip
VISIBLE = 2  # a message may be received
FREED = 3  # the FIFO slot that a message waited for

# Entries of the counters that the phases share.
ACTIVE_PORTS = 0
ACTIVE_OUTPUTS = 1
DELIVERED = 2
PENDING = 3
FINISHED_OPERATIONS = 4


class Program(NamedTuple):
    """A lowered schedule. Operations are in (rank, thread, step) order, messages by connection."""

    following: NDArray[np.int32]  # [operation] next of its thread, or NONE
    received: NDArray[np.int32]  # [operation] message that it receives, or NONE
    sent: NDArray[np.int32]  # [operation] message that it sends, or NONE
    work: NDArray[np.int64]  # [operation] femtoseconds at the endpoint
    dependents_first: NDArray[np.int64]  # [operation + 1] its part of `dependents`
    dependents: NDArray[np.int32]
    sender: NDArray[np.int32]  # [message] operation
    receiver: NDArray[np.int32]  # [message] operation
    successor: NDArray[np.int32]  # [message] the message that takes over its FIFO slot, or NONE
    launch: int
    step: int
    notice: int  # from a slot's release to its sender's knowing
    limit: int  # the clock's end


class Progress(NamedTuple):
    """How far the operations have come."""

    waits: NDArray[np.int8]  # [operation] conditions that do not hold yet
    start: NDArray[np.int64]  # [operation] femtoseconds; NEVER before
    finish: NDArray[np.int64]
    visible: NDArray[np.int64]  # [message]
    event_times: NDArray[np.int64]  # the heap
    event_codes: NDArray[np.int64]
    counts: NDArray[np.int64]


@jit
def begin(program, progress, messages, operation, now):
    """Start an operation: all that will come of it at its own chip is known at once."""
    counts = progress.counts
    progress.start[operation] = now
    finish = now + program.work[operation]
    message = program.sent[operation]
    if message != NONE:
        ready = now + program.step
        finish += program.step
        messages.ready[message] = ready
        counts[PENDING] = push(
            progress.event_times, progress.event_codes, counts[PENDING], ready, np.int64(message) * 4 + READY
        )
    progress.finish[operation] = finish
    counts[PENDING] = push(
        progress.event_times, progress.event_codes, counts[PENDING], finish, np.int64(operation) * 4 + FINISHED
    )


@jit
def satisfy(program, progress, messages, operation, now):
    """One condition of an operation has come true; events come in time order, so the last one says when it starts."""
    progress.waits[operation] -= np.int8(1)
    if progress.waits[operation] == 0:
        begin(program, progress, messages, operation, now)


@jit
def line_up(program, messages, message):
    """Put a ready message into its chip's line: by ready time, equal ones by (thread, step)."""
    chip = messages.table[SOURCE, message]
    first = messages.line_first[chip]
    place = first + messages.line_length[chip]
    messages.line_length[chip] += 1
    while place > first:
        before = messages.line[place - 1]
        if messages.ready[before] < messages.ready[message]:
            break
        if (
            messages.ready[before] == messages.ready[message]
            and program.sender[before] < program.sender[message]
        ):
            break
        messages.line[place] = before
        place -= 1
    messages.line[place] = message


@jit
def number_packets(fabric, messages, ports, counts, numbered, packet_counter):
    """Give the messages that came into line in this window their packet numbers, and wake their ports."""
    for chip in range(fabric.ranks):
        if numbered[chip] < messages.line_length[chip]:
            while numbered[chip] < messages.line_length[chip]:
                message = messages.line[messages.line_first[chip] + numbered[chip]]
                messages.first_packet[message] = packet_counter[chip]
                packet_counter[chip] += messages.table[PACKETS, message]
                numbered[chip] += 1
            wake_ports(fabric, messages, ports, counts, chip)


@jit
def run(program, progress, fabric, messages, ports, outputs, trains, data):
    """Run a program to its end; returns DONE or what went wrong. All results are in the arrays."""
    counts = progress.counts
    latency = fabric.latency
    window = latency + fabric.serialisation[fabric.full_bytes - fabric.payload]
    numbered = np.zeros(fabric.ranks, np.int64)
    packet_counter = np.zeros(fabric.ranks, np.int64)
    delivered = np.empty(len(program.sender), np.int32)
    operations = len(program.work)

    for operation in range(operations):
        if progress.waits[operation] == 0:
            begin(program, progress, messages, operation, program.launch)

    fabric_next = NEVER
    while True:
        now = fabric_next
        if counts[PENDING] > 0:
            now = min(now, progress.event_times[0])
        if now == NEVER:
            break
        if now > program.limit:
            return TOO_LONG
        end = now + window

        lined_up = False
        while counts[PENDING] > 0 and progress.event_times[0] < end:
            time = progress.event_times[0]
            code = progress.event_codes[0]
            counts[PENDING] = pop(progress.event_times, progress.event_codes, counts[PENDING])
            index = code >> 2
            kind = code & 3
            if kind == FINISHED:
                if data.moving and move(data, index, program.received[index], program.sent[index]) != 0:
                    return BAD_VALUE
                counts[FINISHED_OPERATIONS] += 1
                following = program.following[index]
                if following != NONE:
                    satisfy(program, progress, messages, following, time)
                for place in range(program.dependents_first[index], program.dependents_first[index + 1]):
                    satisfy(program, progress, messages, program.dependents[place], time)
                message = program.received[index]
                if message != NONE and program.successor[message] != NONE:
                    counts[PENDING] = push(
                        progress.event_times,
                        progress.event_codes,
                        counts[PENDING],
                        time + program.notice,
                        np.int64(program.successor[message]) * 4 + FREED,
                    )
            elif kind == READY:
                line_up(program, messages, index)
                lined_up = True
            elif kind == VISIBLE:
                satisfy(program, progress, messages, program.receiver[index], time)
            else:
                satisfy(program, progress, messages, program.sender[index], time)
        if lined_up:
            number_packets(fabric, messages, ports, counts, numbered, packet_counter)

        fabric_next = NEVER
        place = 0
        while place < counts[ACTIVE_PORTS]:
            port = ports.active[place]
            fabric_next = min(
                fabric_next, send_from_port(fabric, messages, ports, outputs, trains, counts, port, end)
            )
            if ports.place[port] == messages.line_length[port // fabric.planes]:
                ports.listed[port] = 0
                counts[ACTIVE_PORTS] -= 1
                ports.active[place] = ports.active[counts[ACTIVE_PORTS]]
            else:
                place += 1

        counts[DELIVERED] = 0
        place = 0
        while place < counts[ACTIVE_OUTPUTS]:
            output = outputs.active[place]
            going_on, fabric_next = serve_output(
                fabric, messages, ports, outputs, trains, delivered, counts, output, end, fabric_next
            )
            fabric_next = min(fabric_next, going_on)
            if going_on == NEVER:
                outputs.listed[output] = 0
                counts[ACTIVE_OUTPUTS] -= 1
                outputs.active[place] = outputs.active[counts[ACTIVE_OUTPUTS]]
            else:
                place += 1
        for place in range(counts[DELIVERED]):
            message = delivered[place]
            last = fabric.serialisation[messages.table[LAST_BYTES, message]]
            visible = max(messages.arrival[message], progress.finish[program.sender[message]] + 2 * (last + latency))
            progress.visible[message] = visible
            counts[PENDING] = push(
                progress.event_times, progress.event_codes, counts[PENDING], visible, np.int64(message) * 4 + VISIBLE
            )
    if counts[FINISHED_OPERATIONS] < operations:
        return DEADLOCK
    return DONE
