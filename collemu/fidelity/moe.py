"""Dispatch and combine of mixtures of experts on one NVLink domain: rows for each peer, and bytes on the link."""

from math import comb

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, us_of
from collemu.fidelity.measured import Measured

ROW_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}  # of an element as it is dispatched, with its scales
SHARPNESS = 4  # of the greater of two costs


class Moe:
    """What each rank sends to its peers, row by row, or as fast as the link takes it: whatever is longer.

    A token goes once to each rank that has one of its experts: experts are drawn evenly.
    """

    name = "moe"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The kernel and the phase."""
        kinds = [f"{kernel} {phase}" for kernel, phase in zip(rows.algorithm, rows.collective, strict=True)]
        return np.where(~np.isnan(rows.tokens), [kind.replace(" ", "_") for kind in kinds], "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of a kernel and a phase."""
        start = (
            Constant("start_us", "us", "launch and flags", 10.0),
            Constant("doubling_us", "us", "each doubling of the ranks", 0.5),
        )
        if group.endswith("prepare"):
            return (*start, Constant("token_ns", "ns", "each token", 6.6))
        return (
            *start,
            Constant("link_GBps", "GB/s", "what a chip sends to others", 450.0, 900.0),
            Constant("row_ns", "ns", "a row, where a peer gets one after the other", 40.0),
            Constant("row_byte_ns", "ns/KiB", "and each KiB of it", 1.0),
            Constant("header_bytes", "bytes", "what a row has beside its elements", 100.0),
        )

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """Start, and the longer of rows and bytes."""
        ranks, tokens = rows.ranks, rows.tokens
        start = values["start_us"] + values["doubling_us"] * np.log2(ranks)
        if "token_ns" in values:
            return start + tokens * values["token_ns"] * 1e-3
        row = row_bytes(rows) + values["header_bytes"]
        copies = copies_of(rows)
        by_link = us_of(tokens * copies * (1 - 1 / ranks) * row, values["link_GBps"])
        by_row = tokens * copies / ranks * (values["row_ns"] + values["row_byte_ns"] * row / 1024) * 1e-3
        return start + (by_link**SHARPNESS + by_row**SHARPNESS) ** (1 / SHARPNESS)


def copies_of(rows: Measured) -> Floats:
    """Ranks that a token goes to, on average."""

    def copies(ranks: float, top_k: float, experts: float) -> float:
        without = int(experts) - int(experts) // int(ranks)
        return ranks * (1 - comb(without, int(top_k)) / comb(int(experts), int(top_k)))

    return np.array([copies(*each) for each in zip(rows.ranks, rows.top_k, rows.experts, strict=True)])


def row_bytes(rows: Measured) -> Floats:
    """A token's bytes on the wire: combine gives bfloat16 back, unless it is told to use few bits."""
    narrow = rows.collective != "combine"
    element = np.array([ROW_BYTES.get(dtype, 2.0) for dtype in rows.dtype])
    return rows.hidden * np.where(narrow, element, ROW_BYTES["bfloat16"])
