"""The time engine: packets a second, and a whole collective beside what message-level simulators publish."""

from collections.abc import Iterator

import numpy as np

import collemu
from benchmarks.rows import Row, best_seconds
from collemu.lower import lower
from collemu.memory import no_data
from collemu.timing import simulate

TITLE = "Packets: trainium4_nvl72, 72 chips, 36 planes"

# ASTRA-sim, congestion-aware analytical backend, ring all_reduce: 0.65 M messages/s, published figure of its class.
ASTRA_SIM_SECONDS_A_MESSAGE = 1.53e-6
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
    astra = ring.n_messages * ASTRA_SIM_SECONDS_A_MESSAGE
    yield Row(
        "  the same, time only",
        f"{seconds * 1e3:.1f} ms",
        f"ASTRA-sim {astra * 1e3:.1f} ms: published, messages without packets, another machine",
        astra / seconds,
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
        packets = int(np.maximum(1, -(-lowered.messages.nbytes // system.domain.packet_payload_bytes)).sum())
        yield Row(
            f"{collective} {algorithm} {size / 1024:.0f} KiB, time only",
            f"{seconds * 1e3:.1f} ms",
            f"{packets:,} packets, {packets / seconds / 1e6:.1f} M packets/s",
        )
