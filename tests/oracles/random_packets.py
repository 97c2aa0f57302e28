"""Random schedules and fabrics for tests that hold two packet engines together."""

from dataclasses import dataclass, field, replace
from random import Random

from collemu_kernels import kinds

from tests.oracles.slow_packets import Fabric, Operation

LOCAL = (kinds.NOP, kinds.COPY, kinds.REDUCE)
RECEIVES = (kinds.RECV, kinds.RECV_REDUCE, kinds.RECV_REDUCE_COPY)
FUSED_SENDS = (kinds.RECV_COPY_SEND, kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE_COPY_SEND)

MAX_THREADS = 4  # of a rank
MAX_CHANNELS = 3
MAX_MESSAGES = 80  # begun; forwarding makes more


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
    that is there already. Work is random too, and need not fit the message.
    """
    case = _Case(rng, chips=rng.randint(2, 9))
    for _ in range(rng.randint(1, MAX_MESSAGES)):
        if rng.random() < 0.2:
            case.add_local()
        case.add_message()
    return case.in_global_order(), random_fabric(rng)


def random_fabric(rng: Random) -> Fabric:
    """A third each: times so coarse that much happens at once; few credits and short links, so that ports starve
    while others' packets are short; and anything."""
    choice = rng.random()
    if choice < 1 / 3:
        link = (rng.randint(1, 3), 1)
        latency_fs = rng.randint(0, 100)
        endpoint_rates = [(0, 1), link]
        step_fs = rng.choice([0, rng.randint(0, 1000)])
        payload, header = rng.randint(16, 1000), rng.randint(1, 4)
    elif choice < 2 / 3:
        link = (1000 * rng.randint(1, 5), 1)
        latency_fs = 8000 * rng.randint(25, 200)
        endpoint_rates = [(0, 1), link, (2 * link[0], 1)]
        step_fs = rng.choice([0, latency_fs])
        payload, header = rng.choice([16, 32, 256]), rng.choice([8, 16])
    else:
        link = random_rate(rng)
        latency_fs = rng.randint(200_000, 300_000_000)
        endpoint_rates = [random_rate(rng) for _ in range(3)]
        step_fs = rng.randint(0, 1_000_000_000)
        payload, header = rng.randint(16, 256), rng.randint(8, 16)
    data, line = rng.choice([(1, 1), (8, 16), (120, 128)])
    return Fabric(
        planes=rng.randint(1, 5),
        latency_fs=latency_fs,
        link=link,
        credits=rng.randint(1, 4) if choice < 1 / 3 else rng.randint(1, 12),
        payload=payload,
        header=header,
        launch_fs=rng.choice([0, rng.randint(0, 10_000_000_000)]),
        slots=rng.randint(1, 4),
        copy=rng.choice(endpoint_rates),
        reduce=rng.choice(endpoint_rates),
        step_fs=step_fs,
        data=data,
        line=line,
    )


def random_rate(rng: Random) -> tuple[int, int]:
    """Up to 200 ps a byte (5 GB/s), mostly not a whole number of femtoseconds."""
    den = rng.randint(1, 997)
    return rng.randint(1, 200_000 * den), den


def random_size(rng: Random) -> int:
    return rng.choice([0, 1, 16, 256, 257, rng.randint(0, 300), rng.randint(0, 5000)])


class _Case:
    def __init__(self, rng: Random, chips: int) -> None:
        self.rng = rng
        self.threads: list[list[Thread]] = [[] for _ in range(chips)]
        self.made: list[Operation] = []  # deps in the order of making

    def add_local(self) -> None:
        rank = self.rng.randrange(len(self.threads))
        threads = self.threads[rank] or [self.new_thread(rank, channel=0)]
        self.add(self.rng.choice(threads), self.rng.choice(LOCAL), message_bytes=0)

    def add_message(self) -> None:
        """Send a message between two random chips; its receivers may pass it on and on."""
        source, destination = self.rng.sample(range(len(self.threads)), 2)
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
            destination = self.rng.choice([chip for chip in range(len(self.threads)) if chip != thread.rank])
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

    def add(self, thread: Thread, kind: int, message_bytes: int) -> None:
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
