"""Every built-in algorithm gives what NumPy gives, in the textbook's number of steps and bytes."""

import dataclasses
from random import Random

import numpy as np
import pytest
from collemu_kernels import kinds

from collemu.builders.tree import double_tree, in_order_parents, rooted_double_tree
from collemu.collectives import ROOTED
from collemu.matching import match_messages
from collemu.schedule import RECEIVES, SENDS, ScheduleError, algorithms, build_schedule
from collemu.verification import verify
from tests.oracles.collectives_reference import input_elements, reference
from tests.oracles.schedule_interpreter import any_order, by_priority, interpret

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
)
BUILT_IN = [(collective, name) for collective in COLLECTIVES for name in algorithms(collective)]
# A ring needs its second slot: with one, every rank would wait for the next to take what it has sent.
NEEDS_TWO_SLOTS = {
    ("all_reduce", "ring"),
    ("all_reduce", "bidirectional_ring"),
    ("all_reduce", "torus_2d"),
    ("all_reduce", "hierarchical"),
    ("reduce_scatter", "ring"),
    ("all_gather", "ring"),
}

every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)


def check(schedule, count, seed=0):
    random = Random(seed)
    size = (schedule.ranks, input_elements(schedule.collective, schedule.ranks, count))
    data = np.random.default_rng(seed).integers(-(2**40), 2**40, size=size)
    choose = by_priority(random, len(schedule.threads)) if seed % 2 else any_order(random)
    outputs = interpret(schedule, data, count, choose, slots=2)
    for rank, expected in enumerate(reference(schedule.collective, data, schedule.root)):
        if expected is not None:
            np.testing.assert_array_equal(outputs[rank], expected, err_msg=f"rank {rank} of {schedule}")


@every_algorithm
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 12])
def test_outputs_equal_numpy(collective, algorithm, ranks):
    for seed, count in enumerate((0, 1, 5, ranks - 1, ranks + 1, 3 * ranks + 2)):
        schedule = build_schedule(collective, algorithm, ranks, root=(seed * 5) % ranks)
        check(schedule, count, seed)


@every_algorithm
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_lanes_and_pieces_do_not_change_the_result(collective, algorithm, channels, chunks):
    for ranks in (2, 3, 5):
        schedule = build_schedule(collective, algorithm, ranks, root=ranks - 1, channels=channels, chunks=chunks)
        verify(schedule)
        check(schedule, 17, seed=ranks)


@every_algorithm
@pytest.mark.parametrize("ranks", [*range(1, 17), 72, 144])
def test_every_rank_count_verifies(collective, algorithm, ranks):
    slots = 2 if (collective, algorithm) in NEEDS_TWO_SLOTS else 1
    for root in {0, ranks // 2, ranks - 1} if collective in ROOTED else {0}:
        report = verify(build_schedule(collective, algorithm, ranks, root=root))
        assert report.least_slots <= slots
        assert report.any_count


@every_algorithm
def test_all_rank_counts_to_two_domains_verify(collective, algorithm):
    for ranks in range(1, 145):
        verify(build_schedule(collective, algorithm, ranks, root=(ranks * 7) % ranks))


@every_algorithm
def test_every_root_verifies(collective, algorithm):
    if collective in ROOTED:
        for ranks in (2, 3, 6, 7, 13):
            for root in range(ranks):
                verify(build_schedule(collective, algorithm, ranks, root=root, channels=2))


@every_algorithm
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_input_is_never_written_and_chunks_stay_chunks(collective, algorithm, ranks):
    schedule = build_schedule(collective, algorithm, ranks, channels=2, chunks=2)
    moves = schedule.ops[schedule.ops["count"] > 0]
    writes = ~np.isin(moves["kind"], [kinds.NOP, kinds.SEND, kinds.RECV_REDUCE_SEND])
    assert (moves["dst_buffer"][writes] != kinds.INPUT).all()
    assert not schedule.in_place


@every_algorithm
@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_threads_share_no_connection(collective, algorithm, ranks):
    schedule = build_schedule(collective, algorithm, ranks, channels=3)
    threads = schedule.threads
    assert threads["channel"].max() == schedule.channels - 1
    for peer in ("send_peer", "recv_peer"):
        used = threads[threads[peer] >= 0]
        assert len(np.unique(used[["rank", peer, "channel"]])) == len(used)


def sent_by_rank(schedule):
    sender = match_messages(schedule).sender
    return np.bincount(schedule.threads["rank"][schedule.thread_of_op[sender]], minlength=schedule.ranks)


def log2_up(n):
    return (n - 1).bit_length()


def sides(n):
    """Of the most nearly square rectangle."""
    return min(((side, n // side) for side in range(1, n + 1) if n % side == 0), key=sum)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 72])
@pytest.mark.parametrize(
    ("collective", "algorithm", "messages", "depth", "share"),
    [
        # Messages a rank, steps, and what a rank sends in units of its `count` elements.
        ("all_reduce", "ring", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
        ("all_reduce", "bidirectional_ring", lambda n: 4 * (n - 1), lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
        (
            "all_reduce",
            "torus_2d",
            lambda n: 8 * (sum(sides(n)) - 2),
            lambda n: 2 * (sum(sides(n)) - 2),
            lambda n: 2 * (n - 1) / n,
        ),
        ("all_reduce", "one_shot", lambda n: n - 1, lambda _: 1, lambda n: n - 1),
        ("all_reduce", "two_shot", lambda n: 2 * (n - 1), lambda _: 2, lambda n: 2 * (n - 1) / n),
        ("reduce_scatter", "ring", lambda n: n - 1, lambda n: n - 1, lambda n: n - 1),
        ("reduce_scatter", "direct", lambda n: n - 1, lambda _: 1, lambda n: n - 1),
        ("all_gather", "ring", lambda n: n - 1, lambda n: n - 1, lambda n: n - 1),
        ("all_gather", "direct", lambda n: n - 1, lambda _: 1, lambda n: n - 1),
        ("alltoall", "direct", lambda n: n - 1, lambda _: 1, lambda n: n - 1),
        ("alltoall", "pairwise", lambda n: n - 1, lambda n: n - 1, lambda n: n - 1),
        ("reduce_scatter", "bruck", log2_up, log2_up, lambda n: n - 1),
        ("reduce_scatter", "pat", log2_up, log2_up, lambda n: n - 1),
        ("all_gather", "bruck", log2_up, log2_up, lambda n: n - 1),
        ("all_gather", "pat", log2_up, log2_up, lambda n: n - 1),
        # A region that goes i ranks on is sent once for every bit of i.
        ("alltoall", "bruck", log2_up, log2_up, lambda n: sum(i.bit_count() for i in range(n))),
        ("sendrecv", "direct", lambda _: 1, lambda _: 1, lambda _: 1),
    ],
)
def test_steps_and_bytes_are_the_textbook_s(n, collective, algorithm, messages, depth, share):
    schedule = build_schedule(collective, algorithm, n)
    report = verify(schedule)
    assert report.depth == depth(n)
    assert sent_by_rank(schedule).tolist() == [messages(n)] * n
    assert report.chunks_sent / schedule.region_chunks == pytest.approx(n * share(n))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 72])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_chain_sends_every_piece_over_every_hop(n, collective):
    schedule = build_schedule(collective, "chain", n, root=1, chunks=5)
    ring = build_schedule(collective, "ring", n, root=1, chunks=5)
    assert schedule.algorithm == "chain"
    assert (schedule.ops == ring.ops).all() and (schedule.threads == ring.threads).all()
    report = verify(schedule)
    assert report.depth == n - 1
    idle = 0 if collective == "broadcast" else 1
    assert sent_by_rank(schedule).tolist() == [0 if rank == idle else 5 for rank in range(n)]


@pytest.mark.parametrize("n", [3, 4, 7, 8])
def test_a_bidirectional_ring_sends_as_much_one_way_as_the_other(n):
    schedule = build_schedule("all_reduce", "bidirectional_ring", n, channels=2)
    thread = schedule.threads[schedule.thread_of_op[match_messages(schedule).sender]]
    hop = (thread["send_peer"] - thread["rank"]) % n
    assert np.bincount(hop, minlength=n).tolist() == [0, 4 * (n - 1) * n, *[0] * (n - 3), 4 * (n - 1) * n]


def chunks_by_hop(schedule):
    """Chunks that ranks send 0, 1, 2, ... ranks on."""
    sender = match_messages(schedule).sender
    thread = schedule.threads[schedule.thread_of_op[sender]]
    hop = (thread["send_peer"] - thread["rank"]) % schedule.ranks
    return np.bincount(hop, weights=schedule.ops["count"][sender], minlength=schedule.ranks).astype(int).tolist()


@pytest.mark.parametrize("n", [5, 8, 13, 16, 72])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_bruck_sends_most_to_the_far_ranks_and_pat_to_the_near(n, collective):
    distances = [1 << k for k in range(log2_up(n))]
    # Trees in which the farthest step comes first: a step between ranks d apart is for every second multiple of d.
    near = {d: len(range(d, n, 2 * d)) for d in distances}
    far = {d: min(d, n - d) for d in distances}
    for algorithm, sizes in (("pat", near), ("bruck", far)):
        schedule = build_schedule(collective, algorithm, n, channels=3, chunks=2)
        assert sent_by_rank(schedule).tolist() == [6 * log2_up(n)] * n
        expected = [0] * n
        for distance, size in sizes.items():
            expected[-distance if collective == "all_gather" else distance] += 6 * n * size
        assert chunks_by_hop(schedule) == expected


@pytest.mark.parametrize("n", [5, 8, 13, 16])
def test_bruck_s_alltoall_packs_what_goes_the_same_way(n):
    expected = [0] * n
    for i in range(n):
        for k in range(log2_up(n)):
            expected[1 << k] += n * (i >> k & 1)
    assert chunks_by_hop(build_schedule("alltoall", "bruck", n)) == expected


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 33, 72])
def test_binomial_trees_have_log2_steps(n):
    down = build_schedule("broadcast", "binomial", n, root=1, channels=2, chunks=3)
    up = build_schedule("reduce", "binomial", n, root=1, channels=2, chunks=3)
    for schedule in (down, up):
        report = verify(schedule)
        assert (report.messages, report.chunks_sent) == (6 * (n - 1), 6 * (n - 1))
        assert report.depth == n.bit_length() - 1  # the most bits that a place has
    # The rank i after the root has a child for every 0 below its lowest bit, where there is a rank.
    children = [sum(i % (2 << k) == 0 and i + (1 << k) < n for k in range(log2_up(n))) for i in range(n)]
    assert children[0] == log2_up(n)
    assert np.roll(sent_by_rank(down), -1).tolist() == [6 * number for number in children]
    assert np.roll(sent_by_rank(up), -1).tolist() == [0, *[6] * (n - 1)]


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 33, 72])
def test_scatter_allgather_brings_everything_once(n):
    """The root sends 2(n - 1)/n of the data, as van de Geijn's does; all together n - 1 times the data, the least."""
    schedule = build_schedule("broadcast", "scatter_allgather", n, root=1, channels=2, chunks=3)
    report = verify(schedule)
    assert report.chunks_sent == (n - 1) * schedule.region_chunks
    assert report.depth <= n - 1 + log2_up(n)
    sender = match_messages(schedule).sender
    rank = schedule.threads["rank"][schedule.thread_of_op[sender]]
    chunks = np.bincount(rank, weights=schedule.ops["count"][sender], minlength=n) / schedule.region_chunks
    assert chunks[1] == pytest.approx(2 * (n - 1) / n)
    assert np.delete(chunks, 1).max() < 1.5
    assert sent_by_rank(schedule)[1] == 6 * (log2_up(n) + n - 1)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "recursive_doubling"),
        ("all_gather", "recursive_doubling"),
        ("all_gather", "bruck"),
        ("all_gather", "pat"),
        ("reduce_scatter", "recursive_halving"),
        ("reduce_scatter", "bruck"),
        ("reduce_scatter", "pat"),
        ("alltoall", "bruck"),
        ("broadcast", "binomial"),
        ("broadcast", "scatter_allgather"),
        ("reduce", "binomial"),
        ("gather", "binomial"),
        ("scatter", "binomial"),
        ("all_reduce", "hierarchical"),
        ("reduce_scatter", "hierarchical"),
        ("all_gather", "hierarchical"),
        ("alltoall", "hierarchical"),
    ],
)
@pytest.mark.parametrize("n", [3, 4, 7])
def test_every_dependency_counts(collective, algorithm, n):
    schedule = build_schedule(collective, algorithm, n, chunks=2, group=2)
    dependent = np.flatnonzero(schedule.ops["dep"] >= 0)
    # of 3 ranks none has a block of another to pass on
    assert len(dependent) or (collective in ("gather", "scatter") and n == 3)
    for op in dependent:
        ops = schedule.ops.copy()
        ops["dep"][op] = -1
        with pytest.raises(ScheduleError, match=r"race on rank|nothing has written yet"):
            verify(dataclasses.replace(schedule, ops=ops))


def folded(n):
    """log2 of the largest power of two that n ranks hold, and the ranks beyond it."""
    doublings = n.bit_length() - 1
    return doublings, n - (1 << doublings)


def folded_depth(n):
    """Doublings, and a step from a rank beyond to its host, and one back.

    The step back does not count if hosts make up half of the places or fewer: then one exchange is with those who have
    not waited for guests.
    """
    doublings, extra = folded(n)
    return doublings + (extra > 0) + (2 * extra > 1 << doublings)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 31, 72])
def test_recursive_doubling_sends_everything_in_every_step(n):
    """Thakur, Rabenseifner, Gropp 2005; a rank beyond the power of two sends once, and its host once more."""
    doublings, extra = folded(n)
    report = verify(schedule := build_schedule("all_reduce", "recursive_doubling", n, channels=3))
    assert report.depth == folded_depth(n)
    assert sorted(sent_by_rank(schedule) // 3) == [1] * extra + [doublings] * (n - 2 * extra) + [doublings + 1] * extra
    assert report.chunks_sent == report.messages


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 31, 72])
@pytest.mark.parametrize("lanes", [{}, {"channels": 2, "chunks": 3}])
@pytest.mark.parametrize(
    ("collective", "algorithm"), [("all_gather", "recursive_doubling"), ("reduce_scatter", "recursive_halving")]
)
def test_recursive_halving_and_doubling_send_every_region_once(n, lanes, collective, algorithm):
    doublings, extra = folded(n)
    report = verify(schedule := build_schedule(collective, algorithm, n, **lanes))
    assert lanes or report.depth == folded_depth(n)
    assert report.chunks_sent == n * (n - 1) * schedule.region_chunks
    assert report.messages == (report.chunks_sent if lanes else (n - extra) * doublings + 3 * extra)


@pytest.mark.parametrize("n", range(1, 200))
def test_no_rank_is_inner_in_both_trees(n):
    trees = double_tree(n)
    for tree in trees:
        assert (tree.parent < 0).sum() == 1
        assert tree.height == n.bit_length() - 1
        children = np.concatenate([tree.first, tree.second])
        assert sorted(children[children >= 0].tolist()) == np.flatnonzero(tree.parent >= 0).tolist()
    assert not ((trees[0].first >= 0) & (trees[1].first >= 0)).any()


def test_tree_of_seven():
    assert in_order_parents(7)[1:].tolist() == [2, 4, 2, 0, 6, 4, 6]
    assert in_order_parents(6)[1:].tolist() == [2, 4, 2, 0, 6, 4]
    assert in_order_parents(5)[1:].tolist() == [2, 4, 2, 0, 4]


@pytest.mark.parametrize("n", range(2, 40))
def test_rooted_trees_hang_below_their_root(n):
    for root in {0, 1, n - 1}:
        for tree in rooted_double_tree(n, root):
            assert np.flatnonzero(tree.parent < 0).tolist() == [root]
            assert tree.second[root] < 0
            assert tree.height == (n - 1).bit_length()


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12, 72])
def test_trees_send_as_much_as_a_ring_in_logarithmic_depth(n):
    schedule = build_schedule("all_reduce", "tree", n, chunks=4)
    report = verify(schedule)
    assert report.messages == 2 * (n - 1) * 2 * 4
    assert report.depth == 2 * (n.bit_length() - 1)
    # One tree's leaf sends once up, its inner rank at most once up and twice down; never inner in both.
    assert sent_by_rank(schedule).max() <= (3 + 1) * 4
    for collective in ("broadcast", "reduce"):
        report = verify(build_schedule(collective, "tree", n, chunks=4))
        assert report.messages == (n - 1) * 2 * 4
        assert report.depth == (n - 1).bit_length()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_two_channel_all_gather_delivers_each_element_once(n):
    count = 7
    data = 1000 * np.arange(n)[:, None] + np.arange(count)
    schedule = build_schedule("all_gather", "ring", n, channels=2)
    for output in interpret(schedule, data, count, any_order(Random(n))):
        assert output.tolist() == data.reshape(-1).tolist()


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
@pytest.mark.parametrize("n", [2, 3, 4, 9])
def test_sums_are_taken_in_rank_order(algorithm, n):
    # Strings as numbers: their sum is their order.
    data = np.array([[f"{rank}"] * 5 for rank in range(n)], dtype=object)
    schedule = build_schedule("all_reduce", algorithm, n)
    for output in interpret(schedule, data, 5, any_order(Random(n))):
        assert output.tolist() == ["".join(str(rank) for rank in range(n))] * 5


@pytest.mark.parametrize("n", [2, 3, 4, 9])
def test_direct_reduce_scatter_adds_in_rank_order(n):
    data = np.array([[f"{rank}"] * (5 * n) for rank in range(n)], dtype=object)
    schedule = build_schedule("reduce_scatter", "direct", n, chunks=2)
    for output in interpret(schedule, data, 5, any_order(Random(n))):
        assert output.tolist() == ["".join(str(rank) for rank in range(n))] * 5


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 6])
def test_what_is_distributed_is_published_once(collective, algorithm, n):
    """A chunk that others will hold is published by its owner, by the last operation that writes it."""
    schedule = build_schedule(collective, algorithm, n, root=1, chunks=2)
    ops = schedule.ops
    published = ops[ops["publish"] == kinds.PUBLISH_FINAL]
    doublings, extra = folded(n)
    expected = {
        ("all_reduce", "ring"): schedule.output_chunks,
        ("all_reduce", "bidirectional_ring"): schedule.output_chunks,
        ("all_reduce", "tree"): schedule.output_chunks,
        ("all_reduce", "torus_2d"): schedule.output_chunks,
        ("all_reduce", "hierarchical"): schedule.output_chunks,
        ("all_reduce", "nvls_tree"): schedule.output_chunks,
        ("all_gather", "hierarchical"): schedule.output_chunks,
        ("broadcast", "chain"): schedule.output_chunks,
        ("all_reduce", "two_shot"): schedule.output_chunks,
        ("all_reduce", "halving_doubling"): schedule.output_chunks,
        ("all_gather", "ring"): schedule.output_chunks,
        ("all_gather", "direct"): schedule.output_chunks,
        ("all_gather", "recursive_doubling"): schedule.output_chunks,
        ("all_gather", "bruck"): schedule.output_chunks,
        ("all_gather", "pat"): schedule.output_chunks,
        ("broadcast", "ring"): schedule.output_chunks,
        ("broadcast", "tree"): schedule.output_chunks,
        ("broadcast", "binomial"): schedule.output_chunks,
        ("broadcast", "scatter_allgather"): schedule.output_chunks,
    }.get((collective, algorithm), 0)
    if (collective, algorithm) == ("all_reduce", "recursive_doubling"):
        # Every rank makes the same sum; only where others are given it, all round it.
        assert len(published) == (schedule.output_chunks * (n - extra) if extra else 0)
    else:
        assert published["count"].sum() == expected
        assert len(np.unique(published["dst"])) == len(published)
    assert (published["dst_buffer"] == kinds.OUTPUT).all()
    own = ops[ops["publish"] == kinds.PUBLISH_OWN]
    terms = {"one_shot": n, "recursive_doubling": (n - extra) * doublings} if collective == "all_reduce" else {}
    assert len(own) == schedule.input_chunks * terms.get(algorithm, 0)
    assert algorithm != "one_shot" or (own["kind"] == kinds.COPY).all()


@every_algorithm
def test_one_rank_copies(collective, algorithm):
    schedule = build_schedule(collective, algorithm, 1, channels=4, chunks=3)
    assert schedule.ops["kind"].tolist() == [kinds.COPY]
    assert not (SENDS | RECEIVES)[schedule.ops["kind"]].any()
