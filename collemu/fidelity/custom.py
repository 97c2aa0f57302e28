"""Custom all_reduce kernels of serving libraries, launched from graphs: one-shot, two-shot, and NCCL beyond them."""

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import ARCHITECTURES, LINE_RATE

ONE_SHOT, TWO_SHOT, EITHER, IN_SWITCH = "one-shot", "two-shot", "either", "in-switch"
GRAPHS = ("trtllm", "vllm")  # libraries whose tables are of launches in graphs


class Custom:
    """Everybody reads or writes everybody's data at once; no steps."""

    name = "custom"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The system and how the kernel works."""
        able = (rows.network == NO_NETWORK) & rows.custom & (rows.collective == "all_reduce")
        known = able & np.isin(rows.system, list(ARCHITECTURES))
        kinds = [f"{system} {kind}" for system, kind in zip(rows.system, kinds_of(rows), strict=True)]
        return np.where(known, kinds, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of a system and a kind of kernel."""
        system, kind = group.split()
        line = LINE_RATE[ARCHITECTURES[system]]
        start = (
            Constant("launch_us", "us", "launch in a graph, and flags there and back", 5.0),
            Constant("line_us", "us", "each doubling of what a rank gives, beyond 1 KiB", 0.1),
        )
        one = (Constant("one_shot_GBps", "GB/s", "what a chip sends to all others at once", 0.7 * line, line),)
        two = (
            Constant("two_shot_us", "us", "the second exchange of flags", 5.0),
            Constant("two_shot_GBps", "GB/s", "what a chip sends in both halves", 0.6 * line, line),
        )
        beyond = (
            Constant("beyond_us", "us", "what the library falls back to, beside its bytes", 20.0),
            Constant("beyond_GBps", "GB/s", "bus bandwidth of what it falls back to", 0.8 * line, 2 * line),
        )
        return start + {ONE_SHOT: one, TWO_SHOT: two, IN_SWITCH: beyond, EITHER: one + two + beyond}[kind]

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """The quickest of what the kernel may do."""
        ranks, size = rows.ranks, rows.size
        start = values["launch_us"] + values["line_us"] * np.log2(np.maximum(size / 1024, 1))
        ways: list[Floats] = []
        if "one_shot_GBps" in values:
            ways.append(start + us_of(size * (ranks - 1), values["one_shot_GBps"]))
        moved = 2 * (ranks - 1) / ranks * size
        if "two_shot_GBps" in values:
            ways.append(start + values["two_shot_us"] + us_of(moved, values["two_shot_GBps"]))
        if "beyond_GBps" in values:
            ways.append(start + values["beyond_us"] + us_of(moved, values["beyond_GBps"]))
        return np.min(ways, axis=0)


def kinds_of(rows: Measured) -> list[str]:
    """By words of the free texts."""
    return [_kind(text, library) for text, library in zip(rows.algorithm, rows.library, strict=True)]


def _kind(text: str, library: str) -> str:
    if any(word in text for word in ("nvls", "multimem", "symm")):
        return IN_SWITCH
    one, two = ("one-" in text or "one_" in text), ("two-" in text or "two_" in text)
    if one != two and not library.startswith(GRAPHS):
        return ONE_SHOT if one else TWO_SHOT
    return EITHER
