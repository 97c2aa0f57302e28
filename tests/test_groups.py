"""Algorithms that know domains: right for any number of ranks in domains of any size, and what crosses is the least."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collemu as ce
from collemu.builders import GROUPED
from collemu.builders.domains import domains, nearly_square
from collemu.matching import match_messages
from collemu.schedule import build_schedule, operations_at_most
from collemu.wiring import path_of
from tests.oracles.collectives_reference import input_elements, reference
from tests.oracles.schedule_interpreter import any_order, by_priority, interpret
from tests.test_algorithms import sent_by_rank

KNOWING = [(collective, name) for collective, table in GROUPED.items() for name in table]
HIERARCHICAL = tuple(GROUPED)
every_pair = pytest.mark.parametrize(("collective", "algorithm"), KNOWING)


@every_pair
@settings(deadline=None, max_examples=25)
@given(ranks=st.integers(1, 144), group=st.integers(1, 150), channels=st.integers(1, 2), chunks=st.integers(1, 3))
def test_any_ranks_in_any_domains_verify(collective, algorithm, ranks, group, channels, chunks):
    schedule = build_schedule(collective, algorithm, ranks, group=group, channels=channels, chunks=chunks)
    report = ce.verify(schedule)
    assert report.any_count
    assert report.least_slots <= (2 if (collective, algorithm) == ("all_reduce", "hierarchical") else 1)
    assert len(schedule.ops) <= operations_at_most(collective, algorithm, ranks, channels, chunks, group)


@every_pair
@pytest.mark.parametrize(("group", "most"), [(1, 20), (3, 40), (5, 40), (8, 40), (72, 144)])
def test_all_rank_counts_verify(collective, algorithm, group, most):
    for ranks in [*range(1, min(most, 40) + 1), *range(70, most + 1, 9)]:
        ce.verify(build_schedule(collective, algorithm, ranks, group=group))


@every_pair
@settings(deadline=None, max_examples=80)
@given(
    ranks=st.integers(1, 17),
    group=st.integers(1, 17),
    count=st.integers(0, 40),
    lanes=st.sampled_from([{}, {"channels": 2}, {"chunks": 3}]),
    seed=st.integers(0, 2**20),
)
def test_outputs_equal_numpy(collective, algorithm, ranks, group, count, lanes, seed):
    schedule = build_schedule(collective, algorithm, ranks, group=group, **lanes)
    random = Random(seed)
    data = np.random.default_rng(seed).integers(-99, 99, (ranks, input_elements(collective, ranks, count)))
    choose = by_priority(random, len(schedule.threads)) if seed % 2 else any_order(random)
    outputs = interpret(schedule, data, count, choose, slots=2)
    for rank, expected in enumerate(reference(collective, data, 0)):
        np.testing.assert_array_equal(outputs[rank], expected, err_msg=f"rank {rank}")


@settings(deadline=None, max_examples=60)
@given(
    collective=st.sampled_from(["all_reduce", "all_gather"]),
    ranks=st.integers(1, 12),
    group=st.integers(1, 12),
    count=st.integers(1, 300),
    wire=st.sampled_from(["bfloat16", "float8_e4m3fn", "mxfp4", "nvfp4"]),
    chunks=st.integers(1, 3),
)
def test_replicas_agree_over_any_wire(collective, ranks, group, count, wire, chunks):
    schedule = build_schedule(collective, "hierarchical", ranks, group=group, chunks=chunks)
    data = np.random.default_rng(count).standard_normal((ranks, count)).astype(np.float32)
    system = ce.load_system("trainium4_nvl72")
    assert ce.emulate(schedule, system, count=count, data=data, wire=wire).replicas_identical


# Steps and bytes


def crossing(schedule, group):
    """What each rank sends to other domains, and within its own: messages, and chunks in shares of a region."""
    sender = match_messages(schedule).sender
    thread = schedule.threads[schedule.thread_of_op[sender]]
    far = thread["rank"] // group != thread["send_peer"] // group
    tables = []
    for at in (far, ~far):
        chunks = np.bincount(thread["rank"][at], weights=schedule.ops["count"][sender[at]], minlength=schedule.ranks)
        messages = np.bincount(thread["rank"][at], minlength=schedule.ranks)
        tables.append((set(messages.tolist()), set((chunks / schedule.region_chunks).tolist())))
    return tables


@pytest.mark.parametrize(("g", "d"), [(1, 2), (2, 2), (2, 5), (3, 4), (5, 3), (8, 9), (72, 2)])
def test_hierarchical_steps_and_bytes(g, d):
    """A rail of D ranks, a domain of g: 2(D - 1)/D of a shard, n/g - 1 regions or D - 1 messages of g of them."""
    n = g * d
    for collective, far, near, depth in (
        ("all_reduce", (2 * (d - 1), 2 * (d - 1) / n), (2 * (g - 1), 2 * (g - 1) / g), 2 * (d - 1) + 2 * (g > 1)),
        ("reduce_scatter", (d - 1, d - 1), (d * (g - 1), d * (g - 1)), 1 + (g > 1)),
        ("all_gather", (d - 1, d - 1), (d * (g - 1), d * (g - 1)), 1 + (g > 1)),
        ("alltoall", (d - 1, g * (d - 1)), (d * (g - 1), d * (g - 1)), 1 + (g > 1)),
    ):
        schedule = build_schedule(collective, "hierarchical", n, group=g)
        for (messages, shares), (each, share) in zip(crossing(schedule, g), (far, near), strict=True):
            assert messages == {each}, collective
            assert list(shares) == pytest.approx([share]), collective
        # A thread sends a peer its regions in turn, and takes one in between: with more domains that is longer.
        found = ce.verify(schedule).depth
        assert found == depth or (collective != "all_reduce" and depth < found <= d + 1), collective


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_one_level_is_what_it_should_be(n):
    """Domains of one rank: a ring, or a direct exchange. One domain: direct exchanges."""
    ring, alone = build_schedule("all_reduce", "ring", n), build_schedule("all_reduce", "hierarchical", n, group=1)
    for field in ("kind", "src_buffer", "dst_buffer", "src", "dst", "count", "dep", "publish"):
        if field not in ("src_buffer", "src"):  # of what reads nothing
            assert (ring.ops[field] == alone.ops[field]).all(), field
    system = ce.load_system("trainium4_nvl72")
    for collective, flat in zip(HIERARCHICAL, ("two_shot", "direct", "direct", "direct"), strict=True):
        for group in (1, n) if collective != "all_reduce" else (n,):
            times = [
                ce.emulate(build_schedule(collective, name, n, group=group), system, count=1000).time_fs
                for name in (flat, "hierarchical")
            ]
            assert times[0] == times[1], (collective, group)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("g", [1, 2, 3])
def test_nvls_trees_have_two_in_switch_operations_a_shard(g, d):
    if g * d == 1:
        return
    schedule = build_schedule("all_reduce", "nvls_tree", g * d, group=g, chunks=3)
    assert schedule.group_ranks == g
    assert ce.verify(schedule).depth <= 2 * (d.bit_length() - 1) + 2 * (g > 1)
    messages = schedule.ops["count"] > 0
    sends = sent_by_rank(schedule).sum() - 2 * g * d * (g - 1)
    assert sends == 2 * 3 * g * 2 * (d - 1)  # trees, pieces, shards; up and down
    for kind in (10, 11):
        assert (schedule.ops["kind"][messages] == kind).sum() == 2 * 3 * g * d


def test_nvls_trees_give_the_sum_of_domains():
    system = ce.load_system("gb200_nvl72").with_(**{"domain.chips": 4})
    joined = ce.load_system("h100_hgx@efa_p5en")
    for each, ranks in ((system, 4), (joined, 16), (joined, 20), (joined, 24)):
        schedule = build_schedule("all_reduce", "nvls_tree", ranks, group=each.group_of(ranks))
        data = np.random.default_rng(0).integers(-99, 99, (ranks, 331)).astype(np.float32)
        for fidelity in ("packet", "flow"):
            result = ce.emulate(schedule, each, count=331, data=data, fidelity=fidelity)
            assert (result.outputs == data.sum(axis=0)).all()
            assert result.time_fs >= result.bounds.total_fs


# Where they win


@pytest.mark.parametrize("name", ["trainium4_2x72", "gb200_nvl72@ib_ndr_400g_per_gpu"])
def test_two_domains_are_faster_with_rails(name):
    """Ports carry a 72nd: at large sizes by far, and no sooner than their share and the links' allow."""
    system = ce.load_system(name)
    group = system.group_of(144)
    assert group == 72
    size = 2**28
    flat = {"all_reduce": "two_shot", "reduce_scatter": "direct", "all_gather": "ring", "alltoall": "direct"}
    for collective, other in flat.items():
        count = size // 4 // (1 if collective == "all_reduce" else 144)
        how = {"count": count, "fidelity": "flow", "timeline": False}
        slow, fast = (
            ce.emulate(build_schedule(collective, name, 144, group=group), system, **how).time_s
            for name in (other, "hierarchical")
        )
        assert fast < slow / (1.5 if collective == "alltoall" else 5)
        ports, links = system.scaleout.bytes_per_s, system.chip_bytes_per_s
        rail, inside = {"all_reduce": (1 / 72, 2 * 71 / 72), "alltoall": (1 / 2, 71 / 72)}.get(
            collective, (1 / 144, 71 / 72)
        )
        assert fast > max(rail * size / ports, inside * size / links)
    pieces = build_schedule("all_reduce", "hierarchical", 144, group=group, chunks=4)
    how = {"count": 2**28, "fidelity": "flow", "timeline": False}
    whole = build_schedule("all_reduce", "hierarchical", 144, group=group)
    assert ce.emulate(pieces, system, **how).time_s < 0.9 * ce.emulate(whole, system, **how).time_s


@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 64])
def test_a_2d_torus_is_of_neighbours(ranks):
    """Trainium2 numbers its 4 x 4 x 4 chips along a path: rows and columns of the rectangle are rings in the torus."""
    system = ce.load_system("trainium2")
    threads = build_schedule("all_reduce", "torus_2d", ranks).threads
    for thread in threads:
        assert len(path_of(system.domain, int(thread["rank"]), int(thread["send_peer"]))) == 1


@pytest.mark.parametrize("ranks", [16, 64])
def test_a_2d_torus_uses_all_links(ranks):
    system = ce.load_system("trainium2")
    ring, both, torus = (
        ce.emulate(build_schedule("all_reduce", name, ranks), system, count=2**24, timeline=False).time_s
        for name in ("ring", "bidirectional_ring", "torus_2d")
    )
    assert torus < 0.6 * both < 0.35 * ring


def test_auto_knows_domains():
    from collemu.model.choose import Choice, Task, fastest

    system = ce.load_system("h100_hgx@efa_p5en")
    choices = [Choice(name) for name in ce.algorithms("all_gather", system)]
    assert fastest(Task("all_gather", 32, system), choices, 2**22).algorithm == "hierarchical"


# Domains


@pytest.mark.parametrize(("ranks", "side"), [(1, 1), (2, 1), (4, 2), (7, 1), (12, 3), (72, 8), (144, 12), (97, 1)])
def test_the_default_group_is_nearly_square(ranks, side):
    assert nearly_square(ranks) == domains(ranks, None).size == side


@pytest.mark.parametrize(("group", "shown"), [(0, "0"), (-3, "-3"), (2.5, "2.5"), (True, "True")])
def test_a_group_is_a_whole_number(group, shown):
    with pytest.raises(ValueError, match=rf"group is {shown}; give a whole number of 1 or more"):
        build_schedule("all_reduce", "hierarchical", 4, group=group)
