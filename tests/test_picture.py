"""Pictures: every operation is on them, and without matplotlib one line says what to install."""

import sys
from pathlib import Path

import pytest

import collemu as ce
from collemu.interop.picture import draw_timelines


def _run(*, timeline: bool = True) -> ce.Result:
    schedule = ce.build_schedule("all_reduce", "two_shot", 4)
    return ce.emulate(schedule, ce.load_system("trainium4_nvl72"), count=5000, timeline=timeline)


def test_a_picture_of_two_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.png"
    draw_timelines([_run(), _run()], ["one", "two"], path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_a_run_without_timeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="timeline=True"):
        draw_timelines([_run(timeline=False)], ["one"], tmp_path / "x.png")


def test_missing_matplotlib_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install .collemu\[plot\]"):
        draw_timelines([_run()], ["one"], tmp_path / "x.png")
