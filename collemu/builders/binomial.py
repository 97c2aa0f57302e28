"""Binomial tree: in every step, each rank that has the data gives it to one that has not.

The fewest steps, log2 of the ranks, each with all of the data: for short messages. Long ones do better in a `tree` or
a `chain`, whose ranks send them no more than twice, or once, piece by piece.

Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.builders.assembly import Assembler, interleave, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Binomial:
    """The tree, in places: rank r is at place r - root, and children are 1, 2, 4, ... places after their parent.

    Attributes
    ----------
    steps : int
        Most children that a rank has.
    rank : ndarray
        The rank at every place.
    level : ndarray
        A place's parent is 2^level places before it; at the root, which has none, the number of steps.
    children : ndarray
        Their number at every place.
    reach : ndarray
        Places from each on, itself included, that are below it in the tree.
    """

    steps: int
    rank: Ranks
    level: Ranks
    children: Ranks
    reach: Ranks

    @property
    def parent(self) -> Ranks:
        """The rank of the parent of every place; -1 at the root."""
        place = np.arange(len(self.rank))
        return np.where(place > 0, self.rank[place & (place - 1)], -1)


def binomial_tree(ranks: int, root: int) -> Binomial:
    """The tree of all ranks below a root."""
    steps = (ranks - 1).bit_length()
    place, power = np.arange(ranks), 1 << np.arange(steps)
    # Bits of a place below its lowest one, which are free for places below it in the tree.
    level = np.count_nonzero(place[:, None] % (2 * power) == 0, axis=1)
    reach = np.minimum(1 << level, ranks - place)
    children = np.count_nonzero(power < reach[:, None], axis=1)
    return Binomial(steps, (place + root) % ranks, level, children, reach)


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, ceil(log2 n) of them from the root; to the child with most below it first."""
    if ranks == 1:
        return single_rank("broadcast", "binomial")
    pieces = chunks or 1
    tree = binomial_tree(ranks, root)
    place, turn = np.arange(ranks), np.arange(pieces)
    leaf, inner = np.flatnonzero(tree.children == 0), np.flatnonzero(tree.children[1:]) + 1
    assembler = Assembler()
    for channel in range(channels):
        first = channel * tree.steps
        chunk = channel * pieces + turn
        send = steps(kinds.SEND, src=(OUT, chunk))
        begin = interleave(steps(kinds.COPY, src=(IN, chunk), dst=(OUT, chunk), publish=kinds.PUBLISH_FINAL), send)
        child = tree.rank[(place + (1 << tree.children) // 2) % ranks]  # the farthest
        for at, program, to, of in (
            (np.zeros(1, np.int64), begin, child, None),
            (inner, steps(kinds.RECV_COPY_SEND, dst=(OUT, chunk)), child, tree.parent),
            (leaf, steps(kinds.RECV, dst=(OUT, chunk)), None, tree.parent),
        ):
            to_peer, of_peer = (-1 if peer is None else peer[at] for peer in (to, of))
            assembler.add(tree.rank[at], first, program, send_peer=to_peer, recv_peer=of_peer, channel=channel)
        for number in range(1, tree.steps):
            at = np.flatnonzero(tree.children > number)
            nearer = tree.rank[at + (1 << (tree.children[at] - 1 - number))]
            there = (first, np.where(at == 0, 2, 1)[:, None] * turn)
            again = steps(kinds.SEND, src=(OUT, chunk), dep=there)
            assembler.add(tree.rank[at], first + number, again, send_peer=nearer, channel=channel)
    total = channels * pieces
    return assembler.schedule(
        "broadcast", "binomial", ranks, root=root, channels=channels, input_chunks=total, output_chunks=total
    )


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, ceil(log2 n) of them to the root; from the nearest child first.

    A rank with several children keeps its partial sums in its output.
    """
    if ranks == 1:
        return single_rank("reduce", "binomial")
    pieces = chunks or 1
    tree = binomial_tree(ranks, root)
    turn = np.arange(pieces)
    assembler = Assembler()
    for channel in range(channels):
        first = channel * tree.steps
        chunk = channel * pieces + turn
        leaf = np.flatnonzero(tree.children == 0)
        own = steps(kinds.SEND, src=(IN, chunk))
        assembler.add(tree.rank[leaf], first, own, send_peer=tree.parent[leaf], channel=channel)
        for number in range(tree.steps):
            at = np.flatnonzero(tree.children > number)
            # The last child's term completes the sum, which goes on at once; at the root there is no one to send it to.
            last = (tree.children[at] == number + 1) & (at > 0)
            add = steps(
                np.where(
                    last[:, None], kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE if number else kinds.RECV_REDUCE_COPY
                ),
                src=(OUT if number else IN, chunk),
                dst=(OUT, chunk),
                dep=(first + number - 1, turn) if number else None,
            )
            assembler.add(
                tree.rank[at],
                first + number,
                add,
                send_peer=np.where(last, tree.parent[at], -1),
                recv_peer=tree.rank[at + (1 << number)],
                channel=channel,
            )
    total = channels * pieces
    return assembler.schedule(
        "reduce", "binomial", ranks, root=root, channels=channels, input_chunks=total, output_chunks=total
    )


def gather(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, ceil(log2 n) of them to the root; each has all blocks from below.

    They gather in scratch in the order of places, from the nearest child on. The root puts them where they belong.
    """
    if ranks == 1:
        return single_rank("gather", "binomial")
    pieces = chunks or 1
    total = channels * pieces
    tree = binomial_tree(ranks, root)
    turn = np.arange(pieces)
    leaf, inner = np.flatnonzero(tree.children == 0), np.flatnonzero(tree.children[1:]) + 1
    assembler = Assembler()
    for channel in range(channels):
        first, own_thread = channel * (tree.steps + 1), channel * (tree.steps + 1) + tree.steps
        chunk = channel * pieces + turn
        slot = chunk * ranks  # in scratch, of the root's block
        own = steps(kinds.SEND, src=(IN, chunk))
        assembler.add(tree.rank[leaf], first, own, send_peer=tree.parent[leaf], channel=channel)
        own = steps(kinds.COPY, src=(IN, chunk), dst=(SCRATCH, slot + inner[:, None]))
        assembler.add(tree.rank[inner], own_thread, own, channel=channel)
        own = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, root * total + chunk))
        assembler.add(root, own_thread, own, channel=channel)
        for number in range(tree.steps):
            child = 1 << number  # places on
            at = inner[tree.children[inner] > number]
            # The last child's blocks complete the run, which goes on at once.
            last = tree.children[at] == number + 1
            before = (first + number - 1 if number else own_thread, turn)
            run = tree.reach[at + child][:, None]
            take = steps(kinds.RECV, dst=(SCRATCH, slot + at[:, None] + child), count=run, dep=before)
            give = steps(kinds.SEND, src=(SCRATCH, slot + at[:, None]), count=tree.reach[at][:, None])
            for here, program, to in (
                (~last, take[~last], -1),
                (last, interleave(take[last], give[last]), tree.parent[at[last]]),
            ):
                of = tree.rank[at[here] + child]
                assembler.add(tree.rank[at[here]], first + number, program, send_peer=to, recv_peer=of, channel=channel)
            below = range(child, child + int(tree.reach[child]))
            homes = [(OUT, rank * total + chunk) for rank in tree.rank[below.start : below.stop]]
            if len(below) == 1:
                program = steps(kinds.RECV, dst=homes[0])
            else:
                take = steps(kinds.RECV, dst=(SCRATCH, slot + child), count=len(below))
                moves = [
                    steps(kinds.COPY, src=(SCRATCH, slot + place), dst=home)
                    for place, home in zip(below, homes, strict=True)
                ]
                program = interleave(take, *moves)
            assembler.add(root, first + number, program, recv_peer=tree.rank[child], channel=channel)
    return assembler.schedule(
        "gather",
        "binomial",
        ranks,
        root=root,
        channels=channels,
        input_chunks=total,
        output_chunks=ranks * total,
        scratch_chunks=ranks * total,
    )


def scatter(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """n - 1 messages a piece and channel, ceil(log2 n) of them from the root; each has all blocks for below.

    The root packs them in scratch, in the order of places. Others serve the child with most below it first.
    """
    if ranks == 1:
        return single_rank("scatter", "binomial")
    pieces = chunks or 1
    total = channels * pieces
    tree = binomial_tree(ranks, root)
    turn = np.arange(pieces)
    leaf, inner = np.flatnonzero(tree.children == 0), np.flatnonzero(tree.children[1:]) + 1
    assembler = Assembler()
    for channel in range(channels):
        first, own_thread = channel * (tree.steps + 1), channel * (tree.steps + 1) + tree.steps
        chunk = channel * pieces + turn
        slot = chunk * ranks  # in scratch, of the root's block
        take = steps(kinds.RECV, dst=(OUT, chunk))
        assembler.add(tree.rank[leaf], first, take, recv_peer=tree.parent[leaf], channel=channel)
        received = (first + tree.children[inner][:, None] - 1, 2 * turn)
        own = steps(kinds.COPY, src=(SCRATCH, slot + inner[:, None]), dst=(OUT, chunk), dep=received)
        assembler.add(tree.rank[inner], own_thread, own, channel=channel)
        own = steps(kinds.COPY, src=(IN, root * total + chunk), dst=(OUT, chunk))
        assembler.add(root, own_thread, own, channel=channel)
        for number in range(tree.steps):
            child = 1 << number  # places on
            at = inner[tree.children[inner] > number]
            far = tree.children[at] == number + 1  # the farthest child: its thread receives, too
            next_far = tree.children[at] == number + 2
            run = tree.reach[at + child][:, None]
            farther = (first + number + 1, np.where(next_far[:, None], 2 * turn + 1, turn))
            dep = (np.where(far[:, None], -1, farther[0]), farther[1])
            give = steps(kinds.SEND, src=(SCRATCH, slot + at[:, None] + child), count=run, dep=dep)
            take = steps(kinds.RECV, dst=(SCRATCH, slot + at[:, None]), count=tree.reach[at][:, None])
            for here, program, of in (
                (~far, give[~far], -1),
                (far, interleave(take[far], give[far]), tree.parent[at[far]]),
            ):
                to = tree.rank[at[here] + child]
                assembler.add(tree.rank[at[here]], first + number, program, send_peer=to, recv_peer=of, channel=channel)
            below = range(child, child + int(tree.reach[child]))
            homes = [(IN, rank * total + chunk) for rank in tree.rank[below.start : below.stop]]
            if len(below) == 1:
                program = steps(kinds.SEND, src=homes[0])
            else:
                moves = [
                    steps(kinds.COPY, src=home, dst=(SCRATCH, slot + place))
                    for place, home in zip(below, homes, strict=True)
                ]
                program = interleave(*moves, steps(kinds.SEND, src=(SCRATCH, slot + child), count=len(below)))
            assembler.add(root, first + number, program, send_peer=tree.rank[child], channel=channel)
    return assembler.schedule(
        "scatter",
        "binomial",
        ranks,
        root=root,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=total,
        scratch_chunks=ranks * total,
    )
