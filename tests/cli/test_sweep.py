"""``collemu sweep``: the table whoever is interrupted, and what is refused."""

import csv
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from collemu.cli import sweep
from collemu.cli.main import main
from collemu.cli.sweep_plan import read_plan
from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]

PLAN = """
name = "small"
seed = 3

[defaults]
minbytes = "1K"
maxbytes = "2K"
stepfactor = 2

[[sweep]]
collective = ["all_reduce", "all_gather"]
algorithm = "ring"
wire = ["none", "mxfp4"]
ranks = [2, 3]

[[sweep]]
collective = "broadcast"
algorithm = ["binomial", "auto"]
ranks = 4
root = 1
check = 0
"""
POINTS = 2 * 2 * 2 * 2 + 2 * 2
# chunks beyond what the algorithm can cut a message into are found only when the point runs
FAILING = """
[[sweep]]
collective = "all_reduce"
algorithm = "ring"
ranks = [2, 3]
minbytes = "1K"
maxbytes = "1K"

[[sweep]]
collective = "all_reduce"
algorithm = "recursive_doubling"
op = "prod"
datatype = "int64"
wire = "mxfp4"
ranks = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def whole(folder: Path, collemu: Collemu) -> bytes:
    """The table of an uninterrupted run."""
    outcome = collemu("sweep", "small.toml", "-o", "whole.csv")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"# sweep small: {POINTS} points, 0 failed, 0 wrong elements: whole.csv\n"
    assert not Path("whole.csv.journal").exists()
    return Path("whole.csv").read_bytes()


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_point_is_a_row_with_what_it_depends_on(whole: bytes) -> None:
    rows = rows_of("whole.csv")
    assert [int(row["point"]) for row in rows] == list(range(POINTS))
    first = [(row["collective"], row["wire"], row["ranks"], row["asked_size"]) for row in rows[: POINTS - 4]]
    assert sorted(first) == sorted(
        product(("all_gather", "all_reduce"), ("mxfp4", "none"), ("2", "3"), ("1024", "2048"))
    )
    assert [row["asked_algorithm"] for row in rows[-4:]] == ["binomial", "binomial", "auto", "auto"]
    for row in rows:
        assert (row["sweep"], row["schema_version"], row["seed"], row["error"]) == ("small", "1", "3", "")
        assert float(row["time_us"]) > 0 and row["algorithm"] != "auto"
        assert len(row["plan"]) == len(row["sources"]) == len(row["system_fingerprint"]) == 12
        assert row["nwrong"] == ("" if row["collective"] == "broadcast" else "0")
        assert row["root"] == ("1" if row["collective"] == "broadcast" else "-1")


def test_rows_are_those_of_perf(whole: bytes, collemu: Collemu) -> None:
    flags = ("--algorithm", "ring", "--wire", "mxfp4", "--ranks", "3", "-b", "1K", "-e", "2K", "-f", "2")
    assert collemu("perf", "all_reduce", *flags, "--csv", "perf.csv").code == 0
    ours = [
        row
        for row in rows_of("whole.csv")
        if (row["collective"], row["wire"], row["ranks"])[:3] == ("all_reduce", "mxfp4", "3")
    ]
    theirs = rows_of("perf.csv")
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert other.items() <= mine.items()


def test_parquet_holds_the_same(whole: bytes, collemu: Collemu) -> None:
    assert collemu("sweep", "small.toml", "-o", "whole.parquet").code == 0
    table = parquet.read_table("whole.parquet").to_pylist()
    assert len(table) == POINTS
    for row, text in zip(table, rows_of("whole.csv"), strict=True):
        assert {name: "" if value is None else str(value) for name, value in row.items()} == text
    assert isinstance(table[0]["time_us"], float) and isinstance(table[0]["ranks"], int)
    assert "all done before" in collemu("sweep", "small.toml", "-o", "whole.parquet").out


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, POINTS - 1), max_size=4), torn=st.integers(0, 400))
def test_interrupted_anywhere_it_goes_on_to_the_same_bytes(whole: bytes, collemu: Collemu, stops, torn) -> None:
    """Interrupted after some points, with the journal's end cut off anywhere."""
    for stop in stops:
        _run_interrupted(stop)
        if Path("again.csv").exists():
            break  # fewer were left
        journal = Path("again.csv.journal")
        kept = journal.read_bytes()
        assert kept
        journal.write_bytes(kept[: max(0, len(kept) - torn)])
    outcome = collemu("sweep", "small.toml", "-o", "again.csv")
    assert outcome.code == 0
    assert Path("again.csv").read_bytes() == whole
    assert not Path("again.csv.journal").exists()
    Path("again.csv").unlink()


def _run_interrupted(after: int) -> None:
    """Run it until so many points are done; then somebody presses Ctrl-C."""
    original, begun = sweep.measure, 0

    def measure(*words):
        nonlocal begun
        if begun == after:
            raise KeyboardInterrupt
        begun += 1
        return original(*words)

    sweep.measure = measure
    try:
        main(["sweep", "small.toml", "-o", "again.csv"])
    finally:
        sweep.measure = original


def test_finished_points_do_not_run_again(whole: bytes, collemu: Collemu, monkeypatch) -> None:
    _run_interrupted(7)
    begun: list[str] = []
    original = sweep.measure
    monkeypatch.setattr(sweep, "measure", lambda *words: begun.append(str(words[0])) or original(*words))
    outcome = collemu("sweep", "small.toml", "-o", "again.csv")
    assert outcome.code == 0 and len(begun) == POINTS - 7
    begun.clear()
    outcome = collemu("sweep", "small.toml", "-o", "again.csv")
    assert outcome.code == 0 and not begun
    assert outcome.out == f"# sweep small: {POINTS} points, all done before, 0 failed, 0 wrong elements: again.csv\n"


def test_an_interrupt_says_what_is_kept(folder: Path, capfd) -> None:
    _run_interrupted(5)
    expected = f"5 of {POINTS} points are done, and kept in again.csv.journal: the same command goes on"
    assert capfd.readouterr().err == f"collemu sweep: {expected}\n"


def test_points_that_fail_are_rows_and_the_rest_runs(folder: Path, collemu: Collemu, monkeypatch) -> None:
    original = sweep.measure
    broken = True

    def measure(point, *words):
        if broken and point.ranks == 3:
            raise MemoryError
        if broken and point.collective == "broadcast":
            raise ValueError(f"{point}: no\nway")
        return original(point, *words)

    monkeypatch.setattr(sweep, "measure", measure)
    outcome = collemu("sweep", "small.toml")
    assert (outcome.code, outcome.err) == (1, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "# point 4 failed: MemoryError"
    assert lines[-2:] == [
        "# and 7 more: column error",
        f"# sweep small: {POINTS} points, 12 failed, 0 wrong elements: small.csv; --retry runs them again",
    ]
    rows = rows_of("small.csv")
    assert len(rows) == POINTS
    failed = [row for row in rows if row["error"]]
    assert {row["error"].split(": ")[-1] for row in failed} == {"MemoryError", "no way"}
    assert all(row["time_us"] == "" and row["ranks"] and row["system"] for row in failed)
    assert collemu("sweep", "small.toml").out.splitlines()[-1] == lines[-1]  # known; not run again
    broken = False
    assert collemu("sweep", "small.toml").code == 1
    assert collemu("sweep", "small.toml", "--retry").code == 0
    assert not any(row["error"] for row in rows_of("small.csv"))
    assert not Path("small.csv.journal").exists()


def test_a_dry_run_runs_nothing(folder: Path, collemu: Collemu) -> None:
    outcome = collemu("sweep", "small.toml", "--dry-run")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == f"# sweep small: {POINTS} points, none of them run"
    assert outcome.out.splitlines()[-1].split() == ["trainium4_nvl72", "broadcast", "4"]
    assert [path.name for path in folder.iterdir()] == ["small.toml"]


def test_the_journal_of_another_sweep_is_refused_until_told(folder: Path, collemu: Collemu) -> None:
    _run_interrupted(3)
    Path("small.toml").write_text(PLAN.replace("seed = 3", "seed = 4"))
    refused = collemu("sweep", "small.toml", "-o", "again.csv")
    assert refused.code == 2
    assert "again.csv.journal was begun with plan" in refused.err and "--restart" in refused.err
    assert collemu("sweep", "small.toml", "-o", "again.csv", "--restart").code == 0
    assert {row["seed"] for row in rows_of("again.csv")} == {"4"}


def test_what_lies_there_is_not_replaced_unasked(whole: bytes, collemu: Collemu) -> None:
    Path("small.toml").write_text(PLAN + 'like = "nccl"\n')
    refused = collemu("sweep", "small.toml", "-o", "whole.csv")
    assert refused.code == 2 and "whole.csv holds another sweep, of plan" in refused.err
    assert Path("whole.csv").read_bytes() == whole
    for text in ("mine\n", "", "plan,sources,error,nwrong\n"):
        Path("mine.csv").write_text(text)
        refused = collemu("sweep", "small.toml", "-o", "mine.csv")
        assert refused.code == 2 and "mine.csv is no table of a sweep" in refused.err
        assert Path("mine.csv").read_text() == text
    assert collemu("sweep", "small.toml", "-o", "mine.csv", "--restart").code == 0


def test_two_at_once_are_refused(folder: Path, collemu: Collemu, monkeypatch) -> None:
    answers: list[Outcome] = []
    original = sweep.measure

    def measure(*words):
        if not answers:
            answers.append(Outcome(0, "", ""))
            answers[0] = collemu("sweep", "small.toml")
        return original(*words)

    monkeypatch.setattr(sweep, "measure", measure)
    assert main(["sweep", "small.toml"]) == 0
    assert answers[0].code == 2 and "another process is at this sweep" in answers[0].err


def test_users_data_and_files_belong_to_the_plan(folder: Path, collemu: Collemu) -> None:
    import numpy as np

    np.save("mine.npy", np.linspace(-1, 1, 300, dtype=np.float32))
    Path("data.toml").write_text(
        '[[sweep]]\ncollective="all_reduce"\nalgorithm="ring"\nranks=3\nwire=["none","mxfp4"]\ndata="mine.npy"\n'
    )
    assert collemu("sweep", "data.toml").code == 0
    errors = [float(row["relative_error"]) for row in rows_of("data.csv")]
    assert errors[0] < 1e-6 < errors[1]
    before = read_plan("data.toml").fingerprint()
    np.save("mine.npy", np.linspace(-1, 2, 300, dtype=np.float32))
    assert read_plan("data.toml").fingerprint() != before


BAD = {
    "no file": (None, "cannot read bad.toml: no such file or directory"),
    "no TOML": ("[[sweep", "bad.toml is no TOML"),
    "empty": ("", "bad.toml: no [[sweep]]"),
    "no collective": ("[[sweep]]\nranks = 3", "bad.toml: [[sweep]] 1: no collective"),
    "unknown key": ("[[sweep]]\ncolective = 'all_reduce'", "[[sweep]] 1: no key 'colective': did you mean collective?"),
    "unknown default": (
        "[defaults]\nrank = 3\n[[sweep]]\ncollective='all_reduce'",
        "[defaults]: no key 'rank': did you mean ranks?",
    ),
    "unknown top": ("names = 'x'", "bad.toml: no key 'names': did you mean name?"),
    "no effect": ("[[sweep]]\ncollective='all_reduce'\niters=3", "no key 'iters'"),
    "bad value": (
        "[[sweep]]\ncollective='all_reduce'\nranks='many'",
        "bad.toml: [[sweep]] 1: --ranks 'many' is not a number",
    ),
    "second table": (
        "[[sweep]]\ncollective='all_reduce'\n[[sweep]]\ncollective='all_reduc'",
        "bad.toml: [[sweep]] 2: no collective",
    ),
    "a table in a table": ("[[sweep]]\ncollective='all_reduce'\nranks={a=1}", "ranks is {'a': 1}"),
    "a truth": ("[[sweep]]\ncollective='all_reduce'\nchannels=true", "channels is True"),
    "an empty list": ("[[sweep]]\ncollective='all_reduce'\nwire=[]", "wire is []"),
    "sweep is no table": ("sweep = [1]", "[[sweep]] 1 is 1"),
    "name": ("name = 3", "name is 3"),
    "seed": ("seed = -1", "seed is -1"),
    "check": ("[[sweep]]\ncollective='all_reduce'\ncheck=7", "check is 7; give at most 2"),
    "size beside data": ("[[sweep]]\ncollective='all_reduce'\ndata='x.npy'\nminbytes=3", "x.npy"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line(name: str, folder: Path, collemu: Collemu) -> None:
    text, expected = BAD[name]
    if text is not None:
        Path("bad.toml").write_text(text)
    outcome = collemu("sweep", "bad.toml")
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("collemu sweep: ") and expected in line
    assert not Path("bad.csv").exists() and not Path("bad.csv.journal").exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [("x.json", "must end in .csv or .parquet"), ("no/x.csv", "cannot write -o no/x.csv"), ("-", "must end in")],
)
def test_a_bad_output_is_refused_before_anything_runs(output, expected, folder: Path, collemu: Collemu) -> None:
    outcome = collemu("sweep", "small.toml", "-o", output)
    assert (outcome.code, outcome.out) == (2, "")
    assert expected in outcome.err and len(outcome.err.splitlines()) == 1


def test_parquet_without_pyarrow_says_what_to_install(folder: Path, collemu: Collemu, monkeypatch) -> None:
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr("collemu.cli.sweep_table.import_module", missing)
    outcome = collemu("sweep", "small.toml", "-o", "x.parquet")
    assert outcome.code == 2 and 'pip install "collemu[parquet]"' in outcome.err


def test_a_journal_holds_whole_lines_of_json(folder: Path) -> None:
    _run_interrupted(4)
    lines = Path("again.csv.journal").read_text().splitlines()
    assert [json.loads(line).get("point") for line in lines] == [None, 0, 1, 2, 3]
