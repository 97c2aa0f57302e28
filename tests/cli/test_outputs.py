"""Files that perf writes: whole or as far as it came, and never at the cost of older ones before there is something."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collemu.cli import perf
from collemu.cli.outputs import try_outputs, write_whole
from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]
WORDS = ("perf", "all_reduce", "-b", "4", "-e", "16", "-f", "2", "--ranks", "4", "--algorithm", "ring")


@pytest.mark.parametrize(("error", "code"), [(ValueError("no more"), 2), (KeyboardInterrupt(), 130)])
def test_finished_rows_are_written(
    collemu: Collemu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    measure = perf.measure

    def failing(point: perf.Point, *arguments: object) -> perf.Outcome:
        if point.size == 16:
            raise error
        return measure(point, *arguments)  # pyright: ignore

    monkeypatch.setattr(perf, "measure", failing)
    path = tmp_path / "o.csv"
    outcome = collemu(*WORDS, "--csv", path)
    assert outcome.code == code
    assert f"{path} holds 2 of 3 points" in outcome.err
    with path.open(newline="") as file:
        assert [row["size"] for row in csv.DictReader(file)] == ["4", "8"]


def test_bad_input_leaves_an_older_file_alone(collemu: Collemu, tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    path.write_text("precious")
    assert collemu(*WORDS, "--csv", path, "--data", "none.npy").code == 2
    packets = ("-e", "64G", "--ranks", "72", "--fidelity", "packet")
    assert collemu(*WORDS, "--csv", path, *packets).code == 2
    assert path.read_text() == "precious"


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "o.txt"
    path.write_text("old")

    def fail(file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(str(path), fail)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_trying_leaves_nothing(tmp_path: Path) -> None:
    try_outputs(str(tmp_path / "a"), str(tmp_path / "b"))
    try_outputs("/dev/null", "-")
    assert not list(tmp_path.iterdir())


def test_data_that_formats_cannot_hold_is_counted_or_left_out(collemu: Collemu, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1.0, np.nan, np.inf, 1e39, -1e5] * 4))
    words = ("perf", "all_reduce", "--ranks", "4", "--algorithm", "ring", "--data", tmp_path / "x.npy", "-b", "1K")
    outcome = collemu(*words, "-d", "float16,float32", "--wire", "all")
    assert (outcome.code, outcome.err) == (0, "")
    assert "8 NaN or infinities" in outcome.out
    assert "4 values are beyond float32" in outcome.out
    assert "8 values are beyond float16" in outcome.out
    assert "float4_e2m1fn is left out" in outcome.out
    assert "-b and -e are ignored" in outcome.out
    assert "float4_e2m1fn has no NaN" in collemu(*words, "--wire", "float4_e2m1fn").err
    assert "int32 is left out" in collemu(*words, "-d", "all", "--wire", "none").out


def test_one_size_alone_beyond_the_others_default(collemu: Collemu) -> None:
    for flag, size in (("-e", "4K"), ("-b", "64M")):
        (row,) = collemu("perf", "all_reduce", "--ranks", "4", "--algorithm", "ring", "-c", "0", flag, size).rows()
        assert row[0] == {"4K": "4096", "64M": "67108864"}[size]
