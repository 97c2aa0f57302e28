"""``collemu warm``: compile the kernels once, so that no later run, and no crowd of MPI processes, has to."""

import argparse
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

OLDER_S = 24 * 3600


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    subparsers.add_parser(
        "warm",
        description="Compile all kernels into the cache (a minute or two once, seconds when they are there) by running "
        "tiny cases of everything, and remove the compiled kernels of older sources.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run tiny cases; print how long it took and where the cache is."""
    from collemu_kernels import _jit

    if _jit.PLAIN_PYTHON:
        raise ValueError(
            "kernels run as plain Python (COLLEMU_PLAIN_PYTHON or NUMBA_DISABLE_JIT is set): nothing to compile"
        )
    start = time.monotonic()
    for text, case in CASES:
        print(f"compiling: {text}", file=sys.stderr)
        case()
    removed = remove_older_caches(_jit.cache_directory())
    seconds = time.monotonic() - start
    print(f"kernels are ready in {_jit.cache_directory()} ({seconds:.1f} s, {removed} older caches removed)")
    return 0


def remove_older_caches(current: Path) -> int:
    """Remove the caches beside the current one that nothing was compiled into for a day; how many there were.

    A day, because another checkout or environment on this machine may be at work with sources of its own.
    """
    limit = time.time() - OLDER_S
    older = [
        folder
        for folder in current.parent.iterdir()
        if folder.is_dir() and folder != current and last_written(folder) < limit
    ]
    for folder in older:
        shutil.rmtree(folder, ignore_errors=True)
    return len(older)


def last_written(folder: Path) -> float:
    """Latest modification time in a folder, in seconds since the epoch."""
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def _times() -> None:
    from dataclasses import replace

    from collemu import build_schedule, emulate, load_system
    from collemu.processes import SINGLE_CORE

    schedule, system = build_schedule("all_reduce", "two_shot", 3), load_system("trainium4_nvl72")
    for fidelity in ("packet", "flow"):
        emulate(schedule, system, count=8, fidelity=fidelity)
    emulate(schedule, replace(system, processes=SINGLE_CORE), count=8)


def _bytes() -> None:
    import numpy as np

    from collemu import build_schedule, emulate, load_system
    from collemu.dtypes import DTYPES

    system = load_system("trainium4_nvl72")
    schedule = build_schedule("all_reduce", "ring", 2)
    emulate(schedule, system, count=8, fidelity="flow", data=np.ones((2, 8), np.float32))
    for dtype in DTYPES:
        emulate(schedule, system, count=8, dtype=dtype, data=np.ones((2, 8), np.uint8))
    for wire in ("bfloat16", "mxfp8_e4m3", "mxfp4", "nvfp4", "float4_e2m1fn"):
        emulate(schedule, system, count=8, wire=wire, data=np.ones((2, 8), np.float32))


def _proofs() -> None:
    from dataclasses import replace

    from collemu import ScheduleError, build_schedule, verify

    verify(build_schedule("all_reduce", "nvls", 3))
    right = build_schedule("all_reduce", "ring", 3)
    wrong = replace(right, ops=right.ops.copy())
    wrong.ops["src"][0] = (wrong.ops["src"][0] + 1) % wrong.input_chunks
    with suppress(ScheduleError):  # what is wrong is worked out by a kernel of its own
        verify(wrong)


def _numbers() -> None:
    import numpy as np

    from collemu import combine, decode, encode, formats, quantize
    from collemu.number_formats import BLOCK_FORMATS

    x = np.ones((2, 32), np.float32)
    for name in formats():
        if name in BLOCK_FORMATS:
            q = quantize(x, name)
            q.dequantize()
            combine(q.to_bytes(), q.to_bytes(), name)
        else:
            for rounding in ("nearest_even", "up"):
                decode(encode(x, name, rounding=rounding), name)


def _products() -> None:
    import numpy as np

    from collemu import matmul, quantize
    from collemu.accumulation import MODELS

    x = np.ones((32, 32), np.float32)
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        for accumulate in ("float32", "block_exact", "blackwell"):
            matmul(quantize(x, name), quantize(x, name, axis=0), accumulate=accumulate)
    for accumulate in MODELS:
        if accumulate != "block_exact":
            matmul(x, x, accumulate=accumulate)
    wide = np.full((1, 32), 2.0**60, np.float32)
    wide[0, 0] = 1.0
    matmul(wide, wide.T, accumulate="exact")


CASES = (
    ("packets and flows", _times),
    ("wire formats and operators", _bytes),
    ("proofs of schedules", _proofs),
    ("number formats", _numbers),
    ("matrix products", _products),
)
