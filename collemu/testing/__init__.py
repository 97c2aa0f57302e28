"""For tests of collective algorithms: Hypothesis strategies, assertions, and properties that all MPI processes share.

Names are imported when they are first used; all but the assertions need Hypothesis: ``pip install "collemu[testing]"``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collemu.testing.assertions import assert_correct as assert_correct
    from collemu.testing.assertions import assert_same_bytes as assert_same_bytes
    from collemu.testing.drawn_runs import runs as runs
    from collemu.testing.drawn_schedules import counts as counts
    from collemu.testing.drawn_schedules import schedules as schedules
    from collemu.testing.drawn_systems import systems as systems
    from collemu.testing.drawn_values import codes as codes
    from collemu.testing.drawn_values import dtypes as dtypes
    from collemu.testing.drawn_values import recipes as recipes
    from collemu.testing.drawn_values import tensors as tensors
    from collemu.testing.drawn_values import wires as wires
    from collemu.testing.on_all_ranks import given_on_all_ranks as given_on_all_ranks

_HOMES = {
    "assert_correct": "assertions",
    "assert_same_bytes": "assertions",
    "codes": "drawn_values",
    "counts": "drawn_schedules",
    "dtypes": "drawn_values",
    "given_on_all_ranks": "on_all_ranks",
    "recipes": "drawn_values",
    "runs": "drawn_runs",
    "schedules": "drawn_schedules",
    "systems": "drawn_systems",
    "tensors": "drawn_values",
    "wires": "drawn_values",
}

__all__ = [
    "assert_correct",
    "assert_same_bytes",
    "codes",
    "counts",
    "dtypes",
    "given_on_all_ranks",
    "recipes",
    "runs",
    "schedules",
    "systems",
    "tensors",
    "wires",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'collemu.testing' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"collemu.testing.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ImportError(f'collemu.testing.{name} needs Hypothesis: pip install "collemu[testing]"') from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
