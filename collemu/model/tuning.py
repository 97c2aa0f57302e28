"""The fastest way to run a collective, size by size, and where one takes over from another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collemu.dtypes import find_dtype
from collemu.model.bandwidth import count_for_size
from collemu.model.choose import Choice, Task, fastest, time_s

SAME = 1.01  # times within this factor are no reason to change, nor for more channels or pieces
CLOSE_WITH_PIECES = 1.5
FINE = 1.05  # boundaries are found to within this factor of the size


@dataclass(frozen=True)
class Range:
    """Sizes that are run in one way.

    Attributes
    ----------
    min_bytes, max_bytes : int
        As nccl-tests counts the size of the collective; both belong to it.
    choice : Choice
    first_s, last_s : float
        Emulated seconds at either end.
    """

    min_bytes: int
    max_bytes: int
    choice: Choice
    first_s: float
    last_s: float


def tune(
    task: Task,
    choices: Sequence[Choice],
    sizes: Sequence[int],
    *,
    told: Callable[[int], None] = lambda _: None,
) -> list[Range]:
    """Find the fastest choice for every size, and between two sizes the place where it changes.

    What is as fast to 1 % does not take over, and of the channels and pieces of an algorithm the fewest that are.

    Parameters
    ----------
    task : Task
    choices : sequence of Choice
    sizes : sequence of int
        Bytes, rising; ranges begin with the first and end with the last.
    told : function
        Called with each size before it is looked at.

    Returns
    -------
    list of Range
        Without gap or overlap.
    """
    best: list[Choice] = []
    for size in sizes:
        told(size)
        found = fastest(task, choices, count_of(task, size), CLOSE_WITH_PIECES)
        limit = SAME * _time(task, found, size)
        if best and _time(task, best[-1], size) <= limit:
            found = best[-1]
        else:
            found = next(each for each in _plainer(found, choices) if _time(task, each, size) <= limit)
        best.append(found)
    starts = [(sizes[0], best[0])]
    for before, size, choice in zip(sizes, sizes[1:], best[1:], strict=False):
        if choice != starts[-1][1]:
            starts.append((_boundary(task, starts[-1][1], choice, before, size), choice))
    ends = [start - 1 for start, _ in starts[1:]] + [sizes[-1]]
    return [
        Range(start, end, choice, _time(task, choice, start), _time(task, choice, end))
        for (start, choice), end in zip(starts, ends, strict=True)
    ]


def _plainer(choice: Choice, choices: Sequence[Choice]) -> list[Choice]:
    """The same algorithm and protocol in fewer channels and pieces, the fewest first; the choice itself is last."""
    kin = [each for each in choices if (each.algorithm, each.protocol) == (choice.algorithm, choice.protocol)]
    kin = [each for each in kin if each.channels <= choice.channels and (each.chunks or 0) <= (choice.chunks or 0)]
    return sorted(kin, key=lambda each: (each.channels, each.chunks or 0))


def count_of(task: Task, size: int) -> int:
    """Elements a rank of a size."""
    return count_for_size(task.collective, task.ranks, size, find_dtype(task.dtype).item_bytes)


def _boundary(task: Task, before: Choice, after: Choice, low: int, high: int) -> int:
    """The first size, nearly, from which the later choice is faster: it is at the high end, and was not at the low."""
    while high > FINE * low:
        middle = round((low * high) ** 0.5)
        if _time(task, after, middle) < _time(task, before, middle):
            high = middle
        else:
            low = middle
    return high


def _time(task: Task, choice: Choice, size: int) -> float:
    return time_s(task, choice, count_of(task, size))
