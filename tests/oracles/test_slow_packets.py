"""The slow engine against times worked out by hand from docs/timing-rules.md."""

from dataclasses import replace
from random import Random

import pytest
from collemu_kernels import kinds

from tests.oracles.random_packets import random_case
from tests.oracles.slow_packets import (
    IN_SWITCH,
    NO_STAGE,
    SENDS,
    Fabric,
    Operation,
    Stage,
    coordinates,
    cut,
    cut_bytes,
    first_lane_of,
    group_of,
    run,
    stage_of,
)

# 1 fs a byte and 100 fs a link; the endpoint takes no time, so that only the fabric shows.
SWITCHED = Stage(widths=(1,), latencies_fs=(100,), switched=True, link=(1, 1), credits=96, payload=256, header=16)
FABRIC = Fabric(
    domain=SWITCHED,
    network=NO_STAGE,
    chips=9,
    topology="switched",
    launch_fs=0,
    slots=8,
    copy=(0, 1),
    reduce=(0, 1),
    step_fs=0,
    data=1,
    line=1,
)
FULL = 256 + 16
LATENCY = 100


def with_domain(fabric=FABRIC, **changes):
    return replace(fabric, domain=replace(fabric.domain, **changes))


def mesh(chips, width=1, **changes):
    others = chips - 1
    fabric = replace(FABRIC, chips=chips, topology="mesh")
    return with_domain(fabric, widths=(width,) * others, latencies_fs=(LATENCY,) * others, switched=False, **changes)


def torus(shape, groups, width=1, **changes):
    chips = len(coordinates(shape))
    fabric = replace(FABRIC, chips=chips, topology="torus", shape=shape)
    return with_domain(fabric, widths=(width,) * groups, latencies_fs=(LATENCY,) * groups, switched=False, **changes)


# Domains of two chips; the network has 3 fs a byte, 1000 fs a link, and 500 fs more for every message.
NETWORK = Stage(
    widths=(1,), latencies_fs=(1000,), switched=True, link=(3, 1), credits=96, payload=64, header=8, extra_fs=500
)
DOMAINS = replace(FABRIC, network=NETWORK, chips=2)


def send(rank, peer, size=256, thread=0, **kwargs):
    return Operation(rank, thread, kinds.SEND, send_peer=peer, message_bytes=size, work_bytes=size, **kwargs)


def recv(rank, peer, size=256, thread=0, kind=kinds.RECV, **kwargs):
    return Operation(rank, thread, kind, recv_peer=peer, message_bytes=size, work_bytes=size, **kwargs)


def local(rank, kind=kinds.NOP, size=0, thread=0, **kwargs):
    return Operation(rank, thread, kind, work_bytes=size, **kwargs)


@pytest.mark.parametrize(
    ("size", "arrival"),
    [
        (0, 2 * (16 + LATENCY)),
        (1, 2 * (17 + LATENCY)),
        (256, 2 * (FULL + LATENCY)),
        (
            257,
            FULL + LATENCY + FULL + 17 + LATENCY,
        ),  # the second waits for the first at the switch
        (5000, FULL + LATENCY + 19 * FULL + (5000 - 19 * 256 + 16) + LATENCY),
    ],
)
def test_one_message(size, arrival):
    times = run([send(0, 1, size), recv(1, 0, size)], FABRIC)
    assert times.visible == {(0, 1, 0, 0): arrival}
    assert times.start == [0, arrival]
    assert times.finish == [0, arrival]
    assert times.time_fs == arrival
    on_link = size + 16 * max(1, -(-size // 256))
    assert times.up_bytes == times.up_busy_fs == {(0, 0): on_link, (1, 0): 0}
    assert times.down_bytes == times.down_busy_fs == {(0, 0): 0, (0, 1): on_link}


def test_no_operation_takes_the_launch():
    assert run([], replace(FABRIC, launch_fs=7)).time_fs == 7


def test_launch_step_and_work():
    fabric = replace(FABRIC, launch_fs=1000, step_fs=30, copy=(1, 2), reduce=(3, 2))
    operations = [
        local(0, kinds.COPY, 5),  # ceil(2.5)
        local(0, kinds.REDUCE, 5),  # ceil(7.5)
        local(0, kinds.NOP, 5),
        send(0, 1, 1),  # ready 30 after its start, 1 fs of work after that
        recv(1, 0, 1),
    ]
    times = run(operations, fabric)
    assert times.start[:4] == [1000, 1003, 1011, 1011]
    assert times.finish[:4] == [1003, 1011, 1011, 1042]
    assert times.start[4] == 1042 + 2 * (17 + LATENCY)  # not 1041 + ...: the sender's finish counts
    assert times.finish[4] == times.start[4] + 1


def test_serialisation_rounds_up_packet_by_packet():
    times = run([send(0, 1, 257), recv(1, 0, 257)], with_domain(link=(1, 3)))
    full, last = 91, 6  # ceil(272 / 3), ceil(17 / 3)
    assert times.time_fs == full + LATENCY + full + last + LATENCY


def test_slow_sender_is_not_overtaken():
    times = run([send(0, 1, 257), recv(1, 0, 257)], replace(FABRIC, copy=(10, 1)))
    assert times.start[1] == 2570 + 2 * (272 + LATENCY)


def test_packets_go_round_the_planes_over_all_messages():
    sizes = [257, 0, 256]  # packets 0 and 1, 2, 3
    operations = [send(0, 1, size) for size in sizes] + [recv(1, 0, size) for size in sizes]
    times = run(operations, with_domain(widths=(2,)))
    assert times.up_bytes == {(0, 0): FULL + 16, (0, 1): 17 + FULL, (1, 0): 0, (1, 1): 0}
    assert times.down_bytes == {(0, 1): FULL + 16, (1, 1): 17 + FULL, (0, 0): 0, (1, 0): 0}
    assert times.visible == {
        (0, 1, 0, 0): 2 * (FULL + LATENCY),  # its first packet is its last to arrive
        (0, 1, 0, 1): FULL + LATENCY + FULL + 16 + LATENCY,  # plane 0, behind it
        (0, 1, 0, 2): 17 + 2 * (FULL + LATENCY),  # plane 1, behind the 17 bytes
    }


def test_incast_of_two():
    operations = [send(0, 2), send(1, 2), recv(2, 0), recv(2, 1, thread=1)]
    times = run(operations, FABRIC)
    first = 2 * (FULL + LATENCY)
    assert times.visible == {(0, 2, 0, 0): first, (1, 2, 0, 0): first + FULL}
    assert times.down_busy_fs[0, 2] == 2 * FULL


def test_incast_on_different_planes_does_not_collide():
    """Chip 1 first sends an empty packet elsewhere, so that its next one takes the other plane."""
    operations = [send(0, 2), send(1, 0, 0), send(1, 2, thread=1), recv(2, 0), recv(2, 1, thread=1)]
    times = run(operations, with_domain(widths=(2,)))
    assert times.visible[0, 2, 0, 0] == times.visible[1, 2, 0, 0] == 2 * (FULL + LATENCY)


def test_round_robin_begins_one_past_the_output():
    """Output 1 of 4 chips: inputs 2, 3, 0, then again, although 0 was first in every list."""
    senders = [0, 2, 3]
    operations = [send(0, 1, 512), *(recv(1, peer, 512, thread) for thread, peer in enumerate(senders))]
    operations += [send(2, 1, 512), send(3, 1, 512)]
    times = run(operations, FABRIC)
    sixth = FULL + LATENCY + 6 * FULL + LATENCY
    assert [times.visible[sender, 1, 0, 0] for sender in (2, 3, 0)] == [sixth - 2 * FULL, sixth - FULL, sixth]


def test_arrival_at_the_moment_of_a_decision_takes_part():
    """Input 1 arrives just as the output ends input 0's first packet: the pointer is at 1, so 1 is next."""
    operations = [
        send(0, 2, 512),
        local(1, kinds.COPY, FULL),
        send(1, 2, 256),
        recv(2, 0, 512),
        recv(2, 1, 256, thread=1),
    ]
    operations = [replace(op, work_bytes=0) if op.kind == kinds.SEND else op for op in operations]
    times = run(operations, replace(FABRIC, copy=(1, 1)))
    assert times.visible[1, 2, 0, 0] == FULL + 2 * (FULL + LATENCY)
    assert times.visible[0, 2, 0, 0] == times.visible[1, 2, 0, 0] + FULL


def test_one_credit_makes_every_packet_wait_for_the_round_trip():
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], with_domain(credits=1))
    assert times.time_fs == 4 * 2 * (FULL + LATENCY)


def test_two_credits():
    """Packets 0 and 1 leave at 0 and 272; 2 and 3 each as a credit is back, 744 and 1016; each takes 744."""
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], with_domain(credits=2))
    assert times.time_fs == 1016 + 744


def test_credits_are_each_planes_own():
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], with_domain(credits=1, widths=(4,)))
    assert times.time_fs == 2 * (FULL + LATENCY)


def test_a_head_without_credit_holds_back_its_queue():
    """Three round trips, though the last packet goes to another chip: a port is first in, first out."""
    operations = [send(0, 1, 512), send(0, 2, 0, thread=1), recv(1, 0, 512), recv(2, 0, 0)]
    times = run(operations, with_domain(credits=1))
    assert times.visible[0, 2, 0, 0] == 2 * 2 * (FULL + LATENCY) + 2 * (16 + LATENCY)


@pytest.mark.parametrize(
    ("slots", "visible"),
    [
        (1, [232, 464 + 232, 928 + 232]),
        (2, [232, 248, 464 + 232, 480 + 232]),  # the second is 16 behind, and so is its slot
        (4, [232, 248, 264, 280]),
    ],
)
def test_slots(slots, visible):
    """Empty messages: 232 from end to end, and 232 more for the notice that the slot is free."""
    operations = [send(0, 1, 0) for _ in visible] + [recv(1, 0, 0) for _ in visible]
    times = run(operations, replace(FABRIC, slots=slots))
    assert list(times.visible.values()) == visible


def test_ring():
    """Three chips pass on what they add to: every chip the same, and no link shared."""
    fabric = replace(FABRIC, step_fs=50, copy=(1, 1), reduce=(2, 1))
    operations = []
    for rank in range(3):
        after, before = (rank + 1) % 3, (rank - 1) % 3
        operations += [
            send(rank, after),
            replace(recv(rank, before, kind=kinds.RECV_REDUCE_SEND), send_peer=after),
            recv(rank, before),
        ]
    times = run(operations, fabric)
    path = 2 * (FULL + LATENCY)
    sent = 50 + 256
    passed_on = sent + path + 50 + 2 * 256
    done = passed_on + path + 256
    assert times.finish == [sent, passed_on, done] * 3
    assert times.start == [0, sent + path, passed_on + path] * 3


@pytest.mark.parametrize(
    ("data", "line", "size", "packets"),
    [
        (8, 16, 20, [3 * 16 + 16]),
        (8, 16, 0, [16]),
        (8, 16, 129, [FULL, 16 + 16]),
        (120, 128, 5000, [FULL] * 21),  # 42 lines
        (120, 128, 1, [128 + 16]),
    ],
)
def test_protocol_lines(data, line, size, packets):
    fabric = replace(FABRIC, data=data, line=line)
    assert cut(size, fabric, fabric.domain) == packets
    times = run([send(0, 1, size), recv(1, 0, size)], fabric)
    assert times.up_bytes[0, 0] == sum(packets)
    assert times.time_fs == sum(packets) + packets[0] + 2 * LATENCY


def test_equal_ready_times_go_by_thread_then_step():
    """All are ready at 0: thread 0 waits for thread 2, but for no time, and is the first in line."""
    operations = [
        local(0, dep=5),
        send(0, 1, 0),
        send(0, 1, 1),
        send(0, 2, 2, thread=1),
        send(0, 3, 3, thread=2),
        local(0, thread=2),
    ]
    assert run(operations, FABRIC).visible == {
        (0, 1, 0, 0): 2 * (16 + LATENCY),
        (0, 1, 0, 1): 16 + 2 * (17 + LATENCY),
        (0, 2, 0, 0): 16 + 17 + 2 * (18 + LATENCY),
        (0, 3, 0, 0): 16 + 17 + 18 + 2 * (19 + LATENCY),
    }


def test_what_a_delivery_sets_free_is_settled_before_packets_are_put_in_line():
    """Rank 1 at 232: thread 1 is ready by work begun at 0, thread 0 by an arrival at this moment."""
    operations = [
        send(0, 1, 0),
        recv(1, 0, 0),
        send(1, 2, 0),
        local(1, kinds.REDUCE, 232, thread=1),
        send(1, 3, 0, thread=1),
    ]
    times = run(operations, replace(FABRIC, reduce=(1, 1)))
    assert times.start[2] == times.start[4] == 232
    assert times.visible[1, 2, 0, 0] == 232 + 2 * (16 + LATENCY)
    assert times.visible[1, 3, 0, 0] == times.visible[1, 2, 0, 0] + 16


def test_deadlock_names_the_blocked():
    operations = [recv(0, 1), send(0, 1), recv(1, 0), send(1, 0)]
    with pytest.raises(RuntimeError, match=r"rank 0 thread 0 step 0 \(waits for message 0 from 1 to 0 on "):
        run(operations, FABRIC)


def test_too_few_slots_deadlock():
    operations = [send(0, 1), send(0, 1), local(0), recv(1, 0, dep=2), recv(1, 0)]
    assert run(operations, replace(FABRIC, slots=2)).time_fs == 744 + FULL
    with pytest.raises(RuntimeError, match="waits for the slot of message 0"):
        run(operations, replace(FABRIC, slots=1))


def test_bad_operations():
    with pytest.raises(ValueError, match="sends 1 bytes"):
        run([send(0, 1, 1), recv(1, 0, 2)], FABRIC)
    with pytest.raises(ValueError, match="several threads"):
        run([send(0, 1), send(0, 1, thread=1)], FABRIC)
    with pytest.raises(ValueError, match="not contiguous"):
        run([local(0), local(1), local(0)], FABRIC)
    with pytest.raises(ValueError, match="kind 12"):
        run([local(0, 12)], FABRIC)


def test_one_message_over_a_mesh_link():
    operations = [send(0, 1, 257), recv(1, 0, 257), send(1, 0, 0, thread=1), recv(0, 1, 0, thread=1)]
    times = run(operations, mesh(3))
    assert times.visible == {(0, 1, 0, 0): FULL + 17 + LATENCY, (1, 0, 0, 0): 16 + LATENCY}
    # 0 to 1 is one further, 1 to 0 two further: lanes 0 and 1.
    ups, downs = {(0, 0): FULL + 17, (1, 1): 16}, {(0, 1): FULL + 17, (1, 0): 16}
    assert {link: nbytes for link, nbytes in times.up_bytes.items() if nbytes} == ups
    assert {link: nbytes for link, nbytes in times.down_bytes.items() if nbytes} == downs
    assert (times.up_busy_fs, times.down_busy_fs) == (times.up_bytes, times.down_bytes)
    assert set(times.up_bytes) == {(chip, lane) for chip in range(2) for lane in range(2)}


def test_incast_in_a_mesh_shares_no_link():
    operations = [send(0, 2), send(1, 2), recv(2, 0), recv(2, 1, thread=1)]
    assert set(run(operations, mesh(3)).visible.values()) == {FULL + LATENCY}


def test_packets_go_round_the_links_of_a_peer():
    """Each group has its own count: the message to chip 2 takes the first of its two lanes."""
    operations = [send(0, 1, 257), send(0, 2, 0, thread=1), send(0, 1, 5, channel=1, thread=2)]
    operations += [recv(1, 0, 257), recv(2, 0, 0), recv(1, 0, 5, channel=1, thread=1)]
    times = run(operations, mesh(3, width=2))
    assert [times.up_bytes[0, lane] for lane in range(4)] == [FULL + 21, 17, 16, 0]
    assert [times.down_bytes[lane, 1] for lane in range(4)] == [FULL + 21, 17, 0, 0]
    assert [times.down_bytes[lane, 2] for lane in range(4)] == [0, 0, 16, 0]
    assert times.visible[0, 1, 1, 0] == FULL + 21 + LATENCY


def test_one_credit_on_a_mesh_link():
    """The packet is there one latency after its end, and its credit is back another latency later."""
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], mesh(2, credits=1))
    assert times.time_fs == 3 * (FULL + 2 * LATENCY) + FULL + LATENCY


def test_a_peer_without_credit_holds_back_no_other():
    operations = [send(0, 1, 512), send(0, 2, 0, thread=1), recv(1, 0, 512), recv(2, 0, 0)]
    assert run(operations, mesh(3, credits=1)).visible[0, 2, 0, 0] == 16 + LATENCY


def test_slots_and_slow_senders_count_one_hop_of_a_mesh():
    operations = [send(0, 1, 0) for _ in range(3)] + [recv(1, 0, 0) for _ in range(3)]
    times = run(operations, replace(mesh(2), slots=1))
    assert list(times.visible.values()) == [116, 232 + 116, 464 + 116]
    times = run([send(0, 1, 257), recv(1, 0, 257)], replace(mesh(2), copy=(10, 1)))
    assert times.start[1] == 2570 + FULL + LATENCY


@pytest.mark.parametrize(
    ("size", "packets"),
    [
        (0, [16]),  # no payload is whole flits
        (1, [16 + 32 + 8]),
        (32, [16 + 32]),
        (33, [16 + 64 + 8]),
        (255, [16 + 256 + 8]),
        (256, [16 + 256]),
        (256 + 230, [16 + 256, 16 + 256 + 8]),
    ],
)
def test_flits_and_byte_enables(size, packets):
    fabric = with_domain(flit=32, enable=8)
    assert cut(size, fabric, fabric.domain) == packets
    times = run([send(0, 1, size), recv(1, 0, size)], fabric)
    assert times.up_bytes[0, 0] == times.down_bytes[0, 1] == sum(packets)
    assert times.visible[0, 1, 0, 0] == sum(packets) + packets[-1] + 2 * LATENCY
    late = run([send(0, 1, size), recv(1, 0, size)], replace(fabric, copy=(100, 1)))
    assert late.visible[0, 1, 0, 0] == max(times.time_fs, 100 * size + 2 * (max(packets) + LATENCY))


def test_full_payload_that_is_no_whole_flits():
    fabric = with_domain(payload=40, flit=16, enable=4)
    assert cut(90, fabric, fabric.domain) == [16 + 48 + 4, 16 + 48 + 4, 16 + 16 + 4]


def test_nested_levels():
    """Pairs below four chips: two lanes of 100 fs, then one of 1000 fs."""
    fabric = replace(FABRIC, chips=4, topology="nested", levels=(2, 4))
    fabric = with_domain(fabric, widths=(2, 1), latencies_fs=(100, 1000), credits=1)
    groups = [[group_of(fabric, s, d) for d in range(4) if d != s] for s in range(4)]
    assert groups == [[0, 1, 1], [0, 1, 1], [1, 1, 0], [1, 1, 0]]
    near = run([send(0, 1, 512), recv(1, 0, 512)], fabric)  # a lane each
    assert near.visible == {(0, 1, 0, 0): 2 * (FULL + 100)}
    far = run([send(1, 2, 512), recv(2, 1, 512)], fabric)  # the same lane, after the credit is back
    assert far.visible == {(1, 2, 0, 0): 2 * 2 * (FULL + 1000)}
    assert [near.up_bytes[0, lane] for lane in range(3)] == [FULL, FULL, 0]
    assert [far.up_bytes[1, lane] for lane in range(3)] == [0, 0, 2 * FULL]
    assert far.down_bytes[2, 2] == 2 * FULL
    slow = replace(fabric, copy=(10, 1))
    assert run([send(1, 2), recv(2, 1)], slow).visible == {(1, 2, 0, 0): 2560 + 2 * (FULL + 1000)}
    again = run([send(1, 2, 0), send(1, 2, 0), recv(2, 1, 0), recv(2, 1, 0)], replace(fabric, slots=1))
    assert list(again.visible.values()) == [2 * 1016, 6 * 1016]


def test_one_message_over_the_network():
    """Chips 1 and 2 are in two domains: packets of the network, and its latency of a message."""
    times = run([send(1, 2, 65), recv(2, 1, 65)], replace(DOMAINS, step_fs=30))
    full, last = 3 * (64 + 8), 3 * (1 + 8)
    assert times.visible == {(1, 2, 0, 0): 530 + full + 1000 + full + last + 1000}
    assert times.finish[0] == 530
    assert {link: nbytes for link, nbytes in times.up_bytes.items() if nbytes} == {
        (1, 1): 72 + 9
    }  # behind the domain's
    assert {link: nbytes for link, nbytes in times.down_bytes.items() if nbytes} == {(1, 2): 72 + 9}
    assert times.up_busy_fs[1, 1] == times.down_busy_fs[1, 2] == full + last


def test_domain_and_network_hold_back_neither():
    operations = [send(0, 1), send(0, 2, 64, thread=1), recv(1, 0), recv(2, 0, 64)]
    assert run(operations, DOMAINS).visible == {
        (0, 1, 0, 0): 2 * (FULL + LATENCY),
        (0, 2, 0, 0): 500 + 2 * (3 * 72 + 1000),
    }


def test_network_of_a_mesh():
    """The network has switches, and its rails come after the links to all peers."""
    fabric = replace(mesh(3, width=2), network=replace(NETWORK, widths=(2,)))
    assert first_lane_of(fabric, 2, 3) == first_lane_of(fabric, 0, 8) == 4
    assert first_lane_of(fabric, 5, 4) == 2  # two further in its domain
    assert stage_of(fabric, 2, 3) is fabric.network
    assert stage_of(fabric, 5, 3) is fabric.domain
    times = run([send(0, 3, 65), recv(3, 0, 65)], fabric)
    assert times.visible == {(0, 3, 0, 0): 500 + 2 * (3 * 72 + 1000)}
    assert (times.up_bytes[0, 4], times.up_bytes[0, 5]) == (72, 9)


def test_slots_wait_for_a_notice_of_the_network():
    operations = [send(1, 2, 0) for _ in range(2)] + [recv(2, 1, 0) for _ in range(2)]
    times = run(operations, replace(DOMAINS, slots=1))
    path = 2 * (3 * 8 + 1000)
    assert list(times.visible.values()) == [500 + path, 2 * (500 + path) + path]


def test_network_serves_all_ranks_in_turn():
    """Output 3 of 8 ranks: inputs 4, 6, 0, 1."""
    senders = [0, 1, 4, 6]
    operations = []
    for rank in range(8):
        if rank == 3:
            operations += [recv(3, peer, 64, thread) for thread, peer in enumerate(senders)]
        else:
            operations += [send(rank, 3, 64)] if rank in senders else [local(rank)]
    times = run(operations, DOMAINS)
    first = 500 + 2 * (3 * 72 + 1000)
    assert [times.visible[peer, 3, 0, 0] - first for peer in (4, 6, 0, 1)] == [0, 216, 432, 648]


def test_second_domain_serves_its_own_ranks_in_turn():
    """Output 7 of the domain of 5 to 9, of which there are 5 to 8: inputs 8, 5, 6."""
    senders = [5, 6, 8]
    operations = [send(peer, 7) for peer in senders] + [
        recv(7, peer, thread=place) for place, peer in enumerate(senders)
    ]
    times = run(operations, replace(FABRIC, chips=5))
    first = 2 * (FULL + LATENCY)
    assert [times.visible[peer, 7, 0, 0] - first for peer in (8, 5, 6)] == [0, FULL, 2 * FULL]


def test_coordinates_turn_back_at_every_end():
    assert coordinates((3, 3)) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert coordinates((2, 1, 3)) == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 2), (1, 0, 1), (1, 0, 0)]
    cube = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1), (1, 0, 0)]
    assert coordinates((2, 2, 2)) == cube
    assert coordinates((1,)) == [(0,)]


@pytest.mark.parametrize(
    ("shape", "groups", "neighbours"),
    [
        ((2,), 1, {(0, 1): 0, (1, 0): 0}),
        ((3,), 2, {(0, 1): 0, (1, 2): 0, (2, 0): 0, (1, 0): 1, (2, 1): 1, (0, 2): 1}),
        ((1, 3), 2, {(0, 1): 0, (2, 0): 0, (0, 2): 1}),
        ((2, 2), 2, {(0, 1): 1, (1, 0): 1, (1, 2): 0, (2, 1): 0, (2, 3): 1, (3, 2): 1, (3, 0): 0, (0, 3): 0}),
        # (2, 3): the groups are +1 of the rows, and +1 and -1 of the columns.
        ((2, 3), 3, {(0, 5): 0, (5, 0): 0, (2, 3): 0, (0, 1): 1, (3, 4): 2, (3, 5): 1, (0, 2): 2, (9, 10): 2}),
        ((3, 3), 4, {(0, 5): 0, (0, 6): 1, (2, 3): 0, (3, 2): 1, (0, 1): 2, (1, 0): 3, (0, 2): 3, (3, 4): 3}),
        ((2, 2, 2), 3, {(0, 7): 0, (0, 3): 1, (0, 1): 2}),
    ],
)
def test_directions_of_a_torus(shape, groups, neighbours):
    fabric = torus(shape, groups)
    assert {(s, d): group_of(fabric, s, d) for s, d in neighbours} == neighbours


def test_only_neighbours_of_a_torus_exchange_messages():
    fabric = torus((3, 3), 4)
    for source, destination in [(0, 4), (0, 3), (0, 0), (1, 5)]:
        with pytest.raises(ValueError, match=f"{source}"):
            group_of(fabric, source, destination)
    with pytest.raises(ValueError, match="no neighbours"):
        run([send(0, 4), recv(4, 0)], fabric)


def test_one_message_over_a_torus_link():
    """Both ways round at once are two links; a dimension of two chips has one, each way."""
    operations = [send(0, 1), send(0, 2, thread=1), recv(1, 0), recv(2, 0)]
    times = run(operations, torus((3,), 2))
    assert times.visible == {(0, 1, 0, 0): FULL + LATENCY, (0, 2, 0, 0): FULL + LATENCY}
    assert times.down_bytes[0, 1] == times.down_bytes[1, 2] == FULL
    operations = [send(0, 1), recv(0, 1, thread=1), send(1, 0), recv(1, 0, thread=1)]
    times = run(operations, torus((2,), 1))
    assert times.visible == {(0, 1, 0, 0): FULL + LATENCY, (1, 0, 0, 0): FULL + LATENCY}
    assert times.up_bytes == {(0, 0): FULL, (1, 0): FULL}


def test_no_way_without_a_stage():
    with pytest.raises(ValueError, match="no links from 1 to 2"):
        run([send(1, 2), recv(2, 1)], replace(FABRIC, chips=2))
    with pytest.raises(ValueError, match="itself"):
        run([send(1, 1)], FABRIC)


def lanes_of(fabric):
    """(Stage, latency) of every lane."""
    return [
        (stage, stage.latencies_fs[group])
        for stage in (fabric.domain, fabric.network)
        for group, width in enumerate(stage.widths)
        for _ in range(width)
    ]


@pytest.mark.parametrize("seed", range(80))
def test_random_cases_keep_the_bounds(seed):
    """Bytes are conserved, no link carries more than it can, and no message beats the empty path."""
    operations, fabric = random_case(Random(seed))
    times = run(operations, fabric)
    sends = [index for index, op in enumerate(operations) if op.kind in SENDS]
    assert len(times.visible) == len(sends)
    nbytes = 0
    sent = {}
    for index in sends:
        op = operations[index]
        stage, group = stage_of(fabric, op.rank, op.send_peer), group_of(fabric, op.rank, op.send_peer)
        packets = cut(op.message_bytes, fabric, stage)
        nbytes += sum(packets)
        connection = (op.rank, op.send_peer, op.channel)
        k = sent[connection] = sent.get(connection, -1) + 1
        empty_path = (2 if stage.switched else 1) * (stage.ser(max(packets)) + stage.latencies_fs[group])
        assert times.visible[*connection, k] >= times.finish[index] + empty_path
    up = down = nbytes
    for op in operations:
        if op.kind in IN_SWITCH:
            once = sum(cut_bytes(op.message_bytes, fabric.domain))
            reduces = op.kind == kinds.MULTIMEM_REDUCE
            up += len(op.members) * once if reduces else once
            down += once if reduces else len(op.members) * once
    assert (sum(times.up_bytes.values()), sum(times.down_bytes.values())) == (up, down)
    in_switch = [finish for op, finish in zip(operations, times.finish, strict=True) if op.kind in IN_SWITCH]
    last = max([*times.visible.values(), *in_switch], default=0)
    lanes = lanes_of(fabric)
    busy = [(lane, fs) for (_, lane), fs in times.up_busy_fs.items()]
    busy += [(lane, fs) for (lane, _), fs in times.down_busy_fs.items()]
    for lane, busy_fs in busy:
        stage, latency_fs = lanes[lane]
        assert busy_fs == 0 or fabric.launch_fs + busy_fs + stage.hops * latency_fs + stage.hops - 1 <= last
    for index, op in enumerate(operations):
        assert fabric.launch_fs <= times.start[index] <= times.finish[index] <= times.time_fs
        if op.dep is not None:
            assert times.start[index] >= times.finish[op.dep]


def test_random_cases_use_all_of_it():
    used = set()
    for seed in range(300):
        operations, fabric = random_case(Random(seed))
        lanes = sum(fabric.domain.widths)
        assert len(fabric.domain.widths) == len(fabric.domain.latencies_fs)
        for op in operations:
            if op.kind in SENDS:
                far = first_lane_of(fabric, op.rank, op.send_peer) >= lanes
                used.add((fabric.topology, far, group_of(fabric, op.rank, op.send_peer)))
        used |= {("flit", fabric.domain.flit > 1), ("enable", fabric.domain.enable > 0)}
        used |= {("extra", fabric.network.extra_fs > 0), ("chips", fabric.chips)}
    assert used >= {(topology, True, 0) for topology in ("switched", "nested", "mesh", "torus")}
    assert used >= {("switched", False, 0)} | {("nested", False, level) for level in range(3)}
    assert used >= {("mesh", False, group) for group in range(8)} | {("torus", False, group) for group in range(4)}
    assert used >= {(name, drawn) for name in ("flit", "enable", "extra") for drawn in (False, True)}
    assert used >= {("chips", chips) for chips in range(1, 10)}
