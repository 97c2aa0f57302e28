"""The built-in algorithms: one file an algorithm, one function a collective, each returns a Schedule."""

from __future__ import annotations

from typing import Protocol

from collemu.builders import (
    bidirectional_ring,
    binomial,
    bruck,
    chain,
    direct,
    halving_doubling,
    hierarchical,
    nvls,
    nvls_tree,
    one_shot,
    pairwise,
    pat,
    recursive_doubling,
    recursive_halving,
    ring,
    scatter_allgather,
    torus_2d,
    tree,
    two_shot,
)
from collemu.schedule import Schedule


class Builder(Protocol):
    """Writes an algorithm out; ``chunks=None`` takes the algorithm's own default."""

    def __call__(self, ranks: int, *, root: int, channels: int, chunks: int | None) -> Schedule: ...


class GroupedBuilder(Protocol):
    """Writes out an algorithm that knows domains, of ``group`` ranks."""

    def __call__(
        self, ranks: int, *, root: int, channels: int, chunks: int | None, group: int | None = None
    ) -> Schedule: ...


#: Algorithms that have switches add and copy.
IN_SWITCH = ("nvls", "nvls_tree")

#: collective -> algorithm -> builder, of the algorithms that know domains.
GROUPED: dict[str, dict[str, GroupedBuilder]] = {
    "all_reduce": {"hierarchical": hierarchical.all_reduce, "nvls_tree": nvls_tree.all_reduce},
    "reduce_scatter": {"hierarchical": hierarchical.reduce_scatter},
    "all_gather": {"hierarchical": hierarchical.all_gather},
    "alltoall": {"hierarchical": hierarchical.alltoall},
}

#: collective -> algorithm -> builder.
BUILDERS: dict[str, dict[str, Builder]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "tree": tree.all_reduce,
        "one_shot": one_shot.all_reduce,
        "two_shot": two_shot.all_reduce,
        "halving_doubling": halving_doubling.all_reduce,
        "recursive_doubling": recursive_doubling.all_reduce,
        "bidirectional_ring": bidirectional_ring.all_reduce,
        "torus_2d": torus_2d.all_reduce,
        "nvls": nvls.all_reduce,
        **GROUPED["all_reduce"],
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "recursive_halving": recursive_halving.reduce_scatter,
        "bruck": bruck.reduce_scatter,
        "pat": pat.reduce_scatter,
        "nvls": nvls.reduce_scatter,
        **GROUPED["reduce_scatter"],
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "recursive_doubling": recursive_doubling.all_gather,
        "bruck": bruck.all_gather,
        "pat": pat.all_gather,
        "nvls": nvls.all_gather,
        **GROUPED["all_gather"],
    },
    "broadcast": {
        "ring": ring.broadcast,
        "tree": tree.broadcast,
        "binomial": binomial.broadcast,
        "scatter_allgather": scatter_allgather.broadcast,
        "chain": chain.broadcast,
        "nvls": nvls.broadcast,
    },
    "reduce": {
        "ring": ring.reduce,
        "tree": tree.reduce,
        "binomial": binomial.reduce,
        "chain": chain.reduce,
        "nvls": nvls.reduce,
    },
    "alltoall": {
        "direct": direct.alltoall,
        "pairwise": pairwise.alltoall,
        "bruck": bruck.alltoall,
        **GROUPED["alltoall"],
    },
    "alltoallv": {"direct": direct.alltoallv, "pairwise": pairwise.alltoallv},
    "gather": {"direct": direct.gather, "chain": chain.gather, "binomial": binomial.gather},
    "scatter": {"direct": direct.scatter, "chain": chain.scatter, "binomial": binomial.scatter},
    "sendrecv": {"direct": direct.sendrecv},
}
