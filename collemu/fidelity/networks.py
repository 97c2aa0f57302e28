"""NCCL on several domains that a network joins: trees, rings, NVLS trees, and point to point.

Constants of the domains are those of the architecture; a network's line rate and latency are the catalogue's. What is
fitted is what software makes of them, shared by all networks, and how far a network is from that.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import load_system
from collemu.fidelity.constants import load_constants
from collemu.fidelity.form import Constant, Floats, Values, tail, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import ARCHITECTURES, NARROW

RACK_CHIPS = 72
FAMILIES = {**ARCHITECTURES, "a100_quad": "ampere", "gh200_quad": "hopper"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
GROUP = "nccl"
NVLS_TREE_MOST_RANKS = 8  # of a domain: racks show the bus bandwidth of a ring
WITHOUT_LL128 = "efa"  # whose curves have none
WAIT_OVERLAP = 1.3  # 1: a ring waits, then moves its data; more: partly at once
BOTH_OVERLAP = 6  # of the network and the links of a domain
LL128_PAYLOAD = 0.93
NEVER_US = 1e12


class Networks:
    """NCCL over the networks between domains."""

    name = "networks"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """One, for what NCCL does on several domains."""
        able = (rows.network != NO_NETWORK) & ~rows.custom & np.isin(rows.collective, COLLECTIVES)
        return np.where(able & np.isin(rows.system, list(FAMILIES)), GROUP, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The network; between racks it is another."""
        kinds = [" racks" if _is_rack(system) else "" for system in rows.system.tolist()]
        return rows.network.astype(object) + np.array(kinds, object)

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Shared by all networks, some with a value of its own for each."""
        return _CONSTANTS

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """The quickest of what NCCL has for the collective."""
        way = _Way(values, rows)
        return np.select(
            [rows.collective == "all_reduce", rows.collective == "alltoall", rows.collective == "sendrecv"],
            [way.all_reduce(), way.alltoall(), way.sendrecv()],
            way.gather(),
        )


class _Way:
    """Times of rows; all of them arrays, an entry a row."""

    def __init__(self, values: Values, rows: Measured) -> None:
        self.values, self.rows = values, rows
        systems, place = np.unique(rows.system.astype(str), return_inverse=True)
        chips = np.array([_chip(system) for system in systems.tolist()])[place].T
        self.launch, self.step, self.link, self.nvls = chips
        rack = np.array([_is_rack(system) for system in systems.tolist()])[place]
        hopper = np.array([FAMILIES[system] == "hopper" for system in systems.tolist()])[place]
        domains = np.where(rack & (rows.ranks > RACK_CHIPS), np.ceil(rows.ranks / RACK_CHIPS), rows.nodes)
        self.domains = np.maximum(domains, 2)
        self.local = rows.ranks / self.domains
        self.levels = np.log2(self.domains)
        networks, place = np.unique(rows.network.astype(str), return_inverse=True)
        rate, latency = np.array([network_of(network) for network in networks.tolist()])[place].T
        self.nic = values["nic_share"] * rate
        self.latency = values["latency_share"] * latency
        self.narrow_link = np.minimum(self.link, self.local * self.nic)
        self.in_switch = np.where(hopper, values["nvls_tree_share"], 1.0) * self.nvls
        none = (self.nvls == 0) | np.isin(rows.dtype, NARROW) | (rows.nvls == "off") | (rows.algorithm == "ring")
        self.no_nvls = none | (self.local > NVLS_TREE_MOST_RANKS)
        self.no_ll128 = np.array([network.startswith(WITHOUT_LL128) for network in networks.tolist()])[place]

    def hop(self, protocol: str) -> Floats:
        """A message over the network."""
        if protocol == "simple":
            return self.values["simple_share"] * self.latency + self.values["simple_us"]
        return self.latency + self.values[f"{protocol}_us"]

    def all_reduce(self) -> Floats:
        """Trees pass a chain of the domain's ranks up, and down again."""
        values, size = self.values, self.rows.size
        chain, hops = 2 * (self.local - 1), 2 * self.levels
        across = us_of(2 * (self.domains - 1) / self.domains * size, self.local * self.nic)
        up_and_down = us_of(2 * size, self.link)
        by_ll = self.launch + chain * self.step + hops * self.hop("ll") + us_of(size, values["tree_ll_GBps"])
        bulk = np.maximum(across, up_and_down) / LL128_PAYLOAD
        by_ll128 = self.launch + 1.5 * chain * self.step + hops * self.hop("ll128")
        by_ll128 += bulk + self.levels * tail(bulk, values["fill_us"])
        bulk = (across**4 + up_and_down**4) ** 0.25
        simple = self.launch + chain * SIMPLE_CHAIN_US + hops * self.hop("simple")
        simple += bulk + self.levels * tail(bulk, values["fill_us"])
        inside = us_of(size * (1 + 1 / self.local), np.maximum(self.in_switch, 1))
        bulk = (across**BOTH_OVERLAP + inside**BOTH_OVERLAP) ** (1 / BOTH_OVERLAP)
        by_switch = self.launch + values["nvls_tree_us"] * self.levels + bulk + tail(bulk, values["tail_us"])
        ring_only = self.rows.algorithm == "ring"
        return _least(
            np.where(ring_only, NEVER_US, by_ll),
            np.where(ring_only | self.no_ll128, NEVER_US, by_ll128),
            np.where(ring_only, NEVER_US, simple),
            np.where(self.no_nvls, NEVER_US, by_switch),
            self.ring(2.0),
        )

    def ring(self, turns: float) -> Floats:
        """In Simple: so many turns through all ranks; waits and bytes are partly at once."""
        ranks, values = self.rows.ranks, self.values
        wait = turns * ((ranks - self.domains) * values["inner_us"] + (self.domains - 1) * self.hop("simple"))
        bulk = us_of(turns * (ranks - 1) / ranks * self.rows.size, self.narrow_link)
        moved = bulk + tail(bulk, values["tail_us"])
        return self.launch + (wait**WAIT_OVERLAP + moved**WAIT_OVERLAP) ** (1 / WAIT_OVERLAP)

    def gather(self) -> Floats:
        """A ring, of an all_gather or a reduce_scatter."""
        ranks, values = self.rows.ranks, self.values
        share = (ranks - 1) / ranks * self.rows.size
        by_ll = self.launch + (ranks - 1) * self.step + (self.domains - 1) * self.hop("ll")
        by_ll += us_of(share, values["gather_ll_GBps"])
        bulk = us_of(share, LL128_PAYLOAD * self.narrow_link)
        by_ll128 = self.launch + 1.5 * (ranks - 1) * self.step + (self.domains - 1) * self.hop("ll128")
        by_ll128 += bulk + tail(bulk, values["gather_fill_us"])
        return _least(by_ll, np.where(self.no_ll128, NEVER_US, by_ll128), self.ring(1.0))

    def alltoall(self) -> Floats:
        """What goes to other domains decides."""
        values, others = self.values, self.rows.ranks - self.local
        apart = us_of(self.rows.size * others / self.rows.ranks, values["p2p_share"] * self.nic)
        start = self.launch + values["p2p_us"] + values["p2p_peer_us"] * others
        return start + apart + tail(apart, values["tail_us"])

    def sendrecv(self) -> Floats:
        """To the next rank, which for one rank of a domain is in the next."""
        apart = us_of(self.rows.size, self.values["p2p_share"] * self.nic)
        return self.launch + self.hop("ll") + apart + tail(apart, self.values["tail_us"])


SIMPLE_CHAIN_US = 4.0  # NCCL's own number for a hop of a tree in Simple over NVLink (graph/tuning.cc)


def _least(*times: Floats) -> Floats:
    """The least; a little less where two are close, so that slopes do not jump."""
    least = np.min(times, axis=0)
    return least * np.sum([(time / least) ** -12.0 for time in times], axis=0) ** (-1 / 12)


def _is_rack(system: str) -> bool:
    return system.endswith("nvl72")


@lru_cache
def _chip(system: str) -> tuple[float, float, float, float]:
    """Launch and LL step in us, link and NVLS rates in GB/s, as single domains were fitted."""
    fitted = load_constants()["nccl"][FAMILIES[system]]
    launch = fitted.get(("launch_us", system), fitted["launch_us", ""])
    return launch, fitted["ll_step_us", ""], fitted["link_GBps", ""], fitted.get(("nvls_GBps", ""), 0.0)


@lru_cache
def network_of(name: str) -> tuple[float, float]:
    """Line rate of a chip in GB/s, and latency in us."""
    scaleout = load_system("h100_hgx", name).scaleout
    return scaleout.bytes_per_s / 1e9, scaleout.latency_s * 1e6


_CONSTANTS = (
    Constant("latency_share", "", "of the network's latency, as the catalogue has it", 1.1, spread=0.3),
    Constant("ll_us", "us", "a hop between domains in LL, beside it", 2.0),
    Constant("ll128_us", "us", "a hop between domains in LL128, beside it", 5.0),
    Constant("simple_share", "", "of that latency, in a hop of Simple", 1.5),
    Constant("simple_us", "us", "a hop between domains in Simple, beside it", 10.0),
    Constant("inner_us", "us", "a step inside a domain of a ring in Simple over several", 4.0),
    Constant("nic_share", "", "of the network's line rate, as the catalogue has it", 0.88, 1.0, 0.1),
    Constant("tail_us", "us", "empirical: what long transfers take longer", 8.0, spread=0.3),
    Constant("tree_ll_GBps", "GB/s", "a tree in LL", 5.0, spread=1.0),
    Constant("fill_us", "us", "empirical: filling a tree, for each level", 40.0, spread=0.5),
    Constant("nvls_tree_us", "us", "starting an NVLS tree, for each level", 120.0, spread=0.5),
    Constant("nvls_tree_share", "", "of NVLS's rate on one domain of Hopper", 0.85, 1.0),
    Constant("gather_fill_us", "us", "empirical: filling a ring in LL128", 40.0, spread=0.5),
    Constant("gather_ll_GBps", "GB/s", "a gather or scatter in LL", 5.0, spread=0.5),
    Constant("p2p_us", "us", "an alltoall's start", 30.0, spread=0.7),
    Constant("p2p_peer_us", "us", "each peer in another domain", 1.0, spread=1.0),
    Constant("p2p_share", "", "of the network's rate, point to point", 0.9, 1.0, 0.2),
)
