"""``collemu demo``, end to end with real processes, and without MPI or matplotlib."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]


def _errors(text: str) -> dict[tuple[str, str], float]:
    lines = [line.split() for line in text.splitlines()]
    return {
        (words[0], words[1]): float(words[6])
        for words in lines
        if words and words[0] in ("ring", "tree", "two_shot") and len(words) == 8
    }


@pytest.mark.mpi
def test_demo(collemu: Collemu, tmp_path: Path) -> None:
    outcome = collemu("demo", "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.out + outcome.err
    errors = _errors(outcome.out)
    assert len(errors) == 3 * 4
    for algorithm in ("ring", "tree", "two_shot"):
        of_wires = [errors[algorithm, wire] for wire in ("float32", "bfloat16", "mxfp8_e4m3", "mxfp4")]
        assert of_wires == sorted(of_wires)
        assert of_wires[0] < 1e-6
    assert "differ" not in outcome.out.replace("difference", "")
    assert "emulator and processes: identical" in outcome.out
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())
    assert len(trace["traceEvents"]) > 10_000
    assert (tmp_path / "out" / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_demo_without_mpi_and_matplotlib_says_so(
    collemu: Collemu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collemu.ranks import launch

    monkeypatch.setattr(launch, "mpirun_here", lambda: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = collemu("demo", "-o", tmp_path)
    assert outcome.code == 0
    assert "not run: no mpirun" in outcome.out
    assert 'no picture: pictures need one more package: pip install "collemu[plot]"' in outcome.out
    assert (tmp_path / "trace.json").exists()


def test_a_folder_that_cannot_be_made_is_one_line(collemu: Collemu, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = collemu("demo", "-o", tmp_path / "file" / "out")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
