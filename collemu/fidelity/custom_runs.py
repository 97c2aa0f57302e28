"""Kernels of libraries as the emulator runs them: schedules that send to all at once, at the closed forms' rates."""

import numpy as np

from collemu.fidelity import nccl_runs
from collemu.fidelity.custom import BEYOND, beyond_values, kernels_of, start_and_rate
from collemu.fidelity.form import Values
from collemu.fidelity.measured import Measured
from collemu.fidelity.runs import NO_LIMIT, Run

BLOCKS = 8  # thread blocks: so that both halves of an all_reduce are under way at once
PIECE_BYTES = 64 * 1024  # of a block, where switches add
MOST_PIECES = 32


def runs(values: Values, rows: Measured) -> list[Run | None]:
    """One a row."""
    kernels = np.array(kernels_of(rows), object)
    found: list[Run | None] = [None] * len(rows)
    for kernel in sorted(set(kernels.tolist())):
        mine = np.flatnonzero(kernels == kernel)
        part = rows.where(mine)
        of_part = _beyond(part) if kernel == BEYOND else _kernel(kernel, {k: v[mine] for k, v in values.items()}, part)
        for place, run in zip(mine.tolist(), of_part, strict=True):
            found[place] = run
    return found


def _beyond(rows: Measured) -> list[Run | None]:
    found: list[Run | None] = [None] * len(rows)
    for mine, values in beyond_values(rows):
        for place, run in zip(mine.tolist(), nccl_runs.runs(values, rows.where(mine)), strict=True):
            found[place] = run
    return found


def _kernel(kernel: str, values: Values, rows: Measured) -> list[Run | None]:
    algorithm = _algorithm(kernel)
    pieces = np.clip(rows.size // (BLOCKS * PIECE_BYTES), 1, MOST_PIECES if algorithm == "nvls" else 1)
    return [
        Run(algorithm, "simple", BLOCKS, int(chunks), launch_us, 0.0, NO_LIMIT, NO_LIMIT, rate, with_latency=True)
        for chunks, launch_us, rate in zip(pieces, *start_and_rate(kernel, values, rows), strict=True)
    ]


def _algorithm(kernel: str) -> str:
    """The schedule that moves as much, in as many steps."""
    if kernel.endswith(("one_shot", "packet")):
        return "one_shot"
    return "two_shot" if "two_shot" in kernel or kernel == "symmetric_small" else "nvls"
