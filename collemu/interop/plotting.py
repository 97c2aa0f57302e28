"""Matplotlib, which only pictures need, loaded when one is drawn."""

from importlib import import_module
from typing import Any


def load_matplotlib(*modules: str) -> list[Any]:
    """Modules of matplotlib by their full names.

    Raises
    ------
    ValueError
        If it is not installed; the text says how to.
    """
    try:
        return [import_module(name) for name in modules]
    except ImportError:
        raise ValueError('pictures need one more package: pip install "collemu[plot]"') from None
