"""Break built-in schedules at random: verify() must refuse them, or they must still give the exact result.

That a break is harmless is proved by the independent interpreter under several interleavings.
"""

import dataclasses
import re
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import event, example, given
from hypothesis import strategies as st

from collemu.schedule import OP, RECEIVES, SENDS, ScheduleError, algorithms, build_schedule
from collemu.verification import verify
from tests.oracles.collectives_reference import input_elements, reference
from tests.oracles.schedule_interpreter import NonsenseError, StuckError, any_order, by_priority, interpret

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv")
BUILT_IN = [(collective, name) for collective in COLLECTIVES for name in algorithms(collective)]
FAULTS = (
    "deadlock",
    "race",
    "lacks",
    "holds",
    "never written",
    "written yet",
    "different chunks",
    "its receiver",
    "receives only",
    "sends only",
    "both",
    "need not have begun",
    "may have ended",
)
ABSENT = re.compile(
    r"rank (?P<rank>\d+) thread (?P<thread>\d+) step (?P<step>\d+) .* rank (?P<touched>\d+), which (?P<state>need|may)"
)
KINDS = range(kinds.NOP, kinds.MULTIMEM_STORE + 1)


class Draft:
    """A schedule as lists of operations, so that operations can come and go; dependencies are references."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.ops = [dict(zip(OP.names, row, strict=True)) for row in schedule.ops.tolist()]
        for op in self.ops:
            op["dep"] = self.ops[op["dep"]] if op["dep"] >= 0 else None
        self.rows = schedule.threads.copy()
        self.threads = [self.ops[row["first"] : row["first"] + row["length"]] for row in schedule.threads]

    def finish(self):
        ops = [op for thread in self.threads for op in thread]
        index = {id(op): number for number, op in enumerate(ops)}
        table = np.empty(len(ops), dtype=OP)
        for number, op in enumerate(ops):
            table[number] = tuple(index.get(id(op[n]), -1) if n == "dep" else op[n] for n in OP.names)
        self.rows["length"] = [len(thread) for thread in self.threads]
        self.rows["first"] = np.cumsum(self.rows["length"]) - self.rows["length"]
        return dataclasses.replace(self.schedule, threads=self.rows, ops=table)

    def pick(self, random, table=None):
        """A random operation (of the kinds in a table) and where it is; None if there is none."""
        places = [
            (thread, step)
            for thread, ops in enumerate(self.threads)
            for step, op in enumerate(ops)
            if table is None or table[op["kind"]]
        ]
        return random.choice(places) if places else None


def drop(draft, random):
    thread, step = draft.pick(random)
    del draft.threads[thread][step]


def drop_message(draft, random):
    """A send and the receive that matches it."""
    place = draft.pick(random, SENDS)
    if place is None:
        return drop(draft, random)
    thread, step = place
    ordinal = sum(bool(SENDS[op["kind"]]) for op in draft.threads[thread][:step])
    here = draft.rows[thread]
    there = np.flatnonzero(
        (draft.rows["rank"] == here["send_peer"])
        & (draft.rows["recv_peer"] == here["rank"])
        & (draft.rows["channel"] == here["channel"])
    )
    del draft.threads[thread][step]
    receives = [op for t in there for op in draft.threads[t] if RECEIVES[op["kind"]]]
    if ordinal < len(receives):
        match = next(t for t in there if any(op is receives[ordinal] for op in draft.threads[t]))
        draft.threads[match] = [op for op in draft.threads[match] if op is not receives[ordinal]]
    return None


def swap(draft, random):
    thread, step = draft.pick(random)
    ops = draft.threads[thread]
    other = random.randrange(len(ops)) if random.random() < 0.5 else min(step + 1, len(ops) - 1)
    ops[step], ops[other] = ops[other], ops[step]


def redirect(draft, random):
    thread = random.randrange(len(draft.rows))
    draft.rows[random.choice(["send_peer", "recv_peer"])][thread] = random.randrange(draft.schedule.ranks)


def shift(draft, random):
    thread, step = draft.pick(random)
    side = random.choice(["src", "dst"])
    draft.threads[thread][step][side] += random.choice([-2, -1, 1, 2])


def other_buffer(draft, random):
    thread, step = draft.pick(random)
    side = random.choice(["src_buffer", "dst_buffer"])
    draft.threads[thread][step][side] = random.randrange(3)


def recount(draft, random):
    thread, step = draft.pick(random)
    draft.threads[thread][step]["count"] += random.choice([-1, 1])


def cut(draft, random):
    dependent = [op for op in draft.ops if op["dep"] is not None]
    if not dependent:
        return drop(draft, random)
    random.choice(dependent)["dep"] = None
    return None


def rewire(draft, random):
    thread, step = draft.pick(random)
    rank = draft.rows["rank"][thread]
    same = [op for row, ops in zip(draft.rows, draft.threads, strict=True) if row["rank"] == rank for op in ops]
    draft.threads[thread][step]["dep"] = random.choice(same)


def repeat(draft, random):
    thread, step = draft.pick(random)
    draft.threads[thread].insert(step, dict(draft.threads[thread][step]))


def another_kind(draft, random):
    """Turns a recv into a recv_reduce, a reduce into a copy, and the like: keeps sending and receiving."""
    thread, step = draft.pick(random)
    op = draft.threads[thread][step]
    alike = [k for k in KINDS if SENDS[k] == SENDS[op["kind"]] and RECEIVES[k] == RECEIVES[op["kind"]]]
    op["kind"] = random.choice(alike)


def regroup(draft, random):
    """Smaller switch groups, the last of them perhaps smaller still."""
    draft.schedule = dataclasses.replace(draft.schedule, group_ranks=random.randint(1, draft.schedule.ranks))


BREAKS = [
    drop,
    drop_message,
    swap,
    redirect,
    shift,
    other_buffer,
    recount,
    cut,
    rewire,
    repeat,
    another_kind,
    regroup,
]


def gives_the_exact_result(schedule, random, slots, runs=6):
    count = random.choice([0, 1, schedule.ranks, 2 * schedule.ranks + 1, 13])
    size = (schedule.ranks, input_elements(schedule.collective, schedule.ranks, count))
    data = np.random.default_rng(random.getrandbits(32)).integers(-(2**40), 2**40, size=size)
    expected = reference(schedule.collective, data, schedule.root)
    for run in range(runs):
        choose = by_priority(random, len(schedule.threads)) if run % 2 else any_order(random)
        outputs = interpret(schedule, data, count, choose, slots=slots)
        for rank, wanted in enumerate(expected):
            if wanted is not None:
                np.testing.assert_array_equal(outputs[rank], wanted)


def touches_absent_memory(schedule, random, rank, thread, step, touched, state):
    """Let all that can run without the touched rank, or without the operation that touches it, run first."""
    threads = schedule.threads
    here = (threads["rank"] == int(rank)) & (threads["id"] == int(thread))
    last = threads["rank"] == int(touched) if state == "need" else here

    def choose(ready):
        return random.choice([number for number in ready if not last[number]] or ready)

    data = np.zeros((schedule.ranks, input_elements(schedule.collective, schedule.ranks, 0)), dtype=np.int64)
    with pytest.raises(NonsenseError, match="memory of rank"):
        interpret(schedule, data, 0, choose, slots=len(schedule.ops))


@given(
    built_in=st.sampled_from(BUILT_IN),
    ranks=st.integers(2, 9),
    channels=st.integers(1, 2),
    chunks=st.sampled_from([None, 1, 2, 3]),
    slots=st.integers(1, 3),
    breaks=st.lists(st.sampled_from(BREAKS), min_size=1, max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
@example(("all_reduce", "two_shot"), 3, 1, None, 2, [cut], 0)
@example(("all_reduce", "tree"), 6, 1, None, 1, [cut], 3)
@example(("all_reduce", "nvls"), 3, 1, None, 1, [drop_message], 0)
@example(("broadcast", "nvls"), 3, 1, None, 1, [cut], 0)
def test_a_break_is_found_or_harmless(built_in, ranks, channels, chunks, slots, breaks, seed):
    random = Random(seed)
    root = random.randrange(ranks)
    draft = Draft(build_schedule(*built_in, ranks, root=root, channels=channels, chunks=chunks))
    for break_it in breaks:
        if draft.pick(random) is not None:
            break_it(draft, random)
    broken = draft.finish()
    try:
        report = verify(broken, slots=slots)
    except ScheduleError as fault:
        event(next((word for word in FAULTS if word in str(fault)), "rule"))
        if absent := ABSENT.search(str(fault)):
            touches_absent_memory(broken, random, **absent.groupdict())
        return
    event("harmless")
    if report.any_count:
        gives_the_exact_result(broken, random, slots)


@given(
    built_in=st.sampled_from(BUILT_IN),
    ranks=st.integers(1, 9),
    channels=st.integers(1, 2),
    chunks=st.sampled_from([None, 1, 2, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_least_slots_are_enough_and_one_less_is_not(built_in, ranks, channels, chunks, seed):
    random = Random(seed)
    schedule = build_schedule(*built_in, ranks, root=random.randrange(ranks), channels=channels, chunks=chunks)
    least = verify(schedule).least_slots
    gives_the_exact_result(schedule, random, least, runs=2)
    if least > 1:
        try:
            gives_the_exact_result(schedule, random, least - 1, runs=1)
        except StuckError:
            return
        raise AssertionError(f"{schedule} runs with {least - 1} slots, not only with {least}")
