"""NCCL on one domain of an NVSwitch: launch, steps, channels, protocols, NVLS; and point to point.

Rates of this file are NCCL's own (graph/tuning.cc, version 2.27) unless a comment says otherwise.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, tail, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured

ARCHITECTURES = {
    "a100_hgx": "ampere",
    "h100_hgx": "hopper",
    "h200_hgx": "hopper",
    "b200_hgx": "blackwell",
    "b300_hgx": "blackwell",
    "gb200_nvl72": "blackwell",
    "gb300_nvl72": "blackwell",
}
CHANNELS = 24
LINE_RATE = {"ampere": 300.0, "hopper": 450.0, "blackwell": 900.0}  # GB/s, one way

# By NCCL's estimate, a protocol is chosen: base and hop in us, bus bandwidth in GB/s.
LL, LL128, SIMPLE, NVLS = range(4)
BASE_US = np.array([6.6, 14.0, 8.4])
HOP_US = np.array([0.6, 1.9, 3.4])
NVLS_US = 25.0
BUS = {"ampere": (87.7, 220.8, 240.0), "hopper": (141.0, 331.0, 360.0), "blackwell": (282.0, 662.0, 720.0)}
LATER_LL128 = 560.0  # blackwell from 2.29 on: from where curves jump, not read in the source
NVLS_CHANNELS = {"ampere": 1, "hopper": 16, "blackwell": 24}
NVLS_EFFICIENCY = {"ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
NVLS_LEAST_RANKS = 5
NVLS_OVERLAP = 2.0  # 1: synchronisation, then data; more: partly at once

LL_CHANNEL_BYTES = 4096  # of a rank's share: 8 bytes of each of 512 threads
LL128_PAYLOAD = 15 / 16
LL_OVERLAP = 1.25  # 1: a step waits, then moves its data; more: partly at once
NARROW = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "fp8_e4m3", "fp8_e5m2")
P2P_LINK_SHARE = 0.93
P2P_LL_BYTES = 16 * 1024  # of a peer's share; twice as many from 2.29 on
P2P_OLD_VERSION = 228  # up to it few channels for each peer, for shares up to so many bytes, and no step: from curves
P2P_OLD_BYTES = 512 * 1024
P2P_CHANNEL_BYTES = 32 * 1024
P2P_CHANNELS = 32
P2P_SHARPNESS = 8  # of the greater of two costs
KNOWN_VERSION = 228.0  # where nobody says


class Nccl:
    """NCCL's ring, NVLS and point-to-point collectives on the chips of one NVSwitch domain."""

    name = "nccl"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The architecture, for what NCCL does on one domain of a system with NVSwitch."""
        able = (rows.network == NO_NETWORK) & ~rows.custom & np.isin(rows.collective, COLLECTIVES)
        return np.where(able, [ARCHITECTURES.get(system, "") for system in rows.system], "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of an architecture; each system has a launch of its own."""
        return _constants(group)

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """By collective, and by the protocol that NCCL chooses."""
        ring = np.choose(
            chosen(rows), [_ll(values, rows), _ll128(values, rows), _simple(values, rows), _nvls(values, rows)]
        )
        return np.where(rows.ranks == 1, alone(values, rows), np.where(is_p2p(rows), _p2p(values, rows), ring))


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast")


@lru_cache
def _constants(group: str) -> tuple[Constant, ...]:
    line, start = LINE_RATE[group], STARTS[group]
    of = (
        ("launch_us", "us", "launch, kernel and synchronisation", np.inf, 0.5),
        ("cta_us", "us", "more channels, for each eightfold", np.inf, 0.0),
        ("ll_step_us", "us", "a step of the ring in LL", np.inf, 0.0),
        ("ll_channel_GBps", "GB/s", "what a channel moves in LL", np.inf, 0.0),
        ("ll_store_GBps", "GB/s", "what a channel stores of a gather in LL", np.inf, 0.0),
        ("ll128_step_us", "us", "a step of the ring in LL128", np.inf, 0.0),
        ("simple_step_us", "us", "a step of the ring in Simple, as far as bytes do not hide it", np.inf, 0.0),
        ("tail_us", "us", "empirical: what long transfers take longer", np.inf, 0.0),
        ("link_GBps", "GB/s", "what a chip sends", line, 0.0),
        ("copy_GBps", "GB/s", "the last, receive-only copy", np.inf, 0.0),
        ("narrow_GBps", "GB/s", "what sums of one-byte types cost beside it", np.inf, 0.0),
        ("nvls_us", "us", "starting NVLS", np.inf, 0.0),
        ("nvls_GBps", "GB/s", "what a chip sends and gets in NVLS", line, 0.0),
        ("nvls_chunk_us", "us", "a chunk of NVLS", np.inf, 0.0),
        ("p2p_peer_us", "us", "each peer", np.inf, 0.0),
        ("p2p_step_us", "us", "a step of Simple to a peer, from NCCL 2.29 on", np.inf, 0.0),
        ("p2p_ll_GBps", "GB/s", "a peer's small message", np.inf, 0.0),
        ("p2p_channel_GBps", "GB/s", "what a channel moves to a peer", np.inf, 0.0),
    )
    return tuple(
        Constant(name, unit, meaning, start[place], most, spread)
        for place, (name, unit, meaning, most, spread) in enumerate(of)
        if NVLS_EFFICIENCY[group] or not name.startswith("nvls")
    )


#: Where fits start, in the order of the constants.
STARTS = {
    "ampere": (8.0, 1.0, 0.95, 12, 60, 1.2, 6.0, 20, 235, 800, 800, 12, 250, 4.0, 0.4, 6, 4.3, 11),
    "hopper": (4.5, 0.3, 0.82, 15, 70, 0.65, 4.0, 8, 384, 1000, 1000, 10, 340, 3.5, 0.34, 5, 6.0, 20),
    "blackwell": (7.4, 0.4, 1.27, 20, 100, 1.3, 8.0, 6, 712, 1600, 2000, 18, 720, 10, 0.38, 6, 6.5, 22),
}


def chosen(rows: Measured) -> NDArray[np.int64]:
    """The protocol that NCCL estimates to be the quickest, or NVLS."""
    architectures = [ARCHITECTURES.get(system, "hopper") for system in rows.system]
    bus = np.array([BUS[each] for each in architectures]).T
    blackwell = np.array([each == "blackwell" for each in architectures])
    bus[LL128] = np.where(blackwell & (_version(rows) > P2P_OLD_VERSION), LATER_LL128, bus[LL128])
    steps = steps_of(rows)
    amount = steps / rows.ranks * rows.size
    rings = BASE_US[:, None] + HOP_US[:, None] * steps + us_of(amount, bus)
    channels = np.array([NVLS_CHANNELS[each] for each in architectures])
    efficiency = np.array([NVLS_EFFICIENCY[each] for each in architectures])
    rate = np.maximum(2 * efficiency * (channels - 1) / channels * bus[SIMPLE], 1e-9)
    able = (rows.collective == "all_reduce") & (efficiency > 0) & ~np.isin(rows.dtype, ("int8", "uint8"))
    able &= (rows.ranks >= NVLS_LEAST_RANKS) & (rows.nvls != "off") & (rows.algorithm != "ring")
    by_switch = np.where(able, NVLS_US + us_of(amount, rate), np.inf)
    told = (rows.algorithm == "nvls") & (rows.collective == "all_reduce") & (rows.ranks > 2)
    by_switch = np.where(told, -np.inf, by_switch)
    return np.argmin(np.vstack([rings, by_switch]), axis=0)


def steps_of(rows: Measured) -> Floats:
    """Messages that a rank sends, one after the other."""
    return np.where(rows.collective == "all_reduce", 2 * (rows.ranks - 1), rows.ranks - 1)


def alone(values: Values, rows: Measured) -> Floats:
    """One rank copies its input to its output."""
    return values["launch_us"] + us_of(rows.size, values["copy_GBps"])


def is_p2p(rows: Measured) -> NDArray[np.bool_]:
    return np.isin(rows.collective, ("alltoall", "sendrecv"))


def _version(rows: Measured) -> Floats:
    return np.where(np.isnan(rows.version), KNOWN_VERSION, rows.version)


def ll_channels(rows: Measured) -> Floats:
    """Of a ring in LL; a share of the last one counts as such."""
    return np.clip(rows.size / (LL_CHANNEL_BYTES * rows.ranks), 1, CHANNELS)


def ll_step(values: Values, rows: Measured, channels: Floats, link: Floats) -> tuple[Floats, Floats, Floats]:
    """Microseconds of a ring's step, of its data, and of moving these: what a gather receives is stored besides."""
    rate = np.minimum(values["ll_channel_GBps"], link / 2 / channels)
    stored = np.select([rows.collective == "all_gather", rows.collective == "all_reduce"], [1.0, 0.5], 0.0)
    share = rows.size / (channels * rows.ranks)
    move = us_of(share, rate)
    data = move + us_of(stored * share, values["ll_store_GBps"])
    return (values["ll_step_us"] ** LL_OVERLAP + data**LL_OVERLAP) ** (1 / LL_OVERLAP), data, move


def _ll(values: Values, rows: Measured) -> Floats:
    channels = ll_channels(rows)
    step, data, _ = ll_step(values, rows, channels, values["link_GBps"])
    launch = values["launch_us"] + values["cta_us"] * np.log2(channels) / 3
    return launch + steps_of(rows) * step + data


def _last(values: Values, rows: Measured) -> Floats:
    """The last operation of a ring only receives: it copies, or adds, a rank's share."""
    share = rows.size / rows.ranks
    sums = np.isin(rows.collective, ("all_reduce", "reduce_scatter")) & np.isin(rows.dtype, NARROW)
    return us_of(share, values["copy_GBps"]) + np.where(sums, us_of(share, values["narrow_GBps"]), 0)


def _ll128(values: Values, rows: Measured) -> Floats:
    steps = steps_of(rows)
    bulk = us_of(steps * rows.size / rows.ranks, LL128_PAYLOAD * values["link_GBps"]) + _last(values, rows)
    return values["launch_us"] + steps * values["ll128_step_us"] + bulk + tail(bulk, values["tail_us"])


def _simple(values: Values, rows: Measured) -> Floats:
    """A step costs what half a chunk, its second slice, does not hide."""
    steps = steps_of(rows)
    bulk = us_of(steps * rows.size / rows.ranks, values["link_GBps"]) + _last(values, rows)
    moved = bulk + tail(bulk, values["tail_us"])
    exposed = np.maximum(0, values["simple_step_us"] - moved / (steps + 1) / 2)
    return values["launch_us"] + 1 + (steps + 1) * exposed + moved


def nvls_chunks(rows: Measured) -> tuple[Floats, Floats]:
    """Channels of NVLS, and bytes of a chunk."""
    channels = np.array([float(NVLS_CHANNELS[ARCHITECTURES.get(system, "hopper")]) for system in rows.system])
    chunk = np.full(len(rows), 128.0 * 1024)
    chunk = np.where(rows.size < 64 * channels * rows.ranks * chunk, 64.0 * 1024, chunk)
    return channels, np.where(rows.size < 8 * channels * rows.ranks * chunk, 32.0 * 1024, chunk)


def nvls_start_and_move(values: Values, rows: Measured) -> tuple[Floats, Floats]:
    """Microseconds of NVLS: what its start takes beside the bytes, and these."""
    channels, chunk = nvls_chunks(rows)
    fill = np.minimum(chunk * channels * rows.ranks, rows.size)
    bulk = us_of((rows.size + fill) * (1 + 1 / rows.ranks), values["nvls_GBps"])
    chunks = rows.size / (8 * channels * chunk) * values["nvls_chunk_us"]
    moved = bulk + chunks + tail(bulk, values["tail_us"])
    return (values["nvls_us"] ** NVLS_OVERLAP + moved**NVLS_OVERLAP) ** (1 / NVLS_OVERLAP) - moved, moved


def _nvls(values: Values, rows: Measured) -> Floats:
    if "nvls_us" not in values:
        return np.full(len(rows), np.nan)
    start, moved = nvls_start_and_move(values, rows)
    return values["launch_us"] + start + moved


@dataclass(frozen=True)
class PointToPoint:
    """What NCCL sends from rank to rank: an array each, an entry a row.

    Attributes
    ----------
    share : float array
        Bytes for a peer.
    peers, messages : float arrays
        Other ranks that a rank sends to, and with itself where it sends to itself.
    busy : float array
        Channels in use, of all its messages.
    small : bool array
        Whether it goes as LL.
    step_us, start_us : float arrays
        A step of Simple, and what comes before anything is sent.
    """

    share: Floats
    peers: Floats
    messages: Floats
    busy: Floats
    small: NDArray[np.bool_]
    step_us: Floats
    start_us: Floats


def point_to_point(values: Values, rows: Measured) -> PointToPoint:
    """An alltoall or sendrecv as NCCL parts it among channels."""
    alltoall = rows.collective == "alltoall"
    share = np.where(alltoall, rows.size / rows.ranks, rows.size)
    peers = np.where(alltoall, rows.ranks - 1, 1.0)
    messages = np.where(alltoall, rows.ranks, 1.0)
    old = _version(rows) <= P2P_OLD_VERSION
    channels = np.clip(share / P2P_CHANNEL_BYTES, 1, P2P_CHANNELS)
    few = np.minimum(channels, np.maximum(1, 8 / rows.ranks))
    channels = np.where(old & (share <= P2P_OLD_BYTES), few, channels)
    return PointToPoint(
        share=share,
        peers=peers,
        messages=messages,
        busy=np.clip(messages * channels, 1, P2P_CHANNELS),
        small=share <= np.where(old, 1, 2) * P2P_LL_BYTES,
        step_us=np.where(old, 0, values["p2p_step_us"]),
        start_us=values["launch_us"] + 1.5 + values["p2p_peer_us"] * peers,
    )


def _p2p(values: Values, rows: Measured) -> Floats:
    """LL for small shares of a peer; above, links or channels, and these carry what goes to oneself too."""
    each = point_to_point(values, rows)
    by_channel = us_of(each.messages * each.share / each.busy, values["p2p_channel_GBps"]) + each.step_us
    by_link = us_of(each.peers * each.share, P2P_LINK_SHARE * values["link_GBps"])
    by_link += tail(by_link, values["tail_us"])
    large = (by_channel**P2P_SHARPNESS + by_link**P2P_SHARPNESS) ** (1 / P2P_SHARPNESS)
    return each.start_us + np.where(each.small, us_of(each.share, values["p2p_ll_GBps"]), large)
