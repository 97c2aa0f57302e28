"""What the emulator runs in place of a closed form: a schedule, and the constants of its system."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collemu.catalogue import System
from collemu.emulator import emulate
from collemu.fidelity.form import Floats
from collemu.fidelity.passes import along, both_ways, in_one_pass
from collemu.model.bandwidth import count_for_size
from collemu.schedule import Schedule, algorithms, build_schedule
from collemu.wiring import wiring_of

#: Whether what long transfers take longer comes on top, or beside what else takes its time; empty: not at all.
ON_TOP, BESIDE, NO_TAIL = "on top", "beside", ""
MOST_OPERATIONS = 2**22  # some seconds
NO_LIMIT = 1e5  # GB/s of a thread, where the rate is that of a whole kernel, memory and all


class Case(NamedTuple):
    """What was measured."""

    collective: str
    ranks: int
    size: int


@dataclass(frozen=True)
class Run:
    """A way to run a case; times are in us, rates in decimal GB/s.

    Attributes
    ----------
    algorithm, protocol : str
    channels : int
    chunks : int or None
        As `collemu.build_schedule` takes them; an empty algorithm is any.
    launch_us : float
        Before a rank's first operation.
    step_us : float
        From one send to the next rank's, the two hops of the way included.
    thread_rate, add_rate : float
        What a thread copies, and adds.
    link_rate : float
        What a chip sends, headers not counted.
    tail_us : float
        Empirical, as in the closed forms.
    tail : str
        One of the above.
    with_latency : bool
        Whether the launch has the latency of messages in it, which a message of next to nothing shows.
    orders : tuple of tuple of int
        Of the ranks, through which the rings of channels go in turn; empty: as they are numbered.
    """

    algorithm: str
    protocol: str
    channels: int
    chunks: int | None
    launch_us: float
    step_us: float
    thread_rate: float
    add_rate: float
    link_rate: float
    tail_us: float = 0.0
    tail: str = NO_TAIL
    with_latency: bool = False
    orders: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Runs:
    """Runs of an algorithm and protocol: arrays, an entry a row, or one for all."""

    algorithm: str
    protocol: str
    tail: str
    channels: Floats
    chunks: Floats
    launch_us: Floats
    step_us: Floats
    thread_rate: Floats
    add_rate: Floats
    link_rate: Floats
    with_latency: bool = False
    orders: tuple[tuple[int, ...], ...] = ()

    def each(self, tail_us: Floats) -> list[Run]:
        """One a row."""
        numbers = (self.launch_us, self.step_us, self.thread_rate, self.add_rate, self.link_rate)
        columns = [np.broadcast_to(each, tail_us.shape).tolist() for each in (self.channels, self.chunks, *numbers)]
        return [
            Run(
                self.algorithm,
                self.protocol,
                int(channels),
                int(chunks),
                *(launch, step, thread, add, link),
                tail_us=longer,
                tail=self.tail,
                with_latency=self.with_latency,
                orders=self.orders,
            )
            for channels, chunks, launch, step, thread, add, link, longer in zip(
                *columns, tail_us.tolist(), strict=True
            )
        ]


@lru_cache(maxsize=4096)
def time_us(run: Run, case: Case, system: System) -> float:
    """Microseconds of a run by messages (fidelity flow), and its tail.

    Raises
    ------
    ValueError
        If the system cannot run it, or it has too many operations to wait for.
    """
    operations = 2 * case.ranks * run.channels * (run.chunks or 1) * (1 if run.algorithm == "nvls" else case.ranks)
    if operations > MOST_OPERATIONS:
        raise ValueError(
            f"about {operations:,} operations, more than the {MOST_OPERATIONS:,} that --engine emulate is for"
        )
    emulated, busy = _emulated(run, case, _as_run(system, run))
    if run.with_latency:
        one, least = replace(run, chunks=1, step_us=0.0), case._replace(size=case.ranks * 16)
        emulated -= _emulated(one, least, _as_run(system, one))[0] - run.launch_us
    longer = float(np.sqrt(busy * run.tail_us))
    if run.tail == ON_TOP:
        return emulated + longer
    return max(emulated, run.launch_us + busy + longer) if run.tail == BESIDE else emulated


def _emulated(run: Run, case: Case, system: System) -> tuple[float, float]:
    """Microseconds in all, and those that the busiest link sends."""
    result = emulate(
        _schedule(case.collective, run.algorithm, case.ranks, run.channels, run.chunks, run.orders),
        system,
        count=count_for_size(case.collective, case.ranks, case.size, _ITEM_BYTES),
        dtype="float32",
        protocol=run.protocol,
        fidelity="flow",
        timeline=False,
    )
    links = result.links
    return result.time_s * 1e6, max(links.up_busy_s.max(initial=0.0), links.down_busy_s.max(initial=0.0)) * 1e6


_ITEM_BYTES = 4  # sizes decide times, not what numbers they hold


@lru_cache(maxsize=256)
def _schedule(
    collective: str,
    algorithm: str,
    ranks: int,
    channels: int,
    chunks: int | None,
    orders: tuple[tuple[int, ...], ...],
) -> Schedule:
    algorithm = algorithm or algorithms(collective)[0]
    schedule = build_schedule(collective, algorithm, ranks, channels=channels, chunks=chunks)
    if algorithm == "direct" and ranks > 1:
        return both_ways(schedule)
    if orders:
        schedule = along(schedule, orders)
    one_pass = ranks > 1 and (collective, algorithm) == ("all_gather", "ring")
    return in_one_pass(schedule) if one_pass else schedule


def _as_run(system: System, run: Run) -> System:
    """The system with the run's constants in place of its own."""
    domain = system.domain
    payload, header = domain.packet_payload_bytes, domain.packet_header_bytes
    full = system.chip_bytes_per_s * payload / (payload + header)
    hops = wiring_of(domain).hops * domain.hop_latency_s
    memory = {"chip.hbm_bytes_per_s": NO_LIMIT * 1e9} if run.thread_rate == NO_LIMIT else {}
    return system.with_(
        **{
            **memory,
            "endpoint.launch_s": run.launch_us * 1e-6,
            "endpoint.copy_bytes_per_s": run.thread_rate * 1e9,
            "endpoint.reduce_bytes_per_s": run.add_rate * 1e9,
            "domain.link_efficiency": min(1.0, run.link_rate * 1e9 / full),
            f"protocol.{run.protocol}.step_latency_s": max(0.0, run.step_us * 1e-6 - hops),
        }
    )
