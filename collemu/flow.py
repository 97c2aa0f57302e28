"""Message-level timing: a lowered schedule and a system as arrays for `collemu_kernels.flows`, and its times back.

The lanes of a group are one server here, which serves messages whole, in the order in which they ask: packets, credits
and turns are gone. A message alone takes exactly as long as its packets do; where messages meet at an output, they
follow each other where their packets would take turns.
"""

from typing import NamedTuple

import numpy as np
from collemu_kernels import flows
from collemu_kernels.dataplane import DataPlane
from numpy.typing import NDArray

from collemu.catalogue import Protocol, System
from collemu.fabric import Routes, StageRules, domain_rules, network_rules, routes_of
from collemu.lower import Lowered
from collemu.timing import BAD_VALUE_TEXT, CLOCK_LIMIT_FS, TOO_LONG, Timing, deadlock, dependents_of, waits_of, work_of
from collemu.wiring import path_of

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

SHIFT = 10  # a quantum of 1 ps, longer if a run is too long for it


class Ways(NamedTuple):
    """The ports that messages pass, and what they spend there."""

    first_port: Int32  # [message + 1] in `route`
    route: Int32
    ports: int
    kind: Int32
    classes: Int64
    carried: Int64  # [message] bytes on a link, headers included


def simulate_flow(lowered: Lowered, system: System, protocol: Protocol, data: DataPlane) -> Timing:
    """Run a lowered schedule on a system, message by message; move bytes if the data plane holds any.

    Raises
    ------
    ScheduleError
        On deadlock.
    ValueError
        If the run is longer than the clock, or a value has no code in the wire format.
    """
    schedule, messages = lowered.schedule, lowered.messages
    routes = routes_of(messages, system, protocol, far=True)
    ways = _ways(lowered, system, routes)
    thread = schedule.thread_of_op
    dep = schedule.ops["dep"]
    successor = messages.slot_successor(system.endpoint.fifo_slots)
    work = work_of(lowered, system, protocol)
    first_dependent, dependents = dependents_of(dep)
    last_of_thread = np.ones(len(thread), bool)
    last_of_thread[:-1] = thread[1:] != thread[:-1]
    frees = np.where(successor >= 0, messages.sender[successor], flows.NONE).astype(np.int32)
    private = _private(ways, thread[messages.sender].astype(np.int64), len(schedule.threads))
    waits = waits_of(thread, dep, lowered.received, messages.sender, successor)
    bits = max(1, len(messages).bit_length())
    status, shift = flows.TOO_LONG, SHIFT
    start, finish = np.zeros(0, np.int64), np.zeros(0, np.int64)
    ready, visible = start, finish
    while status == flows.TOO_LONG and shift < 62:
        start = np.full(len(thread), system.endpoint.launch_fs, np.int64)
        finish = np.full(len(thread), -1, np.int64)
        ready, visible, due = (np.zeros(len(messages), np.int64) for _ in range(3))
        operations = flows.Operations(
            last_of_thread=last_of_thread,
            received=lowered.received,
            sent=lowered.sent,
            work=work,
            first_dependent=first_dependent,
            dependents=dependents,
            waits=waits.astype(np.int32),
            start=start,
            finish=finish,
            able=np.zeros(len(thread), np.int32),
        )
        travelling = flows.Messages(
            kind=ways.kind,
            classes=ways.classes,
            receiver=messages.receiver,
            frees=frees,
            first_port=ways.first_port,
            route=ways.route,
            place=ways.first_port[:-1].copy(),
            due=due,
            ready=ready,
            visible=visible,
        )
        ports = flows.Ports(private=private, free=np.zeros(ways.ports, np.int64))
        counts = np.zeros(flows.COUNTS, np.int64)
        keys = np.zeros(len(messages) + 1, np.int64)
        with np.errstate(all="ignore"):  # plain Python warns where sums of the data overflow
            status = flows.run(operations, travelling, ports, counts, keys, shift, bits, data)
        shift += 4
    if status == flows.DEADLOCK:
        raise deadlock(schedule, finish < 0, system.endpoint.fifo_slots)
    if status == flows.BAD_VALUE:
        raise ValueError(BAD_VALUE_TEXT)
    time = int(finish.max(initial=system.endpoint.launch_fs))
    if status == flows.TOO_LONG or time > CLOCK_LIMIT_FS:
        raise ValueError(TOO_LONG)
    up_bytes, up_busy, down_bytes, down_busy = _traffic(lowered, system, routes, ways)
    return Timing(
        time=time,
        start=start,
        finish=finish,
        ready=ready,
        visible=visible,
        up_bytes=up_bytes,
        up_busy=up_busy,
        down_bytes=down_bytes,
        down_busy=down_busy,
    )


def _ways(lowered: Lowered, system: System, routes: Routes) -> Ways:
    """Ports are numbered as the fabric's lines, those at receivers after all those at senders."""
    messages, ranks = lowered.messages, lowered.schedule.ranks
    stages = domain_rules(system, ranks), network_rules(system, ranks)
    groups = [len(stage.wiring.widths) for stage in stages]
    ports = ranks * sum(groups)
    source, destination = messages.source.astype(np.int64), messages.destination.astype(np.int64)
    base = np.where(routes.network, ranks * groups[0], 0)
    width = np.where(routes.network, groups[1], groups[0])
    first = base + source * width + routes.group
    second = np.where(
        routes.network | (not stages[0].wiring.direct), ports + base + destination * width + routes.group, -1
    )
    hops = 1 + (second >= 0).astype(np.int64)
    far = np.flatnonzero(routes.group < 0)
    paths = {int(message): _far_path(system, int(source[message]), int(destination[message])) for message in far}
    hops[far] = [len(path) for path in paths.values()]
    first_port = np.concatenate(([0], np.cumsum(hops)))
    route = np.empty(int(first_port[-1]), np.int64)
    near = np.flatnonzero(routes.group >= 0)
    route[first_port[near]] = first[near]
    two = near[second[near] >= 0]
    route[first_port[two] + 1] = second[two]
    for message, path in paths.items():
        route[first_port[message] : first_port[message + 1]] = path

    group = np.where(routes.group < 0, 0, routes.group)
    most = max(groups)
    key = (messages.nbytes * 2 + routes.network) * most + group  # what else is known of a message follows
    _, one, kind = np.unique(key, return_index=True, return_inverse=True)
    classes = np.zeros((len(one), flows.CLASS_COLUMNS), np.int64)
    for number, message in enumerate(one.tolist()):
        stage = stages[int(routes.network[message])]
        packets, last_bytes, step = (int(of[message]) for of in (routes.packets, routes.last_bytes, routes.step_fs))
        classes[number] = _class(stage, int(group[message]), packets, last_bytes, step)
    full = np.where(routes.network, stages[1].full, stages[0].full)
    return Ways(
        first_port=first_port.astype(np.int32),
        route=route.astype(np.int32),
        ports=2 * ports,
        kind=kind.astype(np.int32),
        classes=classes,
        carried=(routes.packets - 1) * full + routes.last_bytes,
    )


def _far_path(system: System, source: int, destination: int) -> list[int]:
    """Ports from neighbour to neighbour in a torus, whose lines are those of the domain stage."""
    domain = system.domain
    first = source // domain.chips * domain.chips
    links = path_of(domain, source % domain.chips, destination % domain.chips)
    groups = domain.groups
    return [(first + chip) * groups + group for chip, group in links]


def _class(stage: StageRules, group: int, packets: int, last_bytes: int, step: int) -> tuple[int, ...]:
    """Times of a message of so many packets; columns as `collemu_kernels.flows` names them."""
    latency, lanes, hops = stage.wiring.latencies_fs[group], stage.wiring.widths[group], stage.wiring.hops
    full, last = int(stage.serialisation[stage.full]), int(stage.serialisation[last_bytes])
    largest = max(full, last) if packets > 1 else last
    header = int(stage.serialisation[stage.header])
    on_lane = -(-packets // lanes)
    pace = full
    if on_lane > stage.credits:  # a packet starts as the credit of the one that many before it comes back
        pace = max(full, -(-(hops * full + 2 * latency) // stage.credits))
    alone_on_lane = (packets - 1) % lanes == 0
    until_last = (on_lane - 1) * pace + (last if alone_on_lane else largest)
    return (
        step,
        -(-((packets - 1) * pace + last) // lanes),
        until_last,
        (full if packets > 1 else last) + latency,
        latency,
        hops * (largest + latency),
        hops * (header + latency),
    )


def _private(ways: Ways, thread: Int64, threads: int) -> NDArray[np.bool_]:
    """Ports whose messages all come from one thread, or through one port before."""
    before = np.empty(len(ways.route), np.int64)
    before[1:] = threads + ways.route[:-1]
    before[ways.first_port[:-1]] = thread
    one = np.full(ways.ports, -1, np.int64)
    one[ways.route] = before
    private = np.ones(ways.ports, bool)
    private[ways.route[before != one[ways.route]]] = False
    return private


def _traffic(lowered: Lowered, system: System, routes: Routes, ways: Ways) -> tuple[Int64, Int64, Int64, Int64]:
    """Bytes and busy time of ports, (chips, groups): those of senders, and of receivers.

    Where there are no switches a port is a link, whose receivers have the same.
    """
    ranks = lowered.schedule.ranks
    message = np.repeat(np.arange(len(lowered.messages)), np.diff(ways.first_port))
    busy = ways.classes[ways.kind, flows.OCCUPIES]
    half = ways.ports // 2
    columns = half // ranks
    tables: list[Int64] = []
    for values in (ways.carried, busy):
        by_port = np.bincount(ways.route, weights=values[message], minlength=ways.ports).astype(np.int64)
        tables += [by_port[:half], by_port[half:]]
    domain_groups = system.domain.groups
    split = ranks * domain_groups

    def by_chip(ports: Int64) -> Int64:
        near, far = ports[:split].reshape(ranks, -1), ports[split:].reshape(ranks, -1)
        return np.concatenate((near, far), axis=1).reshape(ranks, columns)

    up_bytes, down_bytes, up_busy, down_busy = (by_chip(table) for table in tables)
    if system.domain.topology in ("mesh", "torus"):
        near = np.flatnonzero(~routes.network & (routes.group >= 0))
        chips, groups = lowered.messages.destination[near], routes.group[near]
        np.add.at(down_bytes, (chips, groups), ways.carried[near])
        np.add.at(down_busy, (chips, groups), busy[near])
    return up_bytes, up_busy, down_bytes, down_busy
