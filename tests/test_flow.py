"""The flow engine: against the slow one that was written from docs/timing-rules.md, and against packets."""

import os
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu as ce
from tests.oracles import slow_flow
from tests.oracles.hard_numbers import hard_numbers
from tests.oracles.random_flows import (
    fabric_of,
    random_group_size,
    random_operations,
    random_system,
    schedule_of,
    staggered,
    without_landed,
)
from tests.oracles.slow_packets import IN_SWITCH, SENDS, Operation
from tests.test_packets_of_schedules import BUILT_IN, IMAGES, NVLS, by_the_page

CASES = int(os.environ.get("COLLEMU_FLOW_CASES", "200"))  # compared, of random schedules and of built-in ones each
BATCH = 50

every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)


def assert_same_times(result: ce.Result, expected: slow_flow.Times) -> None:
    operations, messages = result.timeline.operations, result.timeline.messages
    differ = np.flatnonzero((operations["start_fs"] != expected.start) | (operations["finish_fs"] != expected.finish))
    assert differ.tolist() == []
    key = [messages[name].tolist() for name in ("source", "destination", "channel", "number", "visible_fs")]
    assert {(s, d, c, k): visible for s, d, c, k, visible in zip(*key, strict=True)} == expected.visible
    assert result.time_fs == expected.time_fs


def assert_same_bytes(result: ce.Result, expected: slow_flow.Times) -> None:
    """At every port of switches: those of the domain come before those of the network."""
    found = {
        (side, ("domain", "network")[stage], chip, 0): nbytes
        for side, table in (("up", result.links.up_bytes), ("down", result.links.down_bytes))
        for (chip, stage), nbytes in np.ndenumerate(table)
        if nbytes
    }
    assert found == expected.port_bytes


def run_operations(
    operations: list[Operation], system: ce.System, ranks: int, protocol: str = "auto", group_ranks: int = 0
) -> ce.Result:
    """Operations through the flow engine, an element a byte, of a type that switches may add."""
    schedule = schedule_of(operations, ranks, group_ranks)
    dtype = "float8_e4m3fn" if group_ranks else "uint8"
    return ce.emulate(schedule, system, count=schedule.input_chunks, dtype=dtype, fidelity="flow", protocol=protocol)


def random_schedule(seed: int) -> tuple[ce.Result, slow_flow.Times, str]:
    """Random messages between random chips."""
    rng = Random(seed)
    ranks = rng.randint(2, 20)
    operations, system = random_operations(rng, ranks), random_system(rng, ranks)
    return both_engines(rng, operations, system, ranks)


def with_in_switch(seed: int) -> tuple[ce.Result, slow_flow.Times, str]:
    """Random messages, and in-switch operations of random groups among them."""
    rng = Random(seed)
    ranks = rng.randint(2, 20)
    system = random_system(rng, ranks, "switched")
    size = random_group_size(rng, system, ranks)
    operations = random_operations(rng, ranks, group_size=size, payload=system.domain.packet_payload_bytes)
    return both_engines(rng, operations, system, ranks, size)


def late_nvls(seed: int) -> tuple[ce.Result, slow_flow.Times, str]:
    """Nvls, with copies between what it does."""
    rng = Random(seed)
    collective, ranks = rng.choice(NVLS), rng.randint(2, 12)
    lanes = rng.choice([{}, {}, {"chunks": 2}, {"chunks": 3}, {"channels": 2}])
    schedule = ce.build_schedule(collective, "nvls", ranks, root=rng.randrange(ranks), **lanes)
    count = rng.choice([0, 1, rng.randint(2, 300), rng.randint(300, 6000)])
    system = random_system(rng, ranks, "switched").with_(**{"domain.chips": ranks})
    plain = by_the_page(schedule, count, "none", system, system.protocols["simple"])
    return both_engines(rng, staggered(rng, plain, SENDS | IN_SWITCH), system, ranks, ranks)


def both_engines(
    rng: Random, operations: list[Operation], system: ce.System, ranks: int, group_ranks: int = 0
) -> tuple[ce.Result, slow_flow.Times, str]:
    protocol = rng.choice(sorted(system.protocols))
    of_page = without_landed(operations, system.protocols[protocol].writes_destination)
    expected = slow_flow.run(of_page, fabric_of(system, protocol, ranks))
    result = run_operations(operations, system, ranks, protocol, group_ranks)
    if group_ranks:
        assert_same_bytes(result, expected)
    return result, expected, f"{ranks} ranks, {system.name}, {system.domain}, {protocol}"


def built_in(seed: int) -> tuple[ce.Result, slow_flow.Times, str]:
    """A built-in schedule on a random system."""
    rng = Random(seed)
    collective, algorithm = rng.choice(BUILT_IN)
    ranks = rng.randint(1, 20)
    lanes = {} if algorithm == "one_shot" else rng.choice([{}, {}, {"chunks": 2}, {"chunks": 3}, {"channels": 2}])
    schedule = ce.build_schedule(collective, algorithm, ranks, **lanes)
    count, wire = rng.choice([0, 1, rng.randint(2, 300), rng.randint(300, 6000)]), rng.choice(sorted(IMAGES))
    system = random_system(rng, ranks)
    slots = max(system.endpoint.fifo_slots, ce.verify(schedule, slots=8).least_slots)
    system = system.with_(**{"endpoint.fifo_slots": slots})
    protocol = rng.choice(sorted(system.protocols))
    of_page = by_the_page(schedule, count, wire, system, system.protocols[protocol])
    expected = slow_flow.run(of_page, fabric_of(system, protocol, ranks))
    result = ce.emulate(schedule, system, count=count, wire=wire, fidelity="flow", protocol=protocol)
    what = f"{collective} {algorithm} {lanes} of {count} over {ranks} ranks, {wire}, {protocol}"
    return result, expected, f"{what}, {system.name}, {system.domain}"


@pytest.mark.parametrize("batch", range(max(1, CASES // BATCH)))
@pytest.mark.parametrize(
    ("make", "fewest"), [(random_schedule, 0.3), (built_in, 0.3), (with_in_switch, 0.3), (late_nvls, 0.8)]
)
def test_random_cases_take_the_same_femtoseconds(make, fewest, batch):
    """A batch, without cases whose order at a port the page leaves open."""
    compared = waited = tied = 0
    seed = 1_000_000 * batch
    while compared < BATCH:
        seed += 1
        result, expected, what = make(seed)
        if expected.tied:
            tied += 1
            continue
        compared += 1
        waited += expected.waited > 0
        try:
            assert_same_times(result, expected)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {what}: {error}") from error
    print(f"{make.__name__}: {compared} compared, {tied} tied; in {waited} compared messages waited")
    assert compared >= fewest * (compared + tied)


def one_message(source: int, destination: int, size: int) -> list[Operation]:
    ends = [
        Operation(source, 0, kinds.SEND, send_peer=destination, work_bytes=size, message_bytes=size),
        Operation(destination, 0, kinds.RECV, recv_peer=source, work_bytes=0, message_bytes=size),
    ]
    return sorted(ends, key=lambda op: op.rank)


def torus(shape: tuple[int, ...], links: tuple[int, ...]) -> ce.System:
    changes = {"domain.shape": shape, "domain.chips": int(np.prod(shape)), "domain.links_per_direction": links}
    changes["chip.hbm_bytes_per_s"] = 1e15  # the memory is no part of this
    return ce.load_system("trainium2").with_(**changes)


@pytest.mark.parametrize("shape", [(2,), (4,), (5,), (2, 2), (4, 2), (2, 4), (5, 3), (4, 4), (2, 1, 3), (2, 3, 3)])
def test_a_message_between_any_two_chips_of_a_torus(shape):
    """Its time, and which links carry it."""
    chips = int(np.prod(shape))
    system = torus(shape, (1,) * len(shape))
    for source in range(chips):
        for destination in set(range(chips)) - {source}:
            operations = one_message(source, destination, 1000)
            expected = slow_flow.run(operations, fabric_of(system, "dma", chips))
            result = run_operations(operations, system, chips)
            assert_same_times(result, expected)
            used = np.argwhere(result.links.up_bytes).tolist()
            assert used == sorted([chip, group] for _, _, chip, group in expected.port_bytes)
            for _, _, chip, group in expected.port_bytes:
                assert result.links.up_bytes[chip, group] == 4 * 24 + 1000


@pytest.mark.parametrize(("shape", "links", "destination"), [((4, 4, 4), (1, 2, 2), 6), ((3, 3), (3, 1), 4)])
def test_a_far_message_over_links_of_unequal_width(shape, links, destination):
    system = torus(shape, links)
    operations = one_message(0, destination, 24 * 256)
    expected = slow_flow.run(operations, fabric_of(system, "dma", system.domain.chips))
    assert expected.far
    assert_same_times(run_operations(operations, system, destination + 1), expected)


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 2, 2), (2, 2, 3)])
def test_chips_of_a_torus_are_numbered_from_neighbour_to_neighbour(shape):
    chips = int(np.prod(shape))
    schedule = ce.build_schedule("broadcast", "ring", chips)
    assert ce.emulate(schedule, torus(shape, (1, 2, 2)), count=4, fidelity="packet").header["fidelity"] == "packet"


def test_a_short_message_asks_for_its_second_port_before_a_long_one_that_went_ahead():
    """Its only packet is stored and forwarded sooner."""
    changes = {"domain.planes": 2, "domain.packet_payload_bytes": 1024, "domain.link_bytes_per_s": 1e9}
    system = ce.load_system("trainium4_nvl72").with_(**changes)
    sizes = (1024, 16)
    operations = [
        op
        for thread, size in enumerate(sizes)
        for op in (
            Operation(0, thread, kinds.COPY, 1, -1, thread, work_bytes=20_000 * thread),
            Operation(0, thread, kinds.SEND, 1, -1, thread, work_bytes=size, message_bytes=size),
        )
    ]
    operations += [
        Operation(1, thread, kinds.RECV, -1, 0, thread, message_bytes=size) for thread, size in enumerate(sizes)
    ]
    expected = slow_flow.run(operations, fabric_of(system, "dma", 2))
    assert expected.passed and not expected.tied
    assert_same_times(run_operations(operations, system, 2), expected)


UNCONTENDED = [(c, a) for c, a in BUILT_IN if (a == "ring" and c not in ("broadcast", "reduce")) or a == "pairwise"]


@pytest.mark.parametrize("system", ["trainium4_nvl72", "gb200_nvl72", "h100_hgx"])
@pytest.mark.parametrize(("collective", "algorithm"), [*UNCONTENDED, ("sendrecv", "direct")])
def test_messages_that_do_not_meet_take_as_long_as_their_packets(collective, algorithm, system):
    system = ce.load_system(system)
    domain = system.domain
    for ranks in (2, 3, 5, 8):
        schedule = ce.build_schedule(collective, algorithm, ranks)
        largest = domain.credits * domain.links * domain.packet_payload_bytes  # as many packets a lane as credits
        for nbytes in (0, 4, 260, 4096, 100_000, largest):
            count = nbytes // 4 * (ranks if collective == "all_reduce" else 1)
            packet, flow = (ce.emulate(schedule, system, count=count, fidelity=name) for name in ("packet", "flow"))
            assert packet.timeline.messages["nbytes"].tolist() == [nbytes] * schedule.n_messages
            np.testing.assert_array_equal(packet.timeline.operations, flow.timeline.operations)
            np.testing.assert_array_equal(packet.timeline.messages, flow.timeline.messages)


@every_algorithm
def test_outputs_are_those_of_packets(collective, algorithm):
    """And the same with data as without."""
    system = ce.load_system("trainium4_nvl72")
    wires = ("none", "bfloat16", "float8_e4m3fn", "mxfp8_e4m3", "mxfp4", "nvfp4")
    for ranks in range(1, 10):
        schedule = ce.build_schedule(collective, algorithm, ranks)
        for wire in (wires[ranks % 6], wires[(ranks + 3) % 6]):
            count = 67 + ranks
            data = hard_numbers(ranks, (ranks, schedule.input_regions * count), "mixed")
            packet, flow = (
                ce.emulate(schedule, system, count=count, wire=wire, data=data, fidelity=name)
                for name in ("packet", "flow")
            )
            assert packet.outputs.tobytes() == flow.outputs.tobytes()
            assert packet.replicas_identical == flow.replicas_identical
            assert packet.wire_bytes_per_rank.tolist() == flow.wire_bytes_per_rank.tolist()
            silent = ce.emulate(schedule, system, count=count, wire=wire, fidelity="flow")
            np.testing.assert_array_equal(silent.timeline.operations, flow.timeline.operations)


def test_the_header_says_which_model_ran(monkeypatch):
    schedule, system = ce.build_schedule("all_reduce", "ring", 4), ce.load_system("trainium4_nvl72")
    for asked, ran in (("packet", "packet"), ("flow", "flow"), ("auto", "packet")):
        assert ce.emulate(schedule, system, count=64, fidelity=asked).header["fidelity"] == ran
    monkeypatch.setattr("collemu.emulator.QUICK_PACKETS", 23)
    assert ce.emulate(schedule, system, count=64).header["fidelity"] == "flow"  # 24 messages of a packet
    monkeypatch.setattr("collemu.emulator.QUICK_PACKETS", 24)
    assert ce.emulate(schedule, system, count=64).header["fidelity"] == "packet"


def test_auto_crosses_a_torus_by_flow():
    schedule, system = ce.build_schedule("alltoall", "direct", 64), ce.load_system("trainium2")
    assert ce.emulate(schedule, system, count=4).header["fidelity"] == "flow"
    with pytest.raises(ValueError, match=r"no neighbours in a torus.*use fidelity flow") as caught:
        ce.emulate(schedule, system, count=4, fidelity="packet")
    assert str(caught.value).isprintable()


def test_a_deadlock_is_told():
    schedule = ce.build_schedule("all_reduce", "ring", 4, chunks=6)
    for slots, runs in ((1, False), (2, True)):
        system = ce.load_system("trainium4_nvl72").with_(**{"endpoint.fifo_slots": slots})
        data = np.ones((4, 101), np.float32)
        for more in ({}, {"data": data}):
            if runs:
                ce.emulate(schedule, system, count=101, fidelity="flow", **more)
                continue
            with pytest.raises(ce.ScheduleError, match=r"deadlocks with 1 FIFO slots.*rank 0 thread 0") as caught:
                ce.emulate(schedule, system, count=101, fidelity="flow", **more)
            assert str(caught.value).isprintable()


@every_algorithm
@pytest.mark.parametrize("name", ["trainium4_nvl72", "h100_hgx", "a100_quad", "trainium3_ultraserver_gen2"])
def test_links_carry_the_bytes_of_packets(collective, algorithm, name):
    """In one domain, and over more where they are small."""
    system = ce.load_system(name)
    for ranks, count in ((2, 1), (4, 1003), (5, 40_000), (9, 777)):
        schedule = ce.build_schedule(collective, algorithm, ranks)
        packet, flow = (
            ce.emulate(schedule, system, count=count, fidelity=which, wire="mxfp8_e4m3") for which in ("packet", "flow")
        )
        for side in ("up_bytes", "down_bytes"):
            expected, got = (getattr(result.links, side) for result in (packet, flow))
            assert expected.sum(axis=1).tolist() == got.sum(axis=1).tolist()
        assert flow.links.up_bytes.sum() == flow.links.down_bytes.sum() == flow.links.total_bytes
        assert 0 <= flow.links.max_utilisation <= 1
        messages = flow.timeline.messages
        sent = np.bincount(messages["source"], weights=messages["nbytes"], minlength=ranks)
        assert (flow.links.up_bytes.sum(axis=1) >= sent).all()


@pytest.mark.parametrize(("collective", "algorithm"), [pair for pair in BUILT_IN if pair[1] == "ring"])
def test_links_to_neighbours_of_a_torus_carry_the_bytes_of_packets(collective, algorithm):
    system, schedule = torus((4, 3), (2, 1)), ce.build_schedule(collective, algorithm, 12)
    packet, flow = (ce.emulate(schedule, system, count=1003, fidelity=which).links for which in ("packet", "flow"))
    for side in ("up_bytes", "down_bytes"):
        assert getattr(packet, side).sum(axis=1).tolist() == getattr(flow, side).sum(axis=1).tolist()


@every_algorithm
def test_no_link_of_a_torus_is_used_all_the_time_and_more(collective, algorithm):
    for ranks in (2, 7, 32, 40):
        schedule = ce.build_schedule(collective, algorithm, ranks)
        links = ce.emulate(schedule, ce.load_system("trainium1"), count=1003, fidelity="flow").links
        assert 0 < links.max_utilisation <= 1


def test_every_link_of_a_long_way_has_two_ends():
    system = torus((3, 3), (1, 1))
    links = ce.emulate(schedule_of(one_message(0, 4, 256), 9), system, count=256, dtype="uint8", fidelity="flow").links
    assert np.argwhere(links.up_bytes).tolist() == [[0, 0], [5, 2]]
    assert np.argwhere(links.down_bytes).tolist() == [[4, 2], [5, 0]]


def test_chips_without_a_rank_pass_on_what_is_far():
    system = torus((3, 3), (1, 1))
    links = ce.emulate(schedule_of(one_message(0, 4, 256), 5), system, count=256, dtype="uint8", fidelity="flow").links
    assert links.total_bytes == 2 * (256 + 24)


def test_waiting_for_credits_is_not_sending():
    """Few credits make a message slow, and its link idle."""
    few = ce.load_system("h100_hgx").with_(**{"domain.credits": 2})
    schedule = ce.build_schedule("all_reduce", "ring", 8)
    packet, flow = (ce.emulate(schedule, few, count=200_000, fidelity=name).links for name in ("packet", "flow"))
    assert flow.max_utilisation == pytest.approx(packet.max_utilisation, rel=0.05)
