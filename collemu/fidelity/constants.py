"""Fitted constants in TOML: those that are shipped, and a user's own."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from collemu.fidelity.fit import WEAK, Estimate

SHIPPED = Path(__file__).with_name("constants.toml")
HEADER = """\
# Constants of closed forms, fitted to measured tables: collemu calibrate --from FILE. Every one is `fitted`;
# uncertainty is relative, one standard deviation; rows are those whose time it changes.
"""

USUAL = "usual"  # of owners that have no value of their own

#: Form -> group -> (constant, owner or empty) -> value.
Constants = dict[str, dict[str, dict[tuple[str, str], float]]]


def load_constants(path: Path | str = SHIPPED) -> Constants:
    """Read constants.

    Raises
    ------
    ValueError
        If the file cannot be read; the text names it.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    try:
        return {
            form: {group: dict(_values(each)) for group, each in groups.items()} for form, groups in content.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is no file of constants; make one with: collemu calibrate --from FILE") from None


def _values(group: Mapping[str, Any]) -> Iterable[tuple[tuple[str, str], float]]:
    for name, each in group.items():
        if name == "cases":
            continue
        for owner, own in ({USUAL: each} if "value" in each else each).items():
            value = own["value"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise ValueError(f"{name} is {value!r}")
            yield (name, "" if owner == USUAL else owner), float(value)


def constants_text(
    found: Mapping[tuple[str, str], Iterable[Estimate]], cases: Mapping[tuple[str, str], Iterable[str]]
) -> str:
    """The file of fitted constants, by form and group."""
    lines = [HEADER]
    for (form, group), estimates in found.items():
        lines.append(f"[{form}.{json.dumps(group)}]")
        for each in estimates:
            owner = json.dumps(each.owner or USUAL)
            key = f"{each.constant.name}.{owner}" if each.constant.spread else each.constant.name
            lines.append(f"{key} = {_line(each)}")
        lines += [f"cases = {json.dumps(sorted(cases[form, group]))}", ""]
    return "\n".join(lines)


def _line(each: Estimate) -> str:
    notes = [each.constant.meaning, *remarks(each)]
    parts = {
        "value": f"{each.value:.4g}",
        "unit": json.dumps(each.constant.unit),
        "uncertainty": f"{min(each.uncertainty, 99.0):.2g}",
        "rows": str(each.rows),
        "confidence": '"fitted"',
        "note": json.dumps("; ".join(notes)),
    }
    return "{ " + ", ".join(f"{name} = {text}" for name, text in parts.items()) + " }"


def remarks(each: Estimate) -> list[str]:
    """What a reader must know of a constant."""
    found: list[str] = []
    if each.at_bound:
        found.append("at its bound")
    if each.rows == 0:
        found.append("no row depends on it: left where the fit began")
    elif each.uncertainty > WEAK:
        found.append("weak: the rows say little of it")
    return found
