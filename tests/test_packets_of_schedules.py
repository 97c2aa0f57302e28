"""Built-in schedules through `emulate`, against the slow engine: sizes, work, slots and packets by the page alone."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu
from collemu.builders import BUILDERS
from collemu.schedule import IN_SWITCH, READS_SRC, RECEIVES, SENDS, WRITES_DST, Schedule
from tests.built_in import BUILT_IN
from tests.oracles import slow_packets

SYSTEM = collemu.load_system("trainium4_nvl72")
ADDING = collemu.load_system("gb200_nvl72")
NVLS = [collective for collective, table in BUILDERS.items() if "nvls" in table]
SMALL = {
    "domain.planes": 3,
    "domain.credits": 2,
    "domain.packet_payload_bytes": 64,
    "endpoint.fifo_slots": 1,
    "endpoint.launch_s": 0,
    "endpoint.quantize_bytes_per_s": 3e12,
    "endpoint.dequantize_bytes_per_s": 5e12,
    "chip.hbm_bytes_per_s": 11e12,  # the memory is the slow part of some operations
}
IMAGES = {
    "none": lambda n: 4 * n,
    "mxfp8_e4m3": lambda n: n + -(-n // 32),
    "mxfp4": lambda n: -(-n // 2) + -(-n // 32),
}


def chunk_elements(schedule: Schedule, op: np.void, count: int) -> list[int]:
    """Elements of each chunk that an operation touches."""
    kind = int(op["kind"])
    if kind == kinds.NOP or not (READS_SRC[kind] or WRITES_DST[kind]):
        return []
    side = "src" if READS_SRC[kind] else "dst"
    buffer = int(op[f"{side}_buffer"])
    chunks = range(op[side], op[side] + op["count"])
    k = schedule.region_chunks
    if buffer == kinds.SCRATCH:  # as much for each chunk of a region, one chunk after the other, or region by region
        by_region = schedule.algorithm in ("recursive_halving", "hierarchical")
        places = [chunk % k if by_region else chunk // (schedule.scratch_chunks // k) for chunk in chunks]
        return [count // k + (place < count % k) for place in places]
    starts = schedule.chunk_starts(buffer, count)
    return [int(starts[chunk + 1] - starts[chunk]) for chunk in chunks]


def encodes(schedule: Schedule, count: int) -> list[int]:
    """Elements that each operation encodes, by running them one by one in any order that they allow."""
    ops, threads, of = schedule.ops, schedule.threads, schedule.thread_of_op
    sends, receives, done, known = {}, {}, [None] * len(ops), set()
    place = {}  # operation -> its message
    for index, op in enumerate(ops):
        thread = threads[of[index]]
        if SENDS[op["kind"]]:
            ends = int(thread["rank"]), int(thread["send_peer"]), int(thread["channel"])
            place[index, "out"] = (*ends, sends.setdefault(ends, 0))
            sends[ends] += 1
        if RECEIVES[op["kind"]]:
            ends = int(thread["recv_peer"]), int(thread["rank"]), int(thread["channel"])
            place[index, "in"] = (*ends, receives.setdefault(ends, 0))
            receives[ends] += 1
    sent, steps = set(), [int(thread["first"]) for thread in threads]
    while None in done:
        for number, thread in enumerate(threads):
            while (index := steps[number]) < thread["first"] + thread["length"]:
                op, kind = ops[index], int(ops[index]["kind"])
                if (op["dep"] >= 0 and done[op["dep"]] is None) or not {place.get((index, "in"))} - {None} <= sent:
                    break
                rank, elements = int(thread["rank"]), chunk_elements(schedule, op, count)
                source, target = (
                    [(rank, int(op[f"{side}_buffer"]), int(op[side]) + k) for k in range(op["count"])]
                    for side in ("src", "dst")
                )
                if kind == kinds.SEND:
                    done[index] = sum(n for n, chunk in zip(elements, source, strict=True) if chunk not in known)
                elif op["publish"] or kind in (kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE_COPY_SEND):
                    done[index] = sum(elements)
                else:
                    done[index] = 0
                if WRITES_DST[kind]:
                    known -= set(target)
                    if op["publish"] or kind in (kinds.RECV, kinds.RECV_COPY_SEND):
                        known |= set(target)
                    elif kind == kinds.COPY:
                        known |= {there for here, there in zip(source, target, strict=True) if here in known}
                sent |= {place.get((index, "out"))}
                steps[number] += 1
    return done


def by_the_page(
    schedule: Schedule, count: int, wire: str, system: collemu.System, protocol: object
) -> list[slow_packets.Operation]:
    """The operations of a schedule for elements of four bytes."""
    operations = []
    encoded = encodes(schedule, count) if wire != "none" else [0] * len(schedule.ops)

    def spends(nbytes: int, bytes_per_s: float) -> int:
        return slow_packets.duration(nbytes, ratio(bytes_per_s))

    def work(index: int, kind: int, elements: int, nbytes: int) -> int:
        endpoint, memory = system.endpoint, 4 * elements
        if kind in (kinds.NOP, kinds.MULTIMEM_REDUCE):
            return 0
        lands = kind == kinds.RECV and protocol.writes_destination
        adds = kind in slow_packets.REDUCES
        thread = 0 if lands else spends(nbytes, endpoint.reduce_bytes_per_s if adds else endpoint.copy_bytes_per_s)
        decoded = memory if wire != "none" and RECEIVES[kind] else 0
        thread += spends(4 * encoded[index], endpoint.quantize_bytes_per_s)
        thread += spends(decoded, endpoint.dequantize_bytes_per_s)
        passes = {kinds.SEND: 1, kinds.COPY: 2, kinds.REDUCE: 3, kinds.RECV: 1, kinds.RECV_COPY_SEND: 1,
                  kinds.RECV_REDUCE: 2, kinds.RECV_REDUCE_SEND: 1, kinds.RECV_REDUCE_COPY: 2,
                  kinds.RECV_REDUCE_COPY_SEND: 2, kinds.MULTIMEM_STORE: 1}[kind]  # fmt: skip
        moved = passes * memory + (nbytes if RECEIVES[kind] else 0)
        return max(thread, 0 if lands and wire == "none" else spends(moved, system.chip.hbm_bytes_per_s))

    for index, op in enumerate(schedule.ops):
        thread = schedule.threads[schedule.thread_of_op[index]]
        kind = int(op["kind"])
        elements = chunk_elements(schedule, op, count)
        travels = bool(SENDS[kind] or RECEIVES[kind])
        nbytes = sum(map(IMAGES[wire], elements)) if travels else 4 * sum(elements)
        shared = {}
        if IN_SWITCH[kind]:
            side = "src" if kind == kinds.MULTIMEM_REDUCE else "dst"
            first = schedule.chunk_starts(int(op[f"{side}_buffer"]), count)[op[side]]
            members = tuple(schedule.group_of(int(thread["rank"])))
            shared = {"members": members, "offset": 4 * int(first), "message_bytes": nbytes}
        operations.append(
            slow_packets.Operation(
                rank=int(thread["rank"]),
                thread=int(thread["id"]),
                kind=kind,
                send_peer=int(thread["send_peer"]),
                recv_peer=int(thread["recv_peer"]),
                channel=int(thread["channel"]),
                work_fs=work(index, kind, sum(elements), nbytes),
                dep=None if op["dep"] < 0 else int(op["dep"]),
                **{"message_bytes": nbytes if travels else 0} | shared,
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
    assert_takes_the_femtoseconds_of_the_page(schedule, SYSTEM, slots, count, wire, protocol)


@pytest.mark.parametrize("lanes", [{}, {"channels": 2, "chunks": 3}])
@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("collective", NVLS)
def test_nvls_takes_the_femtoseconds_of_the_page(collective, ranks, protocol, lanes):
    schedule = collemu.build_schedule(collective, "nvls", ranks, root=ranks // 2, **lanes)
    for slots, count in ((1, 1), (2, 777), (2, 1003)):
        assert_takes_the_femtoseconds_of_the_page(schedule, ADDING, slots, count, "none", protocol)


@pytest.mark.parametrize("group", [1, 2, 3, 4])
def test_switch_groups_take_the_femtoseconds_of_the_page(group):
    """What nvls does is no all_reduce in groups, but it takes its time."""
    schedule = replace(collemu.build_schedule("all_reduce", "nvls", 6), group_ranks=group)
    assert_takes_the_femtoseconds_of_the_page(schedule, ADDING, 2, 1003, "none", "simple")


@pytest.mark.parametrize(("ranks", "group"), [(4, 2), (5, 2), (6, 3), (6, 6)])
@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_nvls_trees_take_the_femtoseconds_of_the_page(ranks, group, protocol):
    schedule = collemu.build_schedule("all_reduce", "nvls_tree", ranks, group=group)
    assert_takes_the_femtoseconds_of_the_page(schedule, ADDING, 2, 777, "none", protocol)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "alltoall"])
@pytest.mark.parametrize(("ranks", "group", "wire"), [(5, 2, "none"), (5, 3, "mxfp4"), (6, 6, "mxfp4")])
def test_hierarchical_takes_the_femtoseconds_of_the_page(collective, ranks, group, wire):
    schedule = collemu.build_schedule(collective, "hierarchical", ranks, group=group, chunks=2)
    slots = collemu.verify(schedule, slots=8).least_slots
    assert_takes_the_femtoseconds_of_the_page(schedule, SYSTEM, slots, 777, wire, "simple")


def assert_takes_the_femtoseconds_of_the_page(schedule, base, slots, count, wire, protocol):
    """On one domain of three lanes with few credits and small packets."""
    system = base.with_(**SMALL | {"endpoint.fifo_slots": slots})
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
    expected = slow_packets.run(by_the_page(schedule, count, wire, system, spoken), fabric)
    result = collemu.emulate(schedule, system, count=count, wire=wire, protocol=protocol)
    assert result.timeline is not None
    assert result.timeline.operations["start_fs"].tolist() == expected.start
    assert result.timeline.operations["finish_fs"].tolist() == expected.finish
    assert result.time_fs == expected.time_fs
    messages = result.timeline.messages
    keys = zip(*(messages[name].tolist() for name in ("source", "destination", "channel", "number")), strict=True)
    assert dict(zip(keys, messages["visible_fs"].tolist(), strict=True)) == expected.visible
    for (chip, plane), nbytes in expected.up_bytes.items():
        assert result.links.up_bytes[chip, plane] == nbytes
    for (plane, chip), nbytes in expected.down_bytes.items():
        assert result.links.down_bytes[chip, plane] == nbytes
