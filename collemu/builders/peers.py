"""Ranks that talk to every other rank of their group at once: one thread a peer, and sums in rank order.

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
    """The threads of every rank toward its peers, as columns of shape (connections, 1), and the lone ones.

    Attributes
    ----------
    group : int
        Ranks of a group; the last may have fewer.
    rank, peer, thread
        Thread ``thread`` of ``rank`` serves ``peer``.
    lone_rank, lone_thread
        The thread without a peer of every rank, shape (n, 1).
    """

    group: int
    rank: Column
    peer: Column
    thread: Column
    lone_rank: Column
    lone_thread: Column

    def first(self, rank: Column) -> Column:
        """The first rank of a rank's group."""
        return rank // self.group * self.group

    def last(self, rank: Column) -> Column:
        """The last rank of a rank's group."""
        return self.first(rank) + self.size(rank) - 1

    def size(self, rank: Column) -> Column:
        """Ranks of a rank's group."""
        return np.minimum(self.group, len(self.lone_rank) - self.first(rank))

    def adding(self, rank: Column, term: Column, *, step: ArrayLike, lone_step: ArrayLike) -> tuple[Column, Column]:
        """Dependency on the operation of a rank that adds (or stores) what rank ``term`` of its group contributes.

        Peer threads do so at ``step``, the lone thread (the rank's own term) at ``lone_step``; where ``term``
        comes before the group there is nothing to wait for.
        """
        lone = int(self.lone_thread[0, 0])
        served = lone - (self.group - 1) + (term - rank - 1) % self.size(rank)
        thread = np.where(term < self.first(rank), -1, np.where(term == rank, lone, served))
        return thread, np.where(term == rank, lone_step, step)


def peers(ranks: int, channel: int, group: int | None = None, threads: int | None = None) -> Peers:
    """The peer threads of one lane, among all ranks or those of a group; a lane has ``threads`` of a rank's."""
    group = min(group or ranks, ranks)
    lone = np.arange(ranks)
    begin = lone // group * group
    size = np.minimum(group, ranks - begin)
    rank = np.repeat(lone, size - 1)
    offset = np.arange(len(rank)) - np.repeat(np.cumsum(size - 1) - (size - 1), size - 1)
    peer = begin[rank] + (rank - begin[rank] + 1 + offset) % size[rank]
    first = channel * (threads or group)
    return Peers(
        group,
        rank[:, None],
        peer[:, None],
        first + offset[:, None],
        lone[:, None],
        np.full((ranks, 1), first + group - 1),
    )
