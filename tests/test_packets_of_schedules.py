"""Built-in schedules through `emulate`, against the slow engine: sizes, work, slots and packets by the page alone."""

from fractions import Fraction

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu
from collemu.schedule import READS_SRC, RECEIVES, SENDS, WRITES_DST, Schedule
from tests.built_in import BUILT_IN
from tests.oracles import slow_packets

SYSTEM = collemu.load_system("trainium4_nvl72")
SMALL = {
    "domain.planes": 3,
    "domain.credits": 2,
    "domain.packet_payload_bytes": 64,
    "endpoint.fifo_slots": 1,
    "endpoint.launch_s": 0,
}
IMAGES = {
    "none": lambda n: 4 * n,
    "mxfp8_e4m3": lambda n: n + -(-n // 32),
    "mxfp4": lambda n: -(-n // 2) + -(-n // 32),
}


def chunk_elements(schedule: Schedule, op: np.void, count: int) -> list[int]:
    """Elements of each chunk that an operation of an algorithm without scratch touches."""
    kind = int(op["kind"])
    if kind == kinds.NOP or not (READS_SRC[kind] or WRITES_DST[kind]):
        return []
    side = "src" if READS_SRC[kind] else "dst"
    buffer = int(op[f"{side}_buffer"])
    if buffer == kinds.SCRATCH:  # the own term of a one_shot: the whole input
        side, buffer = ("dst", int(op["dst_buffer"])) if side == "src" else ("src", int(op["src_buffer"]))
    starts = schedule.chunk_starts(buffer, count)
    return [int(starts[chunk + 1] - starts[chunk]) for chunk in range(op[side], op[side] + op["count"])]


def by_the_page(schedule: Schedule, count: int, wire: str, protocol: object) -> list[slow_packets.Operation]:
    operations = []
    for index, op in enumerate(schedule.ops):
        thread = schedule.threads[schedule.thread_of_op[index]]
        kind = int(op["kind"])
        elements = chunk_elements(schedule, op, count)
        travels = bool(SENDS[kind] or RECEIVES[kind])
        nbytes = sum(map(IMAGES[wire], elements)) if travels else 4 * sum(elements)
        lands = kind == kinds.RECV and protocol.writes_destination
        operations.append(
            slow_packets.Operation(
                rank=int(thread["rank"]),
                thread=int(thread["id"]),
                kind=kind,
                send_peer=int(thread["send_peer"]),
                recv_peer=int(thread["recv_peer"]),
                channel=int(thread["channel"]),
                work_bytes=0 if lands else nbytes,
                message_bytes=nbytes if travels else 0,
                dep=None if op["dep"] < 0 else int(op["dep"]),
            )
        )
    return operations


def ratio(rate: float, efficiency: float = 1) -> tuple[int, int]:
    exact = Fraction(10**15) / (Fraction(str(rate)) * Fraction(str(efficiency)))
    return exact.numerator, exact.denominator


@pytest.mark.parametrize("protocol", ["dma", "simple", "ll128"])
@pytest.mark.parametrize(("ranks", "count", "wire"), [(2, 1, "none"), (4, 1003, "none"), (5, 777, "mxfp4")])
@pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
def test_built_ins_take_the_femtoseconds_of_the_page(collective, algorithm, ranks, count, wire, protocol):
    schedule = collemu.build_schedule(collective, algorithm, ranks)
    slots = collemu.verify(schedule, slots=8).least_slots
    system = SYSTEM.with_(**SMALL | {"endpoint.fifo_slots": slots})
    spoken = system.protocols[protocol]
    domain = slow_packets.Stage(
        widths=(3,),
        latencies_fs=(round(system.domain.hop_latency_s * 1e15),),
        switched=True,
        link=ratio(system.domain.link_bytes_per_s, system.domain.link_efficiency),
        credits=2,
        payload=64,
        header=system.domain.packet_header_bytes,
        flit=system.domain.packet_flit_bytes,
        enable=system.domain.packet_byte_enable_bytes,
    )
    fabric = slow_packets.Fabric(
        domain=domain,
        network=slow_packets.NO_STAGE,
        chips=72,
        topology="switched",
        launch_fs=0,
        slots=slots,
        copy=ratio(system.endpoint.copy_bytes_per_s),
        reduce=ratio(system.endpoint.reduce_bytes_per_s),
        step_fs=round(spoken.step_latency_s * 1e15),
        data=spoken.data_bytes,
        line=spoken.line_bytes,
    )
    expected = slow_packets.run(by_the_page(schedule, count, wire, spoken), fabric)
    result = collemu.emulate(schedule, system, count=count, wire=wire, protocol=protocol)
    assert result.timeline is not None
    assert result.timeline.operations["start_fs"].tolist() == expected.start
    assert result.timeline.operations["finish_fs"].tolist() == expected.finish
    assert result.time_fs == expected.time_fs
    for (chip, plane), nbytes in expected.up_bytes.items():
        assert result.links.up_bytes[chip, plane] == nbytes
