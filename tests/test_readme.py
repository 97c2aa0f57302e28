"""What stands in README.md works as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from collemu.catalogue.host_file import host_text
from collemu.cli.main import main
from collemu.ranks.launch import run_under_mpi
from tests.hosts import measurements
from tests.plans import packets
from tests.test_nccl_topology import machine

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines() if line]
COMMANDS = [line for line in SHELL if line.startswith("collemu ")]
PARALLEL = [line for line in SHELL if line.startswith("mpirun ")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for what examples write, in which the package's own files are found as in a clone."""
    for name in ("collemu", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    packets(4).save(tmp_path)  # plan.json
    machine(tmp_path)  # topo.xml
    text = host_text(measurements(), name="host", library="no MPI", machine="a small machine")
    (tmp_path / "host.toml").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python(code: str) -> None:
    if "draw_timelines" in code:
        pytest.importorskip("matplotlib")
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_properties_hold_outside_continuous_integration_too(tmp_path: Path) -> None:
    (code,) = (code for code in PYTHON if "@given" in code)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}  # hypothesis is lenient under CI
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


def test_comments_say_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (code for code in PYTHON if "encode" in code)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.startswith("[125 128]\n")


def test_the_guide_to_own_algorithms_works_as_written() -> None:
    text = (ROOT / "docs" / "own-algorithms.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "own-algorithms.md", "exec"), {"__name__": "guide"})
    for line in re.findall(r"^collemu .*", text, re.MULTILINE):
        assert main(shlex.split(line)[1:]) == 0


def test_the_guide_to_tests_works_as_written() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "testing.md", "exec"), {"__name__": "guide"})


def test_the_ring_of_the_readme_is_the_example() -> None:
    (code,) = (code for code in PYTHON if "def my_ring" in code)
    assert (ROOT / "examples" / "my_ring.py").read_text().endswith(code)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str) -> None:
    assert main(shlex.split(line)[1:]) == 0


@pytest.mark.mpi
@pytest.mark.parametrize("line", PARALLEL)
def test_commands_under_mpirun(line: str) -> None:
    mpirun, flag, ranks, program, *words = shlex.split(line)
    assert (mpirun, flag, program) == ("mpirun", "-n", "collemu")
    done = run_under_mpi(int(ranks), ["-m", "collemu", *words])
    assert done.returncode == 0, done.stderr


def test_nothing_is_left_out() -> None:
    others = [line for line in SHELL if line not in COMMANDS + PARALLEL]
    assert all(line.startswith(("make demo ", "make test ")) for line in others)
    assert len(PYTHON) >= 3
    assert COMMANDS
    assert PARALLEL


def test_pictures_are_there() -> None:
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / name).exists()
