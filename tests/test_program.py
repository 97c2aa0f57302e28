"""Algorithms of one's own: copies and reductions do what they say in the order in which they stand, however fused."""

import re
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import event, given
from hypothesis import strategies as st

import collemu
from collemu.program import ProgramError, algorithm
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
    slots=st.integers(2, 3),
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
        schedule = anything.schedule(ranks)
    except ProgramError as error:
        assert "does nothing" in str(error)  # copies to where they are already
        return
    try:
        collemu.verify(schedule)
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
