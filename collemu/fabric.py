"""The simulated switch stage as arrays: a system's numbers, and the state that packets change."""

from dataclasses import dataclass

import numpy as np
from collemu_kernels import links
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MAX_PAIRS = 2**26  # of ranks, over all planes, whose queues a run keeps: about 2 GB
MAX_PACKETS = 2**31 - 1  # of a run, 550 GB on the wire: a ring all_reduce of 3.8 GiB over 72 ranks


@dataclass(frozen=True)
class FabricState:
    """Tables that `collemu_kernels.links` works on, most with a slice a plane; its constants name their columns."""

    fabric: links.Fabric
    serialisation: Int64  # [bytes] femtoseconds of a packet on a link, for 0 … fabric.full
    messages: Int64
    line: Int64
    chips: Int64
    ports: Int64
    port_traffic: Int64
    outputs: Int64
    output_traffic: Int64
    expected: Int64
    ready: NDArray[np.uint64]
    queues: Int64
    trains: Int64
    active: Int64
    active_counts: Int64
    plane_next: Int64
    delivered: Int64


def packets_of(nbytes: Int64, system: System, protocol: Protocol) -> tuple[Int64, Int64]:
    """Packets of each message, and the bytes of its last packet on a link.

    Parameters
    ----------
    nbytes : int64 array
        Wire image bytes of each message.

    Raises
    ------
    ValueError
        If there are more packets than one can wait for.
    """
    payload = system.domain.packet_payload_bytes
    line_bytes = -(-nbytes // protocol.data_bytes) * protocol.line_bytes
    packets = np.maximum(1, -(-line_bytes // payload))
    if (total := int(packets.sum())) > MAX_PACKETS:
        raise ValueError(
            f"{nbytes.sum()} bytes on the wire are {total} packets, minutes of emulation; the most is {MAX_PACKETS}: "
            f"use smaller sizes or fewer ranks"
        )
    return packets, line_bytes - (packets - 1) * payload + system.domain.packet_header_bytes


def fabric_of(system: System, ranks: int) -> tuple[links.Fabric, Int64]:
    """Constants of a system's switch stage, with ``ranks`` of its chips taking part, and the serialisation table.

    Raises
    ------
    ValueError
        If so many ranks and planes have more state than memory should hold.
    """
    domain = system.domain
    if ranks * ranks * domain.planes > MAX_PAIRS:
        raise ValueError(
            f"{ranks} ranks on {domain.planes} planes are {ranks * ranks * domain.planes} queues in the switches; "
            f"the most is {MAX_PAIRS}: use fewer ranks, or fewer planes in system {system.name}"
        )
    full = domain.packet_payload_bytes + domain.packet_header_bytes
    rate = domain.link_fs_per_byte
    fabric = links.Fabric(
        ranks=ranks,
        planes=domain.planes,
        latency=domain.hop_latency_fs,
        credits=domain.credits,
        header=domain.packet_header_bytes,
        full=full,
    )
    return fabric, -(-np.arange(full + 1, dtype=np.int64) * rate.numerator // rate.denominator)


def fresh_state(
    fabric: links.Fabric,
    serialisation: Int64,
    source: Int32,
    destination: Int32,
    packets: Int64,
    last_bytes: Int64,
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
    messages = np.zeros((len(source), links.MESSAGE_COLUMNS), np.int64)
    messages[:, links.SOURCE], messages[:, links.DESTINATION] = source, destination
    messages[:, links.PACKETS], messages[:, links.LAST_BYTES] = packets, last_bytes
    messages[:, links.REMAINING] = packets
    messages[:, links.VISIBLE] = links.NEVER

    sends = np.bincount(source, minlength=ranks)
    chips = np.zeros((ranks, links.CHIP_COLUMNS), np.int64)
    chips[:, links.LINE] = np.cumsum(sends) - sends
    ports = np.zeros((planes, ranks, links.PORT_COLUMNS), np.int64)
    ports[..., links.CREDITS], ports[..., links.RETURNING] = fabric.credits, links.NONE
    outputs = np.zeros((planes, ranks, links.OUTPUT_COLUMNS), np.int64)
    outputs[..., links.POINTER] = (np.arange(ranks) + 1) % ranks

    # A port's packets on the way and credits on their way back are never more than its credits, nor than its packets.
    busiest = np.bincount(source, weights=-(-packets // planes), minlength=ranks)
    pool = int(np.minimum(busiest, fabric.credits).sum())
    trains = np.zeros((planes, pool + 1, links.TRAIN_COLUMNS), np.int64)
    trains[..., links.NEXT] = np.arange(1, pool + 2)
    trains[:, pool, links.NEXT] = 0
    return FabricState(
        fabric=fabric,
        serialisation=serialisation,
        messages=messages,
        line=np.zeros(len(source), np.int64),
        chips=chips,
        ports=ports,
        port_traffic=np.zeros((planes, ranks, 2), np.int64),
        outputs=outputs,
        output_traffic=np.zeros((planes, ranks, 2), np.int64),
        expected=np.zeros((planes, 2, ranks, ranks), np.int64),
        ready=np.zeros((planes, ranks, (ranks + 63) // 64), np.uint64),
        queues=np.full((planes, ranks * ranks, 2), links.NONE, np.int64),
        trains=trains,
        active=np.zeros((planes, 2, ranks), np.int64),
        active_counts=np.zeros((planes, 2), np.int64),
        plane_next=np.full(planes, links.NEVER, np.int64),
        delivered=np.zeros(len(source), np.int64),
    )
