"""NCCL on four chips that are joined directly, without a switch: rings through all of their links."""

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, tail, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import (
    BASE_US,
    HOP_US,
    LL,
    LL128,
    LL128_PAYLOAD,
    LL_CHANNEL_BYTES,
    LL_OVERLAP,
    SIMPLE,
    alone,
    ll_step,
    steps_of,
)

# NCCL's estimates (graph/tuning.cc, 2.27): of the links to one peer, and its ceiling of LL; GB/s.
LINKS = {"a100_quad": (80.0, 87.7), "gh200_quad": (123.6, 141.0)}
LL128_SHARE = 0.92
CROSSED_HOP_US = 4.0  # of a broadcast in Simple, through channels whose two halves differ: more than two ranks
LINE_RATE = {"a100_quad": 100.0, "gh200_quad": 150.0}  # to one peer, one way
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
CHANNELS = 4  # of each rank: where the flat part of LL ends
LL_CHUNK_BYTES = 32 * 1024  # payload of a slot of the buffer
LL_FORWARDED = 0.5  # of a chunk: what a rank of a broadcast has of it before it sends it on
BROADCAST_CHUNK_BYTES = 512 * 1024  # of a channel, in Simple
ALL_CHANNELS = 24  # of which the rate of copies is


class Mesh:
    """NCCL's rings where every chip has links to every other."""

    name = "mesh"

    def groups(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        able = (rows.network == NO_NETWORK) & ~rows.custom & np.isin(rows.collective, COLLECTIVES)
        return np.where(able & np.isin(rows.system, list(LINKS)), rows.system, "").astype(object)

    def owners(self, rows: Measured) -> NDArray[np.object_]:
        """The system."""
        return rows.system

    def constants(self, group: str) -> tuple[Constant, ...]:
        """Of a system."""
        old = group == "a100_quad"
        return (
            Constant("launch_us", "us", "launch, kernel and synchronisation", 8.0 if old else 5.0),
            Constant("cta_us", "us", "more channels, for each eightfold", 0.5),
            Constant("ll_step_us", "us", "a step of the ring in LL", 1.0 if old else 0.7),
            Constant("ll_channel_GBps", "GB/s", "what a channel moves in LL", 15.0),
            Constant("ll_store_GBps", "GB/s", "what a channel stores of a gather in LL", 60.0),
            Constant("ll128_step_us", "us", "a step of the ring in LL128", 1.0),
            Constant("simple_step_us", "us", "a step of the ring in Simple", 5.0 if old else 3.0),
            Constant("tail_us", "us", "empirical: what long transfers take longer", 10.0),
            Constant("link_GBps", "GB/s", "what a chip sends to a peer", 85.0 if old else 130.0, LINE_RATE[group]),
            Constant("copy_GBps", "GB/s", "the last, receive-only copy, in 24 channels", 800.0),
        )

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """In the protocol that NCCL estimates to be the quickest."""
        several = rows.ranks > 1
        time = alone(values, rows)
        if not several.any():
            return time
        part, own = rows.where(several), {name: each[several] for name, each in values.items()}
        time[several] = np.choose(chosen(part), [_ll(own, part), _ll128(own, part), _simple(own, part)])
        return time


def chosen(rows: Measured) -> NDArray[np.int64]:
    """The protocol that NCCL estimates to be the quickest."""
    one, most = np.array([LINKS[system] for system in rows.system]).T
    peers, steps = rows.ranks - 1, steps_of(rows)
    ring = one * peers
    bus = {LL: np.minimum(most, ring / 2), LL128: LL128_SHARE * ring, SIMPLE: ring}
    broadcast = rows.collective == "broadcast"
    crossed = broadcast & (peers > 1)
    hops = np.where(broadcast, np.where(crossed, rows.ranks, 1.0), steps)
    amount = np.where(broadcast, 1.0, steps / rows.ranks) * rows.size
    hop_us = {each: HOP_US[each] for each in bus} | {SIMPLE: np.where(crossed, CROSSED_HOP_US, HOP_US[SIMPLE])}
    return np.argmin([BASE_US[each] + hop_us[each] * hops + us_of(amount, bus[each]) for each in bus], axis=0)


def ll_channels(rows: Measured) -> Floats:
    """Of all rings in LL; a share of the last one counts as such."""
    return np.clip(rows.size / (LL_CHANNEL_BYTES * rows.ranks), 1, CHANNELS * rows.ranks)


def _ll(values: Values, rows: Measured) -> Floats:
    """A broadcast begins while the call before it ends, so it has one step; later chunks follow the first."""
    channels, link = ll_channels(rows), values["link_GBps"] * (rows.ranks - 1)
    launch = values["launch_us"] + values["cta_us"] * np.log2(channels) / 3
    step, data, _ = ll_step(values, rows, channels, link)
    ring = launch + steps_of(rows) * step + data
    share = rows.size / channels
    block = np.minimum(share, LL_CHUNK_BYTES)
    data = us_of(block, np.minimum(values["ll_channel_GBps"], link / 2 / channels))
    data += us_of(block, values["ll_store_GBps"])
    step = (values["ll_step_us"] ** LL_OVERLAP + data**LL_OVERLAP) ** (1 / LL_OVERLAP)
    chain = launch + step + (share / block - 1 + LL_FORWARDED * (rows.ranks - 2)) * data
    return np.where(rows.collective == "broadcast", chain, ring)


def _bulk(values: Values, rows: Measured, payload: float) -> Floats:
    """Of a broadcast once the size, and filling the chain; of others a ring's share, and the last copy."""
    ranks, size = rows.ranks, rows.size
    channels = CHANNELS * ranks
    link = values["link_GBps"] * (ranks - 1)
    fill = us_of(np.minimum(size, BROADCAST_CHUNK_BYTES * channels), link) * (ranks - 2)
    once = us_of(size, payload * link) + (fill if payload == 1 else 0)
    last = us_of(size / ranks, values["copy_GBps"] * channels / ALL_CHANNELS)
    around = us_of(steps_of(rows) * size / ranks, payload * link) + last
    return np.where(rows.collective == "broadcast", once, around)


def _ll128(values: Values, rows: Measured) -> Floats:
    bulk = _bulk(values, rows, LL128_PAYLOAD)
    return values["launch_us"] + steps_of(rows) * values["ll128_step_us"] + bulk + tail(bulk, values["tail_us"])


def _simple(values: Values, rows: Measured) -> Floats:
    steps, bulk = steps_of(rows), _bulk(values, rows, 1.0)
    moved = bulk + tail(bulk, values["tail_us"])
    exposed = np.maximum(0, values["simple_step_us"] - moved / (steps + 1) / 2)
    return values["launch_us"] + 1 + (steps + 1) * exposed + moved
