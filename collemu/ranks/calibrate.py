"""Measure what processes of this machine spend: on operations, copies, sums, conversions and messages.

Everything is taken from what `execute` itself notes of small schedules, so that what is measured is what a cross-check
runs: a message to the next rank (sendrecv), and every term to everybody (one_shot all_reduce).
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from collemu import System, load_system
from collemu.dtypes import DTYPES, find_dtype
from collemu.lower import NONE
from collemu.number_formats import wire_formats
from collemu.payload import payload_of
from collemu.ranks.alone import Alone
from collemu.ranks.clock import Clock
from collemu.ranks.contributions import INTEGERS
from collemu.ranks.differences import first_differing_byte
from collemu.ranks.launch import cores, waits_asleep
from collemu.ranks.message_log import first_difference
from collemu.ranks.part import Communicator, Part, Run, Trial
from collemu.ranks.transport import Bytes
from collemu.recipe import Recipe
from collemu.schedule import KIND_NAMES, Schedule, build_schedule

if TYPE_CHECKING:
    from mpi4py import MPI

SIZES = tuple(2**power for power in (10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25))
SMALL_BYTES = 64  # whose copying costs nothing beside the operation
RATE_BYTES = 2**20  # at which rates of formats are measured
EAGER_LIMIT = 2**21  # beyond which nobody sends without being asked
EAGER_PATIENCE_S = 0.002
LEAST_PROCESSES = 2
Middle = Callable[[Sequence[float]], Any]  # median or mean
SEVERAL = 4  # messages one after the other
PASSES = 3
WARMUPS = 3
QUICK_REPEATS = 10  # times as many runs of what is over at once,
QUICK_BYTES = 2**20  # fewer up to here


class Spread(NamedTuple):
    """A number, a median where nothing else is said, and the quartiles."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measurements:
    """What was found; times in seconds, rates in bytes of memory a second.

    Attributes
    ----------
    processes, cores : int
        How many processes measured at once, and the machine's cores.
    launch_s, operation_s, send_s, notice_s, wake_s : Spread
    eager_bytes : int
    sizes_bytes : tuple of int
    copy_s, reduce_s, transfer_s : tuple of Spread
        At each size, beyond what an operation or a notice costs.
    encode_bytes_per_s, decode_bytes_per_s : mapping of wire formats to Spread
    reduce_bytes_per_s : mapping of dtypes to Spread
    """

    processes: int
    cores: int
    launch_s: Spread
    operation_s: Spread
    send_s: Spread
    notice_s: Spread
    wake_s: Spread
    eager_bytes: int
    sizes_bytes: tuple[int, ...]
    copy_s: tuple[Spread, ...]
    reduce_s: tuple[Spread, ...]
    transfer_s: tuple[Spread, ...]
    encode_bytes_per_s: dict[str, Spread]
    decode_bytes_per_s: dict[str, Spread]
    reduce_bytes_per_s: dict[str, Spread]


class _Fixed(NamedTuple):
    """Of the `Measurements` those that do not depend on sizes."""

    launch_s: Spread
    operation_s: Spread
    send_s: Spread
    notice_s: Spread
    wake_s: Spread


class _Probe(NamedTuple):
    """Something to run: a schedule with so many bytes of memory a rank."""

    schedule: Schedule
    nbytes: int
    wire: str = "none"
    dtype: str = "float32"

    def trial(self, system: System) -> Trial:
        """As processes run it."""
        count = self.nbytes // find_dtype(self.dtype).item_bytes
        return Trial(self.schedule, system, count, dtype=self.dtype, recipe=Recipe(wire=self.wire))


class _Seen:
    """Seconds that a probe spent, each time, over all ranks.

    Attributes
    ----------
    launch, first : list of float
        Until the first operation, and in it.
    of_kind : mapping of str to list of float
        In each of the others.
    notice, taken : list of float
        Waiting for what is no message; with a message, from its coming.
    woken : list of float
        With a message that one had waited for, from its coming.
    """

    def __init__(self) -> None:
        self.launch: list[float] = []
        self.first: list[float] = []
        self.of_kind: defaultdict[str, list[float]] = defaultdict(list)
        self.notice: list[float] = []
        self.taken: list[float] = []
        self.woken: list[float] = []

    @property
    def sums(self) -> list[float]:
        """In operations that add."""
        return [*self.of_kind["recv_reduce"], *self.of_kind["reduce"]]


def calibrate(
    comm: Communicator, *, largest: int = SIZES[-1], repeats: int = 15, step: Callable[[str], None] = lambda _: None
) -> Measurements | None:
    """Measure with as many processes as there are cores, at most all; the others rest meanwhile.

    If there are others, what does not depend on sizes is then measured with all: a process that gets a core back finds
    little in the caches, and those that wait look from time to time. Means, as it is now and then that this costs much.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of two processes or more; used for nothing else meanwhile.
    largest : int
        Bytes of the largest message.
    repeats : int
        Runs of each probe, over several passes; of small ones ten times as many.
    step : callable
        Told what is measured next.

    Returns
    -------
    Measurements or None
        At rank 0; None elsewhere.

    Raises
    ------
    ValueError
        With fewer processes.
    """
    if isinstance(comm, Alone) or comm.size < LEAST_PROCESSES:
        raise ValueError(f"{comm.size} process sends nothing: {LEAST_PROCESSES} or more are needed to measure messages")
    some = min(comm.size, max(2, cores()))
    active = comm.rank < some
    part = cast("MPI.Intracomm", comm.Split(0 if active else 1))
    sharing = comm.size > some
    found = woken = None
    if active:
        found = _Laboratory(part, repeats, step, asleep=waits_asleep() and not sharing).measure(largest)
        if sharing:
            woken = _Laboratory(part, repeats, step, asleep=True).measure_fixed(np.mean)
    _rest_until(comm)
    part.Free()
    if sharing:
        shared = _Laboratory(comm, repeats, step, asleep=True).measure_fixed(np.mean)
        if found and woken and shared:  # among all, who wakes must wait for a core: that is no part of it
            found = replace(found, processes=comm.size, **(shared._asdict() | {"wake_s": woken.wake_s}))
    return found


def _rest_until(comm: "MPI.Intracomm") -> None:
    """A barrier in which waiting takes no core from those who still measure."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


class _Laboratory:
    """Runs probes in all processes of a communicator and looks at what they spent."""

    def __init__(self, comm: "MPI.Intracomm", repeats: int, step: Callable[[str], None], asleep: bool) -> None:
        self._comm, self._repeats, self._step = comm, repeats, step
        self._clock = Clock(comm, asleep)
        self._system = load_system("trainium4_nvl72")  # for its FIFO slots alone

    def measure(self, largest: int) -> Measurements | None:
        """Run every probe in each of several passes, so that no moment decides any of them alone."""
        ranks = self._comm.size
        shift, exchange = self._shift(), build_schedule("all_reduce", "one_shot", ranks)
        sizes = tuple(size for size in SIZES if size <= max(largest, SIZES[0]))
        eager = _eager_bytes(self._comm)
        probes = self._fixed()
        for size in sizes:
            probes[f"message {size}"] = _Probe(shift, size)
            probes[f"sum {size}"] = _Probe(exchange, size)
        for name in _wires():
            probes[f"wire {name}"] = _Probe(shift, RATE_BYTES, wire=name)
        for name in DTYPES:
            probes[f"dtype {name}"] = _Probe(exchange, RATE_BYTES, dtype=name)
        seen = self._run(probes)
        return None if seen is None else _found(ranks, eager, sizes, seen)

    def measure_fixed(self, middle: Middle) -> "_Fixed | None":
        """The same of what does not depend on sizes."""
        seen = self._run(self._fixed())
        return None if seen is None else _fixed(seen, middle)

    def _fixed(self) -> dict[str, _Probe]:
        return {
            "small": _Probe(self._shift(), SMALL_BYTES),
            "several": _Probe(self._shift(chunks=SEVERAL), SEVERAL * SMALL_BYTES),
        }

    def _shift(self, chunks: int = 1) -> Schedule:
        """A message of each to the next, or some."""
        return build_schedule("sendrecv", "direct", self._comm.size, chunks=chunks)

    def _run(self, probes: dict[str, _Probe]) -> dict[str, _Seen] | None:
        """What they spent, at the first process; None elsewhere."""
        seen = {name: _Seen() for name in probes}
        for number in range(PASSES):
            for name, probe in probes.items():
                self._step(f"pass {number + 1} of {PASSES}: {name}")
                self._look(probe, seen[name])
        return None if self._comm.rank else seen

    def _look(self, probe: _Probe, into: _Seen) -> None:
        """Run a probe; the first process sees what all spent."""
        part = Part(probe.trial(self._system), self._comm.rank, INTEGERS)
        often = max(1, min(QUICK_REPEATS, QUICK_BYTES // probe.nbytes)) * -(-self._repeats // PASSES)
        runs: list[Run] = []
        first: Bytes | None = None
        for _ in range(WARMUPS + often):
            runs.append(part.run(self._comm, self._clock))
            # as a cross-check does between runs: what the next one finds in the caches is then the same
            first = part.output().copy() if first is None else first
            differs = first_difference(runs[0].log, runs[-1].log, probe.schedule)
            differs = differs or first_differing_byte(first, part.output())
            if differs:
                raise RuntimeError(f"two runs of {probe.schedule.algorithm} differ: {differs}")
        for together in zip(*(self._comm.gather(runs[WARMUPS:]) or []), strict=True):
            _note(probe.schedule, together, into)


def _found(ranks: int, eager: int, sizes: tuple[int, ...], seen: dict[str, _Seen]) -> Measurements:
    """What the numbers are, each less what belongs to others."""
    fixed = _fixed(seen)
    operation, send, notice = fixed.operation_s, fixed.send_s, fixed.notice_s
    cold = _cold(seen["small"], fixed)
    messages, sums = ([seen[f"{what} {size}"] for size in sizes] for what in ("message", "sum"))
    encode_s = {name: _spread(seen[f"wire {name}"].first, operation.value + send.value + cold) for name in _wires()}
    decode_s = {name: _spread(seen[f"wire {name}"].of_kind["recv"], operation.value) for name in _wires()}
    reduce_s = {name: _spread(seen[f"dtype {name}"].sums, operation.value) for name in DTYPES}
    return Measurements(
        processes=ranks,
        cores=cores(),
        **fixed._asdict(),
        eager_bytes=eager,
        sizes_bytes=sizes,
        copy_s=tuple(
            _spread([*message.of_kind["recv"], *a_sum.of_kind["copy"]], operation.value)
            for message, a_sum in zip(messages, sums, strict=True)
        ),
        reduce_s=tuple(_spread(each.sums, operation.value) for each in sums),
        transfer_s=tuple(_spread([*each.taken, *each.woken], notice.value) for each in messages),
        encode_bytes_per_s={name: _rate(RATE_BYTES, each) for name, each in encode_s.items()},
        decode_bytes_per_s={name: _rate(RATE_BYTES, each) for name, each in decode_s.items()},
        reduce_bytes_per_s={name: _rate(RATE_BYTES, each) for name, each in reduce_s.items()},
    )


def _fixed(seen: dict[str, _Seen], middle: Middle = np.median) -> "_Fixed":
    """What does not depend on sizes."""
    small, several = seen["small"], seen["several"]
    operation = _spread(several.of_kind["recv"], middle=middle)
    send = _spread(several.of_kind["send"], operation.value, middle=middle)
    notice = _spread(small.notice, middle=middle)
    plain = float(middle(small.taken or small.woken))
    wake = _spread(small.woken, plain, middle=middle) if small.woken else Spread(0.0, 0.0, 0.0)
    found = _Fixed(Spread(0.0, 0.0, 0.0), operation, send, notice, wake)
    return found._replace(launch_s=_spread(small.launch, -max(_cold(small, found), 0.0), middle=middle))


def _cold(small: _Seen, found: "_Fixed") -> float:
    """What a first operation takes more, as it finds nothing in the caches."""
    return statistics.median(small.first) - found.operation_s.value - found.send_s.value


def _note(schedule: Schedule, together: Sequence[Run], seen: _Seen) -> None:
    """Add what all ranks did in one run. A span lasts until the next begins: what lies between is its own."""
    kinds = schedule.ops["kind"]
    ends = {int(span["operation"]): int(span["end_ns"]) for run in together for span in run.spans}
    for rank, run in enumerate(together):
        following = [*run.spans["begin_ns"][1:].tolist(), run.end_ns]
        before = (rank - 1) % len(together)
        come = max((ends[op] for op in _sends(schedule, before)), default=0)
        for place, (span, after) in enumerate(zip(run.spans.tolist(), following, strict=True)):
            operation, begin, _, nbytes = span
            seconds = (after - begin) / 1e9
            if place == 0:
                seen.launch.append((begin - run.begin_ns) / 1e9)
                seen.first.append(seconds)
            elif operation != NONE:
                seen.of_kind[KIND_NAMES[kinds[operation]]].append(seconds)
            elif nbytes == 0:
                seen.notice.append(seconds)
            elif schedule.collective == "sendrecv":
                (seen.woken if begin < come else seen.taken).append((after - max(begin, come)) / 1e9)


def _wires() -> list[str]:
    """The wire formats that carry any number."""
    able: list[str] = []
    for name in wire_formats():
        try:
            payload_of("sendrecv", "float32", Recipe(wire=name), "sum")
        except ValueError:
            continue  # float8_e8m0fnu has no zero
        able.append(name)
    return able


def _sends(schedule: Schedule, rank: int) -> Iterable[int]:
    sends = np.flatnonzero(schedule.ops["kind"] == KIND_NAMES.index("send"))
    return (int(op) for op in sends if schedule.threads["rank"][schedule.thread_of_op[op]] == rank)


def _spread(seconds: Sequence[float], less: float = 0.0, middle: Middle = np.median) -> Spread:
    """Middle and quartiles of times, less what belongs to something else."""
    value, low, high = (max(0.0, float(each) - less) for each in (middle(seconds), *np.percentile(seconds, (25, 75))))
    return Spread(value, low, high)


def _rate(nbytes: int, seconds: Spread) -> Spread:
    slow, median, quick = (nbytes / max(each, 1e-9) for each in (seconds.high, seconds.value, seconds.low))
    return Spread(median, slow, quick)


def _eager_bytes(comm: "MPI.Intracomm") -> int:
    """Bytes up to which a message leaves its sender though nobody takes it, in powers of two."""
    most = 0
    size = 256
    while size <= EAGER_LIMIT:
        buffer = np.zeros(size, np.uint8)
        comm.Barrier()
        gone = np.ones(1, np.int32)
        if comm.rank == 0:
            request = comm.Isend(buffer, 1)
            until = time.perf_counter() + EAGER_PATIENCE_S
            gone[0] = 0
            while not gone[0] and time.perf_counter() < until:
                gone[0] = request.Test()
            comm.Barrier()
            request.Wait()
        else:
            comm.Barrier()
            if comm.rank == 1:
                comm.Recv(buffer, 0)
        comm.Bcast(gone)
        if not gone[0]:
            break
        most = size
        size *= 2
    return most
