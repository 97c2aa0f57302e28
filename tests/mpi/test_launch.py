"""What the environment says of a launch, and how data for it is made."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collemu.cli.main import main
from collemu.dtypes import DTYPES
from collemu.ranks import launch
from collemu.ranks.agreement import AgreedError, agree
from collemu.ranks.alone import Alone
from collemu.ranks.contributions import INTEGERS, contribution
from collemu.ranks.differences import first_differing_byte
from tests.mpi.launching import COLLEMU, MPIRUN, OPEN_MPI, SKIP_WITHOUT_MPIRUN, refusal, run

HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "2"}
PRTERUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
SRUN = BATCH_SCRIPT | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
SRUN_PMI2 = SRUN | {"PMI_SIZE": "4", "PMI_RANK": "3"}
SRUN_PMIX = SRUN | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
START = rf"with ({re.escape(MPIRUN)}|the mpirun of )"
POINT = ("all_reduce", "--algorithm", "ring", "-b", "1K", "-e", "1K")


def as_first(environment):
    """The same launch, seen by its first process."""
    return {name: "0" if value == "3" else value for name, value in environment.items()}


@pytest.mark.parametrize("environment", [HYDRA, PRTERUN, SRUN, SRUN_PMI2, SRUN_PMIX])
def test_launchers_are_recognised(environment):
    assert launch.under_mpirun(environment)
    assert not launch.launched_alone(environment)
    assert launch.launched_size(environment) == 4
    assert launch.launched_rank(environment) == 3


@pytest.mark.parametrize("environment", [HYDRA, PRTERUN])
def test_processes_on_this_machine_are_more_than_its_cores_or_not(environment, monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda: 1)
    assert launch.short_of_cores(environment)
    monkeypatch.setattr(launch, "cores", lambda: 2)
    assert not launch.short_of_cores(environment)


@pytest.mark.parametrize("environment", [{"PATH": "/bin"}, BATCH_SCRIPT])
def test_without_a_launcher(environment):
    """A batch script is its job's process 0, and the only one."""
    assert not launch.under_mpirun(environment)
    assert launch.launched_alone(environment)
    assert launch.launched_size(environment) is None
    assert launch.launched_rank(environment) == 0


def test_mpirun_hands_down_the_step_in_which_it_started_its_daemons():
    daemons = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}  # one a machine
    for environment in (HYDRA, PRTERUN):
        assert launch.launched_size(daemons | environment) == 4
        assert launch.launched_rank(daemons | environment) == 3
    assert launch.launched_alone({"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"})
    assert not launch.launched_alone({"PMIX_RANK": "0"})  # of how many is not said


def test_settings_are_for_more_processes_than_cores_and_leave_the_users(monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda: 1)
    assert launch.settings_of("MPICH 5.0.2", HYDRA) == {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    waiting = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert launch.settings_of("Open MPI v5.0.11", PRTERUN) == {"OMPI_MCA_osc": "^ucx"} | waiting
    own = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "0", "OMPI_MCA_osc": "sm"}
    assert launch.settings(HYDRA | own) == own | waiting
    monkeypatch.setattr(launch, "cores", lambda: 2)
    assert launch.settings(HYDRA) == {"OMPI_MCA_osc": "^ucx"}


def test_only_open_mpis_other_processes_wait_for_the_first_to_speak(monkeypatch):
    waits = []
    monkeypatch.setattr(launch, "sleep", waits.append)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)  # not started
    for environment in ({}, HYDRA, as_first(PRTERUN)):
        launch.let_first_speak(environment)
    assert waits == []
    launch.let_first_speak(PRTERUN)
    assert waits == [launch.FIRST_SPEAKS_S]


@pytest.mark.mpi
@SKIP_WITHOUT_MPIRUN
def test_settings_are_told():
    processes = launch.cores() + 1
    process = launch.run_under_mpi(processes, ["-m", "collemu", "crosscheck", *POINT, "--verbose"])
    assert process.returncode == 0, process.stderr
    told = "OMPI_MCA_osc=^ucx, OMPI_MCA_mpi_yield_when_idle=1" if OPEN_MPI else "MPIR_CVAR_ENABLE_HEAVY_YIELD=1"
    assert process.stderr.startswith(f"collemu crosscheck: {processes} processes, {launch.cores()} cores, ")
    assert process.stderr.endswith(f"; {told}\n")


@pytest.mark.mpi
@SKIP_WITHOUT_MPIRUN
@pytest.mark.parametrize("command", ["perf", "crosscheck", "sweep"])
@pytest.mark.parametrize("environment", [HYDRA, SRUN, SRUN_PMI2], ids=["mpirun", "srun", "srun with PMI"])
def test_processes_that_are_not_joined_are_refused(environment, command):
    """Each would do everything, or wait for others that it will never meet."""
    words = ("plan.toml",) if command == "sweep" else POINT
    line = refusal(run(*COLLEMU, command, *words, **as_first(environment)))
    launcher = "mpirun" if environment is HYDRA else "srun"
    assert line.startswith(f"collemu {command}: {launcher} started 4 processes, but each sees 1")
    assert re.search(START, line)
    if launcher == "srun":
        assert f"srun --mpi={'pmix' if OPEN_MPI else 'pmi2'}" in line
    others = run(*COLLEMU, command, *words, **environment)
    assert (others.returncode, others.stdout, others.stderr) == (2, "", "")


@pytest.mark.mpi
@SKIP_WITHOUT_MPIRUN
@pytest.mark.parametrize("environment", [PRTERUN, SRUN_PMIX, {"PMIX_RANK": "3"}], ids=["mpirun", "srun", "unknown"])
def test_launchers_that_would_end_a_foreign_library_are_refused_before(environment):
    if OPEN_MPI:
        pytest.skip("Open MPI understands PMIx")
    line = refusal(run(*COLLEMU, "perf", *POINT, **as_first(environment)))
    started = "4" if len(environment) > 1 else "several"
    assert f"run started {started} processes, but each sees 1" in line
    assert re.search(START, line)


def test_a_batch_script_works_by_itself():
    process = run(*COLLEMU, "perf", *POINT, **BATCH_SCRIPT)
    assert (process.returncode, process.stderr) == (0, "")
    assert "Avg bus bandwidth" in process.stdout


@pytest.mark.mpi
@SKIP_WITHOUT_MPIRUN
def test_one_process_of_mpirun_needs_no_other():
    process = launch.run_under_mpi(1, ["-m", "collemu", "perf", *POINT])
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.count("Avg bus bandwidth") == 1


def test_no_mpirun_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(launch, "mpirun_here", lambda: None)
    with pytest.raises(ValueError, match=r'pip install "collemu\[mpich\]"'):
        launch.run_under_mpi(2, ["-c", ""])
    assert main(["crosscheck", *POINT]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "collemu[mpich]", then mpirun -n 4 collemu crosscheck' in line


MISSING = "raise ModuleNotFoundError(\"No module named 'mpi4py'\")\n"
NO_LIBRARY = """
def rc(**_): pass
def __getattr__(name): raise RuntimeError("cannot load MPI library\\nlibmpi.so.12: not there\\nlibmpi.so: not there")
"""


def run_without_mpi(folder: Path, mpi4py: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run collemu with another mpi4py."""
    (folder / "mpi4py.py").write_text(mpi4py)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from collemu.cli.main import console; console()"
    return run(sys.executable, "-c", code, *words, **variables)


@pytest.mark.parametrize("mpi4py", [MISSING, NO_LIBRARY], ids=["no mpi4py", "no libmpi"])
def test_one_rank_needs_no_mpi(mpi4py, tmp_path):
    words = ("crosscheck", "all_reduce,alltoall", "--ranks", "1", "-b", "100", "--wire", "none,mxfp4")
    process = run_without_mpi(tmp_path, mpi4py, *words)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith("all identical\n")


@pytest.mark.parametrize("command", ["perf", "crosscheck"])
@pytest.mark.parametrize(
    ("mpi4py", "reason"),
    [
        (MISSING, "No module named 'mpi4py'"),
        (NO_LIBRARY, "cannot load MPI library libmpi.so.12: not there libmpi.so: not there"),
    ],
)
def test_several_without_mpi_are_told_what_to_install(mpi4py, reason, command, tmp_path):
    process = run_without_mpi(tmp_path, mpi4py, command, *POINT, **as_first(HYDRA))
    expected = f'collemu {command}: cannot load MPI ({reason}); install it with: pip install "collemu[mpich]"\n'
    assert (process.returncode, process.stdout, process.stderr) == (2, "", expected)


@pytest.mark.mpi
@SKIP_WITHOUT_MPIRUN
def test_a_library_that_is_not_there_is_named():
    """By mpi4py itself, whose wheels take the library that this variable names."""
    process = run(*COLLEMU, "perf", *POINT, **as_first(HYDRA), MPI4PY_LIBMPI="/nowhere/libmpi.so.12")
    if process.returncode == 0 or "cannot load MPI" not in process.stderr:
        pytest.skip("this mpi4py is bound to a library")
    assert "/nowhere/libmpi.so.12" in refusal(process)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_contributions_are_the_same_for_everybody_and_differ_by_rank(name, op):
    dtype = DTYPES[name]
    first, again = (contribution(dtype, 5000, 3, op=op, not_finite=True) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    assert first.dtype == dtype.storage
    assert first.tobytes() != contribution(dtype, 5000, 4, op=op, not_finite=True).tobytes()


def test_small_integers_are_exact_in_float32():
    numbers = contribution(DTYPES["float32"], 1000, 0, op="sum", fill=INTEGERS)
    assert np.array_equal(numbers, np.round(numbers))
    assert np.abs(numbers).max() == 8


def test_first_differing_byte():
    expected = np.arange(10, dtype=np.uint8)
    got = expected.copy()
    assert first_differing_byte(expected, got) is None
    got[[4, 9]] = 255
    assert first_differing_byte(expected, got) == "first differing byte 4 of 10: expected 0x04, got 0xff (2 differ)"
    assert first_differing_byte(expected, got[:5]) == "10 bytes expected, got 5"


def test_bad_input_is_agreed_on():
    def fail():
        raise ValueError("this cannot be")

    with pytest.raises(AgreedError, match="this cannot be"):
        agree(Alone(), fail)
    assert agree(Alone(), lambda: 7) == 7
