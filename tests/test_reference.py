"""The reference against sums written out."""

import numpy as np
import pytest

from collemu.reference import difference, reference, rows_that_count


def test_what_each_collective_delivers() -> None:
    data = np.array([[1, 2], [10, 20]], np.int32)
    assert reference("all_reduce", data).tolist() == [[11, 22], [11, 22]]
    assert reference("reduce", data, root=1).tolist() == [[11, 22]]
    assert reference("reduce_scatter", data).tolist() == [[11], [22]]
    assert reference("broadcast", data, root=1).tolist() == [[10, 20], [10, 20]]
    assert reference("all_gather", data).tolist() == [[1, 2, 10, 20], [1, 2, 10, 20]]
    assert reference("alltoall", data).tolist() == [[1, 10], [2, 20]]
    assert reference("sendrecv", data).tolist() == [[10, 20], [1, 2]]


@pytest.mark.parametrize(("op", "expected"), [("sum", -4), ("prod", 3), ("min", -3), ("max", -1), ("avg", -2)])
def test_operators(op: str, expected: int) -> None:
    assert reference("all_reduce", np.array([[-1], [-3]], np.int8), op).tolist() == [[expected], [expected]]


def test_integers_wrap_and_their_average_truncates_toward_zero() -> None:
    assert reference("all_reduce", np.array([[127], [1]], np.int8)).tolist() == [[-128], [-128]]
    assert reference("reduce", np.array([[-2], [-3]], np.int64), "avg").tolist() == [[-2]]


def test_narrow_floats_are_summed_in_float64() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.array([[256.0], [1.0]], ml_dtypes.bfloat16)
    assert reference("reduce", data).tolist() == [[257.0]]


def test_difference_looks_at_rows_that_count() -> None:
    data = np.ones((2, 2), np.float32)
    outputs = np.array([[2.0, 2.0], [99.0, 99.0]])
    assert rows_that_count("reduce", outputs, 0).tolist() == [[2, 2]]
    assert difference("reduce", data, outputs) == (0.0, 0.0)
    relative, largest = difference("all_reduce", data, np.array([[2.0, 2.0], [2.0, 6.0]]))
    assert (relative, largest) == (1.0, 4.0)


def test_an_integer_average_is_exact_beyond_float64_and_truncates():
    data = np.array([[2**62 + 4, -7, 7, -(2**62)], [2, 0, 0, -(2**61) - 1]], np.int64)
    assert reference("all_reduce", data, "avg", 0)[0].tolist() == [2**61 + 3, -3, 3, -(2**62 + 2**61) // 2]
