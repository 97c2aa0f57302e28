"""Ranks in domains: who of a domain speaks for it toward the same rail of the others.

Rank r is member r mod size of domain r // size; members with the same number are a *rail*. The last domain may have
fewer members than there are rails: there member m carries rails m, m + members, m + 2 members, ..., so that any number
of ranks will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Domains:
    """Domains of ``size`` ranks; the last may have fewer."""

    ranks: int
    size: int

    @property
    def count(self) -> int:
        """Number of domains."""
        return -(-self.ranks // self.size)

    @property
    def most_rails(self) -> int:
        """Rails that a rank carries at most."""
        return -(-self.size // (self.ranks - (self.count - 1) * self.size))

    def members(self, domain: Column) -> Column:
        """Ranks of a domain."""
        return np.minimum(self.size, self.ranks - domain * self.size)

    @property
    def slots(self) -> int:
        """Connections of a rank along its rails at most."""
        return self.most_rails * (self.count - 1)

    def most_carried(self, domain: Column) -> Column:
        """Rails that a member of a domain carries at most."""
        return -(-self.size // self.members(domain))

    def shards(self) -> tuple[Column, Column, Column]:
        """As many shards as a full domain has ranks, one for each of them; the ranks of a short one own several.

        Returns
        -------
        first, number : ndarray, shape (ranks,)
            The shards of every rank.
        owner : ndarray, shape (domains, shards)
        """
        rank = np.arange(self.ranks)
        member, members = rank % self.size, self.members(rank // self.size)
        first = member * self.size // members
        number = (member + 1) * self.size // members - first
        return first, number, np.repeat(rank, number).reshape(self.count, self.size)

    def alike(self) -> list[tuple[Column, int]]:
        """Ranks that carry equally many rails at most, and how many: those of full domains, those of a short one."""
        if self.most_rails == 1:
            return [(np.arange(self.ranks), 1)]
        full = (self.count - 1) * self.size
        return [(np.arange(full), 1), (np.arange(full, self.ranks), self.most_rails)]

    def carried(self, rank: Column, rails: int, *, own_first: bool) -> Carried:
        """All ranks of the first ``rails`` rails that each rank carries: rail by rail, its own domain first or last."""
        rail, offset = np.divmod(np.arange(rails * self.count), self.count)
        offset = offset if own_first else (offset + 1) % self.count
        domain, member = np.divmod(rank, self.size)
        member = member + rail * self.members(domain)
        other = (domain + offset) % self.count * self.size + member
        slot = np.where(offset > 0, rail * (self.count - 1) + offset - 1, -1)
        return Carried(other, slot, (member < self.size) & (other < self.ranks))


@dataclass(frozen=True)
class Carried:
    """Whom a rank speaks for in its domain, arrays of shape (ranks or 1, rails * domains).

    Attributes
    ----------
    rank
        The member with the rail's number in some domain.
    slot
        Number of that connection among the rank's; -1 for its own domain.
    there : ndarray of bool
        Whether there is such a rank.
    """

    rank: Column
    slot: Column
    there: NDArray[np.bool_]


@dataclass(frozen=True)
class Rails:
    """The connections of every rank to those of other domains with whom it shares a rail; columns.

    Attributes
    ----------
    rank, slot
        Connection ``slot`` of ``rank``, as `Carried` numbers them.
    peer
        Who carries the rail in the other domain.
    domain
        The other domain.
    other
        The rank of the rail there, for which ``rank`` speaks in its own domain.
    own, there : ndarray of bool
        Whether ``peer`` speaks for ``rank`` on it, and whether there is such an other rank.
    """

    rank: Column
    slot: Column
    peer: Column
    domain: Column
    other: Column
    own: NDArray[np.bool_]
    there: NDArray[np.bool_]


def rails_of(here: Domains) -> Rails:
    """The rails of all ranks."""
    rows: list[NDArray[np.int64]] = []
    for ranks, most in here.alike():
        rank = ranks[:, None]
        carried = here.carried(rank, most, own_first=False)
        rail = np.arange(most * here.count) // here.count
        domain = carried.rank // here.size
        member = rank % here.size + rail * here.members(rank // here.size)
        domain = (rank // here.size + 1 + np.arange(most * here.count)) % here.count
        peer = domain * here.size + member % here.members(domain)
        table = rank, carried.slot, peer, domain, carried.rank, rail == 0, carried.there
        rows.append(np.stack(np.broadcast_arrays(*table)).reshape(len(table), -1))
    table = np.concatenate(rows, axis=1)
    used = (table[1] >= 0) & (table[-2:] > 0).any(axis=0)
    rank, slot, peer, domain, other, own, there = table[:, used, None]
    return Rails(rank, slot, peer, domain, other, own > 0, there > 0)


def domains(ranks: int, group: int | None) -> Domains:
    """Domains of ``group`` ranks, or as many as `nearly_square` says."""
    return Domains(ranks, min(group or nearly_square(ranks), ranks))


def nearly_square(ranks: int) -> int:
    """The shorter side of the most nearly square rectangle of so many ranks: 1 for a prime."""
    return next(side for side in range(isqrt(ranks), 0, -1) if ranks % side == 0)
