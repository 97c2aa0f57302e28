"""One process, one chip: run one rank's part of a schedule, with bytes that really travel."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np
from collemu_kernels import dataplane, kinds
from numpy.typing import NDArray

from collemu.lower import NONE, Lowered
from collemu.ranks.message_log import ENTRY, READ, RECEIVED, SENT, WRITE, Log
from collemu.ranks.passages import Passage, passages_of
from collemu.ranks.switch_memory import carry_out
from collemu.ranks.transport import Completion, Transport
from collemu.schedule import IN_SWITCH

#: What a process did, in nanoseconds of its clock: an operation, or NONE where it waited and took what came, in bytes.
SPAN = np.dtype([("operation", "<i8"), ("begin_ns", "<i8"), ("end_ns", "<i8"), ("nbytes", "<i8")])

Spans = NDArray[Any]


class Execution:
    """The operations of one rank, and what each still waits for.

    An operation runs when the one before it in its thread and its dependency have finished, its message has
    arrived, and the FIFO slot that it sends from is free. Receives are posted ahead, one into each slot of a
    connection, and again when the operation that emptied the slot has finished. Who waits for whom is the
    emulator's rule, so the bytes are the same in whatever order messages come. Slots are not: here one is free as
    soon as MPI has taken the message, in the emulator only when the receiver has finished with it.

    An in-switch operation reads or writes the memory of other ranks by itself; a rank that has finished must leave its
    transport open for the others until they have finished too.

    Parameters
    ----------
    lowered : Lowered
    plane : DataPlane
        Over the memory of this rank, with ``slots`` FIFO slots a connection.
    rank, slots : int

    Attributes
    ----------
    places : int
        Transfers that can be under way at once: what the transport must have room for.
    """

    def __init__(self, lowered: Lowered, plane: dataplane.DataPlane, rank: int, slots: int) -> None:
        self._plane = plane
        self._schedule = lowered.schedule
        self._slots = slots
        self._incoming, self._outgoing, self.places = passages_of(lowered, plane, rank, slots)
        threads = lowered.schedule.threads[lowered.schedule.threads["rank"] == rank]
        self._first = int(threads["first"][0]) if len(threads) else 0
        here = slice(self._first, self._first + int(threads["length"].sum()))
        self._received: list[int] = lowered.received[here].tolist()
        self._sent: list[int] = lowered.sent[here].tolist()

        # these lists count the rank's operations from 0
        dep = lowered.schedule.ops["dep"][here]
        waits = (dep != NONE).astype(int) + (lowered.received[here] != NONE)
        self._dependents: defaultdict[int, list[int]] = defaultdict(list)
        for operation in np.flatnonzero(dep != NONE).tolist():
            self._dependents[int(dep[operation]) - self._first].append(operation)
        for start, length in zip(threads["first"].tolist(), threads["length"].tolist(), strict=True):
            for operation in range(start - self._first + 1, start - self._first + length):
                self._dependents[operation - 1].append(operation)
                waits[operation] += 1
        for passage in self._outgoing.values():
            waits[passage.operation - self._first] += passage.number >= slots
        self._waits: list[int] = waits.tolist()
        self._ready = deque(operation for operation, waiting in enumerate(self._waits) if waiting == 0)
        self._left = len(self._waits)

        self._under_way: dict[int, tuple[Passage, bool]] = {}  # by place; and whether it comes in
        self._arrived: dict[int, tuple[int, int, int]] = {}  # by operation: source, channel, bytes
        self._log: list[tuple[int, int, int, int, int, int]] = []
        self._spans: list[tuple[int, int, int, int]] = []

    @property
    def idle(self) -> bool:
        """Whether nothing can run before a transfer ends."""
        return not self._ready

    @property
    def stuck(self) -> bool:
        """Whether operations are left that nothing can start any more."""
        return self._left > 0 and not self._ready and not self._under_way

    @property
    def finished(self) -> bool:
        """Whether every operation has run and every transfer has ended."""
        return self._left == 0 and not self._under_way

    def tell(self) -> str:
        """What it does, or waits for, in words; another thread may ask."""
        if self._ready or not self._under_way:
            return f"runs its operations, {self._left} are left"
        coming = [passage for passage, comes_in in list(self._under_way.values()) if comes_in]
        passage, *_ = sorted(coming, key=lambda each: each.operation) or [
            each for each, _ in list(self._under_way.values())
        ]
        what = f"message {passage.number} of channel {passage.channel}"
        deed = f"waits for {what} from" if coming else f"waits until {what} is taken by"
        return f"{deed} rank {passage.peer}, at {self._schedule.describe(passage.operation)}"

    def log(self) -> Log:
        """The messages and accesses so far, as operations took and gave them."""
        return np.array(self._log, ENTRY)

    def spans(self) -> Spans:
        """When it ran each operation, and when it waited and what for, in order."""
        return np.array(self._spans, SPAN)

    def start(self, transport: Transport) -> None:
        """Post a receive into every FIFO slot that a message comes into."""
        for passage in self._incoming.values():
            if passage.place != NONE and passage.number < self._slots:
                self._receive(passage, transport)

    def run_next(self, transport: Transport) -> None:
        """Run one operation that is ready."""
        begin = perf_counter_ns()
        operation = self._ready.popleft()
        number = self._first + operation
        received, sent = self._received[operation], self._sent[operation]
        if IN_SWITCH[self._plane.kind[number]]:
            status = self._carry_out(number, transport)
        else:
            status = dataplane.move(self._plane, number, received, sent)  # pyright: ignore[reportUnknownMemberType]
        if status != 0:
            place = self._schedule.describe(number)
            raise RuntimeError(f"{place}: a value on the wire has no code in the wire format")
        self._left -= 1
        if received != NONE:
            self._log_received(self._incoming[received])
            self._free(self._incoming[received], transport)
        if sent != NONE:
            self._send(sent, transport)
        for dependent in self._dependents[operation]:
            self._satisfy(dependent)
        self._spans.append((number, begin, perf_counter_ns(), 0))

    def take(self, completions: Iterable[Completion], begun: int = 0) -> None:
        """Note the transfers that have ended, for which it has waited since ``begun``, in nanoseconds."""
        nbytes = 0
        for completion in completions:
            passage, comes_in = self._under_way.pop(completion.place)
            if comes_in:
                self._arrive(passage, completion.source, completion.channel, completion.nbytes)
                nbytes += completion.nbytes
            elif passage.successor != NONE:
                self._slot_is_free(passage.successor)
        self._spans.append((NONE, begun, perf_counter_ns(), nbytes))

    def _carry_out(self, operation: int, transport: Transport) -> int:
        status, touched = carry_out(self._plane, operation, transport)
        direction = READ if self._plane.kind[operation] == kinds.MULTIMEM_REDUCE else WRITE
        self._log += [(direction, rank, 0, 0, nbytes, operation) for rank, nbytes in sorted(touched.items())]
        return status

    def _receive(self, passage: Passage, transport: Transport) -> None:
        self._under_way[passage.place] = (passage, True)
        transport.receive(passage.place, passage.slot, passage.peer, passage.channel)

    def _send(self, message: int, transport: Transport) -> None:
        passage = self._outgoing[message]
        entry = (passage.peer, passage.channel, passage.number, passage.nbytes, passage.operation)
        self._log.append((SENT, *entry))
        if passage.place == NONE:
            own = self._incoming[message]
            self._arrive(own, own.peer, own.channel, own.nbytes)
        else:
            self._under_way[passage.place] = (passage, False)
            transport.send(passage.place, passage.slot[: passage.nbytes], passage.peer, passage.channel)

    def _arrive(self, passage: Passage, source: int, channel: int, nbytes: int) -> None:
        self._arrived[passage.operation] = (source, channel, nbytes)
        self._satisfy(passage.operation - self._first)

    def _log_received(self, passage: Passage) -> None:
        source, channel, nbytes = self._arrived.pop(passage.operation)
        self._log.append((RECEIVED, source, channel, passage.number, nbytes, passage.operation))

    def _free(self, passage: Passage, transport: Transport) -> None:
        """The slot of a received message takes the next of its connection."""
        if passage.successor == NONE:
            return
        if passage.place == NONE:
            self._slot_is_free(passage.successor)
        else:
            self._receive(self._incoming[passage.successor], transport)

    def _slot_is_free(self, message: int) -> None:
        self._satisfy(self._outgoing[message].operation - self._first)

    def _satisfy(self, operation: int) -> None:
        self._waits[operation] -= 1
        if self._waits[operation] == 0:
            self._ready.append(operation)


def execute(execution: Execution, transport: Transport, beat: Callable[[], None] = lambda: None) -> None:
    """Run one rank's operations to the end; ``beat`` is called whenever something has happened.

    Raises
    ------
    RuntimeError
        If operations are left that nothing can start any more.

    Whatever is raised has a note that says what the rank was doing or waiting for.
    """
    try:
        execution.start(transport)
        while not execution.finished:
            if execution.stuck:
                raise RuntimeError("operations are left that nothing can start: the schedule deadlocks")
            if execution.idle:
                begun = perf_counter_ns()
                execution.take(transport.wait(), begun)
            else:
                execution.run_next(transport)
            beat()
    except BaseException as error:
        error.add_note(f"which {execution.tell()}")
        raise
