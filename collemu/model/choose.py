"""Which algorithm to take where the user leaves it open: by latency plus bandwidth, as NCCL's tuner decides."""

from functools import lru_cache

import numpy as np

from collemu.catalogue import Protocol, System
from collemu.emulator import emulate, find_protocol
from collemu.lower import Lowered, lower
from collemu.memory import payload_of
from collemu.recipe import Recipe
from collemu.schedule import Schedule, algorithms, build_schedule
from collemu.timing import work_of


def choose_algorithm(
    collective: str,
    ranks: int,
    system: System,
    *,
    count: int,
    dtype: str = "float32",
    op: str = "sum",
    wire: str = "none",
    root: int = 0,
    channels: int = 1,
    chunks: int | None = None,
    protocol: str = "auto",
) -> str:
    """Name of the built-in algorithm with the least estimated time; the first of the table among equals.

    The estimate is the emulated time of one element a chunk, which is all latency, plus what the wire bytes of the
    busiest port, or the endpoint's work of the busiest thread, take by themselves. It leaves out contention and is
    not a prediction: what it chooses is emulated afterwards.

    Raises
    ------
    ValueError
        If no algorithm of the collective takes these numbers; the text is the last one's reason.
    """
    payload = payload_of(collective, dtype, Recipe(wire=wire), op)
    chosen = system.protocols[find_protocol(system, protocol)]
    estimates: dict[str, float] = {}
    reason = ValueError(f"no algorithm for {collective}")
    for name in algorithms(collective):
        try:
            schedule = _schedule(collective, name, ranks, root, channels, chunks)
        except ValueError as error:
            reason = error
            continue
        latency = _latency_s(schedule, system, dtype, op, wire, protocol)
        lowered = lower(schedule, count, item_bytes=payload.held.item_bytes, wire=payload.wire)
        estimates[name] = latency + _transfer_s(lowered, system, chosen)
    if not estimates:
        raise reason
    return min(estimates, key=lambda name: estimates[name])


@lru_cache(maxsize=64)
def _schedule(collective: str, name: str, ranks: int, root: int, channels: int, chunks: int | None) -> Schedule:
    return build_schedule(collective, name, ranks, root=root, channels=channels, chunks=chunks)


@lru_cache(maxsize=256)
def _latency_s(schedule: Schedule, system: System, dtype: str, op: str, wire: str, protocol: str) -> float:
    smallest = max(schedule.region_chunks, 1)
    result = emulate(schedule, system, count=smallest, dtype=dtype, op=op, wire=wire, protocol=protocol, timeline=False)
    return result.time_s


def _transfer_s(lowered: Lowered, system: System, protocol: Protocol) -> float:
    messages, ranks = lowered.messages, lowered.schedule.ranks
    busiest_port = max(
        float(np.bincount(end, weights=messages.nbytes, minlength=ranks).max(initial=0.0))
        for end in (messages.source, messages.destination)
    )
    work = np.bincount(lowered.schedule.thread_of_op, weights=work_of(lowered, system, protocol))
    return max(busiest_port / system.chip_bytes_per_s, float(work.max(initial=0.0)) / 1e15)
