"""What the environment says of a launch, and how data for it is made."""

import subprocess
import sys

import numpy as np
import pytest

from collemu.dtypes import DTYPES
from collemu.ranks import launch
from collemu.ranks.alone import Alone
from collemu.ranks.contributions import INTEGERS, contribution
from collemu.ranks.crosscheck import AgreedError, agree
from collemu.ranks.differences import first_differing_byte

MPICH = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize("environment", [MPICH, OPEN_MPI])
def test_launchers_are_recognised(environment, monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda: 2)
    assert launch.under_mpirun(environment)
    assert launch.launched_size(environment) == 4
    assert launch.launched_rank(environment) == 3
    assert launch.short_of_cores(environment)
    monkeypatch.setattr(launch, "cores", lambda: 3)
    assert not launch.short_of_cores(environment)


def test_without_a_launcher():
    assert not launch.under_mpirun({"PATH": "/bin"})
    assert launch.launched_size({}) is None
    assert launch.launched_rank({}) == 0


def test_no_mpirun_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(launch, "mpirun_here", lambda: None)
    with pytest.raises(ValueError, match=r'pip install "collemu\[mpich\]"'):
        launch.run_under_mpi(2, ["-c", ""])


def test_one_rank_needs_no_mpi(tmp_path):
    broken = tmp_path / "mpi4py"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no MPI here')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from collemu.cli.main import main; "
    code += "sys.exit(main(['crosscheck', 'all_reduce,alltoall', '--ranks', '1', '-b', '100', '--wire', 'none,mxfp4']))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith("all identical\n")


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
