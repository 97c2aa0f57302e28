"""collemu, whose rank 1 has no memory left when it comes to its second point."""

from collemu.cli.main import console
from collemu.ranks import part

run = part.Part.run
runs = []


def failing_run(self, comm, *more):
    runs.append(self.lowered.schedule.algorithm)
    if comm.rank == 1 and comm.size > 1 and len(set(runs)) > 1 and runs[-1] == "two_shot":
        raise MemoryError("Unable to allocate 4.00 GiB")
    return run(self, comm, *more)


part.Part.run = failing_run
console()
