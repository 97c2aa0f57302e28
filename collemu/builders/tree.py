"""Tree: two complementary binary trees, each with half the data, pipelined.

A rank with children in one tree has none in the other, at any rank count, so every rank sends and receives
about as much as in a ring, in logarithmically many steps (P. Sanders, J. Speck, J. L. Träff: Two-tree
algorithms for full bandwidth broadcast, reduction and scan. Parallel Computing 35, 2009). It wins over many ranks,
where a ring's steps take longer than its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.builders.assembly import Assembler, Steps, interleave, steps
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT = kinds.INPUT, kinds.OUTPUT
ADD = kinds.RECV_REDUCE_COPY
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """Parent and children of every rank, -1 for none, shape (ranks,); an only child is the first.

    ``height`` counts the hops from the root to the farthest rank.
    """

    parent: Ranks
    first: Ranks
    second: Ranks
    height: int


def in_order_parents(n: int) -> Ranks:
    """Parents in the binary tree whose in-order walk is 1..n, shape (n + 1,).

    The root's parent is 0, entry 0 is unused, and odd positions are the leaves.
    """
    position = np.arange(n + 1)
    low = position & -position
    up = (position - low) | (low << 1)
    # Where the full tree's parent lies beyond n, the next ancestor to the left takes over.
    parent = np.where(up <= n, up, position - low)
    parent[0] = 0
    return parent


def tree_of(parent: Ranks) -> Tree:
    """The tree with these parents (-1 at the root)."""
    ranks = len(parent)
    first, second = np.full(ranks, -1), np.full(ranks, -1)
    child = np.flatnonzero(parent >= 0)
    child = child[np.argsort(parent[child], kind="stable")]
    of = parent[child]
    again = np.zeros(len(of), dtype=np.bool_)
    again[1:] = of[1:] == of[:-1]
    first[of[~again]] = child[~again]
    second[of[again]] = child[again]
    height, level = 0, np.flatnonzero(parent < 0)
    while True:
        level = np.concatenate([first[level], second[level]])
        level = level[level >= 0]
        if len(level) == 0:
            return Tree(parent, first, second, height)
        height += 1


def double_tree(ranks: int) -> tuple[Tree, Tree]:
    """Two trees over all ranks, the second shifted by one: its inner ranks are the first's leaves."""
    above = in_order_parents(ranks)[1:]
    straight = above - 1
    shifted = np.full(ranks, -1)
    shifted[np.arange(1, ranks + 1) % ranks] = np.where(above > 0, above % ranks, -1)
    return tree_of(straight), tree_of(shifted)


def rooted_double_tree(ranks: int, root: int) -> tuple[Tree, Tree]:
    """The two trees over all other ranks, each hung below the root."""
    trees: list[Tree] = []
    for tree in double_tree(ranks - 1):
        parent = np.full(ranks, -1)
        other = (root + 1 + np.arange(ranks - 1)) % ranks
        parent[other] = np.where(tree.parent < 0, root, other[tree.parent])
        trees.append(tree_of(parent))
    return trees[0], trees[1]


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """Up each tree and down again; 2(n - 1) messages a piece and tree."""
    if ranks == 1:
        return single_rank("all_reduce", "tree")
    trees = double_tree(ranks)
    pieces = chunks or 2 * max(tree.height for tree in trees)
    lanes = Lanes(ranks, trees, channels, pieces)
    for lane, tree in lanes:
        up_and_down(lanes, lane, tree, lanes.chunk(lane))
    return lanes.schedule("all_reduce", root=0)


def up_and_down(
    lanes: Lanes, lane: int, tree: Tree, chunk: Ranks, *, held: int = IN, ready: Ranks | None = None
) -> None:
    """Add the threads of an all_reduce in one tree, the last of a rank that which uses its sum last.

    Parameters
    ----------
    chunk : ndarray
        One of each piece.
    held : int
        Buffer that has the ranks' terms.
    ready : ndarray, optional
        Thread of every rank whose operation for a piece must have finished before.
    """
    roles = _roles(tree)
    leaf, single, double, single_root, double_root = roles
    after = [None if ready is None else (ready[role][:, None], np.arange(len(chunk))) for role in roles]
    take = steps(kinds.RECV, dst=(OUT, chunk))
    forward = steps(kinds.RECV_COPY_SEND, dst=(OUT, chunk))
    turn = kinds.RECV_REDUCE_COPY_SEND

    # Up and down are threads of their own, so that a full way down never stops the way up.
    lanes.add(lane, leaf, steps(kinds.SEND, src=(held, chunk), dep=after[0]), to=tree.parent)
    lanes.add(lane, leaf, take, of=tree.parent)

    up = steps(kinds.RECV_REDUCE_SEND, src=(held, chunk), dep=after[1])
    lanes.add(lane, single, up, to=tree.parent, of=tree.first)
    lanes.add(lane, single, forward, to=tree.first, of=tree.parent)

    lanes.add(lane, double, steps(ADD, src=(held, chunk), dst=(OUT, chunk), dep=after[2]), of=tree.first)
    up = steps(kinds.RECV_REDUCE_SEND, src=(OUT, chunk), dep=lanes.previous(double))
    lanes.add(lane, double, up, to=tree.parent, of=tree.second)
    down = steps(kinds.RECV_COPY_SEND, dst=(OUT, chunk), dep=lanes.previous(double))
    lanes.add(lane, double, down, to=tree.first, of=tree.parent)
    down = steps(kinds.SEND, src=(OUT, chunk), dep=lanes.previous(double))
    lanes.add(lane, double, down, to=tree.second)

    top = steps(turn, src=(held, chunk), dst=(OUT, chunk), dep=after[3], publish=kinds.PUBLISH_FINAL)
    lanes.add(lane, single_root, top, to=tree.first, of=tree.first)

    lanes.add(lane, double_root, steps(ADD, src=(held, chunk), dst=(OUT, chunk), dep=after[4]), of=tree.first)
    before = lanes.previous(double_root)
    top = steps(turn, src=(OUT, chunk), dst=(OUT, chunk), dep=before, publish=kinds.PUBLISH_FINAL)
    lanes.add(lane, double_root, top, to=tree.first, of=tree.second)
    down = steps(kinds.SEND, src=(OUT, chunk), dep=lanes.previous(double_root))
    lanes.add(lane, double_root, down, to=tree.second)


def broadcast(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """Down both trees from the root; n - 1 messages a piece and tree."""
    if ranks == 1:
        return single_rank("broadcast", "tree")
    trees = rooted_double_tree(ranks, root)
    pieces = chunks or max(tree.height for tree in trees)
    lanes = Lanes(ranks, trees, channels, pieces)
    for lane, tree in lanes:
        chunk = lanes.chunk(lane)
        leaf, single, double, top, _ = _roles(tree)
        forward = steps(kinds.RECV_COPY_SEND, dst=(OUT, chunk))
        copy = steps(kinds.COPY, src=(IN, chunk), dst=(OUT, chunk), publish=kinds.PUBLISH_FINAL)
        lanes.add(lane, top, interleave(copy, steps(kinds.SEND, src=(OUT, chunk))), to=tree.first)
        lanes.add(lane, single, forward, to=tree.first, of=tree.parent)
        lanes.add(lane, double, forward, to=tree.first, of=tree.parent)
        again = steps(kinds.SEND, src=(OUT, chunk), dep=lanes.previous(double))
        lanes.add(lane, double, again, to=tree.second)
        lanes.add(lane, leaf, steps(kinds.RECV, dst=(OUT, chunk)), of=tree.parent)
    return lanes.schedule("broadcast", root=root)


def reduce(ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule:
    """Up both trees to the root; a rank with two children keeps its partial sums in its output."""
    if ranks == 1:
        return single_rank("reduce", "tree")
    trees = rooted_double_tree(ranks, root)
    pieces = chunks or max(tree.height for tree in trees)
    lanes = Lanes(ranks, trees, channels, pieces)
    for lane, tree in lanes:
        chunk = lanes.chunk(lane)
        leaf, single, double, top, _ = _roles(tree)
        add_first = steps(kinds.RECV_REDUCE_COPY, src=(IN, chunk), dst=(OUT, chunk))
        lanes.add(lane, leaf, steps(kinds.SEND, src=(IN, chunk)), to=tree.parent)
        up = steps(kinds.RECV_REDUCE_SEND, src=(IN, chunk))
        lanes.add(lane, single, up, to=tree.parent, of=tree.first)
        lanes.add(lane, double, add_first, of=tree.first)
        up = steps(kinds.RECV_REDUCE_SEND, src=(OUT, chunk), dep=lanes.previous(double))
        lanes.add(lane, double, up, to=tree.parent, of=tree.second)
        lanes.add(lane, top, add_first, of=tree.first)
    return lanes.schedule("reduce", root=root)


def _roles(tree: Tree) -> tuple[Ranks, Ranks, Ranks, Ranks, Ranks]:
    """Ranks that are leaves, inner with one and two children, and root with one and two children."""
    inner, one, two = tree.parent >= 0, tree.first >= 0, tree.second >= 0
    roles = (inner & ~one, inner & one & ~two, inner & two, ~inner & one & ~two, ~inner & two)
    leaf, single, double, single_root, double_root = (np.flatnonzero(role) for role in roles)
    return leaf, single, double, single_root, double_root


class Lanes:
    """Lane t works on its own chunks, on channel t, in tree t mod 2; counts the threads of each rank.

    Attributes
    ----------
    assembler : Assembler
    threads : ndarray
        Number of the next thread of every rank; the first ``taken`` are others'.
    """

    def __init__(self, ranks: int, trees: tuple[Tree, Tree], pairs: int, pieces: int, taken: int = 0) -> None:
        self._ranks, self._pieces = ranks, pieces
        self._trees = trees * pairs
        self.threads = np.full(ranks, taken)
        self.assembler = Assembler()

    def __iter__(self) -> Iterator[tuple[int, Tree]]:
        return iter(enumerate(self._trees))

    def chunk(self, lane: int) -> Ranks:
        return lane * self._pieces + np.arange(self._pieces)

    def previous(self, role: Ranks) -> tuple[Ranks, Ranks]:
        """Dependency on the same piece of the thread that these ranks got last."""
        return self.threads[role][:, None] - 1, np.arange(self._pieces)

    def add(self, lane: int, role: Ranks, *program: Steps, to: Ranks | None = None, of: Ranks | None = None) -> None:
        """One more thread for each rank of a role, from rank ``of[rank]`` to rank ``to[rank]``."""
        self.assembler.add(
            role,
            self.threads[role],
            *program,
            send_peer=-1 if to is None else to[role],
            recv_peer=-1 if of is None else of[role],
            channel=lane,
        )
        self.threads[role] += 1

    def schedule(self, collective: str, *, root: int) -> Schedule:
        lanes = len(self._trees)
        total = lanes * self._pieces
        return self.assembler.schedule(
            collective,
            "tree",
            self._ranks,
            root=root,
            channels=lanes,
            input_chunks=total,
            output_chunks=total,
        )
