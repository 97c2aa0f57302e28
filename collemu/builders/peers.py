"""Ranks that talk to every other rank at once: one thread a peer, and sums in rank order.

Thread t of a rank serves the peer t + 1 ranks further on, so at any time all ranks serve different peers; one
more thread, the last, does what concerns the rank alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Peers:
    """The threads of every rank toward its peers, as columns of shape (n * (n - 1), 1), and the lone ones.

    Attributes
    ----------
    rank, peer, thread
        Thread ``thread`` of ``rank`` serves ``peer``.
    lone_rank, lone_thread
        The thread without a peer of every rank, shape (n, 1).
    """

    ranks: int
    rank: Column
    peer: Column
    thread: Column
    lone_rank: Column
    lone_thread: Column

    def adding(self, rank: Column, term: Column, *, step: ArrayLike, lone_step: ArrayLike) -> tuple[Column, Column]:
        """Dependency on the operation of a rank that adds (or stores) what rank ``term`` contributes.

        Peer threads do so at ``step``, the lone thread (the rank's own term) at ``lone_step``; where ``term``
        is -1 there is nothing to wait for.
        """
        first = self.lone_thread[0, 0] - (self.ranks - 1)
        thread = np.where(term < 0, -1, first + (term - rank - 1) % self.ranks)
        return thread, np.where(term == rank, lone_step, step)


def peers(ranks: int, channel: int) -> Peers:
    """The peer threads of one lane; each lane has n threads a rank."""
    rank, offset = np.divmod(np.arange(ranks * (ranks - 1))[:, None], ranks - 1)
    first = channel * ranks
    lone = np.arange(ranks)[:, None]
    return Peers(
        ranks,
        rank,
        (rank + 1 + offset) % ranks,
        first + offset,
        lone,
        np.full_like(lone, first + ranks - 1),
    )
