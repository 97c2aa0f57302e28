"""All_reduce kernels that libraries run beside NCCL, on one domain and launched from graphs; and NCCL beyond them.

One shot: every rank reads the inputs of all others, (n - 1) S bytes. Two shots: a reduce_scatter and an all_gather,
2 S (n - 1) / n bytes. In the switch: S (1 + 1 / n). Up to which size a library takes which is in its source, but for
what is marked as read off tables. Rates are shares of a chip's links, so that a system without tables has them too.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.constants import load_constants
from collemu.fidelity.fit import spread_of
from collemu.fidelity.form import Constant, Floats, Values, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import ARCHITECTURES, LINE_RATE, Nccl

MIB = 2**20
GROUP = "kernels"
LIBRARIES = ("trtllm", "vllm", "mscclpp")
BEYOND = "nccl"

#: Kernels, and where fits start: microseconds of flags and launch, share of a chip's links.
KERNELS = {
    "trtllm_one_shot": (4.5, 0.65),
    "trtllm_two_shot": (9.0, 0.6),
    "vllm_one_shot": (4.5, 0.6),
    "vllm_two_shot": (9.0, 0.6),
    "vllm_two_shot_copied": (10.0, 0.6),  # into a symmetric buffer, and out of it
    "vllm_multimem": (10.0, 0.45),  # likewise, and switches add
    "one_shot": (7.0, 0.8),  # asked for by name, in a benchmark of the kernel alone; so are the next
    "two_shot": (18.0, 0.55),
    "multimem": (10.0, 0.45),
    "symmetric_small": (23.0, 0.2),  # NCCL's own on symmetric memory: ranks add; and the switch
    "symmetric": (40.0, 0.4),
    "mscclpp_packet": (4.6, 0.3),
    "mscclpp_nvls": (5.0, 0.33),
    "mscclpp_allreduce6": (11.0, 0.33),
}
MSCCLPP_PACKET_BYTES = 64 * 1024  # read off a table; so is the next
SYMMETRIC_SMALL_BYTES = 8 * MIB

TRTLLM_BYTES = 32 * MIB  # beyond, NCCL: read off tables; so is the next
TRTLLM_ONE_SHOT_BYTES = 256 * MIB  # times ranks squared
TRTLLM_1_0_BYTES = MIB  # of version 1.0: one shot, or NCCL

_HOPPER = ((64 * MIB, 32 * MIB, MIB // 2, MIB // 4), (64 * MIB, 32 * MIB, 64 * MIB, 64 * MIB), (4, 6, 8))
_SM100 = ((2 * MIB, 2 * MIB, MIB, MIB), (8 * MIB, 32 * MIB, 128 * MIB, 128 * MIB), (6, 8))
_SM103 = ((4 * MIB, 4 * MIB, 8 * MIB, 4 * MIB), (4 * MIB, 32 * MIB, 32 * MIB, 64 * MIB), (6, 8))
#: vLLM (all_reduce_utils.py, symm_mem.py): sizes that its own kernels, and those of symmetric memory, no longer take,
#: at up to 2, 4, 6 and 8 ranks; and the ranks at which switches add.
VLLM_BYTES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "h100_hgx": _HOPPER,
    "h200_hgx": _HOPPER,
    "b200_hgx": _SM100,
    "gb200_nvl72": _SM100,
    "b300_hgx": _SM103,
    "gb300_nvl72": _SM103,
}
VLLM_OTHERS = ((8 * MIB,) * 4, (0,) * 4, ())
VLLM_ONE_SHOT_BYTES = (np.inf, MIB / 2, MIB / 4, MIB / 4)


class Custom:
    """A start, and bytes at a rate."""

    name = "custom"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """One, for the all_reduce kernels of libraries."""
        able = (rows.network == NO_NETWORK) & rows.custom & (rows.collective == "all_reduce")
        return np.where(able & np.isin(rows.system, list(ARCHITECTURES)), GROUP, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Two of each kernel."""
        return _CONSTANTS

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """Of the kernel that the library takes; NCCL's, where it takes none."""
        kernels = np.array(kernels_of(rows), object)
        time = np.full(len(rows), np.nan)
        for kernel in sorted(set(kernels.tolist())):
            mine = np.flatnonzero(kernels == kernel)
            part = rows.where(mine)
            if kernel == BEYOND:
                time[mine] = _beyond(part)
                continue
            start_us, rate = start_and_rate(kernel, {name: each[mine] for name, each in values.items()}, part)
            time[mine] = start_us + us_of(_moved(kernel, part), rate)
        return time


def start_and_rate(kernel: str, values: Values, rows: Measured) -> tuple[Floats, Floats]:
    """Microseconds of launch and flags, and GB/s of a chip's links, of a kernel but NCCL's."""
    line = np.array([LINE_RATE[ARCHITECTURES[system]] for system in rows.system.tolist()])
    start_us = values[f"{kernel}_us"] + values["peer_us"] * (rows.ranks - 1)
    start_us = start_us + values["doubling_us"] * np.log2(np.maximum(rows.size / 1024, 1))
    return start_us, values[f"{kernel}_share"] * line


def kernels_of(rows: Measured) -> list[str]:
    """The kernel of each row."""
    return [
        _kernel(*each)
        for each in zip(
            rows.algorithm.tolist(),
            rows.library.tolist(),
            rows.system.tolist(),
            rows.ranks.tolist(),
            rows.size.tolist(),
            strict=True,
        )
    ]


@lru_cache(maxsize=4096)
def _kernel(algorithm: str, version: str, system: str, ranks: float, size: float) -> str:
    words = algorithm.replace("-", "_").replace(" ", "_")
    library = next((name for name in LIBRARIES if name in f"{words} {version}".replace("++", "pp")), "")
    if library == "mscclpp":
        if "allreduce6" in words:
            return "mscclpp_allreduce6"
        packet = "one_shot" in words or (size <= MSCCLPP_PACKET_BYTES and "zero_copy" not in words)
        return "mscclpp_packet" if packet else "mscclpp_nvls"
    if "custom" not in words and not library:
        if "symm" in words:
            return "symmetric_small" if size <= SYMMETRIC_SMALL_BYTES else "symmetric"
        return next((kernel for kernel in ("one_shot", "two_shot", "multimem") if kernel in words), BEYOND)
    return _of_trtllm(version, ranks, size) if library == "trtllm" else _of_vllm(system, ranks, size)


def _of_trtllm(version: str, ranks: float, size: float) -> str:
    if version.startswith("trtllm 1.0"):
        return "trtllm_one_shot" if size < TRTLLM_1_0_BYTES else BEYOND
    if size > TRTLLM_BYTES:
        return BEYOND
    return "trtllm_one_shot" if size * ranks**2 < TRTLLM_ONE_SHOT_BYTES else "trtllm_two_shot"


def _of_vllm(system: str, ranks: float, size: float) -> str:
    """One shot, two shots; then PyTorch's symmetric memory, where switches add, or two shots; then NCCL."""
    own, symmetric, in_switch = VLLM_BYTES.get(system, VLLM_OTHERS)
    step = sum(ranks > most for most in (2, 4, 6))
    if size < own[step]:
        return "vllm_one_shot" if size < VLLM_ONE_SHOT_BYTES[step] else "vllm_two_shot"
    if size < symmetric[step]:
        return "vllm_multimem" if ranks in in_switch else "vllm_two_shot_copied"
    return BEYOND


def _moved(kernel: str, rows: Measured) -> Floats:
    """Bytes that a rank reads, or sends."""
    if kernel.endswith(("one_shot", "packet")):
        return (rows.ranks - 1) * rows.size
    if "two_shot" in kernel or kernel == "symmetric_small":
        return 2 * (rows.ranks - 1) / rows.ranks * rows.size
    return (1 + 1 / rows.ranks) * rows.size


def _beyond(rows: Measured) -> Floats:
    """NCCL, with the constants of single domains."""
    time = np.full(len(rows), np.nan)
    for mine, values in beyond_values(rows):
        time[mine] = Nccl().time_us(values, rows.where(mine))
    return time


def beyond_values(rows: Measured) -> Iterator[tuple[NDArray[np.int64], Values]]:
    """Rows of an architecture, and NCCL's constants for them."""
    architectures = np.array([ARCHITECTURES[system] for system in rows.system.tolist()])
    for architecture in sorted(set(architectures.tolist())):
        mine = np.flatnonzero(architectures == architecture)
        yield mine, spread_of(Nccl(), architecture, _fitted()[architecture], rows.where(mine))


@lru_cache
def _fitted() -> dict[str, dict[tuple[str, str], float]]:
    return load_constants()["nccl"]


_CONSTANTS = (
    Constant("peer_us", "us", "each peer", 0.1),
    Constant("doubling_us", "us", "each doubling of the size, from 1 KiB on", 0.1, spread=0.5),
    *(
        constant
        for kernel, (base_us, share) in KERNELS.items()
        for constant in (
            Constant(f"{kernel}_us", "us", "launch in a graph, and flags", base_us, spread=0.2),
            Constant(f"{kernel}_share", "", "of a chip's links", share, 1.0, 0.2),
        )
    ),
)
