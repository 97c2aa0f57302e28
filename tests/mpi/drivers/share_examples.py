"""A property that all ranks share: the first argument says what goes wrong, and every rank says what it raised."""

import sys
import traceback
from dataclasses import replace

from hypothesis import assume, note, settings
from hypothesis import strategies as st

from collemu import build_schedule, testing
from collemu.ranks.launch import start_mpi
from collemu.ranks.transport import MpiTransport

how = sys.argv[1]
comm = start_mpi()
send = MpiTransport.send


def no_strategy(comm):
    raise ValueError("nothing to draw")


RUNS = {
    "runs": lambda comm: testing.runs(testing.schedules(ranks=comm.size, in_switch=True)),
    "strategy": no_strategy,
}


def flipped_send(self, place, buffer, destination, channel):
    if comm.rank == 1 and len(buffer) > 2:
        buffer[2] ^= 0xFF
    send(self, place, buffer, destination, channel)


def wrong(schedule):
    """The last operation writes to the chunk beside its own."""
    ops = schedule.ops.copy()
    ops["dst"][-1] = (ops["dst"][-1] + 1) % schedule.region_chunks
    return replace(schedule, ops=ops)


@settings(database=None, max_examples=40)
@testing.given_on_all_ranks(
    schedule=lambda comm: testing.schedules(["all_reduce", "all_gather"], ranks=comm.size),
    count=testing.counts(),
    wire=testing.wires(),
    x=st.integers(),
    run=lambda comm: RUNS[how](comm) if how in RUNS else st.none(),
)
def check(comm, schedule, count, wire, x, run):
    if how == "right":
        assume(x % 7 != 3)
        note("in every process")
        testing.assert_same_bytes(schedule, comm, count=count, wire=wire)
    elif how == "runs":
        testing.assert_same_bytes(comm=comm, **run)
    elif how == "schedule":
        testing.assert_same_bytes(wrong(schedule) if count > 4 else schedule, comm, count=count, wire=wire)
    elif how == "byte":
        testing.assert_same_bytes(schedule, comm, count=count, wire=wire)
    elif how == "local":
        assert comm.allreduce(1) == comm.size
        assert comm.rank == 0 or x < 1000
    elif how == "other":
        comm.Barrier()
        if comm.rank == comm.size - 1 and count > 15:
            raise OSError("the cable fell out")
    elif how == "early":
        assert comm.rank != 1
        comm.Barrier()


if how == "byte":
    MpiTransport.send = flipped_send
try:
    if how == "arguments":
        testing.assert_same_bytes(build_schedule("all_reduce", "ring", comm.size), comm, count=5 + comm.rank // 2)
    check(comm)
    said = "passed"
except BaseException as error:
    said = "".join(traceback.format_exception_only(error))
for rank in range(comm.size):
    comm.Barrier()
    if rank == comm.rank:
        print(f"<<{said}>>", flush=True)
