"""The fields of a JSON file from a stranger, each checked, and named by its place where it is missing or wrong."""

from __future__ import annotations

import json
from collections.abc import Collection
from os import PathLike
from typing import Any, TypeVar, cast

MOST_BYTES = 2**25
MOST = 2**31 - 1
_MOST_ROWS = 2**16
_Each = TypeVar("_Each")


class Fields:
    """An object of the file."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{place} is {_shown(value)}, no object")
        self._values = cast(dict[str, Any], value)
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, *names: str) -> Any:
        """What stands under the first of some names that is there."""
        for name in names:
            if name in self._values:
                return self._values[name]
        raise ValueError(f"{self.place}: {names[0]} is missing")

    def whole(self, *names: str, least: int = 0, most: int = MOST, default: int | None = None) -> int:
        """A whole number."""
        if default is not None and not any(name in self._values for name in names):
            return default
        return _whole(self.value(*names), f"{self.place}: {names[0]}", least, most)

    def truth(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        if default is not None and name not in self._values:
            return default
        value = self.value(name)
        if not isinstance(value, bool):
            raise ValueError(f"{self.place}: {name} is {_shown(value)}, neither true nor false")
        return value

    def text(self, *names: str) -> str:
        """A line of text."""
        value = self.value(*names)
        if not isinstance(value, str) or not value.isprintable() or not value or len(value) > 255:
            raise ValueError(f"{self.place}: {names[0]} is {_shown(value)}, no line of 1 to 255 characters")
        return value

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of some words."""
        value = self.value(name)
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{self.place}: {name} is {_shown(value)}; choose {', '.join(choices)}")
        return value

    def rows(self, name: str, what: str = "", *, needed: bool = False) -> list[Fields]:
        """The objects of a list; none where it is not there."""
        found = enumerate(self._list(name, needed))
        return [Fields(each, f"{self.place} {what or name} {number}") for number, each in found]

    def numbers(self, name: str, most: int = MOST) -> list[int]:
        """The whole numbers of a list; none where it is not there."""
        return [_whole(each, f"{self.place}: {name}", 0, most) for each in self._list(name, needed=False)]

    def _list(self, name: str, needed: bool) -> list[Any]:
        if name not in self._values and not needed:
            return []
        value = self.value(name)
        if not isinstance(value, list):
            raise ValueError(f"{self.place}: {name} is {_shown(value)}, no list")
        found = cast(list[Any], value)
        if len(found) > _MOST_ROWS:
            raise ValueError(f"{self.place}: {name} has more than {_MOST_ROWS:,} entries, which no plan has")
        return found


def read_json(path: str | PathLike[str]) -> Fields:
    """The object that a file holds.

    Raises
    ------
    ValueError
        If it is no JSON object, or too large.
    OSError
        If it cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES >> 20} MiB, which no plan has")
    try:
        value = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"no JSON: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: line {error.lineno} column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError):
        raise ValueError(
            "no JSON that a plan could be: it nests too deeply, or has numbers of too many digits"
        ) from None
    return Fields(value, "plan")


def at(values: list[_Each], number: int, name: str) -> _Each:
    """The entry of a list that a field names by its number."""
    if number >= len(values):
        raise ValueError(f"{name} is {number}, and there are {len(values)}")
    return values[number]


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {_shown(value)}, no whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}; it must be {least} to {most}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)[:60] if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
