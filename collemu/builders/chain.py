"""Chain: from rank to rank, piece by piece, so that all links of the way work at once.

What `ring` is in broadcast and reduce, by the name that the textbooks have for it. Every rank but the ends receives and
sends all of the data once, S / B for size S at rate B, in (pieces + n - 2) / pieces times that: for long messages, over
few ranks. A `tree` needs fewer pieces to fill its shorter ways, `binomial` the fewest steps.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005, who
compare it with the binomial tree; NCCL calls it ring.
"""

from __future__ import annotations

from dataclasses import replace

from collemu.builders import ring
from collemu.schedule import Schedule


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, from the root on; default one piece a hop."""
    return replace(ring.broadcast(ranks, root=root, channels=channels, chunks=chunks), algorithm="chain")


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, to the root; default one piece a hop."""
    return replace(ring.reduce(ranks, root=root, channels=channels, chunks=chunks), algorithm="chain")
