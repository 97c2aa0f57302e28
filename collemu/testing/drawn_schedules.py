"""Hypothesis strategies of schedules, and of element counts.

How they shrink: to the first collective and algorithm of those allowed, fewer ranks, root 0, the first number of
channels and chunks; to a count of 0, or the least of those around blocks that still fails. What failed is shown as a
call that makes it.
"""

import inspect
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from collemu.arguments import refuse_unknown
from collemu.builders import BUILDERS, GROUPED, IN_SWITCH
from collemu.collectives import ROOTED
from collemu.program.algorithm import Algorithm
from collemu.program.files import choose_algorithm, load_algorithms, split_name
from collemu.schedule import Schedule, build_schedule
from collemu.testing.drawn_values import laid_out, palettes

Some: TypeAlias = "int | Sequence[Any] | SearchStrategy[Any]"  # one, some to choose from, or a strategy
Names: TypeAlias = str | Sequence[str] | None
Own: TypeAlias = "str | PathLike[str] | Algorithm"  # an algorithm: its name, its file, or itself

RANKS = range(1, 9)
MOST = 300  # elements: a few blocks and packets
PER_PAIR = 70  # elements from one rank to another in an alltoallv
EDGES = (1, 2, 16, 32, 64, 128, 256)  # blocks of formats, and a packet of float32


class _Maker(NamedTuple):
    """Makes schedules of one algorithm: what it is called with beside ranks and root."""

    collective: str
    make: Callable[..., Schedule]
    fixed: tuple[str, ...]
    takes: tuple[str, ...]


def schedules(
    collectives: Names = None,
    algorithms: "Own | Sequence[Own] | None" = None,
    *,
    ranks: Some = RANKS,
    channels: Some = (1, 2),
    chunks: Some = (None, 1, 3),
    in_switch: bool = False,
) -> SearchStrategy[Schedule]:
    """Schedules of built-in algorithms, or of your own.

    Parameters
    ----------
    collectives : str or sequence of str, optional
        Only these; all when left out.
    algorithms : str, path, Algorithm, or sequence of them, optional
        Only these: names, Python files (``FILE.py`` or ``FILE.py:NAME``), or what ``@algorithm`` made. All built-in
        ones when left out.
    ranks, channels, chunks : number, sequence or strategy
        What to choose from. Algorithms of your own get channels and chunks if their functions take them.
    in_switch : bool
        Whether algorithms that have switches add and copy are among all; few systems run them.

    Raises
    ------
    ValueError
        If there is no such algorithm; the text lists those that there are.
    """
    wanted = (collectives,) if isinstance(collectives, str) else tuple(collectives or BUILDERS)
    for each in wanted:
        refuse_unknown(each, BUILDERS, "collective")
    given = (algorithms,) if isinstance(algorithms, str | PathLike | Algorithm) else algorithms
    makers = (
        _built_in(wanted, None, in_switch)
        if given is None
        else [made for each in given for made in _made(wanted, each)]
    )
    return _schedules(makers, _choice(ranks), _choice(channels), _choice(chunks))


def counts(most: int = MOST, *, near: Sequence[int] = ()) -> SearchStrategy[int]:
    """Elements a rank: 0, 1, those around blocks, packets and multiples of numbers given, and any other up to a limit.

    Parameters
    ----------
    most : int
    near : sequence of int
        Such as ranks or chunks: with their multiples come those that they do not divide, one before and one after.
    """
    multiples = {edge * factor for edge in (*EDGES, *near) for factor in (1, 2, 3)}
    edges = sorted({0, *(each + step for each in multiples for step in (-1, 0, 1))})
    return st.sampled_from([edge for edge in edges if edge <= most]) | st.integers(0, most)


@st.composite
def _schedules(
    draw: DrawFn,
    makers: Sequence[_Maker],
    ranks: SearchStrategy[int],
    channels: SearchStrategy[int],
    chunks: SearchStrategy[int | None],
) -> Schedule:
    collective, make, fixed, takes = draw(st.sampled_from(makers))
    size = draw(ranks)
    choices: dict[str, SearchStrategy[Any]] = {
        "root": st.integers(0, size - 1) if collective in ROOTED else st.just(0),
        "channels": channels,
        "chunks": chunks,
        "group": st.sampled_from((None, *range(1, size + 1))),
        "counts": _tables(size),
    }
    # each argument on its own line of choices, so that hypothesis can shrink one without touching the others
    chosen = {name: st.just(draw(choices[name])) for name in takes}
    return draw(st.builds(make, *map(st.just, fixed), st.just(size), **chosen))


@st.composite
def _tables(draw: DrawFn, ranks: int) -> NDArray[Any]:
    """Counts of an alltoallv: many pairs exchange nothing."""
    return laid_out(draw(palettes(st.sampled_from((0, 1)) | st.integers(0, PER_PAIR))), (ranks, ranks), np.int64)


def _choice(given: Some) -> SearchStrategy[Any]:
    if isinstance(given, SearchStrategy):
        return given
    return st.sampled_from(given) if isinstance(given, Sequence) else st.just(given)


def _made(wanted: Sequence[str], given: Own) -> list[_Maker]:
    """What makes schedules of an algorithm."""
    if isinstance(given, Algorithm):
        return [_own(given)]
    word = fspath(given)
    if python := split_name(word):
        return [_own(choose_algorithm(word, load_algorithms(python[0]), wanted[0] if len(wanted) == 1 else None))]
    return _built_in(wanted, word, in_switch=True)


def _own(made: Algorithm) -> _Maker:
    def make(ranks: int, **arguments: Any) -> Schedule:
        return made.schedule(ranks, **arguments)

    make.__name__ = f"{made.name}.schedule"  # hypothesis shows it
    function = inspect.signature(made.function).parameters
    return _Maker(made.collective, make, (), ("root", *(name for name in ("channels", "chunks") if name in function)))


def _built_in(wanted: Sequence[str], algorithm: str | None, in_switch: bool) -> list[_Maker]:
    pairs = [(collective, name) for collective in wanted for name in BUILDERS[collective]]
    if algorithm is not None:
        refuse_unknown(algorithm, dict.fromkeys(name for _, name in pairs), f"algorithm of {', '.join(wanted)}:")
    return [
        _Maker(
            *(pair[0], build_schedule, pair),
            (
                *("root", "channels", "chunks"),
                *("group",) * (pair[1] in GROUPED.get(pair[0], ())),
                *("counts",) * (pair[0] == "alltoallv"),
            ),
        )
        for pair in pairs
        if algorithm in (None, pair[1]) and (in_switch or pair[1] not in IN_SWITCH)
    ]
