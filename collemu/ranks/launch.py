"""Where a process stands: under mpirun or not, with which MPI; and how to start processes of our own."""

import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from textwrap import shorten
from time import sleep
from typing import TYPE_CHECKING, Any

from collemu.ranks.alone import Alone

if TYPE_CHECKING:
    from mpi4py import MPI

# What launchers tell each process: number of processes, the process's own number, processes on this machine.
OPEN_MPI_SIZE = "OMPI_COMM_WORLD_SIZE"
PMIX_RANK = "PMIX_RANK"
# Slurm's come last: mpirun may start its own daemons with srun, which hand theirs down. A batch script is process 0 of
# SLURM_NTASKS, but alone: only srun sets the number of a step.
SRUN_SIZE, SLURM_RANK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
SIZE_NAMES = ("PMI_SIZE", OPEN_MPI_SIZE, "MV2_COMM_WORLD_SIZE", SRUN_SIZE)
RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", PMIX_RANK, SLURM_RANK)
LOCAL_SIZE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", *SIZE_NAMES)

# MPICH's, and Open MPI's: docs/mpi.md has what was measured with and without.
WAIT_ASLEEP = "MPIR_CVAR_ENABLE_HEAVY_YIELD"
WAIT_YIELDING = "OMPI_MCA_mpi_yield_when_idle"
OPEN_MPI_WINDOWS = "OMPI_MCA_osc"
FIRST_SPEAKS_S = 5.0  # processes start one after another where there are more than cores
INSTALL = 'pip install "collemu[mpich]"'


def under_mpirun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process."""
    return any(name in environment for name in (*SIZE_NAMES, *RANK_NAMES) if name != SLURM_RANK)


def launched_alone(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process surely is the only one, before MPI starts."""
    return not under_mpirun(environment) or launched_size(environment) == 1


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The process's own number as its launcher says, before MPI starts; 0 without a launcher."""
    return _number(environment, RANK_NAMES, 0)


def launched_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """Number of processes as the launcher says, before MPI starts; None where it does not say."""
    return _number(environment, SIZE_NAMES, None)


def short_of_cores(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether there are more processes on this machine than cores."""
    return _number(environment, LOCAL_SIZE_NAMES, 1) > cores()


def waits_asleep(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process that waits is to leave its core to others, as the `settings` or the user say."""
    return environment.get(WAIT_ASLEEP) == "1" or short_of_cores(environment)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the MPI libraries are told through the environment before they start; what is set there stays.

    Where there are more processes than cores, MPICH is to sleep while it waits, and Open MPI to yield: otherwise a
    waiting process keeps a core for milliseconds from the one that it waits for. Open MPI is to do without windows over
    UCX, which complain on stderr wherever there is no network for them.
    """
    chosen = {OPEN_MPI_WINDOWS: "^ucx"}
    if short_of_cores(environment):
        chosen |= {WAIT_ASLEEP: "1", WAIT_YIELDING: "1"}
    return {name: environment.get(name, value) for name, value in chosen.items()}


def settings_of(library: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of the `settings` that are for the library of this name."""
    open_mpi = "Open MPI" in library
    return {name: value for name, value in settings(environment).items() if name.startswith("OMPI_") == open_mpi}


def start_mpi(environment: Mapping[str, str] = os.environ) -> "MPI.Intracomm":
    """Start MPI, with the `settings` of this launch, and return a communicator of all processes, for nobody else.

    Raises
    ------
    ValueError
        If MPI is not installed, or does not join the processes: it belongs to another launcher than the one that
        started them.
    """
    os.environ.update(settings(environment))
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)  # under a foreign launcher, starting would end the process
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = shorten(str(error), 300, placeholder=" ...") or type(error).__name__
        raise ValueError(f"cannot load MPI ({reason}); install it with: {INSTALL}") from None
    foreign = not _can_join(environment, MPI.Get_library_version())
    if not MPI.Is_initialized() and not foreign:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a foreign launcher: said below in our words
            MPI.Init_thread(MPI.THREAD_MULTIPLE)  # at lower levels MPICH does not sleep
    started, seen = launched_size(environment), 1 if foreign else MPI.COMM_WORLD.size
    joined = seen == started if started else seen > 1 or not under_mpirun(environment)
    if foreign or not joined:
        raise ValueError(_not_joined(environment, seen))
    return MPI.COMM_WORLD.Dup()


def _can_join(environment: Mapping[str, str], version: str) -> bool:
    """Whether a library of this version may understand its launcher; one that does not may end the process."""
    if "Open MPI" in version:
        return True
    pmix = PMIX_RANK in environment and "PMI_RANK" not in environment
    return OPEN_MPI_SIZE not in environment and not (pmix and "configure:" in version and "pmix" not in version)


def _not_joined(environment: Mapping[str, str], seen: int) -> str:
    """What to say where a launcher started other processes than MPI sees."""
    started = launched_size(environment)
    loaded = _loaded_library()
    mpirun = _mpirun_beside() or f"the mpirun of {loaded}"
    what = f"started {started or 'several'} processes, but each sees {seen}"
    if started is not None and environment.get(SRUN_SIZE) == str(started):
        how = "pmix" if "Open MPI" in loaded else "pmi2"
        return f"srun {what}, as it did not join them for {loaded}; start with srun --mpi={how}, or with {mpirun}"
    return f"mpirun {what}: mpirun belongs to another MPI than the one that is loaded, {loaded}; start with {mpirun}"


def library(comm: "MPI.Intracomm | Alone") -> str:
    """Name and version of the MPI library that carries a communicator."""
    return "no MPI" if isinstance(comm, Alone) else _loaded_library()


def _loaded_library() -> str:
    from mpi4py import MPI

    words = MPI.Get_library_version().replace("\0", "").replace(",", "\n").split("\n")[0].split()
    return " ".join(word for word in words if word not in ("Version:", "version:"))


def abort(comm: "MPI.Intracomm | Alone", reason: str, code: int = 1) -> None:
    """End all processes, as the others may wait for this one for ever. Returns only where there are no others.

    What goes wrong in all processes is said by the first that can: the others give it time to end them.
    """
    if isinstance(comm, Alone):
        return
    sleep(min(0.3 * comm.rank, 2.0))
    print(reason, file=sys.stderr, flush=True)
    sys.stdout.flush()
    comm.Abort(code)


def let_first_speak(environment: Mapping[str, str] = os.environ) -> None:
    """Wait, before a process leaves with a fault that all have found and only the first says, until that has been said.

    Open MPI's mpirun ends all when one leaves with an error: this one too, as soon as the first has. Once MPI has
    started nobody leaves before all come to its end, and other launchers let everybody finish.
    """
    loaded = sys.modules.get("mpi4py.MPI")
    if OPEN_MPI_SIZE in environment and launched_rank(environment) and not (loaded and loaded.Is_initialized()):
        sleep(FIRST_SPEAKS_S)


def fault_text(error: BaseException) -> str:
    """What a process failed of and where, as its notes say, on one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    parts = [": ".join(filter(None, (type(error).__name__, str(error)))), *getattr(error, "__notes__", ())]
    return " ".join(", ".join(parts).split())


def mpirun_here() -> Path | None:
    """The mpirun beside this interpreter, else the first on PATH; None if there is neither."""
    found = _mpirun_beside() or which("mpirun")
    return Path(found) if found else None


def _mpirun_beside() -> Path | None:
    beside = Path(sys.executable).parent / "mpirun"
    return beside if beside.exists() else None


def run_under_mpi(ranks: int, arguments: Sequence[str], timeout: float = 120.0) -> "subprocess.CompletedProcess[str]":
    """Run ``python ARGUMENTS`` in a number of MPI processes and wait for them.

    Parameters
    ----------
    ranks : int
        Processes; they may be more than there are cores.
    arguments : sequence of str
        For the interpreter, such as ``["-m", "collemu", "crosscheck", "all_reduce"]``.
    timeout : float
        Seconds after which all processes are ended.

    Returns
    -------
    subprocess.CompletedProcess
        With stdout and stderr as text.

    Raises
    ------
    ValueError
        If there is no mpirun.
    subprocess.TimeoutExpired
    """
    process = start_under_mpi(ranks, arguments, timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # the launcher has the same time-out; waiting a little longer is for a launcher that hangs
        said = process.communicate(timeout=timeout + 5)
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher passes it on to its processes, which a kill would leave behind
        process.communicate(timeout=10)
        raise
    stdout, stderr = (text.replace("\0", "") for text in said)  # Open MPI's launcher ends its own words with one
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start_under_mpi(
    ranks: int, arguments: Sequence[str], timeout: float, *, stdout: Any, stderr: Any, **settings: str
) -> "subprocess.Popen[str]":
    """Start ``python ARGUMENTS`` in a number of MPI processes, which the launcher ends after so many seconds.

    Parameters
    ----------
    stdout, stderr
        As `subprocess.Popen` takes them.
    **settings
        Environment variables more.

    Raises
    ------
    ValueError
        If there is no mpirun.
    """
    mpirun = mpirun_here()
    if mpirun is None:
        raise ValueError(f"no mpirun beside {sys.executable} nor on PATH; install it with: {INSTALL}")
    return subprocess.Popen(
        [str(mpirun), "-n", str(ranks), sys.executable, *arguments],
        env=launch_environment(timeout) | _sleep(ranks) | settings,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
    )


def launch_environment(timeout: float) -> dict[str, str]:
    """Variables to start mpirun with, which ends its processes after ``timeout`` seconds: nothing of a launch that this
    process belongs to, and what Open MPI wants to hear before it starts more processes than cores, or as root.
    """
    outside = {name: value for name, value in os.environ.items() if not _belongs_to_a_launch(name)}
    allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if hasattr(os, "getuid") and os.getuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return outside | allowed | {"MPIEXEC_TIMEOUT": str(max(1, round(timeout)))}


def _belongs_to_a_launch(name: str) -> bool:
    return name in (*SIZE_NAMES, *RANK_NAMES, *LOCAL_SIZE_NAMES) or name.startswith(("PMI_", "PMIX_", "HYDI_"))


def _sleep(ranks: int) -> dict[str, str]:
    """Who waits is to sleep where this process and those that it starts are more than the cores."""
    return {WAIT_ASLEEP: os.environ.get(WAIT_ASLEEP, "1")} if ranks >= cores() else {}


def _number(environment: Mapping[str, str], names: Sequence[str], otherwise: Any) -> Any:
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return otherwise
