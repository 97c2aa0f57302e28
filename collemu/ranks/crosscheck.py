"""Compare real processes with the emulator: bytes of every rank, messages, and MPI's own collective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu import load_system
from collemu.collectives import REDUCTIONS, UNEVEN
from collemu.emulator import Result, emulate
from collemu.processes import SINGLE_CORE
from collemu.ranks.agreement import agree
from collemu.ranks.alone import Alone
from collemu.ranks.clock import Clock
from collemu.ranks.contributions import INTEGERS, VALUES
from collemu.ranks.differences import first_differing_byte
from collemu.ranks.execute import Spans
from collemu.ranks.message_log import SENT, Log, emulated_log, first_difference
from collemu.ranks.opinion import has_opinion, is_done_by_mpi, mpi_collective
from collemu.ranks.part import Communicator, Part, Run, Trial
from collemu.ranks.switch_memory import load_kernel
from collemu.ranks.times import Phase, Times, lagging, phases_of, times_of
from collemu.ranks.transport import Bytes
from collemu.ranks.watchdog import Watchdog
from collemu.recipe import Recipe
from collemu.schedule import Schedule, build_schedule


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
    real : Times
        What the processes took.
    mpi : Times or None
        What MPI's own collective took, where that was asked for and there is one.
    phases : tuple of Phase
        Where the time of a system of processes differs from that of these, the largest difference first; empty for
        other systems, which are no prediction of these processes.
    lagging : str or None
        Which rank the others wait for, and why one thinks so.
    mismatches : tuple of str
        What differs, by rank.
    """

    bytes_identical: bool
    messages: int
    messages_identical: bool
    mpi_identical: bool | None
    model_s: float
    real: Times
    mpi: Times | None
    phases: tuple[Phase, ...]
    lagging: str | None
    mismatches: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """How much longer the system of processes takes than these, as a share; None for other systems."""
        return self.model_s / self.real.median_s - 1 if self.phases and self.real.median_s else None

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.mismatches


def crosscheck(
    comm: Communicator,
    trial: Trial,
    repeats: int = 1,
    warmups: int = 0,
    *,
    watchdog: Watchdog | None = None,
    clock: Clock | None = None,
    against_mpi: bool = False,
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
    clock : Clock, optional
        Of these processes.
    against_mpi : bool
        Whether to time MPI's own collective too.

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
    clock = clock or Clock(comm)
    verdicts = [
        _crosscheck(comm, trial, fill, repeats, warmups, watchdog, clock, against_mpi and fill == VALUES)
        for fill in _fills(trial)
    ]
    return _merged([verdict for verdict in verdicts if verdict is not None])


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
    for wire, on in (("none", system), ("bfloat16", system), ("none", replace(system, processes=SINGLE_CORE))):
        crosscheck(Alone(), Trial(build_schedule("all_reduce", "ring", 1), on, count=1, recipe=Recipe(wire=wire)))


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

    moments: list[tuple[int, int]]  # begin and end of each run
    own_s: float  # in which it did not wait for others, at best
    sent: int
    output: str | None
    log: str | None
    opinion: str | None


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
        data=[trial.input(rank, fill) for rank in range(trial.schedule.ranks)],
        seed=trial.seed,
    )


def _crosscheck(
    comm: Communicator,
    trial: Trial,
    fill: str,
    repeats: int,
    warmups: int,
    watchdog: Watchdog,
    clock: Clock,
    against_mpi: bool,
) -> Verdict | None:
    schedule = trial.schedule
    part, result = agree(
        comm, lambda: (Part(trial, comm.rank, fill), _emulate(trial, fill) if comm.rank == 0 else None)
    )
    outputs = logs = None
    if result is not None and result.outputs is not None and result.timeline is not None:
        outputs = result.outputs
        logs = [emulated_log(result.timeline, rank, schedule) for rank in range(comm.size)]
    expected_output = _own_output(comm, schedule, outputs, part)
    expected_log: Log = comm.scatter(logs)

    counts = schedule.collective != "reduce" or comm.rank == schedule.root
    output = log = opinion = None
    runs: list[Run] = []
    for _ in range(warmups + repeats):
        runs.append(part.run(comm, clock, watchdog))
        log = log or first_difference(expected_log, runs[-1].log, schedule)
        if counts:
            output = output or part.difference(expected_output)
    theirs = None
    asked = _asks_mpi(trial, fill)
    timed = against_mpi and is_done_by_mpi(schedule.collective, trial.dtype, trial.op)
    if not isinstance(comm, Alone) and (asked or timed):
        call, given = mpi_collective(
            comm,
            schedule.collective,
            part.input,
            part.payload.dtype,
            op=trial.op,
            root=schedule.root,
            counts=schedule.counts,
        )
        theirs = [_timed(call, clock) for _ in range(warmups + repeats if timed else 1)]
        if asked and counts:
            opinion = first_differing_byte(given.view(np.uint8), part.output())

    sent = int(np.count_nonzero(runs[-1].log["direction"] == SENT))
    moments = [(run.begin_ns, run.end_ns) for run in runs[warmups:]]
    findings = comm.gather(_Finding(moments, min(run.own_s for run in runs), sent, output, log, opinion))
    everybodys = comm.gather(theirs[warmups:] if theirs and timed else None)
    seconds = _seconds([finding.moments for finding in findings]) if findings else []
    median: int = comm.bcast(int(np.argsort(seconds)[len(seconds) // 2]) if findings else 0)
    spans: list[Spans] | None = comm.gather(runs[warmups + median].spans)
    if findings is None or result is None:
        return None
    return _verdict(
        findings,
        asked=asked and theirs is not None,
        model_s=result.time_s,
        real=times_of(seconds),
        lagging=lagging([each.own_s for each in findings], _operations(schedule), times_of(seconds).median_s),
        mpi=times_of(_seconds(everybodys)) if everybodys and everybodys[0] else None,
        phases=phases_of(result.lowered.schedule, result, spans or []) if trial.system.processes else (),
    )


def _operations(schedule: Schedule) -> list[int]:
    """Of each rank."""
    return np.bincount(schedule.threads["rank"], schedule.threads["length"], schedule.ranks).astype(int).tolist()


def _timed(call: Callable[[], None], clock: Clock) -> tuple[int, int]:
    clock.start()
    begin = clock.now()
    call()
    return begin, clock.now()


def _seconds(moments: Sequence[Sequence[tuple[int, int]]]) -> list[float]:
    """Of each run from the first rank's begin to the last rank's end; ``moments`` are by rank, then by run."""
    return [(max(end for _, end in run) - min(begin for begin, _ in run)) / 1e9 for run in zip(*moments, strict=True)]


def _own_output(
    comm: Communicator, schedule: Schedule, outputs: "NDArray[Any] | list[NDArray[Any]] | None", part: Part
) -> Bytes:
    """What the emulator, which runs at the first process, has for this one."""
    if schedule.collective in UNEVEN:
        own: NDArray[Any] = comm.scatter(None if outputs is None else list(outputs))
        return own.view(np.uint8)
    expected = np.empty_like(part.output())
    comm.Scatter(None if outputs is None else np.asarray(outputs).view(np.uint8), expected)
    return expected


def _verdict(findings: Sequence[_Finding], *, asked: bool, **times: Any) -> Verdict:
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
        mismatches=tuple(mismatches),
        **times,
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
