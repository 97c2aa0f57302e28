"""One clock for all processes: how far each is from the first one's, and a start at the same moment."""

from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING

import numpy as np

from collemu.ranks.alone import Alone
from collemu.ranks.launch import waits_asleep

if TYPE_CHECKING:
    from mpi4py import MPI

ROUNDS = 40  # of a message there and back, of which the quickest tells most
AHEAD_NS = 40_000  # by which the moment of a start is announced; a broadcast among few processes takes a few thousand
AHEAD_ASLEEP_NS = 500_000  # for each process that must wake to hear of it


class Clock:
    """Nanoseconds of the first process's clock, as this process knows it.

    Processes of one machine read the same clock. Those of several compare: half of the quickest message there and back
    is how well they know.

    Parameters
    ----------
    comm : communicator
        All its processes make a clock together.
    asleep : bool, optional
        Whether a process that waits is to leave its core to others; as the launch says if it is not given.

    Attributes
    ----------
    asleep : bool
    offset_ns : int
        What to add to this process's own clock.
    """

    def __init__(self, comm: "MPI.Intracomm | Alone", asleep: bool | None = None) -> None:
        self._comm = comm
        self.asleep = waits_asleep() if asleep is None else asleep
        self.offset_ns = 0 if isinstance(comm, Alone) or _one_machine(comm) else _offset(comm)

    def now(self) -> int:
        """This moment."""
        return perf_counter_ns() + self.offset_ns

    def start(self) -> None:
        """Return in all processes at about the same moment.

        They agree on one and wait for it. Who waits awake is on time, and keeps others from running where processes are
        more than cores: there they sleep until then.
        """
        self._comm.Barrier()
        if isinstance(self._comm, Alone):
            return
        moment = np.array([self.now() + (AHEAD_ASLEEP_NS * self._comm.size if self.asleep else AHEAD_NS)])
        self._comm.Bcast(moment)
        while (left := int(moment[0]) - self.now()) > 0:
            if self.asleep:
                sleep(left / 1e9)


def _one_machine(comm: "MPI.Intracomm") -> bool:
    from mpi4py import MPI

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    size = here.size
    here.Free()
    return bool(comm.allreduce(size == comm.size, MPI.LAND))


def _offset(comm: "MPI.Intracomm") -> int:
    """What to add to this process's clock."""
    mine = np.zeros(1, np.int64)
    for rank in range(1, comm.size):
        if comm.rank == 0:
            for _ in range(ROUNDS):
                comm.Recv(mine, rank)
                mine[0] = perf_counter_ns()
                comm.Send(mine, rank)
        elif comm.rank == rank:
            found: list[tuple[int, int]] = []
            for _ in range(ROUNDS):
                asked = perf_counter_ns()
                comm.Send(mine, 0)
                comm.Recv(mine, 0)
                answered = perf_counter_ns()
                found.append((answered - asked, int(mine[0]) - (asked + answered) // 2))
            return min(found)[1]
    return 0
