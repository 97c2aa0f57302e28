"""How bytes travel between processes: messages with a request a FIFO slot, and windows on memory."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collemu.ranks.alone import Alone

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = NDArray[np.uint8]

NAP_S = 1e-6  # the shortest that lets another process run; the operating system makes some 50 us of it


class Completion(NamedTuple):
    """A transfer that has ended. Of a send only its place is known."""

    place: int
    source: int
    channel: int
    nbytes: int


class Transport(Protocol):
    """Carries bytes. A place holds one transfer at a time; it is free once its completion was returned."""

    def receive(self, place: int, buffer: Bytes, source: int, channel: int) -> None:
        """Take the next message of a connection into a buffer, which may be longer than the message."""
        ...

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        """Send a buffer; it must stay as it is until the place is free."""
        ...

    def wait(self) -> list[Completion]:
        """Wait until at least one transfer has ended."""
        ...

    def read(self, ranks: Sequence[int], offsets: Sequence[int], rows: Bytes) -> None:
        """Fill row after row with what lies at an offset in the memory of a rank, which does nothing for it."""
        ...

    def write(self, ranks: Sequence[int], offsets: Sequence[int], buffer: Bytes) -> None:
        """Write a buffer to an offset in the memory of each rank, which does nothing for it."""
        ...

    def close(self) -> None:
        """Wait until all ranks have called this: until then they may read and write each other's memory."""
        ...


class MpiTransport:
    """Isend, Irecv and Waitsome on a communicator; the channel is the tag."""

    def __init__(self, comm: "MPI.Comm", places: int, asleep: bool) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._bytes = MPI.BYTE
        self._wait_some = self._look_asleep if asleep else MPI.Request.Waitsome
        self._test_some = MPI.Request.Testsome
        self._requests = [MPI.REQUEST_NULL] * places
        self._statuses = [MPI.Status() for _ in range(places)]

    def receive(self, place: int, buffer: Bytes, source: int, channel: int) -> None:
        """Post an Irecv."""
        self._requests[place] = self._comm.Irecv([buffer, self._bytes], source, channel)

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        """Post an Isend."""
        self._requests[place] = self._comm.Isend([buffer, self._bytes], destination, channel)

    def wait(self) -> list[Completion]:
        """Wait for at least one of the posted requests."""
        ended = self._wait_some(self._requests, self._statuses) or []
        return [
            Completion(place, status.source, status.tag, status.Get_count(self._bytes))
            for place, status in zip(ended, self._statuses, strict=False)
        ]

    def _look_asleep(self, requests: "list[MPI.Request]", statuses: "list[MPI.Status]") -> list[int] | None:
        """Waitsome for processes that share cores: MPICH's does not let others run, even where it is told to sleep."""
        while True:
            ended = self._test_some(requests, statuses)
            if ended is None or ended:
                return ended
            time.sleep(NAP_S)

    def read(self, ranks: Sequence[int], offsets: Sequence[int], rows: Bytes) -> None:
        """Not called: nobody's memory is open."""

    def write(self, ranks: Sequence[int], offsets: Sequence[int], buffer: Bytes) -> None:
        """Not called: nobody's memory is open."""

    def close(self) -> None:
        """Nobody to wait for."""


class WindowTransport(MpiTransport):
    """The same, and every rank's memory open to all: Get and Put, for which its process does nothing.

    Messages say when memory may be touched. What a rank stored before it sent one, others can read when they have it;
    what others wrote before theirs came, it can load: that takes a synchronisation of the window at both ends.

    Raises
    ------
    RuntimeError
        If memory and window are two copies: then no rank may store anything while another writes.
    """

    def __init__(self, comm: "MPI.Intracomm", places: int, asleep: bool, memory: Bytes) -> None:
        from mpi4py import MPI

        super().__init__(comm, places, asleep)
        self._window = MPI.Win.Create(memory, 1, comm=comm)
        if self._window.model != MPI.WIN_UNIFIED:
            raise RuntimeError("this MPI's windows are copies of memory: it cannot carry out in-switch operations")
        self._window.Lock_all()

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        """Post an Isend, after what was stored."""
        self._window.Sync()
        super().send(place, buffer, destination, channel)

    def wait(self) -> list[Completion]:
        """Wait for at least one of the posted requests, then see what others have written."""
        ended = super().wait()
        self._window.Sync()
        return ended

    def read(self, ranks: Sequence[int], offsets: Sequence[int], rows: Bytes) -> None:
        """Get each row."""
        self._window.Sync()  # one's own memory is read too
        for rank, offset, row in zip(ranks, offsets, rows, strict=True):
            self._window.Get([row, self._bytes], rank, offset)
        self._window.Flush_all()

    def write(self, ranks: Sequence[int], offsets: Sequence[int], buffer: Bytes) -> None:
        """Put the buffer to each rank."""
        for rank, offset in zip(ranks, offsets, strict=True):
            self._window.Put([buffer, self._bytes], rank, offset)
        self._window.Flush_all()
        self._window.Sync()  # one's own memory is written too

    def close(self) -> None:
        """Free the window, which serves the others until they too have come here."""
        self._window.Unlock_all()
        self._window.Free()


class NoTransport:
    """For a rank that sends and receives nothing."""

    def receive(self, place: int, buffer: Bytes, source: int, channel: int) -> None:
        """Not called: there are no messages."""

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        """Not called: there are no messages."""

    def wait(self) -> list[Completion]:
        """Nothing is under way."""
        return []

    def read(self, ranks: Sequence[int], offsets: Sequence[int], rows: Bytes) -> None:
        """Not called: nobody's memory is open."""

    def write(self, ranks: Sequence[int], offsets: Sequence[int], buffer: Bytes) -> None:
        """Not called: nobody's memory is open."""

    def close(self) -> None:
        """Nobody to wait for."""


def open_transport(
    comm: "MPI.Intracomm | Alone", places: int, memory: Bytes | None = None, *, asleep: bool = False
) -> Transport:
    """The transport of a communicator, for so many transfers at once; ``asleep`` where who waits is to leave its core.

    With ``memory``, which all ranks give or none does, others can read and write it until `Transport.close`.
    """
    if isinstance(comm, Alone):
        return NoTransport()
    if memory is not None:
        return WindowTransport(comm, places, asleep, memory)
    return MpiTransport(comm, places, asleep) if places else NoTransport()
