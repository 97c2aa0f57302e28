"""How errors grow with ranks: as the literature says, and never beyond the worst case."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collemu as ce
from collemu.error_growth import Error, growth, measure_error, values

SYSTEM = ce.load_system("trainium4_nvl72")
RANKS = (2, 4, 8, 16, 32, 64)


def errors(algorithm, wire, kind, dtype="float32"):
    return [
        measure_error(
            ce.build_schedule("all_reduce", algorithm, ranks),
            SYSTEM,
            values(kind, ranks, 8192),
            dtype=dtype,
            recipe=ce.Recipe(wire=wire),
        )
        for ranks in RANKS
    ]


@pytest.mark.parametrize("wire", ["float8_e4m3fn", "mxfp8_e4m3", "bfloat16"])
def test_the_ring_s_error_grows_as_the_square_root_of_ranks_on_zero_mean_data(wire):
    slope = growth(errors("ring", wire, "normal"))
    assert slope == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("wire", ["float8_e4m3fn", "mxfp8_e4m3", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_that_of_two_shot_is_flat(wire, kind):
    assert growth(errors("two_shot", wire, kind)) == pytest.approx(0, abs=0.07)


def test_one_sided_data_is_worse_as_small_terms_are_absorbed():
    ring, sided = errors("ring", "float8_e4m3fn", "normal"), errors("ring", "float8_e4m3fn", "positive")
    assert growth(sided) > growth(ring) + 0.15
    assert sided[-1].relative > 3 * ring[-1].relative


def test_a_tree_lies_between():
    found = {name: errors(name, "float8_e4m3fn", "normal")[-1].relative for name in ("ring", "tree", "two_shot")}
    assert found["two_shot"] < found["tree"] < found["ring"]


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(["ring", "tree", "two_shot", "one_shot", "recursive_doubling", "halving_doubling"]),
    wire=st.sampled_from(
        ["none", "bfloat16", "float8_e4m3fn", "float8_e5m2", "mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4"]
    ),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    runs_in=st.sampled_from([None, "float32", "float16", "float8_e4m3fn"]),
    ranks=st.integers(1, 12),
    count=st.integers(1, 300),
    seed=st.integers(0, 10**6),
)
def test_no_error_is_beyond_the_worst_case(algorithm, wire, dtype, runs_in, ranks, count, seed):
    data = np.random.default_rng(seed).standard_normal((ranks, count)).astype(np.float32)
    if dtype == "bfloat16":
        data = ce.decode(ce.encode(data, dtype), dtype)
    schedule = ce.build_schedule("all_reduce", algorithm, ranks)
    error = measure_error(schedule, SYSTEM, data, dtype=dtype, recipe=ce.Recipe(wire=wire, dtype=runs_in))
    assert error.worst is not None
    assert error.largest <= error.worst * (1 + 1e-9)


def test_growth_is_a_slope_and_needs_two_points():
    points = [Error(ranks, 1, 0.1 * ranks**0.75, 0.0, None, 0) for ranks in RANKS]
    assert growth(points) == pytest.approx(0.75)
    assert growth(points[:1]) is None
    assert growth([Error(1, 1, 0.5, 0.0, None, 0), Error(2, 1, 0.0, 0.0, None, 0)]) is None


def test_values_are_the_same_every_time_and_named():
    np.testing.assert_array_equal(values("normal", 3, 10), values("normal", 3, 10))
    assert (values("positive", 2, 1000) >= 0).all()
    with pytest.raises(ValueError, match="no values 'gauss'; choose normal, positive"):
        values("gauss", 1, 1)
