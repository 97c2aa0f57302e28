"""Work that processes share: each takes what is next when it is done; the first keeps what comes out, and works too."""

import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from collemu.ranks.alone import Alone

if TYPE_CHECKING:
    from mpi4py import MPI

    from collemu.ranks.part import Communicator

LOOK_S = 0.002  # between looks at what has come, while none has: waiting inside MPI would keep a core busy
MOST_AT_ONCE = 32  # pieces of work that a process takes: neighbours share what is loaded and built for them

Work = Callable[[int], Any]
Keep = Callable[[int, Any], None]


def share(comm: "Communicator", pieces: int, work: Work, keep: Keep) -> None:
    """Do all pieces of work, once each, in the processes of a communicator.

    Parameters
    ----------
    comm : MPI.Intracomm or Alone
        Used for nothing else meanwhile.
    pieces : int
    work : callable
        Does the piece of a number and returns what came out of it.
    keep : callable
        Called by the first process, with the number and what came out of it, as soon as it has come, one after the
        other; it may be on another thread. What it raises, the first process raises.
    """
    if isinstance(comm, Alone):
        for piece in range(pieces):
            keep(piece, work(piece))
    elif comm.rank == 0:
        _First(comm, pieces, work, keep).run()
    else:
        _help(comm, work)


class _First:
    """The first process: a thread gives pieces to the others and keeps what they send, while it works by itself."""

    def __init__(self, comm: "MPI.Intracomm", pieces: int, work: Work, keep: Keep) -> None:
        self._comm, self._work, self._keep = comm, work, keep
        self._pieces, self._next = pieces, 0
        self._lock, self._stop = Lock(), Event()
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Until all pieces are done."""
        others = Thread(target=self._serve, daemon=True)
        others.start()
        try:
            while taken := self._take():
                for piece in taken:
                    outcome = self._work(piece)
                    with self._lock:
                        self._keep(piece, outcome)
                    self._raise()
            while others.is_alive():
                others.join(0.1)  # with a limit: else nothing interrupts it
        finally:
            self._stop.set()
        self._raise()

    def _take(self) -> range:
        """The next pieces, fewer as fewer are left; none are left in an empty range."""
        with self._lock:
            left = self._pieces - self._next
            many = min(max(1, left // (4 * self._comm.size)), MOST_AT_ONCE, left)
            self._next += many
            return range(self._next - many, self._next)

    def _serve(self) -> None:
        try:
            helping = self._comm.size - 1
            while helping and not self._stop.is_set():
                said = _receive(self._comm, None, self._stop)
                if said is None:
                    continue
                rank, done = said
                if done is None:
                    taken = self._take()
                    helping -= not taken
                    self._comm.send(taken, rank)
                else:
                    with self._lock:
                        self._keep(*done)
        except BaseException as fault:
            self._fault = fault

    def _raise(self) -> None:
        if self._fault:
            raise self._fault


def _help(comm: "MPI.Intracomm", work: Work) -> None:
    """Ask the first process for pieces, and send it what came out of each, until there are none."""
    while True:
        comm.send((comm.rank, None), 0)
        taken = _receive(comm, 0)
        if not taken:
            return
        for piece in taken:
            comm.send((comm.rank, (piece, work(piece))), 0)


def _receive(comm: "MPI.Intracomm", source: int | None, stop: Event | None = None) -> Any:
    """The next message, without keeping a core busy; None if it is to stop before one has come."""
    from mpi4py import MPI

    status = MPI.Status()
    while not comm.Iprobe(MPI.ANY_SOURCE if source is None else source, MPI.ANY_TAG, status):
        if stop and stop.is_set():
            return None
        time.sleep(LOOK_S)
    return comm.recv(source=status.source, tag=status.tag)
