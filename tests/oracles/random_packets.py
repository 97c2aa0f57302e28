"""Random schedules and fabrics for tests that hold two packet engines together."""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from random import Random

from collemu_kernels import kinds

from tests.oracles.slow_packets import IN_SWITCH, NO_STAGE, Fabric, Operation, Stage, directions, group_of

LOCAL = (kinds.NOP, kinds.COPY, kinds.REDUCE)
RECEIVES = (kinds.RECV, kinds.RECV_REDUCE, kinds.RECV_REDUCE_COPY)
FUSED_SENDS = (kinds.RECV_COPY_SEND, kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE_COPY_SEND)

MAX_THREADS = 4  # of a rank
MAX_CHANNELS = 3
MAX_MESSAGES = 80  # begun; forwarding makes more
MAX_IN_SWITCH = 5  # times that one operation, or one of every rank of a switch group, is added

TOPOLOGIES = ("switched", "nested", "mesh", "torus")
TORUS_SHAPES = ((2,), (3,), (1, 3), (4,), (2, 2), (5,), (2, 3), (3, 2), (2, 1, 3), (2, 2, 2), (8,), (3, 3))
MAX_CHIPS = 9  # of the only domain
MAX_CHIPS_OF_MANY = 5  # of a domain
MAX_DOMAINS = 4


@dataclass
class Thread:
    """A thread that grows; `operations` are indices into the order of making."""

    rank: int
    number: int
    channel: int
    send_peer: int = -1
    recv_peer: int = -1
    operations: list[int] = field(default_factory=list)


def random_case(rng: Random) -> tuple[list[Operation], Fabric]:
    """Operations that cannot deadlock, whatever the number of slots, and a fabric to run them on.

    Operations are made in an order in which they could run one at a time: a message is received right after
    it is sent, so message k - slots is received before message k is sent, and a dependency names an operation
    that is there already. Work is random too, and need not fit the message. In-switch operations wait for
    nothing but their thread and dependency, so they may be anywhere.
    """
    fabric = random_fabric(rng)
    case = _Case(rng, random_peers(rng, fabric))
    messages = rng.randint(1, MAX_MESSAGES)
    group_size = random_group_size(rng, fabric, ranks=len(case.peers))
    times = rng.randint(1, MAX_IN_SWITCH) if group_size else 0
    in_switch = Counter(rng.choice([0, rng.randrange(messages)]) for _ in range(times))  # by messages before
    for made in range(messages):
        for _ in range(in_switch[made]):
            case.add_in_switch(group_size, fabric.domain.payload)
        if rng.random() < 0.2:
            case.add_local()
        case.add_message()
    return case.in_global_order(), fabric


def random_group_size(rng: Random, fabric: Fabric, ranks: int) -> int:
    """Ranks of every switch group, the last of which may be shorter, or 0 without; no group is in two domains."""
    if fabric.topology != "switched" or rng.random() < 0.6:
        return 0
    one_domain = ranks <= fabric.chips
    most = ranks if one_domain else fabric.chips
    sizes = [size for size in range(2, most + 1) if one_domain or fabric.chips % size == 0]
    return rng.choice([sizes[-1], rng.choice(sizes)]) if sizes else 0


def switch_group_size(operations: list[Operation]) -> int:
    """The least size that explains the groups of all in-switch operations, 0 if there is none."""
    in_switch = [op for op in operations if op.kind in IN_SWITCH]
    ranks = 1 + max((max(op.rank, op.send_peer, op.recv_peer, *op.members) for op in operations), default=-1)
    for size in range(1, ranks + 1) if in_switch else ():
        if all(op.members == switch_group(op.rank, size, ranks) for op in in_switch):
            return size
    assert not in_switch, "the groups are not all of one size"
    return 0


def switch_group(rank: int, size: int, ranks: int) -> tuple[int, ...]:
    first = rank // size * size
    return tuple(range(first, min(first + size, ranks)))


def random_peers(rng: Random, fabric: Fabric) -> list[list[int]]:
    """The ranks that each rank can send to; those of its domain perhaps several times, so that they are drawn more
    often. The last domain may have fewer ranks than the others."""
    fewest, most = 2, fabric.chips
    if fabric.network.widths:
        fewest, most = fabric.chips + 1, rng.randint(2, MAX_DOMAINS) * fabric.chips
    ranks = rng.choice([most, rng.randint(fewest, most)])
    peers = [[peer for peer in range(ranks) if can_send(fabric, rank, peer)] for rank in range(ranks)]
    more = rng.choice([0, 0, 3])
    return [
        of_rank + more * [peer for peer in of_rank if peer // fabric.chips == rank // fabric.chips]
        for rank, of_rank in enumerate(peers)
    ]


def can_send(fabric: Fabric, source: int, destination: int) -> bool:
    try:
        group_of(fabric, source, destination)
    except ValueError:
        return False
    return True


def random_fabric(rng: Random) -> Fabric:
    """One domain, or more and a network.

    A third each: times so coarse that much happens at once; few credits and short links, so that ports starve
    while others' packets are short; and anything.
    """
    draw = rng.choice([coarse_stage, starving_stage, any_stage])
    has_network = rng.random() < 0.6
    most_chips = MAX_CHIPS_OF_MANY if has_network else MAX_CHIPS
    topology, levels, shape = rng.choice(TOPOLOGIES), (), ()
    if topology == "torus":
        shape = rng.choice([shape for shape in TORUS_SHAPES if prod(shape) <= most_chips])
        chips, widths = prod(shape), random_widths(rng, len(directions(shape)))
    elif topology == "mesh":
        chips = rng.randint(2, most_chips)
        widths = random_widths(rng, 1) * (chips - 1)
    else:
        chips = rng.randint(1 if has_network else 2, most_chips)
        if topology == "nested":
            levels = random_levels(rng, chips)
        widths = random_widths(rng, max(1, len(levels)))
    domain = draw(rng, widths)
    if topology != "nested":
        domain = replace(domain, latencies_fs=domain.latencies_fs[:1] * len(widths))
    domain = replace(domain, **random_flits(rng, domain.payload))

    network = draw(rng, random_widths(rng, 1)) if has_network else NO_STAGE
    if has_network and rng.random() < 0.5:  # else the two are comparable
        slower = rng.randint(2, 50)
        network = replace(network, link=(slower * network.link[0], network.link[1]))
        if rng.random() < 0.5:
            network = replace(network, latencies_fs=(slower * network.latencies_fs[0],))
    latency_fs = domain.latencies_fs[-1]
    if has_network:
        network = replace(network, extra_fs=rng.choice([0, latency_fs, rng.randint(0, 2 * network.latencies_fs[0])]))

    link = domain.link
    endpoint_rates, step_fs = {
        coarse_stage: ([(0, 1), link], rng.choice([0, rng.randint(0, 1000)])),
        starving_stage: ([(0, 1), link, (2 * link[0], 1)], rng.choice([0, latency_fs])),
        any_stage: ([random_rate(rng) for _ in range(3)], rng.randint(0, 1_000_000_000)),
    }[draw]
    data, line = rng.choice([(1, 1), (8, 16), (120, 128)])
    return Fabric(
        domain=replace(domain, switched=topology in ("switched", "nested")),
        network=network,
        chips=chips,
        topology=topology,
        levels=levels,
        shape=shape,
        launch_fs=rng.choice([0, rng.randint(0, 10_000_000_000)]),
        slots=rng.randint(1, 4),
        copy=rng.choice(endpoint_rates),
        reduce=rng.choice(endpoint_rates),
        step_fs=step_fs,
        data=data,
        line=line,
    )


def coarse_stage(rng: Random, widths: tuple[int, ...]) -> Stage:
    return Stage(
        widths=widths,
        latencies_fs=tuple(rng.randint(0, 100) for _ in widths),
        switched=True,
        link=(rng.randint(1, 3), 1),
        credits=rng.randint(1, 4),
        payload=rng.randint(16, 1000),
        header=rng.randint(1, 4),
    )


def starving_stage(rng: Random, widths: tuple[int, ...]) -> Stage:
    return Stage(
        widths=widths,
        latencies_fs=tuple(8000 * rng.randint(25, 200) for _ in widths),
        switched=True,
        link=(1000 * rng.randint(1, 5), 1),
        credits=rng.randint(1, 12),
        payload=rng.choice([16, 32, 256]),
        header=rng.choice([8, 16]),
    )


def any_stage(rng: Random, widths: tuple[int, ...]) -> Stage:
    return Stage(
        widths=widths,
        latencies_fs=tuple(rng.randint(200_000, 300_000_000) for _ in widths),
        switched=True,
        link=random_rate(rng),
        credits=rng.randint(1, 12),
        payload=rng.randint(16, 256),
        header=rng.randint(8, 16),
    )


def random_widths(rng: Random, groups: int) -> tuple[int, ...]:
    return tuple(rng.randint(1, 4) for _ in range(groups))


def random_levels(rng: Random, chips: int) -> tuple[int, ...]:
    """Units that divide the units above them, up to the whole domain."""
    levels = [chips]
    while (units := [unit for unit in range(2, levels[0]) if levels[0] % unit == 0]) and rng.random() < 0.8:
        levels.insert(0, rng.choice(units))
    return tuple(levels)


def random_flits(rng: Random, payload: int) -> dict[str, int]:
    """Whole payloads are often whole flits, and not always."""
    if rng.random() < 0.4:
        return {"flit": 1, "enable": 0}
    flits = [flit for flit in (2, 4, 8, 16, 32, 64) if flit <= payload]
    flit = rng.choice([rng.choice(flits), rng.randint(2, payload)])
    return {"flit": flit, "enable": rng.choice([0, rng.randint(1, 64)])}


def random_rate(rng: Random) -> tuple[int, int]:
    """Up to 200 ps a byte (5 GB/s), mostly not a whole number of femtoseconds."""
    den = rng.randint(1, 997)
    return rng.randint(1, 200_000 * den), den


def random_size(rng: Random) -> int:
    return rng.choice([0, 1, 16, 256, 257, rng.randint(0, 300), rng.randint(0, 5000)])


class _Case:
    def __init__(self, rng: Random, peers: list[list[int]]) -> None:
        self.rng = rng
        self.peers = peers  # the ranks that each rank can send to
        self.threads: list[list[Thread]] = [[] for _ in peers]
        self.made: list[Operation] = []  # deps in the order of making

    def add_local(self) -> None:
        rank = self.rng.randrange(len(self.threads))
        threads = self.threads[rank] or [self.new_thread(rank, channel=0)]
        self.add(self.rng.choice(threads), self.rng.choice(LOCAL), message_bytes=0)

    def add_in_switch(self, group_size: int, payload: int) -> None:
        """One operation of a random rank, or one of every rank of its group, each on its share of a buffer."""
        group = switch_group(self.rng.randrange(len(self.threads)), group_size, len(self.threads))
        kind = self.rng.choice(sorted(IN_SWITCH))
        size = random_size(self.rng)
        offset = self.rng.choice([0, payload * self.rng.randint(0, 9), self.rng.randint(0, 5000)])
        everyone = self.rng.random() < 0.3
        for share, rank in enumerate(group if everyone else [self.rng.choice(group)]):
            threads = self.threads[rank]
            if not threads or (len(threads) < MAX_THREADS and self.rng.random() < 0.3):
                self.new_thread(rank, channel=self.rng.randrange(MAX_CHANNELS))
            self.add(self.rng.choice(threads), kind, size, members=group, offset=offset + share * size)

    def add_message(self) -> None:
        """Send a message from a random chip; its receivers may pass it on and on."""
        source = self.rng.randrange(len(self.threads))
        destination = self.rng.choice(self.peers[source])
        channel = self.rng.randrange(MAX_CHANNELS)
        sender = self.find_thread(source, channel, "send_peer", destination)
        receiver = self.find_thread(destination, channel, "recv_peer", source)
        if sender is None or receiver is None:
            return
        sender.send_peer, receiver.recv_peer = destination, source
        message_bytes = random_size(self.rng)
        self.add(sender, kinds.SEND, message_bytes)
        while (onward := self.find_onward(receiver)) is not None:
            self.add(receiver, self.rng.choice(FUSED_SENDS), message_bytes)
            receiver = onward
        self.add(receiver, self.rng.choice(RECEIVES), message_bytes)

    def find_onward(self, thread: Thread) -> Thread | None:
        """Perhaps, and if there is one, the thread that receives what `thread` passes on."""
        if self.rng.random() < 0.4:
            return None
        destination = thread.send_peer
        if destination == -1:
            destination = self.rng.choice(self.peers[thread.rank])
            if self.find_thread(thread.rank, thread.channel, "send_peer", destination, only=thread) is None:
                return None
        receiver = self.find_thread(destination, thread.channel, "recv_peer", thread.rank)
        if receiver is not None:
            thread.send_peer, receiver.recv_peer = destination, thread.rank
        return receiver

    def find_thread(self, rank: int, channel: int, side: str, peer: int, only: Thread | None = None) -> Thread | None:
        """The thread that has this end of a connection, or else one that can take it, if there is one."""
        same_channel = [thread for thread in self.threads[rank] if thread.channel == channel]
        for thread in same_channel:
            if getattr(thread, side) == peer:
                return thread if only is None or only is thread else None
        if only is not None:
            return only if getattr(only, side) == -1 else None
        free = [thread for thread in same_channel if getattr(thread, side) == -1]
        if len(self.threads[rank]) < MAX_THREADS and (not free or self.rng.random() < 0.5):
            return self.new_thread(rank, channel)
        return self.rng.choice(free) if free else None

    def new_thread(self, rank: int, channel: int) -> Thread:
        thread = Thread(rank, len(self.threads[rank]), channel)
        self.threads[rank].append(thread)
        return thread

    def add(self, thread: Thread, kind: int, message_bytes: int, **in_switch: object) -> None:
        """Append an operation; peers come later, as the thread may not have all of its own yet."""
        others = [other for other in self.threads[thread.rank] if other is not thread]
        earlier = [index for other in others for index in other.operations[-3:]]
        thread.operations.append(len(self.made))
        self.made.append(
            Operation(
                rank=thread.rank,
                thread=thread.number,
                kind=kind,
                channel=thread.channel,
                work_bytes=self.rng.choice([0, message_bytes, random_size(self.rng)]),
                message_bytes=message_bytes,
                dep=self.rng.choice(earlier) if earlier and self.rng.random() < 0.3 else None,
                **in_switch,
            )
        )

    def in_global_order(self) -> list[Operation]:
        """By (rank, thread, step), with the peers of their thread, and dependencies named in that order."""
        threads = [thread for of_rank in self.threads for thread in of_rank]
        order = [index for thread in threads for index in thread.operations]
        place = {made: index for index, made in enumerate(order)}
        peers = {(thread.rank, thread.number): (thread.send_peer, thread.recv_peer) for thread in threads}
        operations = []
        for made in order:
            op = self.made[made]
            send_peer, recv_peer = peers[op.rank, op.thread]
            dep = None if op.dep is None else place[op.dep]
            operations.append(replace(op, send_peer=send_peer, recv_peer=recv_peer, dep=dep))
        return operations
