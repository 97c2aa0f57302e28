"""The slow engine against times worked out by hand from docs/timing-rules.md."""

from dataclasses import replace
from random import Random

import pytest
from collemu_kernels import kinds

from tests.oracles.random_packets import random_case
from tests.oracles.slow_packets import SENDS, Fabric, Operation, cut, run

# 1 fs a byte and 100 fs a link; the endpoint takes no time, so that only the fabric shows.
FABRIC = Fabric(
    planes=1,
    latency_fs=100,
    link=(1, 1),
    credits=96,
    payload=256,
    header=16,
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
    times = run([send(0, 1, 257), recv(1, 0, 257)], replace(FABRIC, link=(1, 3)))
    full, last = 91, 6  # ceil(272 / 3), ceil(17 / 3)
    assert times.time_fs == full + LATENCY + full + last + LATENCY


def test_slow_sender_is_not_overtaken():
    times = run([send(0, 1, 257), recv(1, 0, 257)], replace(FABRIC, copy=(10, 1)))
    assert times.start[1] == 2570 + 2 * (272 + LATENCY)


def test_packets_go_round_the_planes_over_all_messages():
    sizes = [257, 0, 256]  # packets 0 and 1, 2, 3
    operations = [send(0, 1, size) for size in sizes] + [recv(1, 0, size) for size in sizes]
    times = run(operations, replace(FABRIC, planes=2))
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
    times = run(operations, replace(FABRIC, planes=2))
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
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], replace(FABRIC, credits=1))
    assert times.time_fs == 4 * 2 * (FULL + LATENCY)


def test_two_credits():
    """Packets 0 and 1 leave at 0 and 272; 2 and 3 each as a credit is back, 744 and 1016; each takes 744."""
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], replace(FABRIC, credits=2))
    assert times.time_fs == 1016 + 744


def test_credits_are_each_planes_own():
    times = run([send(0, 1, 4 * 256), recv(1, 0, 4 * 256)], replace(FABRIC, credits=1, planes=4))
    assert times.time_fs == 2 * (FULL + LATENCY)


def test_a_head_without_credit_holds_back_its_queue():
    """Three round trips, though the last packet goes to another chip: a port is first in, first out."""
    operations = [send(0, 1, 512), send(0, 2, 0, thread=1), recv(1, 0, 512), recv(2, 0, 0)]
    times = run(operations, replace(FABRIC, credits=1))
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
    assert cut(size, fabric) == packets
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
    with pytest.raises(ValueError, match="kind 10"):
        run([local(0, kinds.MULTIMEM_REDUCE)], FABRIC)


@pytest.mark.parametrize("seed", range(40))
def test_random_cases_keep_the_bounds(seed):
    """Bytes are conserved, no link carries more than it can, and no message beats the empty path."""
    operations, fabric = random_case(Random(seed))
    times = run(operations, fabric)
    sends = [index for index, op in enumerate(operations) if op.kind in SENDS]
    assert len(times.visible) == len(sends)
    packets = [size for index in sends for size in cut(operations[index].message_bytes, fabric)]
    assert sum(times.up_bytes.values()) == sum(times.down_bytes.values()) == sum(packets)
    for busy in (*times.up_busy_fs.values(), *times.down_busy_fs.values()):
        assert busy == 0 or fabric.launch_fs + busy + 2 * fabric.latency_fs < max(times.visible.values())
    sent = {}
    for index in sends:
        op = operations[index]
        connection = (op.rank, op.send_peer, op.channel)
        k = sent[connection] = sent.get(connection, -1) + 1
        empty_path = 2 * (fabric.ser(cut(op.message_bytes, fabric)[-1]) + fabric.latency_fs)
        assert times.visible[*connection, k] >= times.finish[index] + empty_path
    for index, op in enumerate(operations):
        assert fabric.launch_fs <= times.start[index] <= times.finish[index] <= times.time_fs
        if op.dep is not None:
            assert times.start[index] >= times.finish[op.dep]
