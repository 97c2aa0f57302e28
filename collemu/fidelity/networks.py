"""NCCL on several domains that a network joins: trees, rings, NVLS trees, and point to point."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, tail, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import ARCHITECTURES

MOST_OF_A_DOMAIN = 72
FAMILIES = {**ARCHITECTURES, "a100_quad": "ampere", "gh200_quad": "hopper"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")

# Of the domains, by architecture, as single domains were fitted: launch us, LL step us, link and NVLS GB/s.
DOMAINS = {
    "ampere": (8.0, 0.97, 235.0, 0.0),
    "hopper": (4.6, 0.82, 377.0, 335.0),
    "blackwell": (7.4, 1.29, 712.0, 735.0),
}


class Networks:
    """NCCL over the networks between domains."""

    name = "networks"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The network and the architecture, for what NCCL does on several domains."""
        able = (rows.network != NO_NETWORK) & ~rows.custom & np.isin(rows.collective, COLLECTIVES)
        known = able & np.isin(rows.system, list(FAMILIES))
        kinds = [f"{network} {_kind(system)}" for network, system in zip(rows.network, rows.system, strict=True)]
        return np.where(known, kinds, "").astype(object)

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of a network."""
        return _constants()

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """An all_reduce: the quickest of tree in LL and LL128, NVLS tree, and ring; others as NCCL has them."""
        launch, step, link, nvls = np.array([DOMAINS[FAMILIES[system]] for system in rows.system.tolist()]).T
        ranks, size = rows.ranks, rows.size
        domains = np.where(ranks > MOST_OF_A_DOMAIN, np.maximum(rows.nodes, 2), rows.nodes)
        racks = np.array([system.endswith("nvl72") for system in rows.system.tolist()]) & (ranks > MOST_OF_A_DOMAIN)
        domains = np.where(racks, np.ceil(ranks / MOST_OF_A_DOMAIN), domains)
        local = ranks / domains
        hops = np.log2(np.maximum(domains, 2))

        intra = 2 * (local - 1) * step
        by_ll = launch + intra + 2 * hops * values["tree_ll_us"] + us_of(size, values["tree_ll_GBps"])
        by_ll128 = launch + 1.6 * intra + 2 * hops * values["tree_ll128_us"] + us_of(size, values["tree_ll128_GBps"])
        across = us_of(2 * (domains - 1) / domains * size, local * values["nic_GBps"])
        inside = us_of(2 * (local - 1) / local * size, link)
        inside = np.where(nvls > 0, us_of(size * (1 + 1 / local), np.maximum(nvls, 1)), inside)
        bulk = (across**4 + inside**4) ** 0.25
        pieces = np.sqrt(size / 1e6) * values["piece_us"] * hops
        by_tree = (
            launch
            + values["tree_us"]
            + 2 * hops * values["net_step_us"]
            + bulk
            + pieces
            + tail(bulk, values["tail_us"])
        )
        rate = np.minimum(link, local * values["nic_GBps"])
        around = us_of(2 * (ranks - 1) / ranks * size, rate)
        by_ring = launch + 6 * (ranks - 1) * step + 2 * (domains - 1) * values["net_step_us"] + around
        by_ring += tail(around, values["tail_us"])
        all_reduce = np.min([by_ll, by_ll128, by_tree, by_ring], axis=0)

        share = (ranks - 1) / ranks * size
        gather_ll = launch + (ranks - 1) * step + (domains - 1) * values["tree_ll_us"]
        gather_ll += us_of(share, values["gather_ll_GBps"])
        gather_ll128 = launch + 1.5 * (ranks - 1) * step + (domains - 1) * values["tree_ll128_us"]
        gather_ll128 += us_of(share, np.minimum(0.93 * rate, values["tree_ll128_GBps"]))
        around = us_of(share, rate)
        gather = launch + 3.5 * (ranks - domains) + (domains - 1) * values["net_step_us"] + around
        gather = np.min([gather_ll, gather_ll128, gather + tail(around, values["tail_us"])], axis=0)

        apart = us_of(size * (ranks - local) / ranks, values["nic_GBps"] * values["p2p_share"])
        exchange = (
            launch + values["p2p_us"] + values["p2p_peer_us"] * (ranks - local) + apart + tail(apart, values["tail_us"])
        )
        apart = us_of(size, values["nic_GBps"] * values["p2p_share"])
        shift = launch + values["tree_ll_us"] + apart + tail(apart, values["tail_us"])
        return np.select(
            [rows.collective == "all_reduce", rows.collective == "alltoall", rows.collective == "sendrecv"],
            [all_reduce, exchange, shift],
            gather,
        )


def _kind(system: str) -> str:
    return "racks" if system.endswith("nvl72") else FAMILIES.get(system, "")


@lru_cache
def _constants() -> tuple[Constant, ...]:
    return (
        Constant("tree_ll_us", "us", "a hop between domains in LL", 8.0),
        Constant("tree_ll128_us", "us", "a hop between domains in LL128", 12.0),
        Constant("net_step_us", "us", "a step between domains in Simple", 10.0),
        Constant("nic_GBps", "GB/s", "what a chip sends between domains", 42.0, 100.0),
        Constant("tail_us", "us", "empirical: what long transfers take longer", 8.0),
        Constant("tree_ll_GBps", "GB/s", "a tree in LL", 5.0),
        Constant("tree_ll128_GBps", "GB/s", "a tree in LL128", 70.0),
        Constant("tree_us", "us", "starting an NVLS tree, or a tree in Simple", 40.0),
        Constant("piece_us", "us", "empirical: filling a tree, by the root of MB, for each level", 5.0),
        Constant("gather_ll_GBps", "GB/s", "a gather or scatter in LL", 5.0),
        Constant("p2p_us", "us", "an alltoall's start", 30.0),
        Constant("p2p_peer_us", "us", "each peer in another domain", 0.5),
        Constant("p2p_share", "", "of the network's rate, point to point", 0.9, 1.0),
    )
