"""The root of a schedule from a file that does not say which it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.collectives import ROOTED
from collemu.schedule import RECEIVES, SENDS


def find_root(collective: str, threads: NDArray[Any], ops: NDArray[Any]) -> int:
    """The one rank that receives no chunk of a broadcast or scatter, or sends none of a reduce or gather; else 0."""
    if collective not in ROOTED:
        return 0
    active = (RECEIVES if collective in ("broadcast", "scatter") else SENDS)[ops["kind"]] & (ops["count"] > 0)
    rank = np.repeat(threads["rank"], threads["length"])
    idle = np.setdiff1d(threads["rank"], rank[active])
    return int(idle[0]) if len(idle) == 1 else 0
