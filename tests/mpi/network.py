"""A network in one process: messages arrive whenever a random number generator says so."""

from collections import defaultdict, deque
from collections.abc import Sequence
from random import Random

from collemu.memory import Memory
from collemu.ranks.execute import Execution
from collemu.ranks.transport import Bytes, Completion


class Network:
    """Carries messages between the executions of several ranks, each connection in order, nothing else in any order.

    A send may end when it is posted (its bytes have been copied), or only when its message is delivered, as MPI's may.
    """

    def __init__(self, memories: list[Bytes], random: Random) -> None:
        self.memories = memories
        self.random = random
        self.sent: defaultdict[tuple[int, int, int], deque[tuple[int, Bytes, bool]]] = defaultdict(deque)
        self.posted: defaultdict[tuple[int, int, int], deque[tuple[int, Bytes]]] = defaultdict(deque)
        self.ended: defaultdict[int, list[Completion]] = defaultdict(list)

    def deliverable(self) -> list[tuple[int, int, int]]:
        """Connections on which a message and a receive wait for each other."""
        return [key for key, messages in self.sent.items() if messages and self.posted[key]]

    def deliver(self, connection: tuple[int, int, int]) -> None:
        source, destination, channel = connection
        place, data, copied = self.sent[connection].popleft()
        room, buffer = self.posted[connection].popleft()
        buffer[: len(data)] = data
        self.ended[destination].append(Completion(room, source, channel, len(data)))
        if not copied:
            self.ended[source].append(Completion(place, -1, -1, -1))


class Endpoint:
    """A rank's transport on the network."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank = network, rank

    def receive(self, place: int, buffer: Bytes, source: int, channel: int) -> None:
        self.network.posted[source, self.rank, channel].append((place, buffer))

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        copied = self.network.random.random() < 0.5
        self.network.sent[self.rank, destination, channel].append((place, buffer.copy() if copied else buffer, copied))
        if copied:
            self.network.ended[self.rank].append(Completion(place, -1, -1, -1))

    def wait(self) -> list[Completion]:
        raise AssertionError("the test says when transfers end")

    def read(self, ranks: Sequence[int], offsets: Sequence[int], rows: Bytes) -> None:
        for rank, offset, row in zip(ranks, offsets, rows, strict=True):
            row[:] = self.network.memories[rank][offset : offset + len(row)]

    def write(self, ranks: Sequence[int], offsets: Sequence[int], buffer: Bytes) -> None:
        for rank, offset in zip(ranks, offsets, strict=True):
            self.network.memories[rank][offset : offset + len(buffer)] = buffer

    def close(self) -> None:
        raise AssertionError("the test says when all have finished")


def run_all(executions: list[Execution], memories: list[Memory], random: Random) -> None:
    """Run all ranks to the end, one random event at a time."""
    network = Network([memory.plane.memory for memory in memories], random)
    endpoints = [Endpoint(network, rank) for rank in range(len(executions))]
    for execution, endpoint in zip(executions, endpoints, strict=True):
        execution.start(endpoint)
    while not all(execution.finished for execution in executions):
        events = [(0, rank) for rank, execution in enumerate(executions) if not execution.idle]
        events += [(1, rank) for rank, completions in network.ended.items() if completions]
        events += [(2, connection) for connection in network.deliverable()]
        assert events, "nothing can happen any more"
        kind, which = random.choice(events)
        if kind == 0:
            executions[which].run_next(endpoints[which])
        elif kind == 1:
            completions = network.ended[which]
            executions[which].take([completions.pop(random.randrange(len(completions)))])
        else:
            network.deliver(which)
