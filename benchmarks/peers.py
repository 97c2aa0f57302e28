"""The libraries that collemu is measured beside: imported where they are installed, named where they are not."""

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

NAMES = ("ml_dtypes", "torch", "torchao", "mmaemu")


@cache
def peer(module: str) -> ModuleType | None:
    """A module of a peer, or None where it does not import; torch runs on one thread."""
    logging.disable(logging.WARNING)  # torchao speaks of the CUDA libraries that it does not find
    try:
        found = import_module(module)
    except (ImportError, OSError):  # OSError: a library of torch that the machine cannot load
        return None
    finally:
        logging.disable(logging.NOTSET)
    if module == "torch":
        found.set_num_threads(1)
    return found


def inventory() -> str:
    """Which peers take part, and which are absent."""
    return "Peers: " + ", ".join(_version(name) if peer(name) else f"{name} is ABSENT" for name in NAMES)


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name
