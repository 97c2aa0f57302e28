"""Hierarchical: inside domains straight from chip to chip, between domains only on rails.

A rank speaks for its rail, the ranks with its number in all domains, so that every network port carries its share, and
nothing enters a domain twice. all_reduce: a reduce_scatter in each domain, a ring on every rail, an all_gather in each
domain. With g ranks in each of D domains a rank sends 2(g - 1)/g of the data inside, and 2(D - 1)/(D g) of it through
its port. The slower of the two is the least time; one piece (``chunks``) takes both together, several hide one behind
the other. In a flat ring one port of a domain carries 2(n - 1)/n of the data, in a direct exchange each carries
2(n - g)/n: hierarchical wins where ports are slower than links and messages long, by a factor of up to g. Among the
chips of one switch it gains nothing.

Source: M. Cho, U. Finkler, D. Kung, H. Hunter, BlueConnect: decomposing all-reduce for deep learning on heterogeneous
network hierarchy, 2019; rails as in PXN of NCCL 2.12.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from numpy.typing import ArrayLike, NDArray

from collemu.builders import ring
from collemu.builders.assembly import ABSENT, Assembler, Place, Steps, interleave, one_ahead, steps
from collemu.builders.domains import Column, Domains, Rails, domains, rails_of
from collemu.builders.folding import region_steps
from collemu.builders.peers import Peers, peers
from collemu.builders.single import single_rank
from collemu.schedule import Schedule

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH


def all_reduce(ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None) -> Schedule:
    """2(g - 1) messages a rank in its domain, 2(D - 1) on its rail, a round and channel.

    Chunk ``((channel * rounds + round) * g + shard) * D + block``. Each member of a full domain owns a shard, those of
    a short one several. The next round begins before the last is dealt out.
    """
    if ranks == 1:
        return single_rank("all_reduce", "hierarchical")
    rounds = chunks or 1
    here = domains(ranks, group)
    shards, blocks = here.size, here.count
    shard, owned, owner = here.shards()
    place, rail = (index.reshape(-1, 1) for index in np.indices(owner.shape))
    on_rail = owner.reshape(-1, 1)
    number = rail - shard[on_rail]  # of a rail among its owner's
    threads = shards + (int(owned.max()) if blocks > 1 else 0)
    assembler = Assembler()
    for channel in range(channels):
        to = peers(ranks, channel, shards, threads)
        rank, peer, lone = to.rank, to.peer, to.lone_rank
        first_rail = channel * threads + shards
        single = to.size(on_rail) == 1  # nothing to add up: the terms are in the input
        given: list[list[Steps]] = []
        dealt: list[list[Steps]] = []
        alone: list[Steps] = []
        along: list[Steps] = []
        for turn in range(rounds):
            base = (channel * rounds + turn) * shards * blocks
            mine, theirs, own = (
                (base + shard[member] * blocks, owned[member] * blocks) for member in (rank, peer, lone)
            )
            adding = {"step": max(4 * turn - 2, 0) + 1, "lone_step": turn}
            add = steps(
                np.where(peer == to.first(rank), kinds.RECV, kinds.RECV_REDUCE),
                dst=(OUT, mine[0]),
                count=mine[1],
                dep=to.adding(rank, peer - 1, **adding),
                publish=np.where((peer == to.last(rank)) & (blocks == 1), kinds.PUBLISH_FINAL, kinds.KEEP),
            )
            given.append([steps(kinds.SEND, src=(IN, theirs[0]), count=theirs[1]), add])
            opening = np.where(lone == to.first(lone), kinds.COPY, kinds.REDUCE)
            alone.append(
                steps(
                    np.where(to.size(lone) == 1, ABSENT, opening),
                    src=(IN, own[0]),
                    dst=(OUT, own[0]),
                    count=own[1],
                    dep=to.adding(lone, lone - 1, **adding),
                    publish=np.where((lone == to.last(lone)) & (blocks == 1), kinds.PUBLISH_FINAL, kinds.KEEP),
                )
            )
            end = (2 * blocks - 1) * (turn + 1) - 1
            thread, step = to.adding(on_rail, to.last(on_rail), **adding)
            along += ring.turn(
                place,
                blocks,
                base + rail * blocks,
                held=np.where(single, IN, OUT),
                ready=(np.where(single, -1, thread), step),
                before_end=(np.where(single | (number == 0), -1, first_rail + number - 1), end),
            )
            done = first_rail + owned[rank] - 1, end
            if blocks == 1:  # the thread that adds the last term knows; the others wait for it
                done = to.adding(rank, np.where(peer == to.last(rank), -1, to.last(rank)), **adding)
            deal = steps(kinds.SEND, src=(OUT, mine[0]), count=mine[1], dep=done)
            dealt.append([deal, steps(kinds.RECV, dst=(OUT, theirs[0]), count=theirs[1])])
        program = one_ahead(given, dealt)
        ids, to_peer = to.thread[:, 0], peer[:, 0]
        assembler.add(rank[:, 0], ids, *program, send_peer=to_peer, recv_peer=to_peer, channel=channel)
        assembler.add(lone[:, 0], to.lone_thread[:, 0], *alone, channel=channel)
        if blocks > 1:
            after, before = (owner[(place + hop) % blocks, rail][:, 0] for hop in (1, -1))
            thread = first_rail + number[:, 0]
            assembler.add(on_rail[:, 0], thread, *along, send_peer=after, recv_peer=before, channel=channel)
    total = channels * rounds * shards * blocks
    return assembler.schedule(
        "all_reduce", "hierarchical", ranks, channels=channels, input_chunks=total, output_chunks=total
    )


def reduce_scatter(ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None) -> Schedule:
    """D(g - 1) messages of a region a rank in its domain, D - 1 on its rail, a piece and channel.

    First a domain adds up what every rail is to have, then the rails add these sums, from the receiver's domain on.
    D - 1 regions go through a port, where a direct exchange sends n - g.
    """
    if ranks == 1:
        return single_rank("reduce_scatter", "hierarchical")
    pieces = chunks or 1
    total = channels * pieces
    here = domains(ranks, group)
    beyond = max(here.count - 1, 1)
    assembler = Assembler()
    for channel in range(channels):
        lane = _lane(here, channel)
        to, rails = lane.to, lane.rails
        for at, most in here.alike():
            rank, peer, lone = lane.of(at)
            width = most * here.count
            theirs, mine, own = (here.carried(by, most, own_first=False) for by in (peer, rank, lone))
            exchange: list[Steps] = []
            alone: list[Steps] = []
            for piece in range(pieces):
                chunk = channel * pieces + piece
                adding = _adding(piece * width + np.arange(width))
                add = steps(
                    np.where(mine.there, np.where(peer == to.first(rank), kinds.RECV, kinds.RECV_REDUCE), ABSENT),
                    dst=_sum_at(mine.slot, total, chunk),
                    dep=to.adding(rank, peer - 1, **adding),
                )
                give = steps(np.where(theirs.there, kinds.SEND, ABSENT), src=(IN, theirs.rank * total + chunk))
                exchange.append(interleave(give, add))
                needed = own.there & (to.size(lone) > 1)
                alone.append(
                    steps(
                        np.where(needed, np.where(lone == to.first(lone), kinds.COPY, kinds.REDUCE), ABSENT),
                        src=(IN, own.rank * total + chunk),
                        dst=_sum_at(own.slot, total, chunk),
                        dep=to.adding(lone, lone - 1, **adding),
                    )
                )
            lane.add_domain(assembler, at, exchange, alone)

        rank, slot = rails.rank, rails.slot
        single = to.size(rank) == 1  # nothing to add up: the terms are in the input
        width = here.most_carried(rank // here.size) * here.count
        held = np.where(single, IN, SCRATCH), np.where(single, rails.other, slot) * total
        program: list[Steps] = []
        for piece in range(pieces):
            chunk = channel * pieces + piece
            # Place among what the domain adds up, where each rail's own domain is last.
            thread, step = to.adding(rank, to.last(rank), **_adding(piece * width + slot + slot // beyond))
            summed = np.where(single, -1, thread), step
            thread, step = to.adding(rank, to.last(rank), **_adding(piece * width + here.count - 1))
            before = np.where(slot > 0, lane.first_rail + slot - 1, np.where(single, -1, thread))
            add = np.where(single & (slot == 0), kinds.RECV_REDUCE_COPY, kinds.RECV_REDUCE)
            program += [
                steps(np.where(rails.there, kinds.SEND, ABSENT), src=(held[0], held[1] + chunk), dep=summed),
                steps(
                    np.where(rails.own, add, ABSENT),
                    src=(IN, rank * total + chunk),
                    dst=(OUT, chunk),
                    dep=(before, np.where(slot > 0, 2 * piece + 1, step)),
                ),
            ]
        lane.add_rails(assembler, program)
    return assembler.schedule(
        "reduce_scatter",
        "hierarchical",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=total,
        scratch_chunks=here.slots * total,
    )


def all_gather(ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None) -> Schedule:
    """D - 1 messages of a region a rank on its rail, D(g - 1) in its domain, a piece and channel.

    First the rails, where D - 1 regions go through a port, and n - g in a direct exchange; what they bring is passed on
    at once.
    """
    if ranks == 1:
        return single_rank("all_gather", "hierarchical")
    pieces = chunks or 1
    total = channels * pieces
    here = domains(ranks, group)
    assembler = Assembler()
    for channel in range(channels):
        lane = _lane(here, channel)
        rails, copied = lane.rails, lane.to.lone_thread[0, 0]
        for at, most in here.alike():
            rank, peer, lone = lane.of(at)
            theirs, mine = (here.carried(by, most, own_first=True) for by in (peer, rank))
            inside = mine.slot < 0
            exchange: list[Steps] = []
            alone: list[Steps] = []
            for piece in range(pieces):
                chunk = channel * pieces + piece
                arrived = (
                    np.where(inside, copied, lane.first_rail + mine.slot),
                    np.where(inside, piece, 2 * piece + 1),
                )
                give = np.where(mine.there, kinds.SEND, ABSENT)
                take = np.where(theirs.there, kinds.RECV, ABSENT)
                exchange.append(
                    interleave(
                        steps(give, src=(OUT, mine.rank * total + chunk), dep=arrived),
                        steps(take, dst=(OUT, theirs.rank * total + chunk)),
                    )
                )
                own = (OUT, lone * total + chunk)
                alone.append(steps(kinds.COPY, src=(IN, chunk), dst=own, publish=kinds.PUBLISH_FINAL))
            lane.add_domain(assembler, at, exchange, alone)
        program: list[Steps] = []
        for piece in range(pieces):
            own, other = (region * total + channel * pieces + piece for region in (rails.rank, rails.other))
            program += [
                steps(np.where(rails.own, kinds.SEND, ABSENT), src=(OUT, own), dep=(copied, piece)),
                steps(np.where(rails.there, kinds.RECV, ABSENT), dst=(OUT, other)),
            ]
        lane.add_rails(assembler, program)
    return assembler.schedule(
        "all_gather", "hierarchical", ranks, channels=channels, input_chunks=total, output_chunks=ranks * total
    )


def alltoall(ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None) -> Schedule:
    """D - 1 messages of g regions a rank on its rail, D(g - 1) of a region in its domain, a piece and channel.

    As many bytes through a port as in a direct exchange, in g times fewer messages. The rails come first: a domain's
    regions lie side by side in the input, the slow ports start at once, and a rank passes on what one message has
    brought; the other order waits in every domain for all members before anything leaves. With several channels or
    chunks a message a region, as those of one lane do not lie side by side.
    """
    if ranks == 1:
        return single_rank("alltoall", "hierarchical")
    pieces = chunks or 1
    total = channels * pieces
    here = domains(ranks, group)
    several = total > 1
    length = here.size if several else 1  # messages from rank to rank of a rail
    assembler = Assembler()
    for channel in range(channels):
        lane = _lane(here, channel)
        to, rails = lane.to, lane.rails
        single = to.size(rails.rank) == 1  # nobody to pass anything on to: all goes to its place
        for at, most in here.alike():
            rank, peer, lone = lane.of(at)
            exchange: list[Steps] = []
            alone: list[Steps] = []
            for piece in range(pieces):
                chunk = channel * pieces + piece
                for by, receiver in ((rank, peer), (lone, lone)):
                    # A rank passes on its own region, and what its rails have brought to scratch.
                    mine, theirs = (here.carried(giver, most, own_first=True) for giver in (by, receiver))
                    inside, member = mine.slot < 0, receiver % here.size
                    source = np.where(inside, receiver, mine.slot * here.size + member) * total + chunk
                    source = np.where(inside, IN, SCRATCH), source
                    brought = 2 * (length * piece + several * member) + 1
                    ready = np.where(inside, -1, lane.first_rail + mine.slot), brought
                    target = OUT, theirs.rank * total + chunk
                    if by is lone:
                        here_already = ~inside & (to.size(lone) == 1)
                        copy = np.where(mine.there & ~here_already, kinds.COPY, ABSENT)
                        alone.append(steps(copy, src=source, dst=target, dep=ready))
                    else:
                        give = steps(np.where(mine.there, kinds.SEND, ABSENT), src=source, dep=ready)
                        take = steps(np.where(theirs.there, kinds.RECV, ABSENT), dst=target)
                        exchange.append(interleave(give, take))
            lane.add_domain(assembler, at, exchange, alone)
        send, take = np.where(rails.own, kinds.SEND, ABSENT), np.where(rails.there, kinds.RECV, ABSENT)
        out = rails.domain * here.size, np.where(rails.own, here.members(rails.domain), 0)
        back = np.where(single, rails.other, rails.slot * here.size), np.where(rails.there, to.size(rails.rank), 0)
        program: list[Steps] = []
        for piece in range(pieces):
            chunk = channel * pieces + piece
            give = region_steps(send, out, total, chunk)
            got = region_steps(take, back, total, chunk, dst=np.where(single, OUT, SCRATCH))
            program.append(interleave(give, got))
        lane.add_rails(assembler, program)
    return assembler.schedule(
        "alltoall",
        "hierarchical",
        ranks,
        channels=channels,
        input_chunks=ranks * total,
        output_chunks=ranks * total,
        scratch_chunks=here.slots * here.size * total,
    )


@dataclass(frozen=True)
class _Lane:
    """The threads of a channel: those to the peers of a domain, the lone ones, and from ``first_rail`` on the rails."""

    channel: int
    to: Peers
    rails: Rails
    first_rail: int

    def of(self, at: Column) -> tuple[Column, Column, Column]:
        """Rank and peer of the threads within domains, and the ranks themselves, of consecutive ranks; columns."""
        rows = self._rows(at)
        return self.to.rank[rows][:, None], self.to.peer[rows][:, None], at[:, None]

    def add_domain(self, assembler: Assembler, at: Column, exchange: list[Steps], alone: list[Steps]) -> None:
        """What these ranks do with the peers of their domains, and alone."""
        rows = self._rows(at)
        rank, thread, peer = (column[rows] for column in (self.to.rank, self.to.thread, self.to.peer))
        assembler.add(rank, thread, *exchange, send_peer=peer, recv_peer=peer, channel=self.channel)
        assembler.add(at, self.to.lone_thread[0, 0], *alone, channel=self.channel)

    def add_rails(self, assembler: Assembler, program: list[Steps]) -> None:
        """What all ranks do on their rails."""
        if program:
            rank, thread, peer = (each[:, 0] for each in (self.rails.rank, self.rails.slot, self.rails.peer))
            thread = self.first_rail + thread
            assembler.add(rank, thread, *program, send_peer=peer, recv_peer=peer, channel=self.channel)

    def _rows(self, at: Column) -> tuple[NDArray[np.bool_], int]:
        rank = self.to.rank[:, 0]
        return (rank >= at[0]) & (rank <= at[-1]), 0


def _lane(here: Domains, channel: int) -> _Lane:
    threads = here.size + here.slots
    return _Lane(channel, peers(here.ranks, channel, here.size, threads), rails_of(here), channel * threads + here.size)


def _adding(place: ArrayLike) -> dict[str, NDArray[np.int64]]:
    """Steps at which a peer's thread, which sends in between, and the lone one add."""
    return {"step": 2 * np.asarray(place) + 1, "lone_step": np.asarray(place)}


def _sum_at(slot: Column, total: int, chunk: int) -> Place:
    """Where a domain's sum is kept: the rank's own in the output, others by the rail that is to have them."""
    return np.where(slot < 0, OUT, SCRATCH), np.where(slot < 0, 0, slot * total) + chunk
