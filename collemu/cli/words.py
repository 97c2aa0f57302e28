"""Words of flags: comma lists of names, and whole numbers."""

import itertools
from collections.abc import Iterable, Sequence

from collemu.arguments import refuse_unknown


def names(text: str, known: Sequence[str], what: str) -> list[str]:
    """Names of a comma list, all of them known; ``all`` stands for every one.

    Raises
    ------
    ValueError
        For an unknown one; the text lists the known.
    """
    given = listed(text, known)
    for name in given:
        refuse_unknown(name, known, what)
    return given


def listed(text: str, known: Iterable[str]) -> list[str]:
    """Parts of a comma list, each once; ``all`` spelled out."""
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise ValueError(f"{text!r} has an empty entry; give a comma list such as a,b")
    return list(dict.fromkeys(itertools.chain.from_iterable(known if part == "all" else [part] for part in parts)))


def whole(text: str, flag: str, *, least: int, most: int | None = None) -> int:
    """A whole number of a flag.

    Raises
    ------
    ValueError
        If it is none, below ``least`` or above ``most``.
    """
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{flag} {text!r} is not a whole number") from None
    if number < least:
        raise ValueError(f"{flag} is {number}; give {least} or more")
    if most is not None and number > most:
        raise ValueError(f"{flag} is {number}; give at most {most}")
    return number


def seconds(text: str | None, flag: str) -> float | None:
    """The time of a flag, in seconds; None where it was not given.

    Raises
    ------
    ValueError
        If it is no positive, finite number.
    """
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"{flag} {text!r} is no number of seconds above 0")
    return number
