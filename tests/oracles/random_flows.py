"""Random systems and schedules for tests of the flow engine, and both as the slow engines take them."""

from collections.abc import Set
from dataclasses import replace
from fractions import Fraction
from math import prod
from random import Random

import numpy as np
from collemu_kernels import kinds

import collemu as ce
from collemu.schedule import OP, THREAD, WRITES_DST, Schedule
from tests.oracles import random_packets
from tests.oracles.slow_packets import IN_SWITCH, NO_STAGE, Fabric, Operation, Stage, directions

BASES = {
    "switched": ("trainium4_nvl72", "gb200_nvl72"),
    "mesh": ("a100_quad",),
    "torus": ("trainium1", "trainium2"),
    "nested": ("trainium3_ultraserver_gen2",),
}
SHAPES = [(2,), (3,), (5,), (8,), (2, 2), (2, 3), (3, 2), (4, 2), (3, 3), (2, 1, 3), (2, 2, 2), (4, 4), (5, 3), (4, 5),
          (2, 3, 3), (6, 4), (3, 3, 3)]  # fmt: skip


def random_system(rng: Random, ranks: int, topology: str = "") -> ce.System:
    """Times of nanoseconds to microseconds to the femtosecond, few credits and links, one domain or several."""
    topology = topology or rng.choice(sorted(BASES))
    system = ce.load_system(rng.choice(BASES[topology]))
    several = ranks > 2 and rng.random() < 0.4
    chips = rng.randint(2, min(6, ranks - 1)) if several else max(2, ranks)
    changes: dict[str, object] = {}
    if topology == "torus":
        fitting = [shape for shape in SHAPES if (prod(shape) < ranks if several else prod(shape) >= ranks)]
        shape = rng.choice(fitting[:8]) if fitting else (2,)
        chips = prod(shape)
        changes |= {"domain.shape": shape, "domain.links_per_direction": tuple(rng.randint(1, 3) for _ in shape)}
    elif topology == "nested":
        levels = random_packets.random_levels(rng, chips)
        changes["domain.chips_per_level"] = levels
        changes["domain.links_per_level"] = tuple(rng.randint(1, 4) for _ in levels)
        changes["domain.hops_per_level"] = tuple(rng.randint(1, 4) for _ in levels)
    elif topology == "mesh":
        changes["domain.links_per_peer"] = rng.randint(1, 4)
    else:
        planes = rng.randint(1, 4)
        changes |= {"domain.planes": planes, "domain.links_per_plane": rng.choice([1, 2])}
        changes |= {"domain.in_switch_reduction": True, "domain.in_switch_float8": True}  # of elements of one byte
    changes["domain.chips"] = chips
    flit = rng.choice([1, 4, 16, 24])
    rails = rng.choice([1, 2, 3, 4])
    changes |= {
        "domain.link_bytes_per_s": random_rate(rng),
        "domain.link_efficiency": rng.choice([1.0, 0.625, 0.5]),
        "domain.hop_latency_s": seconds(rng.randint(100_000, rng.choice([1_000_000, 300_000_000]))),
        "domain.credits": rng.choice([rng.randint(1, 12), 96]),
        "domain.packet_flit_bytes": flit,
        "domain.packet_payload_bytes": flit * rng.randint(1, 16),
        "domain.packet_header_bytes": rng.randint(1, 32),
        "domain.packet_byte_enable_bytes": rng.choice([0, rng.randint(1, 64)]),
        "scaleout.bytes_per_s": rails * rng.randint(1_000, 20_000) * 1e6,
        "scaleout.rails": rails,
        "scaleout.latency_s": seconds(rng.randint(1_000_000, 3_000_000_000)),
        "scaleout.message_overhead_s": seconds(rng.choice([0, rng.randint(0, 1_000_000_000)])),
        "scaleout.datagram_bytes": rng.randint(16, 1000),
        "scaleout.datagram_header_bytes": rng.randint(1, 64),
        "scaleout.window_datagrams": rng.randint(1, 12),
        "endpoint.launch_s": seconds(rng.choice([0, rng.randint(0, 10_000_000_000)])),
        "endpoint.copy_bytes_per_s": random_rate(rng),
        "endpoint.reduce_bytes_per_s": random_rate(rng),
        "endpoint.fifo_slots": rng.randint(1, 4),
    }
    for name in system.protocols:
        changes[f"protocol.{name}.step_latency_s"] = seconds(rng.choice([0, rng.randint(0, 1_000_000_000)]))
    return system.with_(**changes)


def seconds(femtoseconds: int) -> float:
    return float(f"{femtoseconds}e-15")


def random_rate(rng: Random) -> float:
    """1 to 100 GB/s in MB/s: mostly no whole number of femtoseconds a byte, and ratios that need no rounding."""
    return rng.randint(1_000, 100_000) * 1e6


def fabric_of(system: ce.System, protocol: str, ranks: int) -> Fabric:
    """A system by the tables of the page."""
    domain, network, spoken = system.domain, system.scaleout, system.protocols[protocol]
    hop = femtoseconds(domain.hop_latency_s)
    if domain.topology == "torus":
        widths = tuple(domain.links_per_direction[dimension] for dimension, _ in directions(domain.shape))
        latencies = (hop,) * len(widths)
    elif domain.topology == "mesh":
        widths, latencies = (domain.links_per_peer,) * (domain.chips - 1), (hop,) * (domain.chips - 1)
    elif domain.topology == "nested":
        widths, latencies = domain.links_per_level, tuple(hop * hops for hops in domain.hops_per_level)
    else:
        each = domain.links_per_plane
        widths, latencies = (sum(each) if isinstance(each, tuple) else domain.planes * each,), (hop,)
    return Fabric(
        domain=Stage(
            widths=widths,
            latencies_fs=latencies,
            switched=domain.topology in ("switched", "nested"),
            link=rate(domain.link_bytes_per_s, Fraction(repr(domain.link_efficiency))),
            credits=domain.credits,
            payload=domain.packet_payload_bytes,
            header=domain.packet_header_bytes,
            flit=domain.packet_flit_bytes,
            enable=domain.packet_byte_enable_bytes,
        ),
        network=Stage(
            widths=(network.rails,),
            latencies_fs=(-(-femtoseconds(network.latency_s) // 2),),
            switched=True,
            link=rate(network.bytes_per_s, Fraction(1, network.rails)),
            credits=network.window_datagrams,
            payload=network.datagram_bytes,
            header=network.datagram_header_bytes,
            extra_fs=femtoseconds(network.message_overhead_s),
        )
        if ranks > domain.chips
        else NO_STAGE,
        chips=domain.chips,
        topology=domain.topology,
        levels=domain.chips_per_level,
        shape=domain.shape,
        launch_fs=femtoseconds(system.endpoint.launch_s),
        slots=system.endpoint.fifo_slots,
        copy=rate(system.endpoint.copy_bytes_per_s),
        reduce=rate(system.endpoint.reduce_bytes_per_s),
        step_fs=femtoseconds(spoken.step_latency_s),
        data=spoken.data_bytes,
        line=spoken.line_bytes,
    )


def femtoseconds(value: float) -> int:
    return round(Fraction(repr(value)) * 10**15)


def rate(bytes_per_s: float, share: Fraction = Fraction(1)) -> tuple[int, int]:
    exact = 10**15 / (Fraction(repr(float(bytes_per_s))) * share)
    return exact.numerator, exact.denominator


def random_operations(
    rng: Random, ranks: int, *, group_size: int = 0, payload: int = 1, to_oneself: bool = False
) -> list[Operation]:
    """Messages between any two ranks, in threads that begin at different moments; to oneself only where asked.

    As `random_packets` makes them, but what the endpoint works on is the message, as in every schedule. With a size of
    switch groups, there are in-switch operations among them.
    """
    peers = [[peer for peer in range(ranks) if to_oneself or peer != rank] for rank in range(ranks)]
    case = random_packets._Case(rng, peers)
    messages = rng.randint(1, random_packets.MAX_MESSAGES)
    times = rng.randint(1, random_packets.MAX_IN_SWITCH) if group_size else 0
    in_switch = [rng.choice([0, rng.randrange(messages)]) for _ in range(times)]
    for made in range(messages):
        for _ in range(in_switch.count(made)):
            case.add_in_switch(group_size, payload)
        if rng.random() < 0.2:
            case.add_local()
        case.add_message()
    return staggered(rng, [replace(op, work_bytes=_work(rng, op)) for op in case.in_global_order()])


def _work(rng: Random, op: Operation) -> int:
    if op.kind == kinds.NOP:
        return 0
    return rng.randint(0, 3000) if op.kind in random_packets.LOCAL else op.message_bytes


def staggered(rng: Random, operations: list[Operation], before: Set[int] = IN_SWITCH) -> list[Operation]:
    """The same, but every thread begins with a copy of its own length, and one is before every operation of some kinds.

    So that what begins with one finish does not all ask for ports at the same moment.
    """
    begun, place, late = set(), {}, []
    for index, op in enumerate(operations):
        if (op.rank, op.thread) not in begun or op.kind in before:
            begun.add((op.rank, op.thread))
            dep = op.dep if op.kind in before else None
            copy = replace(op, kind=kinds.COPY, work_bytes=rng.randint(1, 20_000), work_fs=None, message_bytes=0)
            late.append(replace(copy, dep=dep))
        place[index] = len(late)
        late.append(op)
    return [op if op.dep is None else replace(op, dep=place[op.dep]) for op in late]


def random_group_size(rng: Random, system: ce.System, ranks: int) -> int:
    """Ranks of every switch group, of which the last may have fewer; no group is in two domains."""
    chips = system.domain.chips
    sizes = [size for size in range(1, min(ranks, chips) + 1) if ranks <= chips or chips % size == 0]
    return rng.choice([sizes[-1], rng.choice(sizes)])


def schedule_of(operations: list[Operation], ranks: int, group_ranks: int = 0) -> Schedule:
    """Operations as a schedule whose chunks have one element, to be run with elements of one byte."""
    most = max([1, *(max(op.work_bytes, op.offset + op.message_bytes) for op in operations)])
    threads: list[np.ndarray] = []
    ops = np.zeros(len(operations), OP)
    for index, op in enumerate(operations):
        if not threads or (threads[-1]["rank"], threads[-1]["id"]) != (op.rank, op.thread):
            row = np.zeros((), THREAD)
            row["rank"], row["id"], row["channel"], row["first"] = op.rank, op.thread, op.channel, index
            row["send_peer"], row["recv_peer"] = op.send_peer, op.recv_peer
            threads.append(row)
        threads[-1]["length"] += 1
        kind = op.kind
        count = op.message_bytes if kind not in random_packets.LOCAL else op.work_bytes
        target = kinds.OUTPUT if WRITES_DST[kind] else kinds.INPUT
        source_at = op.offset if kind == kinds.MULTIMEM_REDUCE else 0
        target_at = op.offset if kind == kinds.MULTIMEM_STORE else 0
        dep = -1 if op.dep is None else op.dep
        ops[index] = (kind, 0, kinds.INPUT, target, source_at, target_at, count, dep)
    return Schedule(
        collective="all_reduce", algorithm="random", ranks=ranks, root=0, channels=random_packets.MAX_CHANNELS,
        threads=np.array(threads, THREAD), ops=ops, input_chunks=most, output_chunks=most,
        group_ranks=group_ranks,
    )  # fmt: skip


def without_landed(operations: list[Operation], lands: bool) -> list[Operation]:
    """Plain receives have no work under a protocol that writes the destination."""
    return [replace(op, work_bytes=0) if lands and op.kind == kinds.RECV else op for op in operations]
