"""collemu, whose rank 1 writes to no rank 0."""

from collemu.cli.main import console
from collemu.ranks.transport import WindowTransport

write = WindowTransport.write


def skipping_write(self, ranks, offsets, buffer):
    kept = [place for place, rank in enumerate(ranks) if self._comm.rank != 1 or rank != 0]
    write(self, [ranks[place] for place in kept], [offsets[place] for place in kept], buffer)


WindowTransport.write = skipping_write
console()
