"""How messages travel between processes: non-blocking MPI on buffers, one request a FIFO slot."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collemu.ranks.alone import Alone

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = NDArray[np.uint8]


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


class MpiTransport:
    """Isend, Irecv and Waitsome on a communicator; the channel is the tag."""

    def __init__(self, comm: "MPI.Comm", places: int) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._bytes = MPI.BYTE
        self._wait_some = MPI.Request.Waitsome
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


class NoTransport:
    """For a rank that sends and receives nothing."""

    def receive(self, place: int, buffer: Bytes, source: int, channel: int) -> None:
        """Not called: there are no messages."""

    def send(self, place: int, buffer: Bytes, destination: int, channel: int) -> None:
        """Not called: there are no messages."""

    def wait(self) -> list[Completion]:
        """Nothing is under way."""
        return []


def open_transport(comm: "MPI.Intracomm | Alone", places: int) -> Transport:
    """The transport of a communicator, for so many transfers at once."""
    return NoTransport() if isinstance(comm, Alone) or not places else MpiTransport(comm, places)
