"""One rank: every collective and algorithm is the copy of input to output."""

from __future__ import annotations

from collemu_kernels import kinds

from collemu.builders.assembly import Assembler, steps
from collemu.schedule import Schedule


def single_rank(collective: str, algorithm: str) -> Schedule:
    """The schedule of one rank: one thread, one copy, one chunk, no message."""
    assembler = Assembler()
    assembler.add(0, 0, steps(kinds.COPY, src=(kinds.INPUT, 0), dst=(kinds.OUTPUT, 0)))
    return assembler.schedule(collective, algorithm, 1, input_chunks=1, output_chunks=1)
