"""Packets on links: chip ports with credits, switch planes with round-robin outputs (docs/timing-rules.md, 3 to 6).

Nothing here is a global event queue. A lane's time advances in windows no longer than the shortest crossing of a link,
so that whatever a port or an output does inside a window can be noticed elsewhere only in a later one. Inside a window
every port and every output runs its own tight loop, in any order. Equal packets that follow each other without a gap
are one *train*: one entry for up to a window's worth of packets.

A *lane* is one link of every chip: to a switch, and from that switch to every chip, or straight to one other chip.
Lanes that serve the same destinations are a *group*, over which a message's packets are sprayed. Lanes that are built
alike are a *stage*: the domain, and the network that joins domains.

Lanes share nothing but the messages: every table of links has a slice a lane, and the functions here work on one slice,
which stays in the cache meanwhile. In it, port and output are numbered as their chips; an output is reached by the
``reach`` chips of its domain, and the queue from chip s to output o is o * reach + s % reach. Tables are int64 with a
row a port, output, train, message or line, a cache line or two each; the constants below name their columns. Times are
femtoseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit_lean
from collemu_kernels.bits import clear_bit, next_bit, only_bit, set_bit

NEVER = np.int64(np.iinfo(np.int64).max)
NONE = -1

Table = NDArray[np.int64]


class Stage(NamedTuple):
    """Lanes that are built alike, and the state of their links."""

    direct: bool  # links lead from chip to chip, without a switch
    hops: int  # links of a path: 1, or 2 with a switch between them
    groups: int
    first_line: int  # that of chip 0 and group 0; a chip's lines follow each other
    reach: int  # chips that share a switch
    credits: int  # packets of a chip on a lane
    header: int  # bytes of a packet without payload
    full: int  # bytes of a full packet with its header
    crossing: int  # the shortest time from a packet's start to its arrival, or that of a credit
    serialisation: Table  # [bytes] time of a packet on a link, up to a full one
    lanes: Table
    ports: Table  # [lane, chip]
    port_traffic: Table
    outputs: Table  # [lane, chip]
    output_traffic: Table
    expected: Table  # [lane, layer, output, place]
    ready: NDArray[np.uint64]  # [lane, output] inputs whose oldest packet is there, a bit each
    queues: Table  # [lane, queue]
    trains: Table  # [lane, place in the pool]
    active: Table  # [lane, ports or outputs, place]
    active_counts: Table
    lane_next: Table  # [lane, ports or outputs] when the first of them may have something to do


# Columns of `messages`.
SOURCE = 0
DESTINATION = 1
PACKETS = 2  # at least one
LAST_BYTES = 3  # bytes of the last packet on a link, header included
READY = 4  # offered to the fabric at
FIRST_PACKET = 5  # which lane of its group takes its first packet
REMAINING = 6  # packets that have not left the switch
ARRIVAL = 7  # arrival of the latest packet so far
SENDER = 8  # operation
RECEIVER = 9  # operation
SUCCESSOR = 10  # the message that takes over its FIFO slot, or NONE
VISIBLE = 11  # may be received at; NEVER before
QUEUE = 12  # its line
NETWORK = 13  # 1: travels on the network, not in a domain
PATH = 14  # latency of all links of its path
STEP = 15  # from its operation's start to its being offered
MESSAGE_COLUMNS = 16

# Columns of `lines`, one a chip and group. Messages stand in `line` from LINE on, in the order in which they are sent.
LINE = 0
LENGTH = 1  # messages in line so far
NUMBERED = 2  # of these, those whose packets have numbers
COUNTER = 3  # which lane takes the next packet
LINE_COLUMNS = 4

# Columns of `lanes`.
GROUP = 0
FIRST_LANE = 1  # of its group
LANES = 2  # of its group
LATENCY = 3  # of one link
LANE_COLUMNS = 4

# Columns of `ports`, the chip side of the links.
FREE = 0  # the link is free at
CREDITS = 1  # at hand
RETURNING = 2  # first of the trains of credits on their way back, or NONE
PLACE = 3  # position in the line
PACKET = 4  # next packet of that message for this lane
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
WAITED = 2  # ports: for credits; outputs: packets there, for others' turns, all together
SENT = 3  # packets
TRAFFIC_COLUMNS = 4

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
def enter_message(lane, lanes, messages, line, lines, ports, chip, own_line):
    """Move a port on to the next message that has a packet for its lane; False if its line ends before."""
    first = lines[own_line, LINE]
    length = lines[own_line, LENGTH]
    place = ports[chip, PLACE]
    index = lane - lanes[lane, FIRST_LANE]
    while place < length:
        message = line[first + place]
        packet = index - messages[message, FIRST_PACKET]
        if packet < 0:
            packet += lanes[lane, LANES]
        if packet < messages[message, PACKETS]:
            ports[chip, PLACE] = place
            ports[chip, PACKET] = packet
            return True
        place += 1
    ports[chip, PLACE] = place
    return False


@jit_lean
def number_packets(stage, messages, line, lines):
    """Number the packets of messages that have come into line, and list the ports that they give work to."""
    ports = stage.ports
    for chip in range(ports.shape[1]):
        first_lane = 0
        while first_lane < stage.lanes.shape[0]:
            own_line = stage.first_line + chip * stage.groups + stage.lanes[first_lane, GROUP]
            width = stage.lanes[first_lane, LANES]
            length = lines[own_line, LENGTH]
            packets = 0
            start = lines[own_line, COUNTER]
            index = start
            while lines[own_line, NUMBERED] < length:
                message = line[lines[own_line, LINE] + lines[own_line, NUMBERED]]
                messages[message, FIRST_PACKET] = index
                packets += messages[message, PACKETS]
                index = (index + messages[message, PACKETS]) % width
                lines[own_line, NUMBERED] += 1
            lines[own_line, COUNTER] = index
            index = start
            for _ in range(min(packets, width)):
                lane = first_lane + index
                index = 0 if index + 1 == width else index + 1
                if ports[lane, chip, LISTED] == 0:
                    enter_message(lane, stage.lanes, messages, line, lines, ports[lane], chip, own_line)
                    message = line[lines[own_line, LINE] + ports[lane, chip, PLACE]]
                    stage.lane_next[lane, PORTS] = min(stage.lane_next[lane, PORTS], messages[message, READY])
                    ports[lane, chip, LISTED] = 1
                    stage.active[lane, PORTS, stage.active_counts[lane, PORTS]] = chip
                    stage.active_counts[lane, PORTS] += 1
            first_lane += width


@jit_lean
def send_from_ports(stage, lane, messages, line, lines, delivered, deliveries, end):
    """Let every active port of a lane send all packets that start before ``end``.

    Messages whose last packet a direct link has sent join ``delivered``, which has ``deliveries`` entries. Returns how
    many it has then; notes when the first port could go on, but for starved ones, which the output that returns a
    credit wakes, and when the first packet that was sent arrives.
    """
    serialisation = stage.serialisation
    ports = stage.ports[lane]
    traffic = stage.port_traffic[lane]
    trains = stage.trains[lane]
    active = stage.active[lane]
    counts = stage.active_counts[lane]
    width = stage.lanes[lane, LANES]
    latency = stage.lanes[lane, LATENCY]
    full = np.int64(stage.full)
    full_spacing = serialisation[full]
    first_on = NEVER
    first_arrival = stage.lane_next[lane, OUTPUTS]
    place = 0
    while place < counts[PORTS]:
        chip = active[PORTS, place]
        own_line = stage.first_line + chip * stage.groups + stage.lanes[lane, GROUP]
        free = ports[chip, FREE]
        packet = ports[chip, PACKET]
        ports[chip, STARVED] = 0
        if ports[chip, RETURNING] != NONE:
            # Not needed yet, perhaps, but a short list is a quick list, and the pool stays small enough for the cache.
            collect_credits(ports, trains, chip, free)
        going_on = NEVER
        message = line[lines[own_line, LINE] + ports[chip, PLACE]]
        packets = messages[message, PACKETS]
        while True:
            if packet >= packets:
                ports[chip, PLACE] += 1
                if not enter_message(lane, stage.lanes, messages, line, lines, ports, chip, own_line):
                    break
                packet = ports[chip, PACKET]
                message = line[lines[own_line, LINE] + ports[chip, PLACE]]
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
                    traffic[chip, WAITED] += earliest - start
                    start = earliest
                    collect_credits(ports, trains, chip, start)
            count = np.int64(1)
            if packet == packets - 1:
                size = messages[message, LAST_BYTES]
                spacing = serialisation[size]
            else:
                size = full
                spacing = full_spacing
                # full packets of this lane that are left, as many as there are credits, and that start before the end
                if packet + width < packets - 1:
                    count = min((packets - 2 - packet) // width + 1, ports[chip, CREDITS])
                    if start + (count - 1) * spacing >= end:
                        count = (end - 1 - start) // spacing + 1
            arrival = start + spacing + latency
            destination = messages[message, DESTINATION]
            free = start + count * spacing
            if stage.direct:
                return_credits(ports, trains, chip, take_train(trains), arrival + latency, count, spacing)
                stage.output_traffic[lane, destination, BYTES] += count * size
                stage.output_traffic[lane, destination, BUSY] += count * spacing
                stage.output_traffic[lane, destination, SENT] += count
                messages[message, ARRIVAL] = max(messages[message, ARRIVAL], free + latency)
                messages[message, REMAINING] -= count
                if messages[message, REMAINING] == 0:
                    delivered[deliveries] = message
                    deliveries += 1
            else:
                first_arrival = min(first_arrival, arrival)
                enqueue(
                    serialisation,
                    stage.reach,
                    stage.outputs[lane],
                    stage.expected[lane],
                    stage.queues[lane],
                    trains,
                    active,
                    counts,
                    destination,
                    chip,
                    arrival,
                    count,
                    size,
                    message,
                )
            packet += count * width
            ports[chip, CREDITS] -= count
            traffic[chip, BYTES] += count * size
            traffic[chip, BUSY] += count * spacing
            traffic[chip, SENT] += count
        ports[chip, FREE] = free
        ports[chip, PACKET] = packet
        if going_on == NEVER and ports[chip, STARVED] == 0:
            ports[chip, LISTED] = 0
            counts[PORTS] -= 1
            active[PORTS, place] = active[PORTS, counts[PORTS]]
        else:
            first_on = min(first_on, going_on)
            place += 1
    stage.lane_next[lane, PORTS] = first_on
    stage.lane_next[lane, OUTPUTS] = first_arrival
    return deliveries


@jit_lean
def serve_outputs(stage, lane, messages, delivered, deliveries, end):
    """Let every active switch output of a lane send all packets that start before ``end``.

    Messages whose last packet leaves join ``delivered``, which has ``deliveries`` entries. Returns how many it has
    then; notes when the first output, and the first port that one of them has woken with a credit, could go on.
    """
    serialisation = stage.serialisation
    ports = stage.ports[lane]
    outputs = stage.outputs[lane]
    traffic = stage.output_traffic[lane]
    expected = stage.expected[lane]
    ready = stage.ready[lane]
    queues = stage.queues[lane]
    trains = stage.trains[lane]
    active = stage.active[lane]
    counts = stage.active_counts[lane]
    latency = stage.lanes[lane, LATENCY]
    reach = np.int64(stage.reach)
    first_on = NEVER
    woken = stage.lane_next[lane, PORTS]
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
            queue = output * reach + source
            chip = output - output % reach + source
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
            traffic[output, WAITED] += count * (now - trains[train, FIRST])
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
            return_credits(ports, trains, chip, credit, back, count, spacing)
            if ports[chip, STARVED] == 1:
                woken = min(woken, back)

            traffic[output, BYTES] += count * size
            traffic[output, BUSY] += count * spacing
            traffic[output, SENT] += count
            outputs[output, POINTER] = 0 if source + 1 == reach else source + 1
            outputs[output, FREE] = finish
            now = finish
        if empty:
            outputs[output, LISTED] = 0
            counts[OUTPUTS] -= 1
            active[OUTPUTS, place] = active[OUTPUTS, counts[OUTPUTS]]
        else:
            first_on = min(first_on, now)
            place += 1
    stage.lane_next[lane, PORTS] = woken
    stage.lane_next[lane, OUTPUTS] = first_on
    return deliveries
