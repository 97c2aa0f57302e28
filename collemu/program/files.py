"""Algorithms in a user's Python file, which is run to get them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from collemu.program.algorithm import Algorithm, UsersCode

ENDING = ".py"


def split_name(word: str) -> tuple[str, str | None] | None:
    """Path, and name of an algorithm if one is given, of ``FILE.py`` or ``FILE.py:NAME``; None for other words."""
    path, colon, name = word.rpartition(":")
    if colon and path.lower().endswith(ENDING):
        return path, name
    return (word, None) if word.lower().endswith(ENDING) else None


def load_algorithms(path: str) -> dict[str, Algorithm]:
    """Run a user's file and collect its algorithms, by name.

    Parameters
    ----------
    path : str
        It is code: it can do whatever Python can. Its folder is importable while it, or its functions, run.

    Raises
    ------
    ProgramError
        For what goes wrong in it; the text begins with file and line.
    ValueError
        If it has no algorithm, or two of a name.
    OSError
        If it cannot be read.
    """
    source = Path(path).read_bytes()
    module = ModuleType(f"collemu_algorithms_{Path(path).stem}")
    module.__file__ = path
    with UsersCode(path):
        sys.modules[module.__name__] = module  # dataclasses look there
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    found: dict[str, Algorithm] = {}
    for value in vars(module).values():
        if not isinstance(value, Algorithm) or found.get(value.name) is value:
            continue
        if value.name in found:
            raise ValueError(f"{value.defined_at}: there is an algorithm {value.name} already; give another name=")
        found[value.name] = value
    if not found:
        raise ValueError(
            f'{path}: no algorithm; put @algorithm("all_reduce") of collemu.program above a function that takes p'
        )
    return found


def choose_algorithm(word: str, found: dict[str, Algorithm], collective: str | None = None) -> Algorithm:
    """The algorithm that ``FILE.py`` or ``FILE.py:NAME`` means, for a collective if one is given.

    Raises
    ------
    ValueError
        If there is none, or a choice; the text lists them.
    """
    path, name = split_name(word) or (word, None)
    if name is not None and name not in found:
        raise ValueError(f"{path}: no algorithm {name!r}; choose {listed(path, found)}")
    named = [found[name]] if name is not None else list(found.values())
    fitting = [each for each in named if collective in (None, each.collective)]
    if not fitting:
        does = ", ".join(dict.fromkeys(each.collective for each in named))
        raise ValueError(f"{word}: it does {does}, not {collective}")
    if len(fitting) > 1:
        what = f" for {collective}" if collective else ""
        raise ValueError(
            f"{path}: {len(fitting)} algorithms{what}; choose {listed(path, {a.name: a for a in fitting})}"
        )
    return fitting[0]


def listed(path: str, found: dict[str, Algorithm]) -> str:
    """Words for all algorithms of a file."""
    return ", ".join(f"{path}:{name}" for name in found)
