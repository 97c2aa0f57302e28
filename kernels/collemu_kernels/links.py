"""Packets on links: chip ports with credits, switch planes with round-robin outputs (docs/timing-rules.md, 3 to 6).

Nothing here is a global event queue. Time advances in windows no longer than the shortest crossing of a link, so that
whatever a port or an output does inside a window can be noticed elsewhere only in a later one. Inside a window every
port and every output runs its own tight loop, in any order. Equal packets that follow each other without a gap are one
*train*: one entry for up to a window's worth of packets.

Index conventions: port = chip * planes + plane; output = plane * ranks + chip; queue = output * ranks + source chip.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit

NEVER = np.int64(np.iinfo(np.int64).max)
NONE = -1

# Rows of Messages.table.
SOURCE = 0
DESTINATION = 1
PACKETS = 2  # at least one
LAST_BYTES = 3  # bytes of the last packet on a link, header included


class Fabric(NamedTuple):
    """Constants of one switch stage."""

    ranks: int
    planes: int
    latency: int  # of one link, femtoseconds
    credits: int  # packets of a chip on a plane
    payload: int  # bytes of a full packet without its header
    full_bytes: int  # a full packet with its header
    serialisation: NDArray[np.int64]  # [bytes] femtoseconds on a link, for 0 … full_bytes


class Messages(NamedTuple):
    """What travels, and how far it has come. One entry a message."""

    table: NDArray[np.int32]  # [SOURCE … LAST_BYTES, message]
    ready: NDArray[np.int64]  # offered to the fabric at, femtoseconds
    line: NDArray[np.int32]  # messages in the order in which their chip sends them, chip after chip
    line_first: NDArray[np.int64]  # [chip] where the chip's part of `line` begins
    line_length: NDArray[np.int64]  # [chip] messages in line so far
    first_packet: NDArray[np.int64]  # value of the chip's packet counter at the message's first packet
    remaining: NDArray[np.int64]  # packets that have not arrived
    arrival: NDArray[np.int64]  # arrival of the latest packet so far, femtoseconds


class Ports(NamedTuple):
    """Chip side of the links, one entry a (chip, plane)."""

    free: NDArray[np.int64]  # the link is free at
    credits: NDArray[np.int64]  # credits at hand
    returning: NDArray[np.int32]  # list of trains of credits on their way back
    place: NDArray[np.int32]  # position in the chip's line
    packet: NDArray[np.int64]  # next packet of that message for this plane
    starved: NDArray[np.uint8]  # 1: waits for a credit that nobody has sent yet
    active: NDArray[np.int32]  # ports that have something to send, `counts[0]` of them
    listed: NDArray[np.uint8]  # 1: is in `active`
    sent_bytes: NDArray[np.int64]
    busy: NDArray[np.int64]  # femtoseconds of sending


class Outputs(NamedTuple):
    """Switch side, one entry a (plane, destination chip); masks have a bit an input."""

    free: NDArray[np.int64]
    pointer: NDArray[np.int32]  # round robin looks here first
    next_arrival: NDArray[np.int64]  # no head that is not in `ready` arrives before
    waiting: NDArray[np.uint64]  # [output, word] inputs with a packet queued or on the way
    ready: NDArray[np.uint64]  # [output, word] those whose oldest packet has arrived
    head: NDArray[np.int32]  # [queue] first train
    tail: NDArray[np.int32]
    active: NDArray[np.int32]  # outputs with something queued, `counts[1]` of them
    listed: NDArray[np.uint8]
    sent_bytes: NDArray[np.int64]
    busy: NDArray[np.int64]


class Trains(NamedTuple):
    """Pool of trains: packets that follow each other without a gap, or the credits that they return."""

    first: NDArray[np.int64]  # arrival of the first packet (or credit)
    length: NDArray[np.int32]
    bytes: NDArray[np.int32]  # of each packet, header included; its serialisation is the spacing
    message: NDArray[np.int32]
    next: NDArray[np.int32]  # in a queue, a credit list or the free list
    free: NDArray[np.int32]  # [0] head of the free list


@jit
def trailing_zeros(word):
    """Index of the lowest set bit of a non-zero uint64."""
    index = 0
    if word & np.uint64(0xFFFFFFFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(32))
        index += 32
    if word & np.uint64(0xFFFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(16))
        index += 16
    if word & np.uint64(0xFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(8))
        index += 8
    if word & np.uint64(0xF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(4))
        index += 4
    if word & np.uint64(0x3) == np.uint64(0):
        word = np.uint64(word >> np.uint64(2))
        index += 2
    if word & np.uint64(0x1) == np.uint64(0):
        index += 1
    return index


@jit
def set_bit(mask, row, bit):
    """Set a bit of one row of a mask."""
    mask[row, bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@jit
def clear_bit(mask, row, bit):
    """Clear a bit of one row of a mask."""
    mask[row, bit >> 6] &= ~(np.uint64(1) << np.uint64(bit & 63))


@jit
def next_bit(mask, row, start):
    """First set bit of a row at or after ``start``, cyclically; NONE if the row is empty."""
    words = mask.shape[1]
    word = start >> 6
    here = mask[row, word] & (np.uint64(0xFFFFFFFFFFFFFFFF) << np.uint64(start & 63))
    for _ in range(words + 1):
        if here != np.uint64(0):
            return (word << 6) + trailing_zeros(here)
        word += 1
        if word == words:
            word = 0
        here = mask[row, word]
    return NONE


@jit
def only_bit(mask, row, bit):
    """Whether a row has no other bit set than ``bit``."""
    for word in range(mask.shape[1]):
        here = mask[row, word]
        if word == bit >> 6:
            here &= ~(np.uint64(1) << np.uint64(bit & 63))
        if here != np.uint64(0):
            return False
    return True


@jit
def take_train(trains):
    """An entry of the pool. It never runs dry: packets and credits of a port are never more than its credits."""
    train = trains.free[0]
    trains.free[0] = trains.next[train]
    return train


@jit
def give_train(trains, train):
    """Put an entry back into the pool."""
    trains.next[train] = trains.free[0]
    trains.free[0] = train


@jit
def collect_credits(fabric, ports, trains, port, now):
    """Move the credits that are back by ``now`` to those at hand; return when the next one comes (NEVER if unknown)."""
    earliest = NEVER
    previous = NONE
    train = ports.returning[port]
    while train != NONE:
        following = trains.next[train]
        first = trains.first[train]
        if first <= now:
            spacing = fabric.serialisation[trains.bytes[train]]
            back = min((now - first) // spacing + 1, np.int64(trains.length[train]))
            ports.credits[port] += back
            trains.length[train] -= np.int32(back)
            first += back * spacing
            trains.first[train] = first
        if trains.length[train] == 0:
            if previous == NONE:
                ports.returning[port] = following
            else:
                trains.next[previous] = following
            give_train(trains, train)
        else:
            earliest = min(earliest, first)
            previous = train
        train = following
    return earliest


@jit
def enqueue(fabric, outputs, trains, counts, plane, source, destination, arrival, length, size, message):
    """Queue a train at the switch output that leads to its destination."""
    output = plane * fabric.ranks + destination
    queue = output * fabric.ranks + source
    tail = outputs.tail[queue]
    if (
        outputs.head[queue] != NONE
        and trains.message[tail] == message
        and trains.bytes[tail] == size
        and trains.first[tail] + trains.length[tail] * fabric.serialisation[size] == arrival
    ):
        trains.length[tail] += np.int32(length)
        return
    train = take_train(trains)
    trains.first[train] = arrival
    trains.length[train] = length
    trains.bytes[train] = size
    trains.message[train] = message
    trains.next[train] = NONE
    if outputs.head[queue] == NONE:
        outputs.head[queue] = train
        set_bit(outputs.waiting, output, source)
        outputs.next_arrival[output] = min(outputs.next_arrival[output], arrival)
        if outputs.listed[output] == 0:
            outputs.listed[output] = 1
            outputs.active[counts[1]] = output
            counts[1] += 1
    else:
        trains.next[tail] = train
    outputs.tail[queue] = train


@jit
def wake_ports(fabric, messages, ports, counts, chip):
    """List the ports of a chip that new messages in its line have given something to send."""
    for plane in range(fabric.planes):
        port = chip * fabric.planes + plane
        if ports.listed[port] == 0 and enter_message(fabric, messages, ports, port):
            ports.listed[port] = 1
            ports.active[counts[0]] = port
            counts[0] += 1


@jit
def enter_message(fabric, messages, ports, port):
    """Move a port on to the next message that has a packet for its plane; False if its chip's line ends before."""
    chip = port // fabric.planes
    plane = port - chip * fabric.planes
    while ports.place[port] < messages.line_length[chip]:
        message = messages.line[messages.line_first[chip] + ports.place[port]]
        packet = (plane - messages.first_packet[message]) % fabric.planes
        if packet < messages.table[PACKETS, message]:
            ports.packet[port] = packet
            return True
        ports.place[port] += np.int32(1)
    return False


@jit
def send_from_port(fabric, messages, ports, outputs, trains, counts, port, end):
    """Let a port send all packets that start before ``end``; return when it could go on (NEVER: nothing to send, or
    starved, so that a returning credit says when)."""
    chip = port // fabric.planes
    plane = port - chip * fabric.planes
    ports.starved[port] = 0
    while ports.place[port] < messages.line_length[chip]:
        message = messages.line[messages.line_first[chip] + ports.place[port]]
        packets = messages.table[PACKETS, message]
        packet = ports.packet[port]
        if packet >= packets:
            ports.place[port] += np.int32(1)
            if not enter_message(fabric, messages, ports, port):
                break
            continue
        start = max(ports.free[port], messages.ready[message])
        if start >= end:
            return start
        if ports.credits[port] == 0:
            earliest = collect_credits(fabric, ports, trains, port, start)
            if ports.credits[port] == 0:
                if earliest == NEVER:
                    ports.starved[port] = 1
                    return NEVER
                if earliest >= end:
                    return earliest
                start = earliest
                collect_credits(fabric, ports, trains, port, start)
        if packet == packets - 1:
            size = messages.table[LAST_BYTES, message]
            length = np.int64(1)
        else:
            size = np.int32(fabric.full_bytes)
            length = min((packets - 2 - packet) // fabric.planes + 1, ports.credits[port])
        spacing = fabric.serialisation[size]
        length = min(length, (end - 1 - start) // spacing + 1)
        enqueue(
            fabric,
            outputs,
            trains,
            counts,
            plane,
            chip,
            messages.table[DESTINATION, message],
            start + spacing + fabric.latency,
            length,
            size,
            message,
        )
        ports.free[port] = start + length * spacing
        ports.credits[port] -= length
        ports.packet[port] = packet + length * fabric.planes
        ports.sent_bytes[port] += length * size
        ports.busy[port] += length * spacing
    return NEVER


@jit
def admit_arrivals(outputs, trains, output, ranks, now):
    """Bring the inputs whose oldest packet has arrived by ``now`` into the ready mask."""
    if outputs.next_arrival[output] > now:
        return
    earliest = NEVER
    for word in range(outputs.waiting.shape[1]):
        pending = outputs.waiting[output, word] & ~outputs.ready[output, word]
        while pending != np.uint64(0):
            source = (word << 6) + trailing_zeros(pending)
            pending &= pending - np.uint64(1)
            arrival = trains.first[outputs.head[output * ranks + source]]
            if arrival <= now:
                set_bit(outputs.ready, output, source)
            else:
                earliest = min(earliest, arrival)
    outputs.next_arrival[output] = earliest


@jit
def serve_output(fabric, messages, ports, outputs, trains, delivered, counts, output, end, wake):
    """Let a switch output send all packets that start before ``end``.

    Messages whose last packet leaves are appended to ``delivered`` (``counts[2]`` of them). Returns when the output
    could go on (NEVER: its queues are empty) and the earlier of ``wake`` and the first credit to a starved port.
    """
    ranks = fabric.ranks
    plane = output // ranks
    now = outputs.free[output]
    while now < end:
        admit_arrivals(outputs, trains, output, ranks, now)
        source = next_bit(outputs.ready, output, outputs.pointer[output])
        if source == NONE:
            if outputs.next_arrival[output] == NEVER:
                return NEVER, wake
            now = max(now, outputs.next_arrival[output])
            continue
        queue = output * ranks + source
        train = outputs.head[queue]
        size = trains.bytes[train]
        spacing = fabric.serialisation[size]
        length = np.int64(1)
        if trains.length[train] > 1 and only_bit(outputs.ready, output, source):
            # Alone until another input's packet arrives: then the pointer, now past this one, lets that one in first.
            quiet = min(end, outputs.next_arrival[output])
            length = min(np.int64(trains.length[train]), (quiet - 1 - now) // spacing + 1)
        finish = now + length * spacing
        message = trains.message[train]
        messages.arrival[message] = max(messages.arrival[message], finish + fabric.latency)
        messages.remaining[message] -= length
        if messages.remaining[message] == 0:
            delivered[counts[2]] = message
            counts[2] += 1

        port = source * fabric.planes + plane
        credit_time = now + spacing + fabric.latency
        if length == trains.length[train]:
            following = trains.next[train]
            outputs.head[queue] = following
            credit = train
            if following == NONE:
                clear_bit(outputs.waiting, output, source)
                clear_bit(outputs.ready, output, source)
            elif trains.first[following] > finish:
                clear_bit(outputs.ready, output, source)
                outputs.next_arrival[output] = min(outputs.next_arrival[output], trains.first[following])
        else:
            credit = take_train(trains)
            trains.bytes[credit] = size
            trains.length[train] -= np.int32(length)
            trains.first[train] += length * spacing
            # spaced like this link, so the next packet of the train is there when this one has gone
        trains.first[credit] = credit_time
        trains.length[credit] = length
        trains.next[credit] = ports.returning[port]
        ports.returning[port] = credit
        if ports.starved[port] == 1:
            wake = min(wake, credit_time)

        outputs.sent_bytes[output] += length * size
        outputs.busy[output] += length * spacing
        outputs.pointer[output] = 0 if source + 1 == ranks else source + 1
        outputs.free[output] = finish
        now = finish
    return now, wake
