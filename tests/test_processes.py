"""Times of processes: against the slow engine that was written from docs/timing-rules.md, and laws of their own."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

import collemu as ce
from collemu.catalogue.system import Conversion, Processes, Reduction
from collemu.cli.crosscheck_table import regime_note
from collemu.lower import lower
from tests.oracles import slow_processes
from tests.oracles.hard_numbers import hard_numbers
from tests.oracles.random_processes import BASE, Case, built_in, machine_of, operations_of, random_schedule

CASES = int(os.environ.get("COLLEMU_PROCESSES_CASES", "300"))  # of random schedules and of built-in ones each
BATCH = 100

#: As long for a byte whatever the size, and so of all memory.
PLAIN = Processes(
    cores=2,
    measured=2,
    operation_s=1e-6,
    send_s=2e-6,
    notice_s=3e-6,
    wake_s=1e-5,
    eager_bytes=100,
    sizes_bytes=(1,),
    copy_s=(4e-8,),
    reduce_s=(5e-8,),
    transfer_s=(6e-8,),
)


def of_processes(launch_s: float = 7e-6, **changes: object) -> ce.System:
    """`PLAIN` with changes, which starts within `launch_s`."""
    return replace(BASE.with_(**{"endpoint.launch_s": launch_s}), processes=replace(PLAIN, **changes))


@pytest.mark.parametrize("make", [built_in, random_schedule])
@pytest.mark.parametrize("batch", range(-(-CASES // BATCH)))
def test_both_engines_have_the_same_femtoseconds(make, batch) -> None:
    ran = 0
    for seed in range(batch * BATCH, batch * BATCH + BATCH):
        ran += compare(make(seed), f"seed {seed}")
    assert ran >= BATCH * 0.7


def compare(case: Case, what: str) -> bool:
    """Whether it ran to its end; in both engines alike."""
    held = "float32" if case.wire != "none" else case.dtype
    try:
        result = case.emulate()
    except ce.ScheduleError as error:
        lowered = lower(case.schedule, case.count, item_bytes=1)
        machine = machine_of(case.system, lowered, wire=case.wire, held=held)
        with pytest.raises(RuntimeError, match="deadlock") as expected:
            slow_processes.run(operations_of(lowered), machine, case.schedule.ranks)
        assert f": {str(expected.value).split()[1]} operations never start, first rank" in str(error), what
        return False
    machine = machine_of(case.system, result.lowered, wire=case.wire, held=held)
    expected = slow_processes.run(operations_of(result.lowered), machine, case.schedule.ranks)
    operations, messages = result.timeline.operations, result.timeline.messages
    assert operations["start_fs"].tolist() == expected.start, what
    assert operations["finish_fs"].tolist() == expected.finish, what
    keys = list(zip(*(messages[each].tolist() for each in ("source", "destination", "channel", "number")), strict=True))
    assert dict(zip(keys, messages["ready_fs"].tolist(), strict=True)) == expected.ready, what
    assert dict(zip(keys, messages["visible_fs"].tolist(), strict=True)) == expected.visible, what
    assert result.time_fs == expected.time_fs, what
    return True


# By hand, in microseconds: launch 7, operation 1, send 2, notice 3, wake 10; of 100 bytes, copy 4, take 6.


@pytest.mark.parametrize(
    ("nbytes", "sent", "taken", "received", "over"),
    [
        # The root copies its own until 7 + 1 + 4, and sends for 1 + 2 + 4: it is gone. 10 later the other is awake,
        # takes for 3 + 6, and copies for 1 + 4.
        (100, 19, 38, 43, 43),
        # 7 + 1 + 8 and 1 + 2 + 8, 10 and 3 + 12, when it is gone, and 1 + 8. The root is awake 10 later, notices for 3.
        (200, 27, 52, 61, 65),
    ],
)
def test_a_message_to_another(nbytes, sent, taken, received, over) -> None:
    schedule = ce.build_schedule("broadcast", "chain", 2, chunks=1)
    result = ce.emulate(schedule, of_processes(), count=nbytes, dtype="uint8")
    assert result.header["fidelity"] == "processes"
    (message,) = result.timeline.messages
    end = result.timeline.operations["finish_fs"][message["receiver"]]
    times = (message["ready_fs"], message["visible_fs"], end, result.time_fs)
    assert times == tuple(each * 10**9 for each in (sent, taken, received, over))


def test_who_does_nothing_is_over_after_the_launch() -> None:
    schedule = ce.build_schedule("all_reduce", "ring", 2)
    nothing = replace(schedule, threads=schedule.threads[:0], ops=schedule.ops[:0])
    assert ce.emulate(nothing, of_processes(cores=1), count=1).time_fs == 14 * 10**9  # one after the other
    assert ce.emulate(nothing, of_processes(cores=2), count=1).time_fs == 7 * 10**9


# Laws


@pytest.mark.parametrize("seed", range(40))
def test_more_cores_than_ranks_are_left_alone(seed) -> None:
    case = built_in(seed)
    ran = [
        replace(case, system=replace(case.system, processes=replace(case.system.processes, cores=cores))).emulate()
        for cores in (case.schedule.ranks, case.schedule.ranks + 1, 4096)
    ]
    for other in ran[1:]:
        np.testing.assert_array_equal(ran[0].timeline.operations, other.timeline.operations)
        assert ran[0].time_fs == other.time_fs


@pytest.mark.parametrize("make", [built_in, random_schedule])
def test_no_more_operations_at_once_than_cores_and_one_a_rank(make) -> None:
    seen = 0
    for seed in range(60):
        case = make(seed)
        try:
            operations = case.emulate().timeline.operations
        except ce.ScheduleError:
            continue
        for rank in range(case.schedule.ranks):
            own = np.sort(operations[operations["rank"] == rank], order=["start_fs", "finish_fs"])
            assert (own["start_fs"][1:] >= own["finish_fs"][:-1]).all()
        long = operations[operations["finish_fs"] > operations["start_fs"]]
        running = (long["start_fs"][:, None] <= long["start_fs"]) & (long["start_fs"] < long["finish_fs"][:, None])
        at_once = running.sum(axis=0).max(initial=0)
        assert at_once <= case.system.processes.cores
        seen = max(seen, at_once)
    assert seen > 2


@pytest.mark.parametrize("wire", ["none", "mxfp4"])
@pytest.mark.parametrize(("collective", "algorithm"), [("all_reduce", "two_shot"), ("alltoall", "direct")])
def test_outputs_are_those_of_flow(collective, algorithm, wire) -> None:
    schedule = ce.build_schedule(collective, algorithm, 5)
    data = hard_numbers(3, (5, 77 * schedule.input_regions), "mixed")
    how = {"count": 77, "data": data, "wire": wire}
    own, flow = (ce.emulate(schedule, of_processes(), fidelity=each, **how) for each in ("processes", "flow"))
    np.testing.assert_array_equal(own.outputs, flow.outputs)
    assert own.time_fs == ce.emulate(schedule, of_processes(), count=77, wire=wire).time_fs  # the same without data
    assert own.wire_bytes == flow.wire_bytes


# The numbers of a system that an operation takes


def first_operation(system: ce.System, wire: str, dtype: str = "float32") -> int:
    """Femtoseconds of the first receive of an all_reduce of a term to everybody, which adds."""
    schedule = ce.build_schedule("all_reduce", "one_shot", 2)
    operations = ce.emulate(schedule, system, count=64, wire=wire, dtype=dtype).timeline.operations
    adding = operations[operations["received"] >= 0][0]
    return int(adding["finish_fs"] - adding["start_fs"])


def test_conversions_and_sums_have_rates_of_their_own() -> None:
    plain = of_processes()
    own = replace(
        plain,
        conversions={"mxfp4": Conversion(1e6, 1e8)},
        reductions={"float32": Reduction(1e7), "float64": Reduction(1e9)},
    )
    added, by_rate = 256 * 5 * 10**7, 256 * 10**8
    decoded = first_operation(plain, "mxfp4") - 10**9 - added
    assert decoded == math.ceil(256 * plain.endpoint.dequantize_fs_per_byte)
    assert first_operation(plain, "none") == 10**9 + added
    assert first_operation(own, "none") == 10**9 + by_rate
    assert first_operation(own, "mxfp4") == 10**9 + by_rate + 256 * 10**7
    assert first_operation(own, "bfloat16") == 10**9 + by_rate + decoded
    assert first_operation(own, "none", "float64") == 10**9 + 512 * 10**6


# What cannot run


def test_a_deadlock_names_operations() -> None:
    schedule = ce.build_schedule("all_gather", "ring", 3)
    ops = schedule.ops.copy()
    receivers = np.flatnonzero(ce.emulate(schedule, of_processes(), count=4).timeline.operations["received"] >= 0)
    ops["dep"][receivers] = -1
    thread = schedule.threads[0]
    ops["dep"][thread["first"]] = thread["first"] + thread["length"] - 1  # its first waits for its last
    with pytest.raises(ce.ScheduleError, match=r"deadlocks with 8 FIFO slots: \d+ operations never start, first r"):
        ce.emulate(replace(schedule, ops=ops), of_processes(), count=4)


def test_a_system_of_chips_has_no_processes() -> None:
    schedule = ce.build_schedule("all_reduce", "ring", 2)
    expected = r"^trainium4_nvl72 has no \[processes\]: choose another fidelity; collemu calibrate host makes one$"
    with pytest.raises(ValueError, match=expected):
        ce.emulate(schedule, BASE, count=4, fidelity="processes")


@pytest.mark.parametrize("name", ["operation_s", "notice_s", "wake_s"])
def test_a_run_beyond_the_clock_is_refused(name) -> None:
    """Each alone, were it added up in int64, would begin again below zero."""
    schedule = ce.build_schedule("all_reduce", "ring", 4, chunks=50)
    with pytest.raises(ValueError, match="longer than the clock"):
        ce.emulate(schedule, of_processes(**{name: 10.0}), count=4)


def test_what_switches_do_has_no_rule_among_processes() -> None:
    switches = {"domain.in_switch_reduction": True, "domain.in_switch_float8": True}
    system = replace(of_processes().with_(**switches), processes=PLAIN)
    schedule = ce.build_schedule("all_reduce", "nvls", 4)
    assert ce.emulate(schedule, system, count=64, fidelity="flow").time_s > 0
    with pytest.raises(ValueError, match="has processes, and no rule for what switches do: choose another fidelity"):
        ce.emulate(schedule, system, count=64, fidelity="processes")


@pytest.mark.parametrize(
    ("measured", "ran", "said"),
    [(2, 2, False), (2, 1, False), (2, 3, True), (4, 4, False), (4, 9, False), (4, 2, True)],
)
def test_a_machine_measured_with_cores_to_spare_is_told_from_shared_ones(measured, ran, said) -> None:
    note = regime_note(of_processes(measured=measured), ran)
    assert note == (
        f"trainium4_nvl72 was measured with {measured} processes on 2 cores, and {ran} ran: "
        f"mpirun -n {ran} collemu calibrate host"
        if said
        else None
    )
    assert regime_note(BASE, ran) is None
