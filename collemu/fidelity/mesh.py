"""NCCL on four chips that are joined directly, without a switch: rings through all of their links."""

import numpy as np
from numpy.typing import NDArray

from collemu.fidelity.form import Constant, Floats, Values, tail, us_of
from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.nccl import steps_of

# NCCL's estimates (graph/tuning.cc, 2.27): of the links to one peer, and its ceiling of LL; GB/s.
LINKS = {"a100_quad": (80.0, 87.7), "gh200_quad": (120.0, 141.0)}
LINE_RATE = {"a100_quad": 100.0, "gh200_quad": 150.0}  # to one peer, one way
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


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
            Constant("cta_us", "us", "more threads in a channel, for each doubling of three", 0.5),
            Constant("ll_step_us", "us", "a step of the ring in LL", 1.0 if old else 0.7),
            Constant("ll_channel_GBps", "GB/s", "what a channel moves in LL", 15.0),
            Constant("channels", "", "to a peer, in LL", 8.0),
            Constant("simple_step_us", "us", "a step of the ring in Simple", 5.0 if old else 3.0),
            Constant("tail_us", "us", "empirical: what long transfers take longer", 10.0),
            Constant("link_GBps", "GB/s", "what a chip sends to a peer", 85.0 if old else 130.0, LINE_RATE[group]),
            Constant("copy_GBps", "GB/s", "the last, receive-only copy", 400.0),
            Constant("broadcast_hop_us", "us", "a broadcast's LL hop, of 4 KiB a channel and more, at most", 2.0),
            Constant("broadcast_line_us", "us", "a broadcast's LL hop, for each 4 KiB of a channel", 0.5),
            Constant("broadcast_step_us", "us", "a broadcast's step in Simple", 5.0 if old else 3.0),
            Constant(
                "broadcast_ll_KiB", "KiB", "up to it a broadcast is LL, between two; among n, (n - 1)^1.5 times", 700.0
            ),
        )

    def time_us(self, values: Values, rows: Measured) -> Floats:
        """LL or Simple, as NCCL estimates; of a broadcast, as curves show."""
        ranks, size, steps = rows.ranks, rows.size, steps_of(rows)
        broadcast = rows.collective == "broadcast"
        peers = ranks - 1
        link = values["link_GBps"] * peers
        share = np.where(broadcast, size, size / ranks)
        channels = np.clip(share / 4096, 1, values["channels"] * peers)
        part = share / channels
        start = values["launch_us"] + values["cta_us"] * np.log2(np.clip(share / 8, 64, 512) / 64) / 3
        crossing = us_of(part, np.minimum(values["ll_channel_GBps"], link / 2 / channels))
        hop = np.minimum(values["broadcast_line_us"] * part / 4096, values["broadcast_hop_us"])
        by_ll = start + np.where(
            broadcast,
            values["ll_step_us"] + (steps - 1) * hop + crossing,
            steps * values["ll_step_us"] + (steps + 1) * crossing,
        )
        bulk = us_of(np.where(broadcast, size, steps * size / ranks), link)
        bulk += np.where(broadcast, 0, us_of(size / ranks, values["copy_GBps"]))
        exposed = (steps + 1) * np.maximum(0, values["simple_step_us"] - bulk / (steps + 1) / 2)
        exposed = np.where(broadcast, steps * values["broadcast_step_us"], exposed)
        simple = values["launch_us"] + 1 + exposed + bulk + tail(bulk, values["tail_us"])
        small = size <= values["broadcast_ll_KiB"] * 1024 * peers**1.5
        return np.where(np.where(broadcast, small, _is_ll(rows)), by_ll, simple)


def _is_ll(rows: Measured) -> NDArray[np.bool_]:
    """Whether NCCL estimates LL to be the quicker."""
    one, most = np.array([LINKS[system] for system in rows.system]).T
    bus, steps = one * (rows.ranks - 1), steps_of(rows)
    amount = steps / rows.ranks * rows.size
    by_ll = 6.6 + 0.6 * steps + us_of(amount, np.minimum(most, bus / 2))
    return by_ll <= 8.4 + 3.4 * steps + us_of(amount, bus)
