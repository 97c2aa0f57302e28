"""In-switch operations as messages of `collemu_kernels.flows`: what leads to what at a switch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu.fabric import Shared

Int64 = NDArray[np.int64]


class SharedWays(NamedTuple):
    """Messages of in-switch operations, behind those of the schedule, and the ports that they pass.

    A multimem_reduce is a message that only asks, then its terms, then the sum; a multimem_store is what its rank
    sends, then the copies.
    """

    operation: Int64  # [message] which of the in-switch operations
    ports: Int64  # [message] how many it passes: none, or one
    route: Int64
    first_after: Int64  # [message + 1] in `after`
    after: Int64  # messages, the first of these is 0
    parents: Int64  # [message]
    first: Int64  # [operation] its first message
    ends: Int64  # [operation] how many of its messages its end waits for


def shared_ways(shared: Shared, down: int) -> SharedWays:
    """Lay them out. The port of a chip's links to the switch is its number, that from the switch ``down`` more."""
    members = shared.members.astype(np.int64)
    adds = shared.adds
    rows = members + np.where(adds, 2, 1)
    first = np.cumsum(rows) - rows
    operation = np.repeat(np.arange(len(rows)), rows)
    place = np.arange(len(operation)) - first[operation]
    adding, rank = adds[operation], shared.rank[operation].astype(np.int64)
    begins, ends = place == 0, place == rows[operation] - 1
    member = shared.first[operation] + place - 1
    port = np.where(
        adding,
        np.where(ends, down + rank, member),  # a sum comes down, terms go up
        np.where(begins, rank, down + member),
    )
    passes = ~(adding & begins)

    # A beginning leads to all that come after it, terms or copies; each term leads to the sum.
    fans_out, joins = begins, adding & ~begins & ~ends
    counts = np.where(fans_out, members[operation], joins.astype(np.int64))
    first_after = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(int(first_after[-1])) - np.repeat(first_after[:-1], counts)
    leads = np.repeat(np.arange(len(operation)), counts)
    sums = first[operation] + rows[operation] - 1
    after = np.where(begins[leads], leads + 1 + within, sums[leads])
    return SharedWays(
        operation=operation,
        ports=passes.astype(np.int64),
        route=port[passes],
        first_after=first_after,
        after=after,
        parents=np.where(begins, 0, np.where(adding & ends, members[operation], 1)),
        first=first,
        ends=np.where(adds, 1, members),
    )
