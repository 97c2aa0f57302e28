"""Assertions about schedules: that real processes do what the emulator says, and that the result is right."""

import hashlib
from typing import Any

import numpy as np

from collemu.arguments import instance_of
from collemu.catalogue import System, load_system
from collemu.check import check
from collemu.emulator import chosen_recipe
from collemu.ranks.agreement import AgreedError, agree
from collemu.ranks.alone import Alone
from collemu.ranks.crosscheck import Verdict, crosscheck, load_kernels
from collemu.ranks.part import Communicator, Trial
from collemu.recipe import Recipe
from collemu.rows import settled_count
from collemu.schedule import Schedule, ScheduleError
from collemu.verification import verify

SYSTEM = "trainium4_nvl72"

_loaded: set[str] = set()  # "kernels", once this process has them


def assert_same_bytes(
    schedule: Schedule,
    comm: Communicator,
    *,
    count: int | None = None,
    dtype: str = "float32",
    op: str = "sum",
    recipe: Recipe | str | None = None,
    wire: str | None = None,
    system: System | str = SYSTEM,
    data: Any = None,
    protocol: str = "auto",
    fidelity: str = "auto",
    seed: int = 0,
) -> Verdict:
    """Have all processes run a schedule, a rank each, and compare with the emulator: output bytes and messages.

    The schedule is proved first, so that no process waits for what never comes; where MPI's own collective must give
    the same bytes, it is asked too. All processes call this with the same arguments.

    Parameters
    ----------
    schedule : Schedule
        For as many ranks as there are processes.
    comm : communicator
        The fixture ``comm``, or an MPI.Intracomm of all processes; `collemu.ranks.alone.Alone` for a single rank.
    count, dtype, op, recipe, wire, system, data, protocol, fidelity, seed
        As `collemu.emulate` takes them; a system by its name, too. Without data there are hard values made for it.

    Returns
    -------
    Verdict
        Times and numbers of messages.

    Raises
    ------
    AssertionError
        At all processes alike, if the proof fails or anything differs: ranks, first differing bytes, the operations and
        messages that wrote them; and messages that are not the emulator's.
    ValueError
        At all processes alike, for arguments that do not go together, and if processes call it with different ones.
    """
    __tracebackhide__ = True
    trial = agree(
        comm,
        lambda: Trial(
            schedule=_for_ranks(schedule, comm.size),
            system=_system(system),
            count=settled_count(schedule, count),
            dtype=dtype,
            op=op,
            recipe=chosen_recipe(recipe, wire),
            protocol=protocol,
            fidelity=fidelity,
            data=data,
            seed=seed,
        ),
    )
    _agree_on_arguments(comm, trial)
    try:
        agree(comm, lambda: verify(schedule, trial.system.endpoint.fifo_slots))
    except AgreedError as error:
        raise AssertionError(f"{_named(schedule)}: {error}") from None
    if not _loaded and not isinstance(comm, Alone):
        load_kernels(comm)
        _loaded.add("kernels")
    verdict: Verdict = comm.bcast(crosscheck(comm, trial))
    if not verdict.identical:
        text = f"{_named(schedule)}, count {trial.count}, {dtype}, {trial.recipe}: processes and emulator differ"
        raise AssertionError("\n".join([text, *verdict.mismatches]))
    return verdict


def assert_correct(
    schedule: Schedule,
    *,
    count: int | None = None,
    dtype: str = "float32",
    op: str = "sum",
    recipe: Recipe | str | None = None,
    wire: str | None = None,
    system: System | str = SYSTEM,
    protocol: str = "auto",
    fidelity: str = "auto",
) -> None:
    """Prove a schedule, and run it in the emulator on data whose result is exact; in one process.

    Parameters
    ----------
    schedule : Schedule
    count : int, optional
        Left out, several: none, one, as many as a region has chunks, one more.
    dtype, op, recipe, wire, system, protocol, fidelity
        As `collemu.emulate` takes them; a system by its name, too.

    Raises
    ------
    AssertionError
        If the proof fails, for a deadlock or a race, or elements come out wrong.
    ValueError
        For arguments that do not go together.
    """
    __tracebackhide__ = True
    machine, numbers = _system(system), chosen_recipe(recipe, wire)
    try:
        report = verify(schedule, machine.endpoint.fifo_slots)
    except ScheduleError as error:
        raise AssertionError(f"{_named(schedule)}: {error}") from None
    chunks = schedule.region_chunks
    several = (0, 1, chunks, chunks + 1) if report.any_count else (0, chunks, 2 * chunks)
    for each in dict.fromkeys(several) if count is None and schedule.counts is None else (count,):
        found = check(
            schedule,
            machine,
            count=each,
            dtype=dtype,
            op=op,
            recipe=numbers,
            protocol=protocol,
            fidelity=fidelity,
            full=True,
        )
        if found.wrong:
            what = f"{_named(schedule)}, count {found.count}, {dtype} {op}, {numbers}"
            raise AssertionError(f"{what}: {found.wrong} of {found.elements} elements are wrong")


def _system(given: System | str) -> System:
    return load_system(given) if isinstance(given, str) else given


def _for_ranks(schedule: Schedule, processes: int) -> Schedule:
    instance_of(schedule, Schedule, "assert_same_bytes: schedule", "build_schedule makes one")
    if schedule.ranks != processes:
        raise ValueError(f"{_named(schedule)}, but there are {processes} processes; make it for ranks=comm.size")
    return schedule


def _named(schedule: Schedule) -> str:
    return f"{schedule.collective} {schedule.algorithm} of {schedule.ranks} ranks"


def _agree_on_arguments(comm: Communicator, trial: Trial) -> None:
    """Refuse a call whose arguments differ by process: the processes would wait for each other for ever."""
    schedule = trial.schedule
    parts = {
        "schedule": (schedule, schedule.threads.tobytes(), schedule.ops.tobytes(), repr(schedule.counts)),
        "system": (trial.system.fingerprint,),
        "count": (trial.count,),
        "dtype, op, recipe": (trial.dtype, trial.op, trial.recipe),
        "protocol, fidelity, seed": (trial.protocol, trial.fidelity, trial.seed),
        "data": tuple(np.asarray(row).tobytes() for row in (() if trial.data is None else trial.data)),
    }
    own = {name: hashlib.sha256(repr(part).encode()).hexdigest() for name, part in parts.items()}
    everybody = comm.allgather(own)
    for rank, theirs in enumerate(everybody):
        for name, digest in theirs.items():
            if digest != everybody[0][name]:
                raise AgreedError(
                    f"assert_same_bytes: rank {rank} has another {name} than rank 0; use given_on_all_ranks for "
                    f"examples that all share"
                )
