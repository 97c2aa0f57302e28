"""Sizes and lists: the step rules of nccl-tests (nccl-tests#225, PR#226, #167)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collemu.cli.sizes import parse_numbers, parse_size, sizes

M = 2**20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64", 64),
        ("1k", 1024),
        ("1K", 1024),
        ("192K", 196608),
        ("0.5M", 524288),
        (".5m", 524288),
        ("64M", 64 * M),
        ("1G", 1024 * M),
        ("2gb", 2048 * M),
        ("1MiB", M),
    ],
)
def test_sizes_are_binary_and_of_either_case(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "abc", "-1", "1X", "1..5K", "K", "1e3", "2P"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("smallest", "largest", "step", "factor", "expected"),
    [
        (64 * M, 70 * M, 2 * M, 1, [67108864, 69206016, 71303168, 73400320]),
        (196608, 204800, 1024, 1, list(range(196608, 204801, 1024))),
        (196608, 204800, 1024, 0, list(range(196608, 204801, 1024))),
        (1024, 8192, M, 2, [1024, 2048, 4096, 8192]),
        (524288, 524288, M, 1, [524288]),
        (0, 0, M, 2, [0]),
        (1000, 9000, M, 3, [1000, 3000, 9000]),
        (1000, 8999, M, 3, [1000, 3000]),
    ],
)
def test_steps_are_those_of_nccl_tests(
    smallest: int, largest: int, step: int, factor: int, expected: list[int]
) -> None:
    assert sizes(smallest, largest, step, factor) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((2, 1, 1, 1), "must not exceed"),
        ((0, 8, 1, 2), "never grow"),
        ((1, 8, 0, 1), "never reach"),
        ((0, 2**40, 1, 1), "multiply with -f"),
    ],
)
def test_steps_that_lead_nowhere_are_refused(arguments: tuple[int, int, int, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        sizes(*arguments)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 5))
def test_sizes_ascend_from_the_smallest_to_at_most_the_largest(low: int, more: int, step: int, factor: int) -> None:
    if low == 0 and factor > 1 and more:
        return
    try:
        result = sizes(low, low + more, step, factor)
    except ValueError as error:
        assert "multiply with -f" in str(error)
        return
    assert result[0] == low
    assert result[-1] <= low + more
    assert result == sorted(set(result))
    following = result[-1] * factor if factor > 1 else result[-1] + step
    assert following > low + more or low == low + more


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("8", [8]), ("2,4,8-10", [2, 4, 8, 9, 10]), ("all", [1, 2, 3, 4]), ("3,3", [3]), ("1-2,2-3", [1, 2, 3])],
)
def test_lists_of_numbers(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text, "--ranks", 10 if text != "all" else 4) == numbers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "is 0; give 1"),
        ("73", "at most 72"),
        ("5-3", "backwards"),
        ("x", "is not a number"),
        ("4,", "not a number"),
    ],
)
def test_lists_that_make_no_sense_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_numbers(text, "--ranks", 72)
