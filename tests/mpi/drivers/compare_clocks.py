"""Two processes make a clock; the second one's is ahead of the first's by the seconds that it is told."""

import sys
from time import perf_counter_ns

from collemu.ranks import clock
from collemu.ranks.launch import start_mpi

ahead_ns = int(float(sys.argv[1]) * 1e9)
comm = start_mpi()
if ahead_ns:
    clock._one_machine = lambda _: False
    if comm.rank == 1:
        clock.perf_counter_ns = lambda: perf_counter_ns() + ahead_ns
own = clock.Clock(comm)
own.start()
offsets = comm.gather(own.offset_ns)
nows = comm.gather(own.now())
if comm.rank == 0:
    print(*offsets, *nows)
