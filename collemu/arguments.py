"""What users pass, refused in one line where it is not what a function takes."""

import difflib
import operator
from collections.abc import Iterable
from typing import Any


def whole(value: Any, name: str, *, least: int = 0, most: int | None = None) -> int:
    """A whole number within limits, of any integer type but bool.

    Raises
    ------
    ValueError
        For anything else; the text says what is possible.
    """
    wanted = f"give a whole number of {least} or more" if most is None else f"give a whole number, {least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; {wanted}") from None
    if type(value).__name__ in ("bool", "bool_"):  # an index to Python, but hardly meant as a number
        raise ValueError(f"{name} is {value!r}; {wanted}")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {number}; {wanted}")
    return number


def flag(value: Any, name: str) -> bool:
    """True or False, Python's or NumPy's.

    Raises
    ------
    ValueError
        For anything else: what is true of a text is rarely what it says.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise ValueError(f"{name} is {value!r}; give True or False")
    return bool(value)


def one_of(given: Any, allowed: Iterable[str], what: str) -> str:
    """One of some names.

    Raises
    ------
    ValueError
        For anything else; the text lists the names.
    """
    names = tuple(allowed)
    if not isinstance(given, str) or given not in names:
        raise ValueError(f"{what}={shown(given)} is not supported; choose {', '.join(names)}")
    return given


def refuse_unknown(name: str, known: Iterable[str], what: str) -> None:
    """Refuse a name that is not among those known.

    Raises
    ------
    ValueError
        The text has the nearest of them, and lists all.
    """
    names = tuple(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        guess = f": did you mean {near[0]}? There are" if near else "; choose"
        raise ValueError(f"no {what} {name!r}{guess} {', '.join(names)}")


def instance_of(value: Any, kind: type, name: str, how: str) -> None:
    """Refuse an object of another class.

    Raises
    ------
    TypeError
        If it is not of that class; the text ends with how to get one.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}, no {kind.__name__}; {how}")


def shown(value: Any) -> str:
    """An object in a few words of one line: itself where that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
