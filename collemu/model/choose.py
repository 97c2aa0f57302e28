"""Which algorithm to take where the user leaves it open: by latency plus bandwidth, as NCCL's tuner decides."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.emulator import emulate, find_protocol
from collemu.endpoint import work_of
from collemu.fabric import routes_of
from collemu.in_switch import by_member, in_switch_of, refuse_in_switch
from collemu.lower import Lowered, lower
from collemu.payload import payload_of
from collemu.recipe import Recipe
from collemu.schedule import Schedule, algorithms, build_schedule
from collemu.wiring import wiring_of

CLOSE = 1.25  # estimates within this factor of the best do not decide


def choose_algorithm(
    collective: str,
    ranks: int,
    system: System,
    *,
    count: int,
    dtype: str = "float32",
    op: str = "sum",
    recipe: Recipe | None = None,
    root: int = 0,
    channels: int = 1,
    chunks: int | None = None,
    protocol: str = "auto",
    counts: NDArray[np.int64] | None = None,
    among: Sequence[str] | None = None,
) -> str:
    """Name of the built-in algorithm that is probably fastest; the first of the table among equals.

    Each gets an estimate: the emulated time of one element a chunk, which is all latency, plus what the wire bytes of
    the busiest port, or the endpoint's work of the busiest thread, take by themselves. That leaves out contention, so
    those which come close to the best are emulated. Of alltoallv, whose ``counts`` leave no count of one element a
    chunk, all are.

    Parameters
    ----------
    among : sequence of str, optional
        Only these; the others are as `collemu.emulate` and `collemu.build_schedule` take them.

    Raises
    ------
    ValueError
        If no algorithm of the collective takes these numbers; the text is the last one's reason.
    """
    recipe = recipe or Recipe()
    payload = payload_of(collective, dtype, recipe, op)
    chosen = system.protocols[find_protocol(system, protocol)]
    schedules: dict[str, Schedule] = {}
    estimates: dict[str, float] = {}
    reason = ValueError(f"no algorithm for {collective}")
    for name in algorithms(collective, system) if among is None else among:
        try:
            schedule = (
                _schedule(collective, name, ranks, root, channels, chunks, system.group_of(ranks))
                if counts is None
                else build_schedule(collective, name, ranks, channels=channels, chunks=chunks, counts=counts)
            )
            refuse_in_switch(schedule, system, payload)
        except ValueError as error:
            reason = error
            continue
        schedules[name] = schedule
        if counts is not None:
            estimates[name] = 0.0
            continue
        latency = _emulated_s(schedule, system, max(schedule.region_chunks, 1), dtype, op, recipe, protocol)
        lowered = lower(schedule, count, item_bytes=payload.held.item_bytes, wire=payload.wire)
        estimates[name] = latency + _transfer_s(lowered, system, chosen)
    if not estimates:
        raise reason
    limit = CLOSE * min(estimates.values())
    close = [name for name, estimate in estimates.items() if estimate <= limit]
    if len(close) == 1:
        return close[0]
    of_run = None if counts is not None else count
    return min(close, key=lambda name: _emulated_s(schedules[name], system, of_run, dtype, op, recipe, protocol))


@lru_cache(maxsize=64)
def _schedule(
    collective: str, name: str, ranks: int, root: int, channels: int, chunks: int | None, group: int | None
) -> Schedule:
    return build_schedule(collective, name, ranks, root=root, channels=channels, chunks=chunks, group=group)


@lru_cache(maxsize=256)
def _emulated_s(
    schedule: Schedule, system: System, count: int | None, dtype: str, op: str, recipe: Recipe, protocol: str
) -> float:
    return emulate(
        schedule, system, count=count, dtype=dtype, op=op, recipe=recipe, protocol=protocol, timeline=False
    ).time_s


def _transfer_s(lowered: Lowered, system: System, protocol: Protocol) -> float:
    """What the busiest lanes of a chip, or its busiest thread, take by themselves."""
    messages = lowered.messages
    routes = routes_of(messages, system, protocol, far=True)
    domain, groups = system.domain, system.domain.groups
    inside = routes.group >= 0
    rate = np.full(len(messages), system.chip_bytes_per_s)  # of a long way through a torus
    widths = np.array(wiring_of(domain).widths)
    rate[inside] = widths[routes.group[inside]] * domain.link_bytes_per_s * domain.link_efficiency
    rate[routes.network] = system.scaleout.bytes_per_s
    lanes = np.where(routes.network, groups, np.maximum(routes.group, 0))
    seconds = messages.nbytes * (protocol.line_bytes / protocol.data_bytes) / rate
    busiest = max(
        float(np.bincount(end * (groups + 1) + lanes, weights=seconds).max(initial=0.0))
        for end in (messages.source, messages.destination)
    )
    busiest = max(busiest, _switched_s(lowered, system))
    work = np.bincount(lowered.schedule.thread_of_op, weights=work_of(lowered, system, protocol))
    return max(busiest, float(work.max(initial=0.0)) / 1e15)


def _switched_s(lowered: Lowered, system: System) -> float:
    """What the links of the busiest chip take for in-switch operations."""
    asked = in_switch_of(lowered)
    ranks = lowered.schedule.ranks
    added, stored = asked.adds * asked.nbytes, ~asked.adds * asked.nbytes
    up = by_member(asked, added, ranks) + np.bincount(asked.rank, weights=stored, minlength=ranks)
    down = by_member(asked, stored, ranks) + np.bincount(asked.rank, weights=added, minlength=ranks)
    rate = system.chip_bytes_per_s * system.domain.link_efficiency
    return float(max(up.max(), down.max())) / rate
