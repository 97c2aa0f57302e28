"""Threads for the connections of copies and reductions, and which receives are fused with the send that follows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Connections(NamedTuple):
    """Connections of a program, each with the thread at either end.

    Attributes
    ----------
    of : int64 [statements]
        Number of the connection by which a statement sends, -1 where it stays on its rank.
    sender, receiver, channel : int64 [connections]
    """

    of: Ints
    sender: Ints
    receiver: Ints
    channel: Ints


def find_connections(columns: dict[str, Ints], ranks: int) -> Connections:
    """Connections between ranks, by channel."""
    remote = np.flatnonzero(columns["source_rank"] != columns["rank"])
    key = (columns["channel"] * ranks + columns["source_rank"]) * ranks + columns["rank"]
    names, number = np.unique(key[remote], return_inverse=True)
    of = np.full(len(key), -1, dtype=np.int64)
    of[remote] = number
    pair, receiver = np.divmod(names, ranks)
    channel, sender = np.divmod(pair, ranks)
    return Connections(of, sender, receiver, channel)


def pair_connections(lines: Connections, incoming: Ints, outgoing: Ints) -> Ints:
    """For each connection the one by which the thread that receives from it sends, -1 for none.

    Where much that comes by one goes on by another, they share a thread. Of what is left, those to and from the same
    peer do; and the two of a rank that has no others on the channel.

    Parameters
    ----------
    incoming, outgoing : int64 [candidates]
        Connections by which something comes and goes on.
    """
    total = len(lines.sender)
    onward, back = np.full((2, total), -1, dtype=np.int64)
    pairs, weight = np.unique(incoming * max(total, 1) + outgoing, return_counts=True)
    for pair in pairs[np.argsort(-weight, kind="stable")].tolist():
        come, go = divmod(pair, total)
        if onward[come] < 0 and back[go] < 0:
            onward[come], back[go] = go, come

    place = {key: number for number, key in enumerate(zip(*(part.tolist() for part in lines[1:]), strict=True))}
    for come in np.flatnonzero(onward < 0).tolist():
        go = place.get((int(lines.receiver[come]), int(lines.sender[come]), int(lines.channel[come])), -1)
        if go >= 0 and back[go] < 0:
            onward[come], back[go] = go, come

    ranks = 1 + max(lines.sender.max(initial=0), lines.receiver.max(initial=0))
    lone: list[tuple[Ints, Ints]] = []
    for ends in (lines.receiver, lines.sender):
        lane, at, times = np.unique(lines.channel * ranks + ends, return_index=True, return_counts=True)
        lone.append((lane[times == 1], at[times == 1]))
    _, come, go = np.intersect1d(lone[0][0], lone[1][0], return_indices=True)
    onward[lone[0][1][come]] = lone[1][1][go]  # already so, or free on both sides
    return onward


def fuse(received: Ints, sent: Ints, keys: Ints, lines: Connections) -> Bools:
    """Which pairs of a receive and the send of the same chunks become one operation, at the receive's place.

    The send is moved forward to the receive, so nothing that its connection sends before may be left behind it.

    Parameters
    ----------
    received, sent : int64 [pairs]
        Statements whose ends and sends are to be fused; no statement twice on a side.
    keys : int64 [parts]
        Place of every part in the order of the program.

    Returns
    -------
    bool [pairs]
    """
    remote = np.flatnonzero(lines.of >= 0)
    sends = remote[np.lexsort((keys[2 * remote], lines.of[remote]))]
    line = lines.of[sends]
    row = np.empty(len(lines.of), dtype=np.int64)
    row[sends] = np.arange(len(sends))
    first = np.searchsorted(line, line)
    fused = np.ones(len(sent), dtype=np.bool_)
    while True:
        when = keys[2 * sends]
        when[row[sent[fused]]] = keys[2 * received[fused] + 1]
        highest = running_max(when, line)
        before = np.where(first < np.arange(len(sends)), np.concatenate([[-1], highest[:-1]]), -1)
        late = fused & (before[row[sent]] > when[row[sent]])
        if not late.any():
            return fused
        fused &= ~late


def running_max(values: Ints, group: Ints) -> Ints:
    """The highest value so far in each group; groups are consecutive and their numbers grow, values are 0 or more."""
    span = int(values.max(initial=0)) + 1
    return np.maximum.accumulate(values + group * span) - group * span
