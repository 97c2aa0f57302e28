"""In-switch operations of the slow engines against times worked out by hand from docs/timing-rules.md."""

from dataclasses import replace
from random import Random

import pytest
from collemu_kernels import kinds

from tests.oracles import slow_flow, slow_packets
from tests.oracles.random_packets import random_case, switch_group_size
from tests.oracles.slow_packets import IN_SWITCH, Operation, cut_bytes, run
from tests.oracles.test_slow_packets import DOMAINS, FABRIC, FULL, LATENCY, local, mesh, recv, send, with_domain

NOTICE = 2 * (LATENCY + 16)
PATH = FULL + LATENCY + FULL + LATENCY  # of a full packet

both_engines = pytest.mark.parametrize("engine", [slow_packets.run, slow_flow.run])
both_kinds = pytest.mark.parametrize("kind", [kinds.MULTIMEM_REDUCE, kinds.MULTIMEM_STORE])


def reduce(rank, members, size=256, thread=0, **kwargs):
    """The work must not count."""
    return Operation(
        rank, thread, kinds.MULTIMEM_REDUCE, members=members, message_bytes=size, work_bytes=1000, **kwargs
    )


def store(rank, members, size=256, thread=0, **kwargs):
    return Operation(rank, thread, kinds.MULTIMEM_STORE, members=members, message_bytes=size, **kwargs)


def only_copies_work(operations):
    return [op if op.kind == kinds.COPY else replace(op, work_bytes=0) for op in operations]


def used(links):
    return {link: amount for link, amount in links.items() if amount}


# Alone.


@both_engines
@pytest.mark.parametrize("members", [(1,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize(("size", "packet"), [(0, 16), (1, 17), (256, FULL)])
def test_one_reduce_of_one_packet(engine, members, size, packet):
    """The rank's terms go to the switch, their sum to the rank; asking for it takes a notice."""
    fabric = replace(FABRIC, launch_fs=1000, step_fs=30, copy=(7, 1), reduce=(9, 1))
    times = engine([reduce(1, members, size), local(1)], fabric)
    finish = 1000 + 30 + packet + LATENCY + packet + LATENCY + 2 * (LATENCY + 16)
    assert times.start == [1000, finish]
    assert times.finish == [finish, finish]
    assert times.time_fs == finish
    assert times.visible == {}


@both_engines
@pytest.mark.parametrize("members", [(1,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize(("size", "packet"), [(0, 16), (1, 17), (256, FULL)])
def test_one_store_of_one_packet(engine, members, size, packet):
    times = engine([store(1, members, size), local(1)], replace(FABRIC, launch_fs=1000, step_fs=30))
    finish = 1000 + 30 + packet + LATENCY + packet + LATENCY + 2 * (LATENCY + 16)
    assert times.start == [1000, finish]
    assert times.finish == [finish, finish]
    assert times.visible == {}


def test_links_of_a_reduce_and_a_store():
    times = run([reduce(1, (0, 1, 2), 257)], FABRIC)
    assert used(times.up_bytes) == used(times.up_busy_fs) == {(chip, 0): FULL + 17 for chip in range(3)}
    assert used(times.down_bytes) == used(times.down_busy_fs) == {(0, 1): FULL + 17}
    times = run([store(1, (0, 1, 2), 257)], FABRIC)
    assert used(times.up_bytes) == used(times.up_busy_fs) == {(1, 0): FULL + 17}
    assert used(times.down_bytes) == used(times.down_busy_fs) == {(0, chip): FULL + 17 for chip in range(3)}
    flow = slow_flow.run([reduce(1, (0, 1, 2), 257)], FABRIC)
    ends = [("up", "domain", chip, 0) for chip in range(3)] + [("down", "domain", 1, 0)]
    assert flow.port_bytes == dict.fromkeys(ends, FULL + 17)
    flow = slow_flow.run([store(1, (0, 1, 2), 257)], FABRIC)
    ends = [("up", "domain", 1, 0)] + [("down", "domain", chip, 0) for chip in range(3)]
    assert flow.port_bytes == dict.fromkeys(ends, FULL + 17)


@both_engines
@both_kinds
def test_every_time_rounds_up_by_itself(engine, kind):
    times = engine([replace(reduce(0, (0, 1), 257), kind=kind, work_bytes=0)], with_domain(link=(1, 3)))
    full, last, header = 91, 6, 6  # ceil(272 / 3), ceil(17 / 3), ceil(16 / 3)
    assert times.finish == [full + LATENCY + full + last + LATENCY + 2 * (LATENCY + header)]


@both_engines
@both_kinds
@pytest.mark.parametrize(
    ("size", "arrival"),
    [
        (2 * 256, PATH),  # a lane each
        (3 * 256 + 1, PATH + 17),  # the last one behind the first: FULL + LATENCY + FULL + 17 + LATENCY
        (5 * 256 + 100, PATH + FULL),  # two full ones on the first lane, and the short one is on the last
        (6 * 256 + 100, PATH + FULL + 116),
    ],
)
@pytest.mark.parametrize("offset", [0, 255, 256, 522, 5000])
def test_several_packets_on_three_lanes(engine, kind, size, arrival, offset):
    operation = replace(reduce(0, (0, 1, 2), size, offset=offset), kind=kind, work_bytes=0)
    assert engine([operation], with_domain(widths=(3,))).finish == [arrival + NOTICE]


@pytest.mark.parametrize(
    ("offset", "lanes"),
    [
        (0, [2 * FULL, 2 * FULL, FULL + 116]),
        (255, [2 * FULL, 2 * FULL, FULL + 116]),
        (256, [FULL + 116, 2 * FULL, 2 * FULL]),
        (522, [2 * FULL, FULL + 116, 2 * FULL]),  # 522 div 256 = 2
        (3 * 256, [2 * FULL, 2 * FULL, FULL + 116]),
    ],
)
def test_the_offset_says_on_which_lane_packets_begin(offset, lanes):
    size = 5 * 256 + 100
    times = run([reduce(1, (0, 1), size, offset=offset)], with_domain(widths=(3,)))
    assert [times.up_bytes[0, lane] for lane in range(3)] == lanes
    assert [times.up_bytes[1, lane] for lane in range(3)] == lanes
    assert [times.down_bytes[lane, 1] for lane in range(3)] == lanes
    times = run([store(1, (0, 1), size, offset=offset)], with_domain(widths=(3,)))
    assert [times.up_bytes[1, lane] for lane in range(3)] == lanes
    assert [times.down_bytes[lane, 0] for lane in range(3)] == lanes
    assert [times.down_bytes[lane, 1] for lane in range(3)] == lanes


@both_engines
def test_memory_is_in_no_lines(engine):
    """256 bytes of memory are one full packet, though a message of 256 bytes would be two of them."""
    fabric = replace(FABRIC, data=8, line=16)
    assert engine([reduce(0, (0, 1))], fabric).finish == [PATH + NOTICE]
    assert engine([store(0, (0, 1))], fabric).finish == [PATH + NOTICE]


@both_engines
@pytest.mark.parametrize(
    ("copy", "visible"),
    [
        ((0, 1), FULL + LATENCY + 5 * FULL + LATENCY),
        ((1, 2), 1832),  # 640 + PATH = 1384 is earlier
        ((1, 1), 1280 + PATH),  # later than 1832
    ],
)
def test_store_that_copies_faster_or_more_slowly_than_the_links(engine, copy, visible):
    times = engine([store(0, (0, 1, 2), 1280, work_bytes=1280)], replace(FABRIC, copy=copy, step_fs=30))
    assert times.finish == [30 + visible + NOTICE]


def test_the_second_domain():
    """Ranks 2 and 3 of domains of two, beside a network: its links do not count."""
    times = run([reduce(3, (2, 3)), store(3, (2, 3))], DOMAINS)
    assert times.finish == [PATH + NOTICE, 2 * (PATH + NOTICE)]
    assert used(times.up_bytes) == {(2, 0): FULL, (3, 0): 2 * FULL}
    assert used(times.down_bytes) == {(0, 2): FULL, (0, 3): 2 * FULL}


@both_engines
def test_they_wait_for_a_dependency_and_are_one(engine):
    operations = [local(0, kinds.COPY, 50), reduce(0, (0, 1), thread=1, dep=0), store(1, (0, 1), dep=1)]
    times = engine(operations, replace(FABRIC, copy=(1, 1)))
    assert times.start == [0, 50, 50 + PATH + NOTICE]
    assert times.finish == [50, 50 + PATH + NOTICE, 50 + 2 * (PATH + NOTICE)]


# Credits of packets.


def test_one_credit_of_terms():
    """Back one latency after the switch has the packet: 472 from packet to packet, not 744."""
    times = run([reduce(0, (0, 1), 4 * 256)], with_domain(credits=1))
    assert times.finish == [3 * (FULL + LATENCY + LATENCY) + PATH + NOTICE]


def test_two_credits_of_terms():
    """Credits are back at 472 and 744: before the port has sent packets 1 and 2, at 544 and 816."""
    assert run([reduce(0, (0, 1), 4 * 256)], with_domain(credits=2)).finish == [3 * FULL + PATH + NOTICE]
    late = with_domain(credits=2, latencies_fs=(200,))  # 672 and 944: packet 2 waits for its credit, 3 for its own
    path, notice = 2 * (FULL + 200), 2 * (200 + 16)
    assert run([reduce(0, (0, 1), 4 * 256)], late).finish == [944 + path + notice]


def test_one_credit_of_a_store():
    times = run([store(0, (0, 1), 4 * 256)], with_domain(credits=1))
    assert times.finish == [4 * PATH + NOTICE]


def test_the_credit_of_a_term_does_not_wait_for_its_sum():
    """Chip 1 first sends to chip 2: its terms leave at 744 (its credit is back) and 1216 (744 + 472).

    Those of chip 0 leave at 0 and 472, and a message behind them at 944.
    """
    operations = [
        reduce(0, (0, 1), 512),
        local(0, kinds.COPY, 1, thread=1),
        send(0, 3, thread=1),
        send(1, 2),
        recv(2, 1),
        recv(3, 0),
    ]
    times = run(only_copies_work(operations), replace(with_domain(credits=1), copy=(1, 1)))
    assert times.visible == {(1, 2, 0, 0): PATH, (0, 3, 0, 0): 944 + PATH}
    assert times.finish[0] == 1216 + PATH + NOTICE


@pytest.mark.parametrize(("group", "second_leaves"), [((0, 1), 744), ((0, 1, 2), 744 + FULL)])
def test_the_credit_of_a_store_waits_for_the_slowest_copy(group, second_leaves):
    """Output 2 serves chip 3 first, from 372 to 644. The copy to chip 2 ends at 916, its credit is back at 1016."""
    operations = [store(0, group, 512), recv(2, 3), send(3, 2)]
    times = run(operations, with_domain(credits=1))
    assert times.visible == {(3, 2, 0, 0): PATH}
    assert times.finish[0] == second_leaves + PATH + NOTICE


def test_a_store_waits_for_its_slowest_copy():
    operations = [store(0, (0, 1, 2)), recv(2, 3), send(3, 2)]
    assert run(operations, FABRIC).finish[0] == PATH + FULL + NOTICE


def test_a_sum_holds_no_credit():
    """The sum for chip 0 waits for chip 2's message; the only credit of chip 0 is back at 472, once."""
    operations = [
        reduce(0, (0, 1)),
        send(0, 3, 512, thread=1, dep=2),
        local(0, kinds.COPY, 1, thread=2),
        recv(0, 2, thread=3),
        send(2, 0),
        recv(3, 0, 512),
    ]
    times = run(only_copies_work(operations), replace(with_domain(credits=1), copy=(1, 1)))
    assert times.finish[0] == PATH + FULL + NOTICE
    assert times.visible[0, 3, 0, 0] == 472 + PATH + PATH


# Packets in line.


@both_kinds
def test_messages_go_first_and_packets_in_the_switch_are_not_counted(kind):
    """The line of chip 1: its messages of both threads, and then the term or store that was ready as early."""
    operations = [
        local(0),
        replace(reduce(1, (0, 1)), kind=kind, work_bytes=0),
        send(1, 2, 0, thread=1),
        send(1, 2, 256, thread=1),
        recv(2, 1, 0),
        recv(2, 1, 256),
    ]
    times = run(operations, FABRIC)
    assert list(times.visible.values()) == [2 * (16 + LATENCY), 16 + PATH]
    assert times.finish[1] == 16 + FULL + PATH + NOTICE
    two_lanes = run(operations, with_domain(widths=(2,)))  # the messages on lanes 0 and 1, the other on lane 0
    assert (two_lanes.up_bytes[1, 0], two_lanes.up_bytes[1, 1]) == (16 + FULL, FULL)
    assert two_lanes.finish[1] == 16 + PATH + NOTICE
    operations[1] = replace(operations[1], offset=256)
    two_lanes = run(operations, with_domain(widths=(2,)))  # all on lane 1, but the first message
    assert (two_lanes.up_bytes[1, 0], two_lanes.up_bytes[1, 1]) == (16, 2 * FULL)
    assert two_lanes.finish[1] == FULL + PATH + NOTICE


def test_a_packet_in_the_switch_between_two_messages_is_not_counted():
    """Message, store, message on two lanes: the last takes lane 1 though the store took lane 0."""
    operations = [
        send(0, 2),
        local(0, kinds.COPY, 1, thread=1),
        store(0, (0, 1), thread=1),
        local(0, kinds.COPY, 2, thread=2),
        send(0, 2, channel=1, thread=2),
        recv(2, 0),
        recv(2, 0, channel=1, thread=1),
    ]
    times = run(only_copies_work(operations), replace(with_domain(widths=(2,)), copy=(1, 1)))
    assert (times.up_bytes[0, 0], times.up_bytes[0, 1]) == (2 * FULL, FULL)
    assert times.visible[0, 2, 1, 0] == 2 + PATH


def test_a_message_that_an_arrival_made_ready_goes_first_too():
    """At 744, chip 1 has received from chip 2 what it sends on, and chip 0 has copied what it reduces."""
    operations = [
        local(0, kinds.COPY, PATH),
        reduce(0, (0, 1)),
        recv(1, 2, thread=1),
        send(1, 3, thread=1),
        send(2, 1),
        recv(3, 1),
    ]
    times = run(only_copies_work(operations), replace(FABRIC, copy=(1, 1)))
    assert times.start[1] == times.start[3] == PATH
    assert times.visible[1, 3, 0, 0] == PATH + PATH
    assert times.finish[1] == PATH + FULL + PATH + NOTICE


def test_two_reduces_of_different_ranks():
    """Both put terms in both lines: rank 0's go first. The sums have an output each."""
    times = run([reduce(0, (0, 1)), reduce(1, (0, 1))], FABRIC)
    assert times.finish == [PATH + NOTICE, FULL + PATH + NOTICE]
    times = run([reduce(0, (0, 1), offset=256), reduce(1, (0, 1))], with_domain(widths=(2,)))
    assert times.finish == [PATH + NOTICE, PATH + NOTICE]


def test_lines_go_by_rank_then_thread_then_step():
    """At chip 1: rank 0's term, though its thread is later, then rank 1's by thread; rank 2's last."""
    operations = [
        local(0),
        reduce(0, (0, 1, 2), thread=1),
        store(1, (0, 1, 2), 0),
        store(1, (0, 1, 2), 1, thread=1),
        reduce(2, (0, 1, 2)),
    ]
    times = run(operations, FABRIC)
    assert times.finish[1] == PATH + NOTICE
    # Chip 1's port: FULL, 16, 17, FULL. All outputs are idle when stores are there, or become so: the sum leaves
    # output 0 at 644, the store of 16 is at the switch at 272 + 16 + 100 = 388 and at output 0 waits until 644.
    assert times.finish[2] == 644 + 16 + LATENCY + NOTICE
    assert times.finish[3] == 660 + 17 + LATENCY + NOTICE
    # The last term of rank 2 is at the switch at FULL + 16 + 17 + FULL + LATENCY; output 2 is idle.
    assert times.finish[4] == FULL + 16 + 17 + PATH + NOTICE


def test_a_sum_waits_for_the_latest_term_of_each_packet():
    """Chip 1 is busy for 1000; chip 0's two terms are at the switch long before its first."""
    operations = [reduce(0, (0, 1), 512), send(1, 2, 984), recv(2, 1, 984)]
    times = run(operations, with_domain(payload=984))  # one packet each
    assert times.finish[0] == 1000 + 2 * (528 + LATENCY) + NOTICE
    times = run([reduce(0, (0, 1), 512), send(1, 2, 512), recv(2, 1, 512)], FABRIC)
    assert times.finish[0] == 2 * FULL + FULL + LATENCY + 2 * FULL + LATENCY + NOTICE


# At the outputs.


def test_a_sum_is_of_the_input_of_its_rank():
    """Output 0 begins at input 1: chip 2's packet goes first, and chip 0's own input is the last of all."""
    operations = [reduce(0, (0, 1)), recv(0, 2, thread=1), send(2, 0)]
    times = run(operations, FABRIC)
    assert times.visible == {(2, 0, 0, 0): PATH}
    assert times.finish[0] == PATH + FULL + NOTICE


def test_copies_are_of_the_input_of_the_storing_rank():
    """At output 1, which begins at input 2: chip 2's packet, then chip 0's copy; at output 0 and 2 nothing waits."""
    operations = [store(0, (0, 1, 2)), recv(1, 2), send(2, 1)]
    times = run(operations, FABRIC)
    assert times.visible == {(2, 1, 0, 0): PATH}
    assert times.finish[0] == PATH + FULL + NOTICE
    operations = [send(0, 1), recv(1, 0), store(2, (0, 1, 2))]  # chip 2's copy first
    times = run(operations, FABRIC)
    assert times.finish[2] == PATH + NOTICE
    assert times.visible == {(0, 1, 0, 0): PATH + FULL}


@pytest.mark.parametrize("store_thread", [0, 1])
def test_sums_and_copies_that_come_at_once_go_by_thread(store_thread):
    """Both at 644: chip 0's store is behind its term (0 to 272), chip 1's term behind a message as long."""
    operations = [
        local(0, kinds.COPY, 1, thread=store_thread),
        store(0, (0, 1), thread=store_thread),
        reduce(0, (0, 1), thread=1 - store_thread),
        send(1, 2),
        recv(2, 1),
    ]
    if store_thread == 1:
        operations = [operations[2], *operations[:2], *operations[3:]]
    times = run(only_copies_work(operations), replace(FABRIC, copy=(1, 1)))
    by_kind = {op.kind: finish for op, finish in zip(operations, times.finish, strict=True)}
    first, second = 644 + FULL + LATENCY + NOTICE, 644 + 2 * FULL + LATENCY + NOTICE
    copies_first = store_thread == 0
    assert by_kind[kinds.MULTIMEM_STORE] == (first if copies_first else second)
    assert by_kind[kinds.MULTIMEM_REDUCE] == (second if copies_first else first)


def test_sums_and_copies_go_in_the_order_in_which_they_came():
    """Output 0 serves chip 2 from 472 to 744. The copy comes at 644, the sum of an earlier thread at 660."""
    operations = [
        reduce(0, (0, 1)),
        local(0, kinds.COPY, 1, thread=1),
        store(0, (0, 1), thread=1),
        recv(0, 2, thread=2),
        send(1, 3),
        send(1, 3, 0),
        local(2, kinds.COPY, 100),
        send(2, 0),
        recv(3, 1),
        recv(3, 1, 0),
    ]
    times = run(only_copies_work(operations), replace(FABRIC, copy=(1, 1)))
    assert times.visible[2, 0, 0, 0] == 744 + LATENCY
    assert times.finish[2] == 744 + FULL + LATENCY + NOTICE
    assert times.finish[0] == 744 + 2 * FULL + LATENCY + NOTICE


# Flow.


@pytest.mark.parametrize(
    ("operation", "depth", "pace"),
    [
        (reduce(0, (0, 1), 1024), 4, FULL),
        (reduce(0, (0, 1), 1024), 1, FULL + 2 * LATENCY),
        (reduce(0, (0, 1), 1024), 3, FULL),  # ceil(472 / 3) is less
        (store(0, (0, 1), 1024), 4, FULL),
        (store(0, (0, 1), 1024), 1, 2 * FULL + 2 * LATENCY),
        (store(0, (0, 1), 1024), 2, 372),
        (store(0, (0, 1), 1024), 3, FULL),  # ceil(744 / 3) = 248
    ],
)
def test_flow_of_more_packets_than_credits(operation, depth, pace):
    """The pace of terms is that of their sum too: what comes next begins when the port is free."""
    behind = replace(operation, offset=0, thread=1)
    operations = [operation, local(0, kinds.COPY, 1, thread=1), behind]
    times = slow_flow.run(operations, replace(with_domain(credits=depth), copy=(1, 1)))
    until_last = 3 * pace + FULL
    assert times.finish[0] == FULL + LATENCY + until_last + LATENCY + NOTICE
    assert times.finish[2] == until_last + times.finish[0]  # one lane: a port is occupied until the last packet


def test_flow_of_two_reduces():
    operations = [reduce(0, (0, 1)), local(1, kinds.COPY, 1), reduce(1, (0, 1))]
    times = slow_flow.run(operations, replace(FABRIC, copy=(1, 1)))
    assert times.finish == [PATH + NOTICE, 1, FULL + PATH + NOTICE]
    assert (times.waited, times.tied) == (2, False)


def test_flow_of_a_sum_asks_after_the_latest_term():
    """Chip 1's port is occupied until 330: 2 full and one of 116 on two lanes."""
    operations = [local(0, kinds.COPY, 1), reduce(0, (0, 1, 2)), send(1, 3, 612), recv(3, 1, 612)]
    times = slow_flow.run(only_copies_work(operations), replace(with_domain(widths=(2,)), copy=(1, 1)))
    assert times.finish[1] == 330 + PATH + NOTICE


def test_flow_of_a_message_behind_a_term_and_a_sum():
    """A reduce of 2 full packets and one of 116 on two lanes: 330 at the ports of 1 and 0."""
    operations = [
        reduce(0, (0, 1), 612),
        recv(0, 2, thread=1),
        local(1, kinds.COPY, 1),
        send(1, 3),
        local(2, kinds.COPY, 1),
        send(2, 0),
        recv(3, 1),
    ]
    times = slow_flow.run(only_copies_work(operations), replace(with_domain(widths=(2,)), copy=(1, 1)))
    assert times.visible == {(1, 3, 0, 0): 330 + PATH, (2, 0, 0, 0): 372 + 330 + FULL + LATENCY}


def test_flow_of_copies_asks_after_the_store_began():
    """Its port is occupied until 272 by a message, and chip 1's by another from 372 + 200 to 844: later than 644."""
    operations = [
        send(0, 3),
        local(0, kinds.COPY, 1, thread=1),
        store(0, (0, 1, 2), thread=1),
        recv(1, 3),
        recv(3, 0),
        local(3, kinds.COPY, 200, thread=1),
        send(3, 1, thread=1),
    ]
    times = slow_flow.run(only_copies_work(operations), replace(FABRIC, copy=(1, 1)))
    assert times.finish[2] == 844 + FULL + LATENCY + NOTICE
    assert times.waited == 2


# Both engines, at random.


@pytest.mark.parametrize("seed", range(100))
def test_alone_flow_takes_as_long_as_packets(seed):
    """Unless there are more packets than credits, or the last one is longer than a full one for its byte enables."""
    rng = Random(seed)
    fabric = with_domain(
        widths=(rng.randint(1, 5),),
        link=(rng.randint(1, 50), rng.randint(1, 20)),
        credits=3000,
        payload=rng.randint(1, 300),
        header=rng.randint(1, 20),
    )
    fabric = replace(fabric, copy=(rng.randint(0, 20), 3), step_fs=rng.randint(0, 9))
    size = rng.randint(0, 3000)
    operation = store(rng.randrange(4), (0, 1, 2, 3), size, offset=rng.randint(0, 999), work_bytes=size)
    if rng.random() < 0.5:
        operation = replace(operation, kind=kinds.MULTIMEM_REDUCE)
    assert slow_flow.run([operation], fabric).finish == slow_packets.run([operation], fabric).finish


def test_random_cases_use_all_of_it():
    drawn = set()
    for seed in range(600):
        operations, fabric = random_case(Random(seed))
        in_switch = [index for index, op in enumerate(operations) if op.kind in IN_SWITCH]
        assert (switch_group_size(operations) > 0) == bool(in_switch)
        if not in_switch:
            continue
        times, stage = run(operations, fabric), fabric.domain
        latency = stage.latencies_fs[0]
        drawn |= {("lanes", stage.widths[0]), ("network", bool(fabric.network.widths))}
        for index in in_switch:
            op = operations[index]
            packets = cut_bytes(op.message_bytes, stage)
            path = 2 * (stage.ser(max(packets)) + latency) + 2 * (latency + stage.ser(stage.header))
            assert times.finish[index] >= times.start[index] + fabric.step_fs + path
            drawn |= {(op.kind, len(op.members)), ("packets", min(len(packets), 3)), ("dep", op.dep is not None)}
            drawn |= {("offset", op.offset > 0), ("aligned", op.offset % stage.payload == 0)}
    assert drawn >= {(kind, members) for kind in IN_SWITCH for members in range(1, 6)}
    assert drawn >= {(what, either) for what in ("network", "dep", "offset", "aligned") for either in (False, True)}
    assert drawn >= {("packets", count) for count in (1, 2, 3)} | {("lanes", lanes) for lanes in (1, 2, 3, 4)}


def test_bad_operations():
    with pytest.raises(ValueError, match="no in-switch operation in a mesh domain"):
        run([reduce(0, (0, 1))], mesh(3))
    with pytest.raises(ValueError, match="not of its domain"):
        run([reduce(1, (1, 2))], DOMAINS)
    with pytest.raises(ValueError, match="not of its domain"):
        run([store(0, (1, 2))], FABRIC)
