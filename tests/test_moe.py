"""moe: routings, the copies that they make, and tokens that come back with no more error than their wires make."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collemu import load_system, quantize
from collemu.moe import NO_EXPERT, copies_of, exchange, load_routing, route
from collemu.recipe import Recipe

SYSTEM = load_system("trainium4_nvl72")


def home(expert, ranks, experts):
    """Rank of an expert, by laying experts out one after the other."""
    begins = [-(-rank * experts // ranks) for rank in range(ranks + 1)]
    return next(rank for rank in range(ranks) if begins[rank] <= expert < begins[rank + 1])


@st.composite
def routings(draw):
    ranks, tokens, topk = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    experts = draw(st.integers(topk, 24))
    ids = route(ranks, tokens, topk, experts, exponent=draw(st.sampled_from([0.0, 1.2])), seed=draw(st.integers(0, 99)))
    missing = np.random.default_rng(draw(st.integers(0, 99))).random(ids.shape)
    ids[missing < draw(st.sampled_from([0.0, 0.3]))] = NO_EXPERT
    return ids, experts


@given(routing=routings(), per_expert=st.booleans())
def test_copies_are_those_of_a_loop(routing, per_expert):
    ids, experts = routing
    ranks, tokens, _ = ids.shape
    gates = np.random.default_rng(1).random(ids.shape)
    copies = copies_of(ids, experts, gates=gates, per_expert=per_expert)
    expected = []
    for source in range(ranks):
        for target in range(ranks):
            for token in range(tokens):
                here = [
                    gates[source, token, place]
                    for place, expert in enumerate(ids[source, token].tolist())
                    if expert != NO_EXPERT and home(expert, ranks, experts) == target
                ]
                weights = here if per_expert else [sum(here)] * bool(here)
                expected += [(source, target, token, np.float32(weight)) for weight in weights]
    got = list(zip(copies.source, copies.target, copies.token, copies.weight, strict=True))
    assert [entry[:3] for entry in got] == [entry[:3] for entry in expected]
    np.testing.assert_allclose([entry[3] for entry in got], [entry[3] for entry in expected], rtol=1e-6)
    counts = np.zeros((ranks, ranks), int)
    for source, target, _, _ in expected:
        counts[source, target] += 1
    assert copies.counts.tolist() == counts.tolist()
    if per_expert:
        assert counts.sum() == np.count_nonzero(ids != NO_EXPERT)
    else:
        assert counts.max(initial=0) <= tokens


@pytest.mark.parametrize(("ranks", "experts"), [(1, 5), (3, 3), (4, 10), (72, 256), (8, 3)])
def test_experts_are_spread_evenly(ranks, experts):
    copies = copies_of(np.arange(experts).reshape(1, experts, 1).repeat(ranks, axis=0), experts)
    each = np.bincount(copies.target[copies.source == 0], minlength=ranks)
    assert each.sum() == experts
    assert each.max() - each.min() <= 1


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 8), st.sampled_from([0.0, 0.5, 3.0]))
def test_a_token_has_no_expert_twice(ranks, tokens, topk, exponent):
    ids = route(ranks, tokens, topk, 8, exponent=exponent, seed=3)
    assert ids.shape == (ranks, tokens, topk)
    assert ids.min() >= 0 and ids.max() < 8
    assert all(len(set(token)) == topk for token in ids.reshape(-1, topk).tolist())


def test_zipf_is_zipf():
    """First choices follow the law: with exponent 1 and 4 experts 12/25, 6/25, 4/25, 3/25."""
    ids = route(10, 2000, 1, 4, exponent=1.0, seed=5)
    shares = np.sort(np.bincount(ids.reshape(-1), minlength=4) / ids.size)[::-1]
    np.testing.assert_allclose(shares, [12 / 25, 6 / 25, 4 / 25, 3 / 25], atol=0.02)
    even = np.bincount(route(10, 2000, 1, 4, seed=5).reshape(-1)) / ids.size
    np.testing.assert_allclose(even, 0.25, atol=0.02)


def test_the_same_seed_draws_the_same():
    assert np.array_equal(route(3, 5, 2, 9, seed=1), route(3, 5, 2, 9, seed=1))
    assert not np.array_equal(route(3, 5, 2, 9, seed=1), route(3, 5, 2, 9, seed=2))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topk": 9, "experts": 8}, "top 9 of 8 experts: give 1 to 8"),
        ({"topk": 0, "experts": 8}, "top 0 of 8 experts: give 1 to 8"),
        ({"topk": 2, "experts": 8, "exponent": -1.0}, "zipf exponent -1.0: give a number of 0 or more"),
        ({"topk": 2, "experts": 8, "exponent": float("nan")}, "zipf exponent nan: give a number of 0 or more"),
    ],
)
def test_routings_that_cannot_be_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        route(2, 3, **arguments)


@given(routing=routings(), per_expert=st.booleans(), hidden=st.sampled_from([1, 5, 128]))
def test_tokens_come_back_whole_without_a_narrow_wire(routing, per_expert, hidden):
    ids, experts = routing
    x = np.random.default_rng(2).integers(-8, 9, (*ids.shape[:2], hidden)).astype(np.float32)
    copies = copies_of(ids, experts, per_expert=per_expert, gates=np.full(ids.shape, 0.25))
    outcome = exchange(copies, hidden, SYSTEM, x=x, dtype="float32", dispatch=Recipe(), combine=Recipe())
    assert (outcome.relative_error, outcome.max_abs_error) == (0.0, 0.0)
    assert outcome.dispatch.lowered.schedule.counts.tolist() == (copies.counts * hidden).tolist()
    assert outcome.combine.lowered.schedule.counts.tolist() == (copies.counts.T * hidden).tolist()
    for result in (outcome.dispatch, outcome.combine):
        assert result.time_fs >= result.bounds.total_fs


@pytest.mark.parametrize("per_expert", [False, True])
def test_the_error_is_that_of_the_wires(per_expert):
    """By hand: tokens that travel are rounded to FP8 in blocks of 128, back in bfloat16, added in float32."""
    ids = route(4, 6, 3, 12, seed=7)
    gates = np.random.default_rng(8).random(ids.shape)
    copies = copies_of(ids, 12, gates=gates, per_expert=per_expert)
    x = bfloat16(np.random.default_rng(9).standard_normal((4, 6, 256)).astype(np.float32))
    outcome = exchange(copies, 256, SYSTEM, x=x)
    got, exact = np.zeros(x.shape, np.float32), np.zeros(x.shape)
    for source, target, token, weight in zip(copies.source, copies.target, copies.token, copies.weight, strict=True):
        row = x[source, token]
        if source != target:
            row = bfloat16(quantize(row, "fp8_block128", scale_mode="margin").dequantize())
        got[source, token] += weight * row
        exact[source, token] += np.float64(weight) * x[source, token]
    assert outcome.max_abs_error == np.abs(got - exact).max()
    assert outcome.relative_error == pytest.approx(np.linalg.norm(got - exact) / np.linalg.norm(exact), rel=1e-12)
    assert 0.005 < outcome.relative_error < 0.04


def bfloat16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def test_a_rack_of_deepseek():
    """72 ranks, 128 tokens each, top 8 of 256 experts, as DeepEP counts them."""
    ids = route(72, 128, 8, 256)
    once, each = copies_of(ids, 256), copies_of(ids, 256, per_expert=True)
    assert each.counts.sum() == 72 * 128 * 8
    assert once.counts.sum() < each.counts.sum()
    outcome = exchange(once, 7168, SYSTEM)
    assert outcome.relative_error is None
    # codes and a float32 scale for 128 of them; then bfloat16
    off = once.counts.sum() - np.trace(once.counts)
    assert outcome.dispatch.wire_bytes == off * (7168 + 4 * 56)
    assert outcome.combine.wire_bytes == off * 7168 * 2
    assert outcome.combine.time_fs > outcome.dispatch.time_fs
    assert exchange(each, 7168, SYSTEM).dispatch.time_fs > outcome.dispatch.time_fs


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_deepep_on_gb200_takes_as_long(shared_folder, phase):
    """Low-latency kernels between 4 GPUs, 1 to 1024 tokens each: emulated within 20 %, 10 % in the median."""
    with (shared_folder / "data/measured_moe_alltoall.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["case_id"] == f"moe_gb200_deepep_ll_{phase}"]
    assert len(rows) == 11
    system, errors = load_system("gb200_nvl72"), []
    for row in rows:
        ranks, tokens, topk, experts, hidden = (
            int(row[name]) for name in ("ep_ranks", "tokens_per_rank", "topk", "experts", "hidden")
        )
        copies = copies_of(route(ranks, tokens, topk, experts), experts, per_expert=True)
        result = getattr(exchange(copies, hidden, system), phase)
        errors.append(abs(result.time_s * 1e6 / float(row["time_us"]) - 1))
    assert max(errors) < 0.2
    assert np.median(errors) < 0.1


def test_imbalance_costs_time():
    skewed, even = (copies_of(route(16, 64, 4, 64, exponent=e, seed=1), 64) for e in (2.0, 0.0))
    assert skewed.counts.sum(axis=0).max() > 2 * even.counts.sum(axis=0).max()
    assert exchange(skewed, 2048, SYSTEM).dispatch.time_fs > exchange(even, 2048, SYSTEM).dispatch.time_fs


def test_files_of_routings(tmp_path):
    ids = np.array([[0, 3], [1, -1], [2, 0], [3, 1]], np.int32)
    path = tmp_path / "ids.npy"
    np.save(path, ids)
    assert load_routing(str(path), 2, 4).tolist() == [[[0, 3], [1, -1]], [[2, 0], [3, 1]]]
    with pytest.raises(ValueError, match="4 tokens cannot be shared evenly by 3 ranks"):
        load_routing(str(path), 3, 4)
    with pytest.raises(ValueError, match="token 0 has expert 3; there are 0 to 2"):
        load_routing(str(path), 2, 3)
    np.save(path, ids.astype(float))
    with pytest.raises(ValueError, match="give an array of integers, tokens x experts of each"):
        load_routing(str(path), 2, 4)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"no .npy file of numbers"):
        load_routing(str(path), 2, 4)
    with pytest.raises(ValueError, match=r"no such file; give uniform, zipf:EXPONENT or a .npy file"):
        load_routing(str(tmp_path / "other.npy"), 2, 4)
