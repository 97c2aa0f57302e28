"""The packet engine against the slow one that was written from docs/timing-rules.md alone."""

import os
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds, machine

from collemu.fabric import NOTHING_SHARED, Routes, Shared, StageRules, fresh_state
from collemu.memory import no_data
from collemu.timing import CLOCK_LIMIT_FS, Timing, program_of, run_program, timing_of
from collemu.wiring import Wiring
from tests.oracles import slow_packets
from tests.oracles.random_packets import random_case

CASES = int(os.environ.get("COLLEMU_PACKET_CASES", "300"))
BATCH = 50


def rules_of(stage: slow_packets.Stage, reach: int) -> StageRules:
    """A stage of the slow engine for the kernels."""
    full = stage.header + -(-stage.payload // stage.flit) * stage.flit
    full += stage.enable if stage.payload % stage.flit else 0
    longest = full + stage.flit + stage.enable
    return StageRules(
        wiring=Wiring(stage.widths, stage.latencies_fs, direct=not stage.switched),
        reach=reach,
        credits=stage.credits,
        header=stage.header,
        full=full,
        serialisation=np.array([stage.ser(size) for size in range(longest + 1)], np.int64),
    )


def shared_of(operations: list[slow_packets.Operation], thread: np.ndarray, fabric: slow_packets.Fabric) -> Shared:
    """In-switch operations of the slow engine for the kernels."""
    if not operations:
        return NOTHING_SHARED
    stage = fabric.domain
    cuts = [slow_packets.cut_bytes(op.message_bytes, stage) for op in operations]
    return Shared(
        thread=thread,
        adds=np.array([op.kind == kinds.MULTIMEM_REDUCE for op in operations]),
        rank=np.array([op.rank for op in operations], np.int32),
        first=np.array([op.members[0] for op in operations], np.int32),
        members=np.array([len(op.members) for op in operations], np.int32),
        packets=np.array([len(cut) for cut in cuts], np.int64),
        last_bytes=np.array([cut[-1] for cut in cuts], np.int64),
        lane=np.array([op.offset // stage.payload % stage.widths[0] for op in operations], np.int64),
        step_fs=fabric.step_fs,
    )


def run_fast(operations: list[slow_packets.Operation], fabric: slow_packets.Fabric) -> Timing:
    """Put a case of the slow engine through the kernels."""
    ranks = 1 + max(max(op.rank, op.send_peer, op.recv_peer, *op.members) for op in operations)
    sends: dict[tuple[int, int, int], list[int]] = {}
    receives: dict[tuple[int, int, int], list[int]] = {}
    for index, op in enumerate(operations):
        if op.kind in slow_packets.SENDS:
            sends.setdefault((op.rank, op.send_peer, op.channel), []).append(index)
        if op.kind in slow_packets.RECEIVES:
            receives.setdefault((op.recv_peer, op.rank, op.channel), []).append(index)
    sender, receiver, successor, ends, packets, last = [], [], [], [], [], []
    group, network, step = [], [], []
    received = np.full(len(operations), -1, np.int32)
    sent = np.full(len(operations), -1, np.int32)
    for connection in sorted(sends):
        source, destination, _ = connection
        stage = slow_packets.stage_of(fabric, source, destination)
        for k, op in enumerate(sends[connection]):
            message = len(sender)
            sender.append(op)
            receiver.append(receives[connection][k])
            sent[op] = received[receiver[-1]] = message
            later = k + fabric.slots < len(sends[connection])
            successor.append(message + fabric.slots if later else -1)
            sizes = slow_packets.cut(operations[op].message_bytes, fabric, stage)
            ends.append(connection[:2])
            packets.append(len(sizes))
            last.append(sizes[-1])
            network.append(stage is fabric.network)
            group.append(0 if network[-1] else slow_packets.group_of(fabric, source, destination))
            step.append(fabric.step_fs + stage.extra_fs)

    def work(op: slow_packets.Operation) -> int:
        if op.kind in (kinds.NOP, kinds.MULTIMEM_REDUCE):
            return 0
        rate = fabric.reduce if op.kind in slow_packets.REDUCES else fabric.copy
        return slow_packets.duration(op.work_bytes, rate)

    threads: dict[tuple[int, int], int] = {}
    thread = np.array([threads.setdefault((op.rank, op.thread), len(threads)) for op in operations], np.int32)
    in_switch = [index for index, op in enumerate(operations) if op.kind in slow_packets.IN_SWITCH]
    shared = shared_of([operations[index] for index in in_switch], thread[in_switch], fabric)
    source, destination = np.array(ends, np.int32).reshape(-1, 2).T
    state = fresh_state(
        ranks,
        rules_of(fabric.domain, min(fabric.chips, ranks)),
        rules_of(fabric.network, ranks),
        source,
        destination,
        Routes(
            network=np.array(network, bool),
            group=np.array(group, np.int64),
            packets=np.array(packets, np.int64),
            last_bytes=np.array(last, np.int64),
            step_fs=np.array(step, np.int64),
        ),
        shared,
    )
    program = program_of(
        machine.Endpoint(
            launch=fabric.launch_fs,
            step=fabric.step_fs,
            limit=CLOCK_LIMIT_FS,
        ),
        state.messages,
        thread=thread,
        dep=np.array([-1 if op.dep is None else op.dep for op in operations], np.int32),
        received=received,
        sent=sent,
        work=np.array([work(op) for op in operations], np.int64),
        sender=np.array(sender, np.int32),
        receiver=np.array(receiver, np.int32),
        successor=np.array(successor, np.int32),
        in_switch=np.array(in_switch, np.int32),
        whole=state.whole,
        answer_fs=2 * (fabric.domain.latencies_fs[0] + fabric.domain.ser(fabric.domain.header)) if in_switch else 0,
    )
    assert run_program(program, state, no_data()) == machine.DONE
    return timing_of(program, state, np.array(in_switch, np.int32))


def assert_same_times(operations: list[slow_packets.Operation], fabric: slow_packets.Fabric) -> None:
    slow = slow_packets.run(operations, fabric)
    fast = run_fast(operations, fabric)
    assert fast.time == slow.time_fs
    assert fast.start.tolist() == slow.start
    assert fast.finish.tolist() == slow.finish
    assert fast.visible.tolist() == [slow.visible[key] for key in sorted(slow.visible)]
    for (chip, lane), expected in slow.up_bytes.items():
        assert fast.up_bytes[chip, lane] == expected
        assert fast.up_busy[chip, lane] == slow.up_busy_fs[chip, lane]
    for (lane, chip), expected in slow.down_bytes.items():
        assert fast.down_bytes[chip, lane] == expected
        assert fast.down_busy[chip, lane] == slow.down_busy_fs[lane, chip]


def test_a_credit_that_is_sent_later_may_be_back_sooner() -> None:
    """A starved port knows of a far credit; the short packets behind the long one return nearer ones."""
    fabric = slow_packets.Fabric(
        domain=slow_packets.Stage((1,), (1,), switched=True, link=(1, 1), credits=2, payload=1000, header=1),
        network=slow_packets.NO_STAGE, chips=6, topology="switched", slots=1, copy=(0, 1), reduce=(0, 1), step_fs=0,
        data=1, line=1,
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
