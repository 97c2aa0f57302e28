"""Compare real processes with the emulator: bytes of every rank, messages, and MPI's own collective."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from collemu_kernels._jit import source_fingerprint
from numpy.typing import NDArray

from collemu import System, __version__, load_system
from collemu import __file__ as collemu_file
from collemu.collectives import REDUCTIONS, UNEVEN
from collemu.dtypes import find_dtype
from collemu.emulator import Result, emulate
from collemu.lower import lower
from collemu.memory import build_memory
from collemu.payload import Payload, payload_of
from collemu.ranks.alone import Alone
from collemu.ranks.contributions import INTEGERS, VALUES, contribution
from collemu.ranks.differences import first_differing_byte, written_by
from collemu.ranks.execute import Execution, execute
from collemu.ranks.message_log import SENT, Log, emulated_log, first_difference
from collemu.ranks.opinion import has_opinion, mpi_output
from collemu.ranks.switch_memory import load_kernel
from collemu.ranks.transport import Bytes, open_transport
from collemu.ranks.watchdog import Watchdog
from collemu.recipe import Recipe, requantised
from collemu.rows import input_rows, input_size
from collemu.schedule import IN_SWITCH, Schedule, build_schedule

if TYPE_CHECKING:
    from mpi4py import MPI

Communicator: TypeAlias = "MPI.Intracomm | Alone"
Done = TypeVar("Done")


class AgreedError(ValueError):
    """Bad input that every process has found or been told of, so that all can leave in peace."""


@dataclass(frozen=True)
class Trial:
    """A collective to cross-check.

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


@dataclass(frozen=True)
class Verdict:
    """What came of a trial.

    Attributes
    ----------
    bytes_identical : bool
        Whether every rank's output is the emulator's.
    messages : int
        Messages that the processes sent.
    messages_identical : bool
    mpi_identical : bool or None
        Whether both agree with MPI's own collective; None where it has nothing to compare.
    model_s : float
        Time on the emulated system, in seconds.
    real_s : float
        Time of the slowest process here: the median of the repeats, in seconds.
    mismatches : tuple of str
        What differs, by rank.
    """

    bytes_identical: bool
    messages: int
    messages_identical: bool
    mpi_identical: bool | None
    model_s: float
    real_s: float
    mismatches: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches


def crosscheck(
    comm: Communicator, trial: Trial, repeats: int = 1, warmups: int = 0, watchdog: Watchdog | None = None
) -> Verdict | None:
    """Run a collective in the processes of a communicator, one rank each, and in the emulator, and compare.

    All processes call it with the same arguments.

    Parameters
    ----------
    comm : MPI.Intracomm or Alone
        Used for nothing else meanwhile.
    trial : Trial
    repeats, warmups : int
        Runs that are timed, and runs before them that are not; all are compared.
    watchdog : Watchdog, optional
        Of these processes; it must have been entered.

    Returns
    -------
    Verdict or None
        The verdict at rank 0, None elsewhere.

    Raises
    ------
    AgreedError
        At every process alike, if the emulator or the processes cannot run the trial.
    """
    watchdog = watchdog or Watchdog(comm, None)
    verdicts = [_crosscheck(comm, trial, fill, repeats, warmups, watchdog) for fill in _fills(trial)]
    return _merged([verdict for verdict in verdicts if verdict is not None])


def agree(comm: Communicator, work: Callable[[], Done]) -> Done:
    """Do local work that may find bad input; if it does in any process, all raise it.

    Raises
    ------
    AgreedError
        The first fault, by rank.
    """
    done: list[Done] = []
    fault = None
    try:
        done.append(work())
    except (ValueError, OSError) as error:
        fault = str(error) or type(error).__name__
    for each in comm.allgather(fault):
        if each is not None:
            raise AgreedError(each)
    return done[0]


def agree_on_start(comm: Communicator, words: Sequence[str]) -> None:
    """Check that every process was started with the same words and runs the same sources.

    Raises
    ------
    AgreedError
        With what the first process has, and the first that has something else.
    """
    everybody = comm.allgather((" ".join(words), f"collemu {__version__}", f"sources {_fingerprint()}"))
    for rank, each in enumerate(everybody):
        for mine, theirs in zip(everybody[0], each, strict=True):
            if mine != theirs:
                raise AgreedError(f"all ranks must run the same: rank 0 has '{mine}', rank {rank} has '{theirs}'")


def _fingerprint() -> str:
    """Of the package's sources and the catalogue, and of the kernels."""
    package = Path(collemu_file).parent
    digest = sha256(source_fingerprint().encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".toml")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def load_kernels(comm: Communicator) -> None:
    """Compile the kernels once: the other processes wait, and load what the first has left in the cache."""
    if comm.rank == 0:
        _run_alone()
    comm.Barrier()
    if comm.rank != 0:
        _run_alone()
    comm.Barrier()


def _run_alone() -> None:
    load_kernel()
    system = load_system("trainium4_nvl72")
    for wire in ("none", "bfloat16"):
        crosscheck(Alone(), Trial(build_schedule("all_reduce", "ring", 1), system, count=1, recipe=Recipe(wire=wire)))


def _fills(trial: Trial) -> tuple[str, ...]:
    """What to fill the input with: hard values, and small integers where those make MPI's reduction exact."""
    if trial.data is not None:
        return (VALUES,)
    return (VALUES, INTEGERS) if _asks_mpi(trial, INTEGERS) and not _asks_mpi(trial, VALUES) else (VALUES,)


def _asks_mpi(trial: Trial, fill: str) -> bool:
    collective = trial.schedule.collective
    exact = fill == INTEGERS or collective not in REDUCTIONS
    return exact and has_opinion(collective, trial.dtype, trial.op, trial.recipe)


@dataclass(frozen=True)
class _Finding:
    """What one rank found in a trial."""

    seconds: float
    sent: int
    output: str | None
    log: str | None
    opinion: str | None


class _Part:
    """One rank's part of a trial: its input, its memory, its operations."""

    def __init__(self, trial: Trial, rank: int, fill: str) -> None:
        self.rank = rank
        self.slots = trial.system.endpoint.fifo_slots
        self.payload = _payload(trial)
        self.lowered = lower(
            requantised(trial.schedule, trial.recipe),
            trial.count,
            item_bytes=self.payload.held.item_bytes,
            wire=self.payload.wire,
        )
        self.memory = build_memory(self.lowered, self.payload, ranks=[rank], slots=self.slots, seed=trial.seed)
        self.input = _input(trial, rank, fill)

    def run(self, comm: Communicator, watchdog: Watchdog) -> tuple[float, Log]:
        """Run it once, together with the other processes; returns seconds and the log."""
        plane = self.memory.plane
        plane.memory[:] = 0
        plane.image_known[:] = 0
        self.memory.write_input(self.rank, self.input)
        execution = Execution(self.lowered, plane, self.rank, self.slots)
        in_switch = IN_SWITCH[self.lowered.schedule.ops["kind"]].any()
        transport = open_transport(comm, execution.places, plane.memory if in_switch else None)
        comm.Barrier()
        begin = perf_counter()
        watchdog.begin(execution.tell)
        execute(execution, transport, watchdog.beat)
        watchdog.end()
        seconds = perf_counter() - begin
        transport.close()  # not after an error: the others may never come to it
        return seconds, execution.log()

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


def _payload(trial: Trial) -> Payload:
    return payload_of(trial.schedule.collective, trial.dtype, trial.recipe, trial.op)


def _input(trial: Trial, rank: int, fill: str) -> NDArray[Any]:
    if trial.data is not None:
        return input_rows(trial.data, trial.schedule, trial.count, find_dtype(trial.dtype))[rank]
    elements = input_size(trial.schedule, trial.count, rank)
    return contribution(find_dtype(trial.dtype), elements, rank, op=trial.op, fill=fill, not_finite=trial.not_finite)


def _emulate(trial: Trial, fill: str) -> Result:
    return emulate(
        trial.schedule,
        trial.system,
        count=trial.count,
        dtype=trial.dtype,
        op=trial.op,
        recipe=trial.recipe,
        protocol=trial.protocol,
        fidelity=trial.fidelity,
        data=[_input(trial, rank, fill) for rank in range(trial.schedule.ranks)],
        seed=trial.seed,
    )


def _crosscheck(
    comm: Communicator, trial: Trial, fill: str, repeats: int, warmups: int, watchdog: Watchdog
) -> Verdict | None:
    schedule = trial.schedule
    part, result = agree(
        comm, lambda: (_Part(trial, comm.rank, fill), _emulate(trial, fill) if comm.rank == 0 else None)
    )
    outputs = logs = None
    if result is not None and result.outputs is not None and result.timeline is not None:
        outputs = result.outputs
        logs = [emulated_log(result.timeline, rank, schedule) for rank in range(comm.size)]
    expected_output = _own_output(comm, schedule, outputs, part)
    expected_log: Log = comm.scatter(logs)

    counts = schedule.collective != "reduce" or comm.rank == schedule.root
    output = log = opinion = None
    times: list[float] = []
    sent = 0
    for _ in range(warmups + repeats):
        seconds, seen = part.run(comm, watchdog)
        times.append(seconds)
        sent = int(np.count_nonzero(seen["direction"] == SENT))
        log = log or first_difference(expected_log, seen, schedule)
        if counts:
            output = output or part.difference(expected_output)
    asked = False
    if not isinstance(comm, Alone) and _asks_mpi(trial, fill):
        asked = True
        dtype, root = part.payload.dtype, schedule.root
        theirs = mpi_output(
            comm, schedule.collective, part.input, dtype, op=trial.op, root=root, counts=schedule.counts
        )
        opinion = first_differing_byte(theirs.view(np.uint8), part.output()) if counts else None

    findings = comm.gather(_Finding(statistics.median(times[warmups:]), sent, output, log, opinion))
    if findings is None or result is None:
        return None
    return _verdict(findings, result.time_s, asked)


def _own_output(
    comm: Communicator, schedule: Schedule, outputs: "NDArray[Any] | list[NDArray[Any]] | None", part: _Part
) -> Bytes:
    """What the emulator, which runs at the first process, has for this one."""
    if schedule.collective in UNEVEN:
        own: NDArray[Any] = comm.scatter(None if outputs is None else list(outputs))
        return own.view(np.uint8)
    expected = np.empty_like(part.output())
    comm.Scatter(None if outputs is None else np.asarray(outputs).view(np.uint8), expected)
    return expected


def _verdict(findings: Sequence[_Finding], model_s: float, asked: bool) -> Verdict:
    mismatches: list[str] = []
    for rank, finding in enumerate(findings):
        for subject, difference in (
            ("output", finding.output),
            ("messages", finding.log),
            ("output against MPI's own collective", finding.opinion),
        ):
            if difference is not None:
                mismatches.append(f"rank {rank} {subject}: {difference}")
    return Verdict(
        bytes_identical=all(finding.output is None for finding in findings),
        messages=sum(finding.sent for finding in findings),
        messages_identical=all(finding.log is None for finding in findings),
        mpi_identical=all(finding.opinion is None for finding in findings) if asked else None,
        model_s=model_s,
        real_s=max(finding.seconds for finding in findings),
        mismatches=tuple(mismatches),
    )


def _merged(verdicts: Sequence[Verdict]) -> Verdict | None:
    """One verdict on a trial that ran with several fills; times are those of the first."""
    if not verdicts:
        return None
    opinions = [verdict.mpi_identical for verdict in verdicts if verdict.mpi_identical is not None]
    return replace(
        verdicts[0],
        bytes_identical=all(verdict.bytes_identical for verdict in verdicts),
        messages_identical=all(verdict.messages_identical for verdict in verdicts),
        mpi_identical=all(opinions) if opinions else None,
        mismatches=tuple(mismatch for verdict in verdicts for mismatch in verdict.mismatches),
    )
