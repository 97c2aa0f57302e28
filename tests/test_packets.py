"""The packet engine against the slow one that was written from docs/timing-rules.md alone."""

import os
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds, links, machine

from collemu.fabric import fresh_state
from collemu.memory import no_data
from collemu.timing import CLOCK_LIMIT_FS, Timing, program_of, run_program, timing_of
from tests.oracles import slow_packets
from tests.oracles.random_packets import random_case

CASES = int(os.environ.get("COLLEMU_PACKET_CASES", "300"))
BATCH = 50


def run_fast(operations: list[slow_packets.Operation], fabric: slow_packets.Fabric) -> Timing:
    """Put a case of the slow engine through the kernels."""
    ranks = 1 + max(max(op.rank, op.send_peer, op.recv_peer) for op in operations)
    sends: dict[tuple[int, int, int], list[int]] = {}
    receives: dict[tuple[int, int, int], list[int]] = {}
    for index, op in enumerate(operations):
        if op.kind in slow_packets.SENDS:
            sends.setdefault((op.rank, op.send_peer, op.channel), []).append(index)
        if op.kind in slow_packets.RECEIVES:
            receives.setdefault((op.recv_peer, op.rank, op.channel), []).append(index)
    sender, receiver, successor, ends, packets, last = [], [], [], [], [], []
    received = np.full(len(operations), -1, np.int32)
    sent = np.full(len(operations), -1, np.int32)
    for connection in sorted(sends):
        for k, op in enumerate(sends[connection]):
            message = len(sender)
            sender.append(op)
            receiver.append(receives[connection][k])
            sent[op] = received[receiver[-1]] = message
            later = k + fabric.slots < len(sends[connection])
            successor.append(message + fabric.slots if later else -1)
            sizes = slow_packets.cut(operations[op].message_bytes, fabric)
            ends.append(connection[:2])
            packets.append(len(sizes))
            last.append(sizes[-1])

    def work(op: slow_packets.Operation) -> int:
        if op.kind == 0:
            return 0
        rate = fabric.reduce if op.kind in slow_packets.REDUCES else fabric.copy
        return slow_packets.duration(op.work_bytes, rate)

    full = fabric.payload + fabric.header
    source, destination = np.array(ends, np.int32).reshape(-1, 2).T
    state = fresh_state(
        links.Fabric(
            ranks=ranks,
            planes=fabric.planes,
            latency=fabric.latency_fs,
            credits=fabric.credits,
            header=fabric.header,
            full=full,
        ),
        np.array([fabric.ser(size) for size in range(full + 1)], np.int64),
        source,
        destination,
        np.array(packets, np.int64),
        np.array(last, np.int64),
    )
    threads: dict[tuple[int, int], int] = {}
    program = program_of(
        machine.Endpoint(
            launch=fabric.launch_fs,
            step=fabric.step_fs,
            notice=2 * (fabric.latency_fs + fabric.ser(fabric.header)),
            limit=CLOCK_LIMIT_FS,
        ),
        state.messages,
        thread=np.array([threads.setdefault((op.rank, op.thread), len(threads)) for op in operations], np.int32),
        dep=np.array([-1 if op.dep is None else op.dep for op in operations], np.int32),
        received=received,
        sent=sent,
        work=np.array([work(op) for op in operations], np.int64),
        sender=np.array(sender, np.int32),
        receiver=np.array(receiver, np.int32),
        successor=np.array(successor, np.int32),
    )
    assert run_program(program, state, no_data()) == machine.DONE
    return timing_of(program, state)


def assert_same_times(operations: list[slow_packets.Operation], fabric: slow_packets.Fabric) -> None:
    slow = slow_packets.run(operations, fabric)
    fast = run_fast(operations, fabric)
    assert fast.time == slow.time_fs
    assert fast.start.tolist() == slow.start
    assert fast.finish.tolist() == slow.finish
    assert fast.visible.tolist() == [slow.visible[key] for key in sorted(slow.visible)]
    for (chip, plane), expected in slow.up_bytes.items():
        assert fast.up_bytes[chip, plane] == expected
        assert fast.up_busy[chip, plane] == slow.up_busy_fs[chip, plane]
    for (plane, chip), expected in slow.down_bytes.items():
        assert fast.down_bytes[chip, plane] == expected
        assert fast.down_busy[chip, plane] == slow.down_busy_fs[plane, chip]


def test_a_credit_that_is_sent_later_may_be_back_sooner() -> None:
    """A starved port knows of a far credit; the short packets behind the long one return nearer ones."""
    fabric = slow_packets.Fabric(
        planes=1, latency_fs=1, link=(1, 1), credits=2, payload=1000, header=1, launch_fs=0, slots=1,
        copy=(0, 1), reduce=(0, 1), step_fs=0, data=1, line=1,
    )  # fmt: skip
    sizes = {1: 1000, 2: 0, 3: 0, 4: 0, 5: 0}
    sends = [
        slow_packets.Operation(0, peer, kinds.SEND, send_peer=peer, message_bytes=size) for peer, size in sizes.items()
    ]
    receives = [
        slow_packets.Operation(peer, 0, kinds.RECV, recv_peer=0, message_bytes=size) for peer, size in sizes.items()
    ]
    assert_same_times([*sends, *receives], fabric)


@pytest.mark.parametrize("batch", range(max(1, CASES // BATCH)))
def test_random_schedules_take_the_same_femtoseconds(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        operations, fabric = random_case(Random(seed))
        try:
            assert_same_times(operations, fabric)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
