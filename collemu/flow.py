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
from collemu.endpoint import CLOCK_LIMIT_FS, TOO_LONG, work_of
from collemu.fabric import Routes, Shared, StageRules, domain_rules, network_rules, routes_of, shared_of
from collemu.flow_in_switch import SharedWays, shared_ways
from collemu.in_switch import InSwitch, in_switch_of
from collemu.lower import Lowered
from collemu.payload import BAD_VALUE_TEXT
from collemu.timing import (
    Timing,
    Waits,
    answer_of,
    deadlock,
    dependents_of,
    following_of,
    waits_of,
)
from collemu.wiring import neighbours, path_of

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Layout(NamedTuple):
    """Where operations and messages stand in the tables of a run: by place, and places by their own numbers."""

    order: Int32
    place: Int32
    message_order: Int32
    message_place: Int32


class Ways(NamedTuple):
    """The ports that messages pass, and what they spend there; behind those of the schedule, in-switch ones."""

    first_port: Int32  # [message + 1] in `route`
    route: Int32
    ports: int
    kind: Int32
    classes: Int64
    carried: Int64  # [message] bytes on a link, headers included
    sending: Int64  # [class] how long a lane sends, without waiting for credits
    shared: SharedWays


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
    in_switch = in_switch_of(lowered)
    shared = shared_of(in_switch, schedule.thread_of_op, system, protocol)
    ways = _ways(lowered, system, routes, shared)
    layout = _layout(lowered, in_switch)
    operations, travelling = _program(lowered, system, protocol, ways, layout, in_switch)
    ports = flows.Ports(private=_private(ways, lowered), free=np.zeros(ways.ports, np.int64))
    calendar = flows.Calendar(
        page=np.full(flows.DAYS, flows.NONE, np.int32),
        later=np.full(len(ways.kind), flows.NONE, np.int32),
        today=np.zeros(len(ways.kind), np.int32),
        other=np.zeros(len(ways.kind) + 2**flows.DIGIT + 1, np.int32),
    )
    counts = np.zeros(flows.COUNTS, np.int64)
    with np.errstate(all="ignore"):  # plain Python warns where sums of the data overflow
        if data.moving:
            status = flows.run(operations, travelling, ports, calendar, counts, _day(ways), data)
        else:  # a kernel that knows no bytes is loaded in no time
            status = flows.run_times(operations, travelling, ports, calendar, counts, _day(ways))
    finish = operations.finish[layout.place][: len(schedule.ops)]
    if status == flows.DEADLOCK:
        raise deadlock(schedule, finish < 0, system.endpoint.fifo_slots)
    if status == flows.BAD_VALUE:
        raise ValueError(BAD_VALUE_TEXT)
    time = int(finish.max(initial=system.endpoint.launch_fs))
    if time > CLOCK_LIMIT_FS:
        raise ValueError(TOO_LONG)
    start = operations.start[layout.place][: len(schedule.ops)]
    start[in_switch.operation] = operations.start[len(schedule.ops) :]
    up_bytes, up_busy, down_bytes, down_busy = _traffic(lowered, system, ways)
    nothing = np.zeros_like(up_bytes)  # that is looked at here
    return Timing(
        time=time,
        start=start,
        finish=finish,
        ready=travelling.ready[layout.message_place],
        visible=travelling.visible[layout.message_place],
        up_bytes=up_bytes,
        up_busy=up_busy,
        down_bytes=down_bytes,
        down_busy=down_busy,
        up_stalled=nothing,
        down_queued=nothing,
        down_packets=nothing,
    )


def _layout(lowered: Lowered, in_switch: InSwitch) -> Layout:
    """Operations that run at about the same time side by side: by step, then by thread; messages as their senders.

    The beginnings of in-switch operations come last.
    """
    threads = lowered.schedule.threads
    order = flows.by_step(threads["first"].astype(np.int64), threads["length"].astype(np.int64))
    order = np.concatenate((order, len(order) + np.arange(len(in_switch), dtype=np.int32)))
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    sent = lowered.sent[order[: len(lowered.sent)]]
    message_order = sent[sent != flows.NONE]
    message_place = np.empty_like(message_order)
    message_place[message_order] = np.arange(len(message_order), dtype=np.int32)
    return Layout(order, place, message_order, message_place)


def _program(
    lowered: Lowered, system: System, protocol: Protocol, ways: Ways, layout: Layout, in_switch: InSwitch
) -> tuple[flows.Operations, flows.Messages]:
    """Tables of a run that has not begun."""
    messages, thread, dep = lowered.messages, lowered.schedule.thread_of_op, lowered.schedule.ops["dep"]
    order, shared = layout.order, ways.shared
    message_order = np.concatenate(
        (layout.message_order, len(messages) + np.arange(len(shared.operation), dtype=np.int32))
    )
    message_place = np.concatenate((layout.message_place, message_order[len(messages) :]))
    successor = messages.slot_successor(system.endpoint.fifo_slots)
    waits = Waits(following_of(thread), dep, waits_of(thread, dep, lowered.received, messages.sender, successor))
    waits = waits.begun_apart(in_switch.operation, shared.ends)
    first_dependent, dependents = _rows(*dependents_of(waits.dep), order)
    first_port, route = _rows(ways.first_port, ways.route, message_order)
    work = work_of(lowered, system, protocol)
    beginning = work[in_switch.operation]
    work[in_switch.operation] = answer_of(system)
    none = np.full(len(in_switch), flows.NONE, np.int32)
    operations = flows.Operations(
        original=order,
        following=_renumbered(waits.following[order], layout.place),
        received=_renumbered(np.concatenate((lowered.received, none))[order], message_place),
        sent=_renumbered(
            np.concatenate((lowered.sent, len(messages) + shared.first.astype(np.int32)))[order], message_place
        ),
        work=np.concatenate((work, beginning))[order],
        first_dependent=first_dependent,
        dependents=_renumbered(dependents, layout.place),
        waits=waits.waits.astype(np.int32)[order],
        start=np.full(len(order), system.endpoint.launch_fs, np.int64),
        finish=np.full(len(order), flows.NONE, np.int64),
        able=np.zeros(len(order), np.int32),
    )
    frees = np.where(successor != flows.NONE, messages.sender[successor], flows.NONE)
    frees = np.concatenate((frees, np.full(len(shared.operation), flows.NONE, np.int32)))
    receiver = np.concatenate((messages.receiver, in_switch.operation[shared.operation]))
    none_follows = np.zeros(len(messages) if len(in_switch) else 0, np.int32)
    return operations, flows.Messages(
        original=message_order,
        kind=ways.kind[message_order],
        classes=ways.classes,
        receiver=_renumbered(receiver[message_order], layout.place),
        frees=_renumbered(frees[message_order], layout.place),
        first_port=first_port,
        route=route,
        place=first_port[:-1].copy(),
        due=np.zeros(len(message_order), np.int64),
        ready=np.zeros(len(message_order), np.int64),
        visible=np.zeros(len(message_order), np.int64),
        first_after=np.concatenate((none_follows, shared.first_after.astype(np.int32))),
        after=(len(messages) + shared.after).astype(np.int32),
        parents=np.concatenate((none_follows, shared.parents.astype(np.int32))),
    )


def _renumbered(indices: Int32, place: Int32) -> Int32:
    """Indices that may be NONE, by the new places of what they name."""
    return np.where(indices == flows.NONE, np.int32(flows.NONE), place[indices]) if len(place) else indices


def _rows(first: Int32, values: Int32, order: Int32) -> tuple[Int32, Int32]:
    """Rows of different lengths in another order: where each begins, one entry more at the end; and the values."""
    lengths = np.diff(first)[order]
    begins = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    if not len(values):
        return begins, values
    return begins, values[np.repeat(first[order] - begins[:-1], lengths) + np.arange(begins[-1])]


def _ways(lowered: Lowered, system: System, routes: Routes, shared: Shared) -> Ways:
    """Ports of senders, numbered as the fabric's lines, and after all of them those of receivers."""
    messages, ranks = lowered.messages, lowered.schedule.ranks
    stages = domain_rules(system, ranks), network_rules(system, ranks)
    groups = [len(stage.wiring.widths) for stage in stages]
    chips = _chips(system, ranks)
    ports = chips * sum(groups)
    if 2 * ports > np.iinfo(np.int32).max:
        raise ValueError(f"{chips} chips of {system.name} have {ports} groups of links; use fewer ranks")
    source, destination = messages.source.astype(np.int64), messages.destination.astype(np.int64)
    base = np.where(routes.network, chips * groups[0], 0)
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

    group = routes.group.copy()
    for message, path in paths.items():  # the narrowest of the way sets the pace
        group[message] = min((port % groups[0] for port in path), key=stages[0].wiring.widths.__getitem__)
    most = max(groups)
    key = (messages.nbytes * 2 + routes.network) * most + group  # what else is known of a message follows
    _, one, kind = np.unique(key, return_index=True, return_inverse=True)
    classes = np.zeros((len(one), flows.CLASS_COLUMNS), np.int64)
    sending = np.zeros(len(one), np.int64)
    for number, message in enumerate(one.tolist()):
        stage = stages[int(routes.network[message])]
        packets, last_bytes, step = (int(of[message]) for of in (routes.packets, routes.last_bytes, routes.step_fs))
        times = _class(stage, int(group[message]), packets, last_bytes, step)
        if max(times) > CLOCK_LIMIT_FS:
            raise ValueError(TOO_LONG)
        classes[number] = times
        full_fs, last_fs = int(stage.serialisation[stage.full]), int(stage.serialisation[last_bytes])
        sending[number] = -(-((packets - 1) * full_fs + last_fs) // stage.wiring.widths[int(group[message])])
    full = np.where(routes.network, stages[1].full, stages[0].full)
    carried = (routes.packets - 1) * full + routes.last_bytes
    of_switch = shared_ways(shared, ports)
    more_classes, more_sending, of_operation = _shared_classes(stages[0], shared)
    more_carried = (shared.packets - 1) * stages[0].full + shared.last_bytes
    return Ways(
        first_port=np.concatenate((first_port, first_port[-1] + np.cumsum(of_switch.ports))).astype(np.int32),
        route=np.concatenate((route, of_switch.route)).astype(np.int32),
        ports=2 * ports,
        kind=np.concatenate((kind, len(classes) + of_operation[of_switch.operation])).astype(np.int32),
        classes=np.concatenate((classes, more_classes)),
        carried=np.concatenate((carried, more_carried[of_switch.operation])),
        sending=np.concatenate((sending, more_sending)),
        shared=of_switch,
    )


def _shared_classes(stage: StageRules, shared: Shared) -> tuple[Int64, Int64, Int64]:
    """Classes of in-switch operations, how long a lane sends for each, and the class of each operation."""
    key = np.stack((shared.packets, shared.last_bytes, shared.adds.astype(np.int64)), axis=1)
    each, of_operation = np.unique(key, axis=0, return_inverse=True)
    classes = np.zeros((len(each), flows.CLASS_COLUMNS), np.int64)
    sending = np.zeros(len(each), np.int64)
    for number, (packets, last_bytes, adds) in enumerate(each.tolist()):
        times = _class(stage, 0, packets, last_bytes, shared.step_fs, added=bool(adds))
        if max(times) > CLOCK_LIMIT_FS:
            raise ValueError(TOO_LONG)
        classes[number] = times
        full_fs, last_fs = int(stage.serialisation[stage.full]), int(stage.serialisation[last_bytes])
        sending[number] = -(-((packets - 1) * full_fs + last_fs) // stage.wiring.widths[0])
    return classes, sending, of_operation.reshape(-1)


def _chips(system: System, ranks: int) -> int:
    """Chips whose ports take part: in a torus also those without a rank, which others' messages may pass."""
    whole = -(-ranks // system.domain.chips) * system.domain.chips
    return whole if system.domain.topology == "torus" else ranks


def _far_path(system: System, source: int, destination: int) -> list[int]:
    """Ports from neighbour to neighbour in a torus, whose lines are those of the domain stage."""
    domain = system.domain
    first = source // domain.chips * domain.chips
    links = path_of(domain, source % domain.chips, destination % domain.chips)
    groups = domain.groups
    return [(first + chip) * groups + group for chip, group in links]


def _class(
    stage: StageRules, group: int, packets: int, last_bytes: int, step: int, *, added: bool = False
) -> tuple[int, ...]:
    """Times of a message of so many packets, or of one whose credits come back from the switch that adds it.

    Columns are as `collemu_kernels.flows` names them.
    """
    latency, lanes, hops = stage.wiring.latencies_fs[group], stage.wiring.widths[group], stage.wiring.hops
    full, last = int(stage.serialisation[stage.full]), int(stage.serialisation[last_bytes])
    largest = max(full, last) if packets > 1 else last
    header = int(stage.serialisation[stage.header])
    on_lane = -(-packets // lanes)
    pace = full
    if on_lane > stage.credits:  # a packet starts as the credit of the one that many before it comes back
        pace = max(full, -(-((1 if added else hops) * full + 2 * latency) // stage.credits))
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


def _day(ways: Ways) -> int:
    """Binary logarithm of a day that is no longer than any message takes from a port to what comes of it."""
    if not len(ways.classes):
        return 0
    classes = ways.classes
    shortest = np.minimum(classes[:, flows.CROSSING], classes[:, flows.LAST] + classes[:, flows.LATENCY])
    return int(shortest.min()).bit_length() - 1


def _private(ways: Ways, lowered: Lowered) -> NDArray[np.bool_]:
    """Ports that are asked in the order of one thread, or of one port before them that all leave equally fast."""
    schedule = lowered.schedule
    own = len(lowered.messages)
    before = np.empty(len(ways.route), np.int64)
    before[1:] = len(schedule.threads) + ways.route[:-1]
    first = ways.first_port[:own]
    before[first] = schedule.thread_of_op[lowered.messages.sender]
    before[ways.first_port[own] :] = -2  # requests that come by a switch
    crossing = np.repeat(ways.classes[ways.kind, flows.CROSSING], np.diff(ways.first_port))
    crossing[first] = 0
    one, pace = np.full(ways.ports, -1, np.int64), np.zeros(ways.ports, np.int64)
    one[ways.route], pace[ways.route] = before, crossing
    private = np.ones(ways.ports, bool)
    private[ways.route[(before != one[ways.route]) | (crossing != pace[ways.route]) | (before == -2)]] = False
    return private


def _traffic(lowered: Lowered, system: System, ways: Ways) -> tuple[Int64, Int64, Int64, Int64]:
    """Bytes and busy time of ports, (chips, groups): those of senders, and of receivers.

    Where there are no switches a port is a link, which its receiver has too.
    """
    domain = system.domain
    chips = _chips(system, lowered.schedule.ranks)
    half = ways.ports // 2
    message = np.repeat(np.arange(len(ways.kind)), np.diff(ways.first_port))
    split = chips * domain.groups
    direct = domain.topology in ("mesh", "torus")

    def by_chip(ports: Int64) -> Int64:
        near, far = ports[:split].reshape(chips, -1), ports[split:].reshape(chips, -1)
        return np.concatenate((near, far), axis=1)

    tables: list[Int64] = []
    for values in (ways.carried, ways.sending[ways.kind]):
        by_port = np.bincount(ways.route, weights=values[message], minlength=ways.ports).astype(np.int64)
        up, down = by_chip(by_port[:half]), by_chip(by_port[half:])
        if direct:
            chip = np.arange(chips)
            first = chip // domain.chips * domain.chips
            there = first[:, None] + neighbours(domain)[chip % domain.chips]
            kept = np.minimum(there, chips - 1)  # of a mesh that is not full, where nothing leads further
            np.add.at(down, (kept, np.arange(domain.groups)), up[:, : domain.groups])
        tables += [up, down]
    up_bytes, down_bytes, up_busy, down_busy = tables
    return up_bytes, up_busy, down_bytes, down_busy
