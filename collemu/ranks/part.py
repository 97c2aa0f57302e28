"""One process's part of a collective that is run for real: its input, its memory, its operations, over and over."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collemu import System
from collemu.dtypes import find_dtype
from collemu.lower import NONE, lower
from collemu.memory import build_memory
from collemu.payload import Payload, payload_of
from collemu.ranks.alone import Alone
from collemu.ranks.clock import Clock
from collemu.ranks.contributions import contribution
from collemu.ranks.differences import first_differing_byte, written_by
from collemu.ranks.execute import Execution, Spans, execute
from collemu.ranks.message_log import Log
from collemu.ranks.transport import Bytes, open_transport
from collemu.ranks.watchdog import Watchdog
from collemu.recipe import Recipe, requantised
from collemu.rows import input_rows, input_size
from collemu.schedule import IN_SWITCH, Schedule

if TYPE_CHECKING:
    from mpi4py import MPI

Communicator: TypeAlias = "MPI.Intracomm | Alone"


@dataclass(frozen=True)
class Trial:
    """A collective to run, and to emulate.

    Attributes
    ----------
    schedule : Schedule
        For as many ranks as there are processes.
    system : System
        What the emulator runs it on.
    count : int
        Elements a rank, as the collective counts them; of an alltoallv, of the largest buffer.
    dtype, op : str
    recipe : Recipe
    protocol, fidelity : str
    not_finite : bool
        Whether the input has NaN and infinities.
    data : array or list of arrays, optional
        What each rank contributes, as `collemu.emulate` takes it, in place of made-up numbers.
    seed : int
        Decides in which order switches add.
    """

    schedule: Schedule
    system: System
    count: int
    dtype: str = "float32"
    op: str = "sum"
    recipe: Recipe = Recipe()  # noqa: RUF009 (it is frozen)
    protocol: str = "auto"
    fidelity: str = "auto"
    not_finite: bool = False
    data: Any = None
    seed: int = 0

    @property
    def payload(self) -> Payload:
        """What it carries."""
        return payload_of(self.schedule.collective, self.dtype, self.recipe, self.op)

    def input(self, rank: int, fill: str) -> NDArray[Any]:
        """What a rank contributes: its data, or what `contribution` makes up."""
        dtype = find_dtype(self.dtype)
        if self.data is not None:
            return input_rows(self.data, self.schedule, self.count, dtype)[rank]
        elements = input_size(self.schedule, self.count, rank)
        return contribution(dtype, elements, rank, op=self.op, fill=fill, not_finite=self.not_finite)


class Run(NamedTuple):
    """What one process saw of a run; moments are those of the common clock, in nanoseconds."""

    begin_ns: int
    end_ns: int
    log: Log
    spans: Spans

    @property
    def own_s(self) -> float:
        """Seconds in which it did not wait for others."""
        waits = self.spans[self.spans["operation"] == NONE]
        return (self.end_ns - self.begin_ns - int((waits["end_ns"] - waits["begin_ns"]).sum())) / 1e9


class Part:
    """One rank's part of a trial. It can be run again and again.

    Parameters
    ----------
    trial : Trial
    rank : int
    fill : str
        Of the input, as `contribution` takes it.
    """

    def __init__(self, trial: Trial, rank: int, fill: str) -> None:
        self.rank = rank
        self.slots = trial.system.endpoint.fifo_slots
        self.payload = trial.payload
        self.lowered = lower(
            requantised(trial.schedule, trial.recipe),
            trial.count,
            item_bytes=self.payload.held.item_bytes,
            wire=self.payload.wire,
        )
        self.memory = build_memory(self.lowered, self.payload, ranks=[rank], slots=self.slots, seed=trial.seed)
        self.input = trial.input(rank, fill)

    def run(self, comm: Communicator, clock: Clock, watchdog: Watchdog | None = None) -> Run:
        """Run it once, together with the other processes."""
        watchdog = watchdog or Watchdog(comm, None)
        plane = self.memory.plane
        plane.memory[:] = 0
        plane.wire_bytes[:] = 0  # what an earlier run has left must not be taken for what this one sends
        plane.image_known[:] = 0
        self.memory.write_input(self.rank, self.input)
        execution = Execution(self.lowered, plane, self.rank, self.slots)
        in_switch = IN_SWITCH[self.lowered.schedule.ops["kind"]].any()
        memory = plane.memory if in_switch else None
        transport = open_transport(comm, execution.places, memory, asleep=clock.asleep)
        clock.start()
        begin = clock.now()
        watchdog.begin(execution.tell)
        execute(execution, transport, watchdog.beat)
        watchdog.end()
        end = clock.now()
        transport.close()  # not after an error: the others may never come to it
        spans = execution.spans()
        for column in ("begin_ns", "end_ns"):
            spans[column] += clock.offset_ns
        return Run(begin, end, execution.log(), spans)

    def output(self) -> Bytes:
        """The bytes of the output buffer."""
        return self.memory.read_output(self.rank).view(np.uint8)

    def difference(self, expected: Bytes) -> str | None:
        """Where the output is not what is expected, and who wrote it there, or None."""
        output = self.output()
        text = first_differing_byte(expected, output)
        if text is None or len(expected) != len(output):
            return text
        element = int(np.flatnonzero(expected != output)[0]) // self.payload.dtype.item_bytes
        return f"{text}, in {written_by(self.lowered, self.rank, element)}"
