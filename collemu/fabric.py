"""The simulated switch stage as arrays: a system's numbers, and the state that packets change."""

from dataclasses import dataclass

import numpy as np
from collemu_kernels import links
from numpy.typing import NDArray

from collemu.systems import Protocol, System

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MAX_PACKETS = 2**31 - 1  # of a message


@dataclass(frozen=True)
class FabricState:
    """What ``collemu_kernels.links`` works on."""

    fabric: links.Fabric
    messages: links.Messages
    ports: links.Ports
    outputs: links.Outputs
    trains: links.Trains


def packets_of(nbytes: Int64, system: System, protocol: Protocol) -> tuple[Int64, Int64]:
    """Packets of each message, and the bytes of its last packet on a link.

    Parameters
    ----------
    nbytes : int64 array
        Wire image bytes of each message.

    Raises
    ------
    ValueError
        If a message has more packets than the counters hold.
    """
    payload = system.domain.packet_payload_bytes
    line_bytes = -(-nbytes // protocol.data_bytes) * protocol.line_bytes
    packets = np.maximum(1, -(-line_bytes // payload))
    if len(packets) and packets.max() > MAX_PACKETS:
        raise ValueError(
            f"a message of {nbytes.max()} bytes is {packets.max()} packets; the most is {MAX_PACKETS}: use more chunks"
        )
    return packets, line_bytes - (packets - 1) * payload + system.domain.packet_header_bytes


def fabric_of(system: System, ranks: int) -> links.Fabric:
    """Constants of a system's switch stage, with ``ranks`` of its chips taking part."""
    domain = system.domain
    full = domain.packet_payload_bytes + domain.packet_header_bytes
    rate = domain.link_fs_per_byte
    sizes = np.arange(full + 1, dtype=np.int64)
    return links.Fabric(
        ranks=ranks,
        planes=domain.planes,
        latency=domain.hop_latency_fs,
        credits=domain.credits,
        payload=domain.packet_payload_bytes,
        full_bytes=full,
        serialisation=-(-sizes * rate.numerator // rate.denominator),
    )


def fresh_state(
    fabric: links.Fabric, source: Int32, destination: Int32, packets: Int64, last_bytes: Int64
) -> FabricState:
    """Idle links, full credits, and messages that nobody has offered yet.

    Parameters
    ----------
    source, destination : int32 arrays
        Chips of each message.
    packets, last_bytes : int64 arrays
        As `packets_of` gives them.
    """
    ranks, planes = fabric.ranks, fabric.planes
    count = len(source)
    sends = np.bincount(source, minlength=ranks)
    ports, outputs, queues = ranks * planes, planes * ranks, planes * ranks * ranks
    # A port's packets on the way and credits on their way back are never more than its credits, nor than its packets.
    busiest = np.bincount(source, weights=-(-packets // planes), minlength=ranks)
    pool = int(np.minimum(busiest, fabric.credits).sum()) * planes + 1
    words = (ranks + 63) // 64
    following = np.arange(1, pool + 1, dtype=np.int32)
    following[-1] = links.NONE
    return FabricState(
        fabric=fabric,
        messages=links.Messages(
            table=np.stack([source, destination, packets, last_bytes]).astype(np.int32),
            ready=np.zeros(count, np.int64),
            line=np.zeros(count, np.int32),
            line_first=np.cumsum(sends) - sends,
            line_length=np.zeros(ranks, np.int64),
            first_packet=np.zeros(count, np.int64),
            remaining=packets.astype(np.int64),
            arrival=np.zeros(count, np.int64),
        ),
        ports=links.Ports(
            free=np.zeros(ports, np.int64),
            credits=np.full(ports, fabric.credits, np.int64),
            returning=np.full(ports, links.NONE, np.int32),
            place=np.zeros(ports, np.int32),
            packet=np.zeros(ports, np.int64),
            starved=np.zeros(ports, np.uint8),
            active=np.zeros(ports, np.int32),
            listed=np.zeros(ports, np.uint8),
            sent_bytes=np.zeros(ports, np.int64),
            busy=np.zeros(ports, np.int64),
        ),
        outputs=links.Outputs(
            free=np.zeros(outputs, np.int64),
            pointer=(np.tile(np.arange(ranks, dtype=np.int32), planes) + np.int32(1)) % np.int32(ranks),
            next_arrival=np.full(outputs, links.NEVER, np.int64),
            waiting=np.zeros((outputs, words), np.uint64),
            ready=np.zeros((outputs, words), np.uint64),
            head=np.full(queues, links.NONE, np.int32),
            tail=np.full(queues, links.NONE, np.int32),
            active=np.zeros(outputs, np.int32),
            listed=np.zeros(outputs, np.uint8),
            sent_bytes=np.zeros(outputs, np.int64),
            busy=np.zeros(outputs, np.int64),
        ),
        trains=links.Trains(
            first=np.zeros(pool, np.int64),
            length=np.zeros(pool, np.int32),
            bytes=np.zeros(pool, np.int32),
            message=np.zeros(pool, np.int32),
            next=following,
            free=np.zeros(1, np.int32),
        ),
    )
