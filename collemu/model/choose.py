"""Which algorithm to take where the user leaves it open: by latency plus bandwidth, as NCCL's tuner decides."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.emulator import emulate, find_protocol
from collemu.endpoint import work_of
from collemu.fabric import routes_of
from collemu.in_switch import by_member, in_switch_of, refuse_in_switch
from collemu.lower import Lowered, lower
from collemu.payload import Payload, payload_of
from collemu.recipe import Recipe
from collemu.schedule import Schedule, build_schedule
from collemu.wiring import wiring_of

CLOSE = 1.25  # of one piece a lane; more pieces overlap, and have estimates that are up to a third too long


@dataclass(frozen=True)
class Choice:
    """A way to run a collective.

    Attributes
    ----------
    algorithm, protocol : str
    channels : int
    chunks : int or None
        As `collemu.build_schedule` takes them.
    """

    algorithm: str
    protocol: str = "auto"
    channels: int = 1
    chunks: int | None = None


@dataclass(frozen=True)
class Task:
    """What is to be run somehow.

    Attributes
    ----------
    collective : str
    ranks : int
    system : System
    dtype, op : str
    recipe : Recipe
    root : int
    counts : int64 array (ranks, ranks), optional
        Of an alltoallv.
    fidelity : str
        Of the emulations that decide.
    """

    collective: str
    ranks: int
    system: System
    dtype: str = "float32"
    op: str = "sum"
    recipe: Recipe = field(default_factory=Recipe)
    root: int = 0
    counts: NDArray[np.int64] | None = None
    fidelity: str = "auto"


def fastest(task: Task, choices: Iterable[Choice], count: int, close: float = CLOSE) -> Choice:
    """The choice that is probably fastest; the first among equals.

    Each gets an estimate: the emulated time of one element a chunk, which is all latency, plus what the wire bytes of
    the busiest port, or the endpoint's work of the busiest thread, take by themselves. That leaves out contention, so
    those which come close to the best are emulated. Of alltoallv, whose counts leave no count of one element a chunk,
    all are.

    Parameters
    ----------
    task : Task
    choices : iterable of Choice
    count : int
        Elements a rank.
    close : float
        Estimates within this factor of the best do not decide.

    Raises
    ------
    ValueError
        If none of them takes these numbers; the text is the last one's reason.
    """
    payload = payload_of(task.collective, task.dtype, task.recipe, task.op)
    estimates: dict[Choice, float] = {}
    reason = ValueError(f"no algorithm for {task.collective}")
    for choice in choices:
        try:
            schedule = schedule_of(task, choice)
            refuse_in_switch(schedule, task.system, payload)
        except ValueError as error:
            reason = error
            continue
        estimates[choice] = 0.0 if task.counts is not None else _estimate_s(task, choice, schedule, payload, count)
    if not estimates:
        raise reason
    limit = close * min(estimates.values())
    near = [choice for choice, estimate in estimates.items() if estimate <= limit]
    return near[0] if len(near) == 1 else min(near, key=lambda choice: time_s(task, choice, count))


def time_s(task: Task, choice: Choice, count: int) -> float:
    """Emulated seconds of a choice; of an alltoallv the count does not matter."""
    how = (task.dtype, task.op, task.recipe, choice.protocol, task.fidelity)
    return _emulated_s(schedule_of(task, choice), task.system, None if task.counts is not None else count, *how)


def schedule_of(task: Task, choice: Choice) -> Schedule:
    """The schedule of a choice, built once."""
    channels, chunks, group = choice.channels, choice.chunks, task.system.group_of(task.ranks)
    if task.counts is not None:
        return build_schedule(
            task.collective, choice.algorithm, task.ranks, channels=channels, chunks=chunks, counts=task.counts
        )
    return _schedule(task.collective, choice.algorithm, task.ranks, task.root, channels, chunks, group)


def _estimate_s(task: Task, choice: Choice, schedule: Schedule, payload: Payload, count: int) -> float:
    how = (task.dtype, task.op, task.recipe, choice.protocol, task.fidelity)
    latency = _emulated_s(schedule, task.system, max(schedule.region_chunks, 1), *how)
    lowered = lower(schedule, count, item_bytes=payload.held.item_bytes, wire=payload.wire)
    spoken = task.system.protocols[find_protocol(task.system, choice.protocol)]
    return latency + _transfer_s(lowered, task.system, spoken)


@lru_cache(maxsize=512)
def _schedule(
    collective: str, name: str, ranks: int, root: int, channels: int, chunks: int | None, group: int | None
) -> Schedule:
    return build_schedule(collective, name, ranks, root=root, channels=channels, chunks=chunks, group=group)


@lru_cache(maxsize=4096)
def _emulated_s(
    schedule: Schedule,
    system: System,
    count: int | None,
    dtype: str,
    op: str,
    recipe: Recipe,
    protocol: str,
    fidelity: str,
) -> float:
    return emulate(
        schedule,
        system,
        count=count,
        dtype=dtype,
        op=op,
        recipe=recipe,
        protocol=protocol,
        fidelity=fidelity,
        timeline=False,
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
