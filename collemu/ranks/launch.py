"""Where a process stands: under mpirun or not, with which MPI; and how to start processes of our own."""

import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from time import sleep
from typing import TYPE_CHECKING, Any

from collemu.ranks.alone import Alone

if TYPE_CHECKING:
    from mpi4py import MPI

# What launchers tell each process: number of processes, the process's own number, processes on this machine.
OPEN_MPI_SIZE = "OMPI_COMM_WORLD_SIZE"
SIZE_NAMES = ("PMI_SIZE", OPEN_MPI_SIZE, "MV2_COMM_WORLD_SIZE")
RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK")
LOCAL_SIZE_NAMES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", *SIZE_NAMES)

WAIT_ASLEEP = "MPIR_CVAR_ENABLE_HEAVY_YIELD"
OPEN_MPI_WINDOWS = "OMPI_MCA_osc"
INSTALL = 'pip install "collemu[mpich]"'


def under_mpirun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process."""
    return any(name in environment for name in (*SIZE_NAMES, *RANK_NAMES))


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The process's own number as its launcher says, before MPI starts; 0 without a launcher."""
    return _number(environment, RANK_NAMES, 0)


def launched_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """Number of processes as the launcher says, before MPI starts; None where it does not say."""
    return _number(environment, SIZE_NAMES, None)


def short_of_cores(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the processes on this machine leave no core for anything else."""
    return _number(environment, LOCAL_SIZE_NAMES, 1) >= cores()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_mpi(environment: Mapping[str, str] = os.environ) -> "MPI.Intracomm":
    """Start MPI and return a communicator of all processes, for nobody else.

    Where processes fill the cores, MPICH is told to sleep while it waits: otherwise a waiting process keeps a
    core for milliseconds from the one that it waits for. Open MPI is told to do without windows over UCX, which
    complain on stderr wherever there is no network for them. Such settings count only before MPI starts.

    Raises
    ------
    ValueError
        If MPI is not installed, or belongs to another launcher than the one that started the processes.
    """
    if short_of_cores(environment):
        os.environ.setdefault(WAIT_ASLEEP, "1")
    os.environ.setdefault(OPEN_MPI_WINDOWS, "^ucx")
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)  # under a foreign launcher, starting would end the process
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"cannot load MPI ({reason}); install it with: {INSTALL}") from None
    open_mpi = "Open MPI" in MPI.Get_library_version()
    mpirun = mpirun_here() or "the mpirun of that library"
    if OPEN_MPI_SIZE in environment and not open_mpi:
        raise ValueError(f"mpirun is Open MPI's, but the MPI library is not; start with {mpirun}")
    if not MPI.Is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a foreign launcher: said below in our words
            MPI.Init_thread(MPI.THREAD_MULTIPLE)  # at lower levels MPICH does not sleep
    size = launched_size(environment)
    if size is not None and size != MPI.COMM_WORLD.size:
        raise ValueError(
            f"mpirun started {size} processes, but each sees {MPI.COMM_WORLD.size}: mpirun belongs to another MPI "
            f"than the one that is loaded; start with {mpirun}"
        )
    return MPI.COMM_WORLD.Dup()


def library(comm: "MPI.Intracomm | Alone") -> str:
    """Name and version of the MPI library that carries a communicator."""
    if isinstance(comm, Alone):
        return "no MPI"
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


def fault_text(error: BaseException) -> str:
    """What a process failed of and where, as its notes say, on one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    parts = [": ".join(filter(None, (type(error).__name__, str(error)))), *getattr(error, "__notes__", ())]
    return " ".join(", ".join(parts).split())


def mpirun_here() -> Path | None:
    """The mpirun beside this interpreter, else the first on PATH; None if there is neither."""
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return beside
    found = which("mpirun")
    return Path(found) if found else None


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
        stdout, stderr = process.communicate(timeout=timeout + 5)
    except subprocess.TimeoutExpired:
        process.terminate()  # the launcher passes it on to its processes, which a kill would leave behind
        process.communicate(timeout=10)
        raise
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
    outside = {name: value for name, value in os.environ.items() if not _belongs_to_a_launch(name)}
    return subprocess.Popen(
        [str(mpirun), "-n", str(ranks), sys.executable, *arguments],
        env=outside | _permissions() | {"MPIEXEC_TIMEOUT": str(max(1, round(timeout)))} | settings,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
    )


def _belongs_to_a_launch(name: str) -> bool:
    return name in (*SIZE_NAMES, *RANK_NAMES, *LOCAL_SIZE_NAMES) or name.startswith(("PMI_", "PMIX_", "HYDI_"))


def _permissions() -> dict[str, str]:
    """What Open MPI needs to start more processes than cores, and to run as root in a container."""
    allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if hasattr(os, "getuid") and os.getuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


def _number(environment: Mapping[str, str], names: Sequence[str], otherwise: Any) -> Any:
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return otherwise
