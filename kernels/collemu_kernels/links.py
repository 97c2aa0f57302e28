"""Packets on links: chip ports with credits, switch planes with round-robin outputs (docs/timing-rules.md, 3 to 6).

Nothing here is a global event queue. A plane's time advances in windows no longer than the shortest crossing of a link,
so that whatever a port or an output does inside a window can be noticed elsewhere only in a later one. Inside a window
every port and every output runs its own tight loop, in any order. Equal packets that follow each other without a gap
are one *train*: one entry for up to a window's worth of packets.

Planes share nothing but the messages: every table of links has a slice a plane, and the functions here see one slice,
which stays in the cache while they work on it. In it, port and output are numbered as their chips, and the queue from
chip s to output o is o * ranks + s. Tables are int64 with a row a port, output, train, message or chip, a cache line or
two each; the constants below name their columns. Times are femtoseconds.
"""

from typing import NamedTuple

import numpy as np

from collemu_kernels._jit import jit_lean

NEVER = np.int64(np.iinfo(np.int64).max)
NONE = -1


class Fabric(NamedTuple):
    """Constants of one switch stage."""

    ranks: int
    planes: int
    latency: int  # of one link
    credits: int  # packets of a chip on a plane
    header: int  # bytes of a packet without payload
    full: int  # bytes of a full packet with its header


# Columns of `messages`.
SOURCE = 0
DESTINATION = 1
PACKETS = 2  # at least one
LAST_BYTES = 3  # bytes of the last packet on a link, header included
READY = 4  # offered to the fabric at
FIRST_PACKET = 5  # the chip's packet counter at its first packet
REMAINING = 6  # packets that have not left the switch
ARRIVAL = 7  # arrival of the latest packet so far
SENDER = 8  # operation
RECEIVER = 9  # operation
SUCCESSOR = 10  # the message that takes over its FIFO slot, or NONE
VISIBLE = 11  # may be received at; NEVER before
MESSAGE_COLUMNS = 12

# Columns of `chips`. A chip's messages stand in `line` from LINE on, in the order in which it sends them.
LINE = 0
LENGTH = 1  # messages in line so far
NUMBERED = 2  # of these, those whose packets have numbers
COUNTER = 3  # packets numbered so far
CHIP_COLUMNS = 4

# Columns of `ports`, the chip side of the links.
FREE = 0  # the link is free at
CREDITS = 1  # at hand
RETURNING = 2  # first of the trains of credits on their way back, or NONE
PLACE = 3  # position in the chip's line
PACKET = 4  # next packet of that message for this plane
STARVED = 5  # 1: waits for a credit; one that is sent meanwhile may be back sooner than those that are known
LISTED = 6  # 1: is in the list of active ports
PORT_COLUMNS = 8

# Columns of `outputs`, the switch side; FREE and LISTED as above.
POINTER = 1  # round robin looks here first
EXPECTED = 2  # inputs whose oldest packet is still on its way, a heap of them in `expected`
OUTPUT_COLUMNS = 8

# Layers of `expected`, one row an output.
WHEN = 0
WHICH = 1

# Columns of `traffic`, one row a link.
BYTES = 0
BUSY = 1

# Columns of `queues`: first and last train, or NONE.
HEAD = 0
TAIL = 1

# Columns of `trains`: packets that follow each other without a gap, or credits that come back at a steady pace.
FIRST = 0  # arrival of the first
COUNT = 1
SIZE = 2  # packets: bytes of each, header included; its serialisation is the spacing
SPACING = 2  # credits: femtoseconds between them
MESSAGE = 3
NEXT = 4  # in a queue, a list of credits, or the free list, whose head is in the pool's last row
TRAIN_COLUMNS = 5

# Rows of `active`, the ports and the outputs that have something to do, and of `counts`, how many.
PORTS = 0
OUTPUTS = 1


@jit_lean
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


@jit_lean
def set_bit(mask, row, bit):
    """Set a bit of one row of a mask."""
    mask[row, bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@jit_lean
def clear_bit(mask, row, bit):
    """Clear a bit of one row of a mask."""
    mask[row, bit >> 6] &= ~(np.uint64(1) << np.uint64(bit & 63))


@jit_lean
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


@jit_lean
def only_bit(mask, row, bit):
    """Whether a row has no other bit set than ``bit``."""
    for word in range(mask.shape[1]):
        here = mask[row, word]
        if word == bit >> 6:
            here &= ~(np.uint64(1) << np.uint64(bit & 63))
        if here != np.uint64(0):
            return False
    return True


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
    serialisation, outputs, expected, queues, trains, active, counts, output, source, arrival, count, size, message
):
    """Queue a train at the switch output that leads to its destination."""
    queue = output * outputs.shape[0] + source
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
def enter_message(plane, planes, messages, line, chips, ports, chip):
    """Move a port on to the next message that has a packet for its plane; False if its chip's line ends before."""
    first = chips[chip, LINE]
    length = chips[chip, LENGTH]
    place = ports[chip, PLACE]
    while place < length:
        message = line[first + place]
        packet = (plane - messages[message, FIRST_PACKET]) % planes
        if packet < messages[message, PACKETS]:
            ports[chip, PLACE] = place
            ports[chip, PACKET] = packet
            return True
        place += 1
    ports[chip, PLACE] = place
    return False


@jit_lean
def number_packets(messages, line, chips, ports, active, counts, plane_next):
    """Number the packets of messages that have come into line, and list the ports that they give work to.

    ``ports``, ``active`` and ``counts`` are those of all planes; ``plane_next`` is when each has something to do.
    """
    planes = ports.shape[0]
    for chip in range(chips.shape[0]):
        length = chips[chip, LENGTH]
        if chips[chip, NUMBERED] == length:
            continue
        packets = 0
        start = chips[chip, COUNTER]
        while chips[chip, NUMBERED] < length:
            message = line[chips[chip, LINE] + chips[chip, NUMBERED]]
            messages[message, FIRST_PACKET] = start + packets
            packets += messages[message, PACKETS]
            chips[chip, NUMBERED] += 1
        chips[chip, COUNTER] = start + packets
        for k in range(min(packets, planes)):
            plane = (start + k) % planes
            if ports[plane, chip, LISTED] == 0:
                enter_message(plane, planes, messages, line, chips, ports[plane], chip)
                message = line[chips[chip, LINE] + ports[plane, chip, PLACE]]
                plane_next[plane] = min(plane_next[plane], messages[message, READY])
                ports[plane, chip, LISTED] = 1
                active[plane, PORTS, counts[plane, PORTS]] = chip
                counts[plane, PORTS] += 1


@jit_lean
def send_from_ports(
    plane,
    fabric,
    serialisation,
    messages,
    line,
    chips,
    ports,
    traffic,
    outputs,
    expected,
    queues,
    trains,
    active,
    counts,
    end,
):
    """Let every active port of a plane send all packets that start before ``end``.

    Returns when the first of them could go on; a starved port is woken by the output that returns a credit to it.
    """
    planes = np.int64(fabric.planes)
    full = np.int64(fabric.full)
    full_spacing = serialisation[full]
    latency = np.int64(fabric.latency)
    first_on = NEVER
    place = 0
    while place < counts[PORTS]:
        chip = active[PORTS, place]
        free = ports[chip, FREE]
        packet = ports[chip, PACKET]
        ports[chip, STARVED] = 0
        if ports[chip, RETURNING] != NONE:
            # Not needed yet, perhaps, but a short list is a quick list, and the pool stays small enough for the cache.
            collect_credits(ports, trains, chip, free)
        going_on = NEVER
        message = line[chips[chip, LINE] + ports[chip, PLACE]]
        packets = messages[message, PACKETS]
        while True:
            if packet >= packets:
                ports[chip, PLACE] += 1
                if not enter_message(plane, planes, messages, line, chips, ports, chip):
                    break
                packet = ports[chip, PACKET]
                message = line[chips[chip, LINE] + ports[chip, PLACE]]
                packets = messages[message, PACKETS]
            start = max(free, messages[message, READY])
            if start >= end:
                going_on = start
                break
            if ports[chip, CREDITS] == 0:
                earliest = collect_credits(ports, trains, chip, start)
                if ports[chip, CREDITS] == 0:
                    if earliest >= end:
                        ports[chip, STARVED] = 1
                        going_on = earliest
                        break
                    start = earliest
                    collect_credits(ports, trains, chip, start)
            count = np.int64(1)
            if packet == packets - 1:
                size = messages[message, LAST_BYTES]
                spacing = serialisation[size]
            else:
                size = full
                spacing = full_spacing
                # full packets of this plane that are left, as many as there are credits, and that start before the end
                if packet + planes < packets - 1:
                    count = min((packets - 2 - packet) // planes + 1, ports[chip, CREDITS])
                    if start + (count - 1) * spacing >= end:
                        count = (end - 1 - start) // spacing + 1
            arrival = start + spacing + latency
            output = messages[message, DESTINATION]
            enqueue(
                serialisation,
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
            )
            free = start + count * spacing
            packet += count * planes
            ports[chip, CREDITS] -= count
            traffic[chip, BYTES] += count * size
            traffic[chip, BUSY] += count * spacing
        ports[chip, FREE] = free
        ports[chip, PACKET] = packet
        if going_on == NEVER and ports[chip, STARVED] == 0:
            ports[chip, LISTED] = 0
            counts[PORTS] -= 1
            active[PORTS, place] = active[PORTS, counts[PORTS]]
        else:
            first_on = min(first_on, going_on)
            place += 1
    return first_on


@jit_lean
def serve_outputs(
    fabric,
    serialisation,
    messages,
    ports,
    outputs,
    traffic,
    expected,
    ready,
    queues,
    trains,
    active,
    counts,
    delivered,
    deliveries,
    end,
):
    """Let every active switch output of a plane send all packets that start before ``end``.

    Messages whose last packet leaves join ``delivered``, which has ``deliveries`` entries. Returns how many it has
    then, and when the first output, or a port that one of them has woken with a credit, could go on.
    """
    ranks = np.int64(fabric.ranks)
    latency = np.int64(fabric.latency)
    first_on = NEVER
    place = 0
    while place < counts[OUTPUTS]:
        output = active[OUTPUTS, place]
        now = outputs[output, FREE]
        empty = False
        while now < end:
            next_arrival = admit_arrivals(outputs, expected, ready, output, now)
            source = next_bit(ready, output, outputs[output, POINTER])
            if source == NONE:
                now = next_arrival
                if now == NEVER:
                    empty = True
                    break
                continue
            queue = output * ranks + source
            train = queues[queue, HEAD]
            size = trains[train, SIZE]
            spacing = serialisation[size]
            queued = trains[train, COUNT]
            count = np.int64(1)
            if queued > 1 and only_bit(ready, output, source):
                # Alone until another input's packet arrives; the pointer, by then past this input, lets that one in.
                quiet = min(end, next_arrival)
                count = min(queued, (quiet - 1 - now) // spacing + 1)
            finish = now + count * spacing
            message = trains[train, MESSAGE]
            messages[message, ARRIVAL] = max(messages[message, ARRIVAL], finish + latency)
            messages[message, REMAINING] -= count
            if messages[message, REMAINING] == 0:
                delivered[deliveries] = message
                deliveries += 1

            credit = train
            if count == queued:
                following = trains[train, NEXT]
                queues[queue, HEAD] = following
                if following == NONE:
                    clear_bit(ready, output, source)
                elif trains[following, FIRST] > finish:
                    clear_bit(ready, output, source)
                    expect(outputs, expected, output, trains[following, FIRST], source)
            else:
                # In and out have the same rate, so the next packet of the train is there when this one has gone.
                trains[train, COUNT] = queued - count
                trains[train, FIRST] += count * spacing
                credit = take_train(trains)
            back = now + spacing + latency
            return_credits(ports, trains, source, credit, back, count, spacing)
            if ports[source, STARVED] == 1:
                first_on = min(first_on, back)

            traffic[output, BYTES] += count * size
            traffic[output, BUSY] += count * spacing
            outputs[output, POINTER] = 0 if source + 1 == ranks else source + 1
            outputs[output, FREE] = finish
            now = finish
        if empty:
            outputs[output, LISTED] = 0
            counts[OUTPUTS] -= 1
            active[OUTPUTS, place] = active[OUTPUTS, counts[OUTPUTS]]
        else:
            first_on = min(first_on, now)
            place += 1
    return deliveries, first_on
