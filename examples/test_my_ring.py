"""Tests of `my_ring.py` with `collemu.testing`: ``pytest examples/test_my_ring.py``.

The last one starts three MPI processes; ``mpirun -n 3 python -m pytest examples`` runs all in the processes there are.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings

from collemu import testing

MY_RING = Path(__file__).with_name("my_ring.py")


@settings(deadline=None)  # the first call loads kernels
@given(schedule=testing.schedules(algorithms=MY_RING), count=testing.counts(), wire=testing.wires())
def test_sums_are_right_for_any_number_of_ranks(schedule, count, wire):
    testing.assert_correct(schedule, count=count, wire=wire)


@pytest.mark.ranks(3)
@settings(max_examples=20)
@testing.given_on_all_ranks(
    schedule=lambda comm: testing.schedules(algorithms=MY_RING, ranks=comm.size),
    count=testing.counts(),
    wire=testing.wires(),
)
def test_real_processes_give_the_same_bytes(comm, schedule, count, wire):
    testing.assert_same_bytes(schedule, comm, count=count, wire=wire)
