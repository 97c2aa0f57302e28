"""Starts what run_under_mpi does not, and tells what is collemu's from what launchers add."""

import subprocess
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from collemu.ranks.launch import launch_environment, mpirun_here

SKIP_WITHOUT_MPIRUN = pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'")
NEEDS_MPIRUN = [pytest.mark.mpi, SKIP_WITHOUT_MPIRUN]
MPIRUN = str(mpirun_here())
OPEN_MPI = (Path(MPIRUN).parent / "prterun").exists()
DRIVERS = Path(__file__).parent / "drivers"
COLLEMU = (sys.executable, "-m", "collemu")


def start(*command: str, **variables: str) -> "subprocess.Popen[str]":
    """Start a command as run_under_mpi starts mpirun."""
    environment = launch_environment(60) | variables
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*command: str, **variables: str) -> "CompletedProcess[str]":
    """The same, and wait for it."""
    process = start(*command, **variables)
    stdout, stderr = process.communicate(timeout=90)
    return CompletedProcess(command, process.returncode, stdout, stderr)


def said(process: "CompletedProcess[str]") -> str:
    """The one line that is collemu's, of a launch that went wrong; launchers may add theirs, but no traceback."""
    (line,) = [line.lstrip("\0") for line in process.stderr.splitlines() if line.lstrip("\0").startswith("collemu")]
    assert "Traceback" not in process.stderr
    return line


def refusal(process: "CompletedProcess[str]") -> str:
    """The one line with which all processes refused bad input. Open MPI's mpirun adds that they left with an error."""
    line = said(process)
    assert (process.returncode, process.stdout) == (2, "")
    assert OPEN_MPI or process.stderr == line + "\n"
    return line


def left_running(word: str) -> list[str]:
    """Command lines with a word in them, of processes that do not end within some seconds."""
    end = time.monotonic() + 10
    while (found := _running(word)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _running(word: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if word in text:
            found.append(text)
    return found
