"""Algorithms of one's own: copies and reductions do what they say in the order in which they stand, however fused."""

import re
from random import Random
from time import process_time
from unittest.mock import patch

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import event, given
from hypothesis import strategies as st

import collemu
from collemu.program import ProgramError, algorithm, lowering
from collemu.schedule import KIND_NAMES
from tests.oracles.collectives_reference import input_elements, reference
from tests.oracles.schedule_interpreter import any_order, by_priority, interpret

RANKS = range(1, 17)


# Random programs against a plain interpreter


class Plain:
    """Memory of all ranks, on which statements simply happen."""

    def __init__(self, data, k, collective, in_place):
        self.cells = {}
        self.base = [0] * len(data)  # of the input in the output, where they share memory
        self.shared = in_place
        for rank, row in enumerate(data):
            if in_place and collective == "all_gather":
                self.base[rank] = rank * k
            for chunk, piece in enumerate(row.reshape(k, -1)):
                self.cells[self.key((rank, kinds.INPUT, chunk))] = piece

    def key(self, place):
        rank, buffer, chunk = place
        if self.shared and buffer == kinds.INPUT:
            return rank, kinds.OUTPUT, chunk + self.base[rank]
        return place

    def run(self, source, term, target, count):
        keys = [[self.key((rank, buffer, chunk + i)) for i in range(count)] for rank, buffer, chunk in (source, target)]
        values = [self.cells[key] for key in keys[0]]
        if term is not None:
            rank, buffer, chunk = term
            values = [value + self.cells[self.key((rank, buffer, chunk + i))] for i, value in enumerate(values)]
        for key, value in zip(keys[1], values, strict=True):
            self.cells[key] = value


def random_statements(random, plain, collective, ranks, k, length):
    """Copies and reductions of what there is; chunks keep their place of a region."""

    def places(first, count, rank=None):
        for each in range(ranks) if rank is None else [rank]:
            yield each, kinds.INPUT, first
            for region in range(ranks if collective == "all_gather" else 1):
                yield each, kinds.OUTPUT, region * k + first
            for turn in range(2):
                yield each, kinds.SCRATCH, turn * k + first

    def there(place, count):
        rank, buffer, chunk = place
        return all(plain.key((rank, buffer, chunk + i)) in plain.cells for i in range(count))

    for _ in range(length):
        first = random.randrange(k)
        count = random.choice([1, 1, random.randint(1, k - first)])
        everywhere = list(places(first, count))
        source = random.choice([place for place in everywhere if there(place, count)])
        target = random.choice(everywhere)
        term = None
        if random.random() < 0.5:
            terms = [place for place in places(first, count, target[0]) if there(place, count)]
            if not terms:
                continue
            term = random.choice(terms)
            if random.random() < 0.6:
                target = term
        yield source, term, target, count, random.choice([None, None, 0, 1])


@given(
    collective=st.sampled_from(["all_reduce", "all_gather"]),
    in_place=st.booleans(),
    ranks=st.integers(2, 5),
    k=st.integers(1, 3),
    length=st.integers(1, 60),
    slots=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_programs_do_what_they_say(collective, in_place, ranks, k, length, slots, seed):
    random = Random(seed)
    data = np.random.default_rng(seed).integers(-(2**40), 2**40, size=(ranks, k * 2))
    plain = Plain(data, k, collective, in_place)

    @algorithm(collective, in_place=in_place)
    def anything(p):
        p.chunks(k)
        buffers = {kinds.INPUT: p.input, kinds.OUTPUT: p.output, kinds.SCRATCH: p.scratch}

        def named(place, count):
            rank, buffer, chunk = place
            return buffers[buffer](rank, chunk, count)

        for source, term, target, count, channel in random_statements(random, plain, collective, ranks, k, length):
            here, there = named(source, count), named(target, count)
            if term is None:
                here.copy_to(there, channel=channel)
            elif term == target:
                here.reduce_to(there, channel=channel)
            else:
                here.reduce_to(named(term, count), into=there, channel=channel)
            plain.run(source, term, target, count)

    try:
        with patch.object(lowering, "SLOTS", slots):
            schedule = anything.schedule(ranks)
    except ProgramError as error:
        assert "does nothing" in str(error)  # copies to where they are already
        return
    try:
        collemu.verify(schedule, slots=slots)
    except collemu.ScheduleError as error:
        assert re.search(r"lacks|holds|never written", str(error)), error
    event("fused" if (schedule.ops["kind"] > kinds.RECV_REDUCE).any() else "plain")
    for run in range(4):
        choose = by_priority(random, len(schedule.threads)) if run % 2 else any_order(random)
        outputs = interpret(schedule, data, 2 * k, choose, slots=slots)
        for (rank, buffer, chunk), value in plain.cells.items():
            if buffer == kinds.OUTPUT:
                np.testing.assert_array_equal(outputs[rank].reshape(-1, 2)[chunk], value)


# Algorithms that are built in, in other words


@algorithm("all_reduce")
def ring(p, channels=1, chunks=1):
    n = p.ranks
    p.chunks(n * channels * chunks)
    for piece in range(n * channels * chunks):
        channel, block = piece // (n * chunks), piece % n
        around = [(block + step) % n for step in range(1, n + 1)]
        chunk = p.input(around[0], piece)
        for rank in around[1:]:
            chunk = chunk.reduce_to(p.input(rank, piece), into=p.output(rank, piece), channel=channel)
        for rank in around[:-1]:
            chunk = chunk.copy_to(p.output(rank, piece))


@algorithm("all_reduce")
def ring_of_threads(p):
    n = p.ranks
    p.chunks(n)
    for rank in range(n):
        t = p.thread(rank, send_peer=(rank + 1) % n, recv_peer=(rank - 1) % n)
        t.send(p.input(rank, (rank - 1) % n))
        for step in range(2, n):
            t.recv_reduce_send(p.input(rank, (rank - step) % n))
        t.recv_reduce_copy_send(p.input(rank, rank), p.output(rank, rank))
        for step in range(1, n - 1):
            t.recv_copy_send(p.output(rank, (rank - step) % n))
        t.recv(p.output(rank, (rank + 1) % n))


@algorithm("reduce_scatter")
def ring_to_one(p):
    n = p.ranks
    for block in range(n):
        chunk = p.input((block + 1) % n, block)
        for step in range(2, n + 1):
            rank = (block + step) % n
            into = p.output(rank) if rank == block else p.scratch(rank, block)
            chunk = chunk.reduce_to(p.input(rank, block), into=into)


@algorithm("all_gather")
def ring_of_all(p):
    for block in range(p.ranks):
        chunk = p.input(block).copy_to(p.output(block, block))
        for step in range(1, p.ranks):
            chunk = chunk.copy_to(p.output((block + step) % p.ranks, block))


@algorithm("broadcast", name="ring")
def chain(p, chunks=None):
    pieces = chunks or p.ranks - 1
    p.chunks(pieces)
    for piece in range(pieces):
        chunk = p.input(p.root, piece)
        for step in range(p.ranks):
            chunk = chunk.copy_to(p.output((p.root + step) % p.ranks, piece))


@algorithm("reduce")
def chain_to_root(p):
    p.chunks(p.ranks - 1)
    for piece in range(p.ranks - 1):
        chunk = p.input((p.root + 1) % p.ranks, piece)
        for step in range(2, p.ranks + 1):
            rank = (p.root + step) % p.ranks
            chunk = chunk.reduce_to(p.input(rank, piece), into=p.output(rank, piece))


@algorithm("alltoall")
def straight(p):
    for source in range(p.ranks):
        for rank in range(p.ranks):
            p.input(source, rank).copy_to(p.output(rank, source))


@algorithm("sendrecv")
def shift(p):
    for rank in range(p.ranks):
        p.input(rank).copy_to(p.output((rank + 1) % p.ranks))


@algorithm("all_reduce")
def two_shot(p):
    n = p.ranks
    p.chunks(n)
    for block in range(n):
        here = p.output(block, block)
        p.input(0, block).copy_to(here)
        for rank in range(1, n):
            p.input(rank, block).reduce_to(here)
        for rank in range(n):
            here.copy_to(p.output(rank, block))


@algorithm("all_reduce")
def tree(p, chunks=4):
    p.chunks(chunks)
    for piece in range(chunks):
        for rank in reversed(range(p.ranks)):
            p.input(rank, piece).copy_to(p.output(rank, piece))
        for rank in reversed(range(1, p.ranks)):
            p.output(rank, piece).reduce_to(p.output((rank - 1) // 2, piece))
        for rank in range(1, p.ranks):
            p.output((rank - 1) // 2, piece).copy_to(p.output(rank, piece))


@algorithm("all_reduce")
def two_level(p):
    """Within groups of 4 to the first of each, among those, and back; the last group may be smaller."""
    groups = [range(first, min(first + 4, p.ranks)) for first in range(0, p.ranks, 4)]
    for group in groups:
        p.input(group[0]).copy_to(p.scratch(group[0]))
        for rank in group[1:]:
            p.input(rank).reduce_to(p.scratch(group[0]))
    total = p.scratch(0).copy_to(p.output(0))
    for group in groups[1:]:
        p.scratch(group[0]).reduce_to(total, channel=1)
    for group in groups:
        total.copy_to(p.output(group[0]), channel=1)
        for rank in group[1:]:
            p.output(group[0]).copy_to(p.output(rank), channel=0)


SAME = [  # as the built-in algorithm of that name
    (ring, "ring", True),
    (ring_of_threads, "ring", True),
    (ring_to_one, "ring", True),
    (ring_of_all, "ring", True),
    (chain, "ring", True),
    (chain_to_root, "ring", True),
    (straight, "direct", True),
    (shift, "direct", True),
    (two_shot, "two_shot", True),
    (tree, "tree", False),
    (two_level, "two_shot", False),
]


@pytest.mark.parametrize("made, name, same", SAME, ids=[made.name for made, _, _ in SAME])
@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_built_in_can_be_written(made, name, same, ranks):
    root = ranks // 2 if made.collective in ("broadcast", "reduce") else 0
    schedule = made.schedule(ranks, root=root)
    report = collemu.verify(schedule)
    assert (schedule.algorithm, schedule.ranks, schedule.root) == (made.name, ranks, root)
    built_in = collemu.build_schedule(made.collective, name, ranks, root=root)
    if same:
        wanted = collemu.verify(built_in)
        assert (report.messages, report.depth) == (wanted.messages, wanted.depth)
    data = np.random.default_rng(ranks).standard_normal(
        (ranks, input_elements(made.collective, ranks, 3 * built_in.region_chunks))
    )
    runs = [
        collemu.emulate(
            each,
            collemu.load_system("trainium4_nvl72"),
            count=3 * built_in.region_chunks,
            wire="mxfp4",
            data=data.astype(np.float32),
        )
        for each in (schedule, built_in)
    ]
    assert runs[0].replicas_identical is not False
    if same:
        assert runs[0].wire_bytes == runs[1].wire_bytes
        where = slice(root, root + 1) if made.collective == "reduce" else slice(None)
        np.testing.assert_array_equal(runs[0].outputs[where], runs[1].outputs[where])


@pytest.mark.parametrize("made, name, same", SAME, ids=[made.name for made, _, _ in SAME])
def test_what_is_written_gives_the_result(made, name, same):
    ranks, count = 6, 30
    schedule = made.schedule(ranks, root=2)
    size = (ranks, input_elements(made.collective, ranks, count))
    data = np.random.default_rng(0).integers(-(2**40), 2**40, size=size)
    random = Random(0)
    for wanted, got in zip(
        reference(made.collective, data, schedule.root),
        interpret(schedule, data, count, by_priority(random, len(schedule.threads))),
        strict=True,
    ):
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("ranks", [2, 3, 7, 12])
def test_a_ring_is_the_built_in_one(ranks):
    for channels, chunks in ((1, 1), (2, 1), (2, 3)):
        written = ring.schedule(ranks, channels=channels, chunks=chunks)
        built_in = collemu.build_schedule("all_reduce", "ring", ranks, channels=channels, chunks=chunks)
        np.testing.assert_array_equal(written.threads, built_in.threads)
        for field in ("kind", "publish", "count", "dep"):
            np.testing.assert_array_equal(written.ops[field], built_in.ops[field])
        system = collemu.load_system("trainium4_nvl72")
        times = [collemu.emulate(each, system, count=1000, wire="mxfp4").time_fs for each in (written, built_in)]
        assert times[0] == times[1]


# What is found out, and what can be said instead


def test_what_fusing_would_stop_is_taken_apart():
    with patch.object(lowering, "SLOTS", 1):
        schedule = ring.schedule(5)
    report = collemu.verify(schedule, slots=1)
    assert (report.least_slots, report.messages) == (1, 40)
    with pytest.raises(collemu.ScheduleError, match="deadlock with 1 slot"):
        collemu.verify(ring.schedule(5), slots=1)


@given(ranks=st.integers(2, 6), walks=st.integers(1, 30), slots=st.integers(1, 2), seed=st.integers(0, 2**32 - 1))
def test_chunks_that_wander_about_arrive(ranks, walks, slots, seed):
    random = Random(seed)
    data = np.random.default_rng(seed).integers(-100, 100, size=(ranks, walks))
    ends = {}

    @algorithm("all_reduce")
    def wander(p):
        p.chunks(walks)
        for walk in range(walks):
            path = [random.randrange(ranks) for _ in range(random.randint(2, 8))]
            chunk = p.input(path[0], walk)
            for number, rank in enumerate(path[1:]):
                chunk = chunk.copy_to(p.scratch(rank, walk * 8 + number))
            chunk.copy_to(p.output(path[-1], walk))
            ends[path[-1], walk] = data[path[0], walk]

    with patch.object(lowering, "SLOTS", slots):
        schedule = wander.schedule(ranks)
    outputs = interpret(schedule, data, walks, any_order(random), slots=slots)
    assert {place: outputs[place[0]][place[1]] for place in ends} == ends


def kinds_of(schedule, rank=None):
    of = schedule.threads["rank"][schedule.thread_of_op]
    return [KIND_NAMES[kind] for kind in schedule.ops["kind"][of == rank if rank is not None else slice(None)]]


def test_a_sum_that_is_needed_where_it_stands_is_stored():
    def made(use):
        @algorithm("all_reduce")
        def anything(p):
            total = p.input(0).reduce_to(p.input(1), into=p.scratch(1))
            total.copy_to(p.output(2))
            use(p, total)

        return kinds_of(anything.schedule(3), rank=1)

    assert made(lambda p, total: None) == ["recv_reduce_send"]
    assert made(lambda p, total: total.copy_to(p.output(1))) == ["copy", "recv_reduce_copy_send"]
    assert made(lambda p, total: total.copy_to(p.output(0))) == ["recv_reduce_copy_send", "send"]
    assert made(lambda p, total: p.input(1).copy_to(total)) == ["copy", "recv_reduce_send"]


def test_a_chunk_goes_on_by_the_channel_on_which_it_came():
    @algorithm("broadcast")
    def chain_on(p, channels=3):
        chunk = p.input(0).copy_to(p.output(0))
        for rank in range(1, 4):
            chunk = chunk.copy_to(p.output(rank), channel=2 if rank == 1 else None)

    schedule = chain_on.schedule(4)
    assert schedule.channels == 3
    assert kinds_of(schedule) == ["copy", "send", "recv_copy_send", "recv_copy_send", "recv"]


def test_publish_can_be_said():
    def made(**said):
        @algorithm("broadcast")
        def one(p):
            p.input(0).copy_to(p.output(0), **said)
            p.output(0).copy_to(p.output(1))

        @algorithm("broadcast")
        def two(p):
            own = p.thread(0).copy(p.input(0), p.output(0), **said)
            p.thread(0, send_peer=1).send(p.output(0), after=own)
            p.thread(1, recv_peer=0).recv(p.output(1))

        flags = [collemu_made.schedule(2).ops["publish"].tolist() for collemu_made in (one, two)]
        assert flags[0] == flags[1]
        return flags[0]

    assert made() == made(publish=True) == [kinds.PUBLISH_FINAL, 0, 0]
    assert made(publish=False) == [0, 0, 0]
    assert made(publish="own") == [kinds.PUBLISH_OWN, 0, 0]


def test_what_waits_for_several_waits_behind_nops():
    @algorithm("all_reduce")
    def gathered(p):
        for rank in range(1, p.ranks):
            p.input(rank).copy_to(p.scratch(0, rank))
        p.input(0).copy_to(p.output(0))
        for rank in range(1, p.ranks):
            p.scratch(0, rank).reduce_to(p.output(0))
        for rank in range(1, p.ranks):
            p.output(0).copy_to(p.output(rank))

    collemu.verify(gathered.schedule(5))

    @algorithm("sendrecv")
    def threads(p):
        a, b = (p.thread(0).copy(p.input(0), p.scratch(0, at)) for at in range(2))
        p.thread(0, send_peer=1).send(p.scratch(0, 1), after=[a, b])
        p.thread(0, recv_peer=1).recv(p.output(0))
        t = p.thread(1, send_peer=0, recv_peer=0)
        t.send(p.input(1))
        t.recv(p.output(1))

    schedule = threads.schedule(2)
    collemu.verify(schedule)
    assert kinds_of(schedule, rank=0) == ["copy", "copy", "nop", "send", "recv"]


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_in_place(collective, ranks):
    @algorithm(collective, in_place=True)
    def shared(p):
        assert p.in_place
        if collective == "all_gather":
            for rank in range(p.ranks):
                for other in range(p.ranks):
                    p.input(rank).copy_to(p.output(other, rank))
            return
        for rank in range(1, p.ranks):
            p.input(rank).reduce_to(p.input(0))
        for rank in range(1, p.ranks):
            p.output(0).copy_to(p.output(rank))

    schedule = shared.schedule(ranks)
    assert schedule.in_place
    assert collemu.verify(schedule).messages == (ranks * (ranks - 1) if collective == "all_gather" else 2 * (ranks - 1))


def test_what_stays_is_copied_once_and_sums_go_where_they_are_wanted():
    @algorithm("all_reduce")
    def local(p):
        p.chunks(2)
        a, b, c = p.input(0, 0, 2), p.input(1, 0, 2).copy_to(p.scratch(0, 0, 2)), p.output(0, 0, 2)
        a.reduce_to(b, into=c)  # by way of a copy
        c.copy_to(c)  # nothing
        c.copy_to(p.output(1, 0, 2))

    schedule = local.schedule(2)
    assert collemu.verify(schedule).chunks_sent == 4
    assert sorted(kinds_of(schedule)) == ["copy", "recv", "recv", "reduce", "send", "send"]


def test_mistakes_without_a_file():
    with pytest.raises(ValueError, match=r"algorithm: 3 is no function; put it above a def"):
        algorithm("all_reduce")(3)
    with pytest.raises(ValueError, match="choose all_reduce"):
        algorithm("all_to_all")
    other = []

    @algorithm("sendrecv")
    def keeps(p):
        other.append(p.input(0))
        other[0].copy_to(p.output(1))
        p.input(1).copy_to(p.output(0))

    keeps.schedule(2)
    with pytest.raises(ProgramError, match=r"test_program.py:\d+: copy_to: rank 1 output\[0\] .* another program"):
        keeps.schedule(3)
    with pytest.raises(ValueError, match="root 2 is not one of the 2 ranks; choose 0 to 1"):
        keeps.schedule(2, root=2)


@pytest.mark.parametrize("made, ranks", [(ring, 72), (ring_of_threads, 72), (straight, 72), (two_shot, 48)])
def test_many_ranks_take_no_time(made, ranks):
    made.schedule(3)  # loads kernels
    start = process_time()
    made.schedule(ranks)
    assert process_time() - start < 1.5  # a tenth of that on an idle machine
