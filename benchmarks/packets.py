"""The time engines: packets and messages a second, beside what other simulators publish."""

import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
from collemu_kernels import flows, kinds

import collemu
from benchmarks.rows import Row, bar, best_seconds
from collemu.builders.assembly import Assembler, interleave, steps
from collemu.catalogue import System
from collemu.fabric import routes_of
from collemu.lower import lower
from collemu.memory import no_data
from collemu.schedule import Schedule
from collemu.timing import simulate

TITLE = "Time: packets on 72 chips of trainium4_nvl72 (36 planes) and gb200_nvl72 (18), messages on 512"

# M messages/s, congestion-aware analytical backend, published; its direct all_reduce stands beside two_shot.
ASTRA_SIM = {"ring": 0.65, "two_shot": 0.066}
LOGGOPSIM = 1.6  # M messages/s, without congestion
HTSIM = 0.139  # M packets/s, the best published
BARS = {"ring": 25, "two_shot": 5}  # M messages/s that are promised: nobody meets, and all meet
PACKET_BAR = 10  # M packets/s
RING_BAR_S = 0.030
MIB = 1 << 20


def run() -> Iterator[Row]:
    system = collemu.load_system("trainium4_nvl72")
    ring = collemu.build_schedule("all_reduce", "ring", 72)
    count = MIB // 4
    data = np.random.default_rng(0).standard_normal((72, count), np.float32)

    seconds = best_seconds(
        lambda: collemu.emulate(ring, system, count=count, wire="mxfp8_e4m3", data=data, timeline=False)
    )
    yield Row("ring all_reduce 1 MiB mxfp8_e4m3, bytes and packets", f"{seconds * 1e3:.1f} ms")
    seconds = best_seconds(lambda: collemu.emulate(ring, system, count=count, wire="mxfp8_e4m3", timeline=False))
    astra = ring.n_messages / ASTRA_SIM["ring"] / 1e6
    yield Row(
        "  the same, time only",
        f"{seconds * 1e3:.1f} ms",
        f"ASTRA-sim {astra * 1e3:.1f} ms: published, messages without packets, another machine",
        astra / seconds,
        bar(RING_BAR_S / seconds, 1),
    )
    protocol = system.protocols[system.default_protocol]
    for collective, algorithm, size in (
        ("all_reduce", "ring", 8 << 10),
        ("all_reduce", "ring", MIB),
        ("all_reduce", "ring", 64 * MIB),
        ("all_reduce", "tree", MIB),
        ("all_reduce", "two_shot", MIB),
        ("alltoall", "direct", 72 * 64 << 10),
    ):
        schedule = collemu.build_schedule(collective, algorithm, 72)
        lowered = lower(schedule, size // 4 // (72 if collective == "alltoall" else 1), item_bytes=4)
        seconds = best_seconds(lambda lowered=lowered: simulate(lowered, system, protocol, no_data()), 3)
        packets = int(routes_of(lowered.messages, system, protocol).packets.sum())
        yield Row(
            f"{collective} {algorithm} {size / 1024:.0f} KiB, time only",
            f"{seconds * 1e3:.1f} ms",
            f"{packets:,} packets, {packets / seconds / 1e6:.1f} M packets/s",
        )
    yield from _random_alltoall()
    yield from _messages(system)


def random_alltoall(ranks: int) -> Schedule:
    """Every rank offers its messages to all others at once, in an order of its own."""
    random = np.random.default_rng(0)
    peers = np.stack([random.permutation(np.delete(np.arange(ranks), rank)) for rank in range(ranks)])
    rank, place = np.divmod(np.arange(ranks * (ranks - 1)), ranks - 1)
    peer = peers[rank, place]
    assembler = Assembler()
    lone = np.arange(ranks)[:, None]
    assembler.add(lone[:, 0], 0, steps(kinds.COPY, src=(kinds.INPUT, lone), dst=(kinds.OUTPUT, lone)))
    send = steps(kinds.SEND, src=(kinds.INPUT, peer[:, None]))
    receive = steps(kinds.RECV, dst=(kinds.OUTPUT, peer[:, None]))
    assembler.add(rank, place + 1, interleave(send, receive), send_peer=peer, recv_peer=peer)
    return assembler.schedule("alltoall", "random_order", ranks, input_chunks=ranks, output_chunks=ranks)


def _random_alltoall() -> Iterator[Row]:
    system = collemu.load_system("gb200_nvl72")
    lowered = lower(random_alltoall(72), (64 << 10) // 4, item_bytes=4)
    protocol = system.protocols["simple"]
    seconds = best_seconds(lambda: simulate(lowered, system, protocol, no_data()), 3)
    packets = int(routes_of(lowered.messages, system, protocol).packets.sum())
    rate = packets / seconds / 1e6
    yield Row(
        "gb200_nvl72, alltoall 64 KiB a peer in random order, packets",
        f"{seconds * 1e3:.1f} ms, {rate:.1f} M packets/s",
        f"htsim {HTSIM} M/s: published, another machine",
        rate / HTSIM,
        bar(rate, PACKET_BAR, " M/s"),
    )


def _messages(system: System) -> Iterator[Row]:
    """The message-level engine on 512 ranks: alone, and with all that `emulate` does before and after."""
    large = system.with_(**{"domain.chips": 512})
    for algorithm, promised in BARS.items():
        schedule = collemu.build_schedule("all_reduce", algorithm, 512)
        engine: list[float] = []
        run = flows.run_times

        def timed(*arrays: object, engine: list[float] = engine, run=run) -> int:
            start = time.perf_counter()
            status = run(*arrays)
            engine.append(time.perf_counter() - start)
            return status

        with mock.patch.object(flows, "run_times", timed):
            whole = best_seconds(
                lambda schedule=schedule: collemu.emulate(
                    schedule, large, count=MIB // 4, fidelity="flow", timeline=False
                ),
                5,
            )
        rate = schedule.n_messages / min(engine) / 1e6
        peer = ASTRA_SIM[algorithm]
        yield Row(
            f"all_reduce {algorithm} 1 MiB over 512 ranks, messages",
            f"{min(engine) * 1e3:.1f} ms, {rate:.1f} M messages/s",
            f"ASTRA-sim {peer}, LogGOPSim {LOGGOPSIM} M/s: published, another machine",
            rate / peer,
            bar(rate, promised, " M/s"),
        )
        yield Row(
            "  the same, all of emulate without building the schedule",
            f"{whole * 1e3:.0f} ms, {schedule.n_messages / whole / 1e6:.1f} M messages/s",
        )
