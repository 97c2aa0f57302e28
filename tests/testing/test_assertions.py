"""The assertions of `collemu.testing`, and properties for all ranks, in one process."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, note, settings
from hypothesis import strategies as st

import collemu
from collemu import testing
from collemu.ranks.alone import Alone
from collemu.testing.together import Outcome, failures

RING = collemu.build_schedule("all_reduce", "ring", 4)


def broken(schedule, column="dst", operation=-1):
    """A schedule one of whose operations has another chunk."""
    ops = schedule.ops.copy()
    ops[column][operation] = (ops[column][operation] + 1) % schedule.region_chunks
    return replace(schedule, ops=ops)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "gather", "sendrecv"])
@pytest.mark.parametrize("wire", ["none", "mxfp4"])
def test_what_is_right_is_correct(collective, wire):
    for algorithm in collemu.algorithms(collective, collemu.load_system("trainium4_nvl72")):
        testing.assert_correct(collemu.build_schedule(collective, algorithm, 3), wire=wire)


def test_an_alltoallv_has_counts():
    schedule = collemu.build_schedule("alltoallv", "direct", 2, counts=[[0, 3], [1, 2]])
    testing.assert_correct(schedule, dtype="int32")


def test_what_is_wrong_is_told():
    with pytest.raises(AssertionError, match=r"^all_reduce ring of 4 ranks: rank \d output\[\d\] .*"):
        testing.assert_correct(broken(RING))


def test_bad_arguments_are_no_failed_assertion():
    with pytest.raises(ValueError, match="no dtype 'float31'"):
        testing.assert_correct(RING, dtype="float31")
    with pytest.raises(ValueError, match=r"all_reduce ring of 4 ranks, but there are 1 processes; make it for ranks="):
        testing.assert_same_bytes(RING, Alone(), count=3)
    with pytest.raises(ValueError, match="count is missing"):
        testing.assert_same_bytes(collemu.build_schedule("all_reduce", "ring", 1), Alone())


def test_one_process_has_the_same_bytes():
    schedule = collemu.build_schedule("all_gather", "ring", 1)
    data = np.float32([[1, np.nan, -0.0]])
    verdict = testing.assert_same_bytes(schedule, Alone(), count=3, wire="mxfp8_e4m3", data=data, system="h100_hgx")
    assert verdict.identical
    with pytest.raises(ValueError, match=r"data has shape \(1, 3\)"):
        testing.assert_same_bytes(schedule, Alone(), count=2, data=data)


def test_alone_it_is_hypothesis_itself():
    seen = []

    @example(x=-7, y=2)
    @settings(max_examples=30, database=None)
    @testing.given_on_all_ranks(x=lambda comm: st.integers(comm.size, 100), y=st.just(2))
    def holds(comm, x, y):
        assume(x != 50)
        note("seen")
        seen.append((x, y))

    holds(Alone())
    assert seen[0] == (-7, 2)
    assert len(seen) >= 30
    assert all(1 <= x <= 100 for x, _ in seen[1:])


def test_alone_it_shrinks():
    @settings(database=None)
    @testing.given_on_all_ranks(x=st.integers())
    def fails(comm, x):
        assert x < 17

    with pytest.raises(AssertionError) as error:
        fails(comm=Alone())
    assert "x=17" in "".join(error.value.__notes__)


def test_what_a_test_lacks_is_told():
    with pytest.raises(TypeError, match="given_on_all_ranks: lacks has no parameter comm, y; add it"):

        @testing.given_on_all_ranks(y=st.integers())
        def lacks(x):
            pass


def test_what_cannot_be_sent_is_told():
    @settings(database=None)
    @testing.given_on_all_ranks(x=st.just(lambda: 1))
    def fails(comm, x):
        pass

    with pytest.raises(TypeError, match="cannot be sent to other processes"):
        fails(Alone())


def test_ranks_that_fail_alike_are_told_once():
    bad, other = Outcome("failed", "a.py:1: no"), Outcome("failed", "b.py:2: never")
    assert failures([bad, bad]) == "all 2 ranks: a.py:1: no"
    assert failures([Outcome(), bad, other, bad]) == "rank 1, 3 of 4: a.py:1: no\nrank 2 of 4: b.py:2: never"
