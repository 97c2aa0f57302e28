"""The plugin of pytest: tests in MPI processes that it starts, or that mpirun has started."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collemu.ranks.launch import mpirun_here, run_under_mpi

ROOT = Path(__file__).resolve().parents[2]
PYTEST = ("-m", "pytest", "-p", "collemu.testing.plugin", "-p", "no:cacheprovider", "-ra")

TESTS = """
import os, time

import pytest


@pytest.fixture(scope="module")
def module(comm):
    yield comm.size


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [2, 3])
def test_size(comm, size, tmp_path):
    assert comm.size == size


def test_alone(comm, module):
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(3)
def test_one_fails(comm):
    total = comm.allreduce(1)
    assert comm.rank != 1, f"of {total} no good"


@pytest.mark.ranks(3, timeout=4)
def test_hangs(comm):
    if comm.rank:
        comm.Barrier()
    else:
        time.sleep(100)


@pytest.mark.ranks(3)
def test_dies(comm):
    if comm.rank == 1:
        os._exit(7)
    comm.Barrier()


@pytest.mark.ranks(n=3)
def test_skips(comm):
    if comm.rank == 1:
        pytest.skip("rank 1 has no time")


@pytest.mark.ranks(3)
@pytest.mark.xfail(strict=True)
def test_fails_as_expected(comm, module):
    assert comm.rank == 0


@pytest.fixture
def broken(comm):
    if comm.rank == 2:
        raise OSError("no cable")


@pytest.mark.ranks(3)
def test_setup_fails(comm, broken):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    return tmp_path


def environment():
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), *filter(None, sys.path)])
    }


def run_pytest(folder, *words):
    command = [sys.executable, *PYTEST, *words]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=250, check=False
    )


def outcomes(text):
    """By test, from the lines of ``-v``."""
    return dict(re.findall(r"^test_mine\.py::(\S+) (\w+)", text, re.MULTILINE))


@pytest.mark.mpi
@pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'")
def test_marked_tests_run_in_processes_of_their_own(folder):
    done = run_pytest(folder, "-v")
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(done.stdout) == {
        "test_alone": "PASSED",
        "test_size[2]": "PASSED",
        "test_size[3]": "FAILED",
        "test_one_fails": "FAILED",
        "test_hangs": "FAILED",
        "test_dies": "FAILED",
        "test_skips": "SKIPPED",
        "test_fails_as_expected": "XFAIL",
        "test_setup_fails": "ERROR",
    }
    assert re.search(r"rank 1 of 3: \S+test_mine.py:\d+: AssertionError: of 3 no good", done.stdout)
    assert re.search(
        r"not done in 4 s; what its processes were at:\n(.*\n)+.*test_mine.py\", line \d+ in test_hangs", done.stdout
    )
    assert "its processes ended with code" in done.stdout
    assert "rank 1 has no time" in done.stdout
    assert re.search(r"rank 2 of 3: \S+test_mine.py:\d+: OSError: no cable", done.stdout)
    assert re.search(r"assert 2 == 3\n(.*\n)*.*rank 1 of 2: .*assert 2 == 3", done.stdout)


@pytest.mark.mpi
@pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'")
def test_under_mpirun_all_run_together(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    done = run_under_mpi(3, [*PYTEST, "-v", "-k", "not hangs and not dies"])
    assert done.returncode != 0
    assert outcomes(done.stdout) == {
        "test_size[2]": "SKIPPED",
        "test_size[3]": "SKIPPED",
        "test_alone": "PASSED",
        "test_one_fails": "FAILED",
        "test_skips": "SKIPPED",
        "test_fails_as_expected": "XFAIL",
        "test_setup_fails": "ERROR",
    }
    assert done.stdout.count(" passed") == 1  # one process speaks
    assert "it is for 2 processes, and mpirun started 3" in done.stdout
    assert re.search(r"rank 1 of 3: \S+test_mine.py:\d+: AssertionError: of 3 no good", done.stdout)


@pytest.mark.mpi
@pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'")
@pytest.mark.parametrize("mpirun", [False, True])
def test_the_example_for_users_passes(mpirun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where hypothesis keeps examples
    words = [str(ROOT / "examples" / "test_my_ring.py"), f"--rootdir={ROOT}", "-c", os.devnull]
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    done = run_under_mpi(3, [*PYTEST, *words]) if mpirun else run_pytest(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    "marker", ["ranks", "ranks()", "ranks(0)", "ranks('3')", "ranks(True)", "ranks(3, timeout=0)", "ranks(3, time=1)"]
)
def test_a_marker_that_says_nothing_is_refused(marker, tmp_path):
    (tmp_path / "test_mine.py").write_text(f"import pytest\n\n@pytest.mark.{marker}\ndef test_it(comm):\n    pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 4
    assert "test_mine.py::test_it: the marker ranks(" in done.stderr
    assert "does not say how many processes; write ranks(3), or ranks(3, timeout=60)" in done.stderr


def test_without_mpirun_marked_tests_are_skipped(tmp_path):
    (tmp_path / "test_mine.py").write_text("import pytest\n\n@pytest.mark.ranks(3)\ndef test_it(comm):\n    pass\n")
    (tmp_path / "conftest.py").write_text("from collemu.ranks import launch\n\nlaunch.mpirun_here = lambda: None\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0
    assert re.search(r'SKIPPED .* no mpirun .* pip install "collemu\[mpich\]"', done.stdout)


def test_a_fixture_of_the_same_name_is_left_alone(tmp_path):
    """Other plugins, and users, call theirs so too: under mpirun each process is then on its own, as without this."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest, sys\n\n@pytest.fixture\ndef comm():\n    return 7\n\n"
        "def test_it(comm):\n    assert comm == 7\n    assert 'mpi4py' not in sys.modules\n"
    )
    command = [sys.executable, *PYTEST]
    under = environment() | {"PMI_SIZE": "2", "PMI_RANK": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=under, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_nothing_heavy_is_imported(tmp_path):
    code = (
        "import sys, pytest; known = set(sys.modules); import collemu.testing.plugin; print(*set(sys.modules) - known)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=100, check=True
    )
    assert set(done.stdout.split()) == {"collemu", "collemu.testing", "collemu.testing.plugin"}
