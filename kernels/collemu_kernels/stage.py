"""The tables of a stage: lanes that are built alike, their ports, outputs, queues, and what travels on them.

A *lane* is one link of every chip: to a switch, and from that switch to every chip, or straight to one other chip.
Lanes that serve the same destinations are a *group*, over which a message's packets are sprayed. Lanes that are built
alike are a *stage*: the domain, and the network that joins domains.

Lanes share nothing but the messages: every table of links has a slice a lane, and what runs on one works on one slice,
which stays in the cache meanwhile. In it, port and output are numbered as their chips; an output is reached by the
``reach`` chips of its domain, and the queue from chip s to output o is o * reach + s % reach. Tables are int64 with a
row a port, output, train, message or line, a cache line or two each; the constants below name their columns. Times are
femtoseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    shared: Table  # what in-switch operations ask for
    parts: Table  # each of its packets


# Columns of `messages`.
SOURCE = 0
DESTINATION = 1  # or -1 - its row in `shared`
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

# Columns of `shared`, a row an in-switch operation. A packet of one travels as a train of its own, whose message is
# -1 - its row in `parts`.
ADDS = 0  # 1: members' terms are added on their way to one chip; 0: what one chip sends is copied to all members
WHOLE = 1  # the message: the sum, or what is copied
FIRST_MEMBER = 2  # chip; the others follow
MEMBERS = 3
FIRST_PART = 4  # row of its first packet in `parts`
SHARED_COLUMNS = 5

# Columns of `parts`.
LEFT = 0  # terms that are still to come, or copies that are still to leave
LATEST = 1  # arrival of the latest term so far; or when the credit is back, of the latest copy so far
OWNER = 2  # message
PART_COLUMNS = 3

# Rows of `active`, the ports and the outputs that have something to do, and of `counts`, how many.
PORTS = 0
OUTPUTS = 1
