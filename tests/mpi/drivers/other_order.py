"""collemu, whose rank 1 adds what it reads from others in the opposite order."""

from collemu.cli.main import console
from collemu.ranks.transport import WindowTransport

read = WindowTransport.read


def reversed_read(self, ranks, offsets, rows):
    read(self, ranks, offsets, rows[::-1] if self._comm.rank == 1 else rows)


WindowTransport.read = reversed_read
console()
