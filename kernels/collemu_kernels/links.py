"""Packets on links: chip ports with credits, switch planes with round-robin outputs (docs/timing-rules.md, 3 to 6).

Nothing here is a global event queue. A lane's time advances in windows no longer than the shortest crossing of a link,
so that whatever a port or an output does inside a window can be noticed elsewhere only in a later one. Inside a window
every port and every output runs its own tight loop, in any order.
"""

import numpy as np

from collemu_kernels._jit import jit_lean
from collemu_kernels.bits import clear_bit, next_bit, only_bit
from collemu_kernels.in_switch import leave_switch, pass_switch
from collemu_kernels.stage import (
    ARRIVAL,
    BUSY,
    BYTES,
    COUNT,
    COUNTER,
    CREDITS,
    DESTINATION,
    FIRST,
    FIRST_LANE,
    FIRST_PACKET,
    FREE,
    GROUP,
    HEAD,
    LANES,
    LAST_BYTES,
    LATENCY,
    LENGTH,
    LINE,
    LISTED,
    MESSAGE,
    NEVER,
    NEXT,
    NONE,
    NUMBERED,
    OUTPUTS,
    OWNER,
    PACKET,
    PACKETS,
    PLACE,
    POINTER,
    PORTS,
    READY,
    REMAINING,
    RETURNING,
    SENT,
    SIZE,
    STARVED,
    WAITED,
)
from collemu_kernels.trains import (
    admit_arrivals,
    collect_credits,
    enqueue,
    expect,
    give_train,
    return_credits,
    take_train,
)


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
                if messages[message, DESTINATION] < 0:  # its address says which lanes it takes
                    packets += width
                else:
                    messages[message, FIRST_PACKET] = index
                    packets += messages[message, PACKETS]
                    index = (index + messages[message, PACKETS]) % width
                lines[own_line, NUMBERED] += 1
            lines[own_line, COUNTER] = index
            index = start
            for _ in range(min(packets, width)):
                lane = first_lane + index
                index = 0 if index + 1 == width else index + 1
                if ports[lane, chip, LISTED] == 0 and enter_message(
                    lane, stage.lanes, messages, line, lines, ports[lane], chip, own_line
                ):
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
            if destination < 0:
                first_arrival = min(
                    first_arrival,
                    pass_switch(stage, lane, messages, chip, destination, packet, arrival, count, size),
                )
            elif stage.direct:
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
            part = np.int64(NONE)
            if message < 0:
                part = -1 - message
                message = stage.parts[part, OWNER]
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
            if part != NONE:
                back = leave_switch(stage.parts, part, back)
            if back == NEVER:
                give_train(trains, credit)
            else:
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
