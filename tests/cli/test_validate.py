"""``collemu validate`` and ``collemu calibrate --from``: what they print, write and refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]
ROWS = """\
case_id,system_id,network_id,nodes,ranks,collective,dtype,size_bytes,time_us,algo,nvls,nccl_version
small,h100_hgx,none,1,8,all_reduce,float16,1024,15.5,auto,auto,2.29.2
small,h100_hgx,none,1,8,all_reduce,float16,65536,20,auto,auto,2.29.2
large,h100_hgx,none,1,8,all_gather,float16,1073741824,2700,auto,auto,2.29.2
nobody,,none,1,8,all_gather,float16,1024,9,auto,auto,
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(ROWS)
    return "rows.csv"


def test_cases_and_groups_are_scored(table: str, collemu: Collemu) -> None:
    outcome = collemu("validate", table, "--json", "out.json", "--diagnose")
    assert (outcome.code, outcome.err) == (0, "")
    assert "# skipped: nobody: it names no system that is known (1 rows)" in outcome.out
    assert "# 3 rows, 1 skipped" in outcome.out
    record = json.loads(Path("out.json").read_text())
    assert [each["name"] for each in record["cases"]] == ["small", "large"]
    assert [(each["name"], each["rows"]) for each in record["groups"]] == [("NCCL, NVSwitch", 3)]
    for row in record["rows"]:
        assert abs(row["predicted_us"] / row["time_us"] - 1) < 0.5


def test_the_emulator_is_another_engine(table: str, collemu: Collemu) -> None:
    outcome = collemu("validate", table, "--engine", "emulate", "--brief")
    assert outcome.code == 0
    assert "NCCL, NVSwitch" in outcome.out and "# 3 rows, 1 skipped" in outcome.out


def test_both_engines_stand_beside_each_other(table: str, collemu: Collemu) -> None:
    outcome = collemu("validate", table, "--engine", "both", "--brief", "--json", "both.json")
    assert (outcome.code, outcome.err) == (0, "")
    for row in json.loads(Path("both.json").read_text())["rows"]:
        assert abs(row["emulated_us"] / row["predicted_us"] - 1) < 0.1
    lines = [line for line in outcome.out.splitlines() if line.startswith("NCCL, NVSwitch: ")]
    assert [line.split("  ")[0] for line in lines] == [
        "NCCL, NVSwitch: model",
        "NCCL, NVSwitch: emulator",
        "NCCL, NVSwitch: emulator against model",
    ]


def test_a_table_is_fitted_and_the_file_serves(table: str, collemu: Collemu) -> None:
    outcome = collemu("calibrate", "--from", table, "--system", "h100_hgx", "-o", "own.toml")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "# nccl hopper: 2 cases"
    assert lines[1].startswith("launch_us usual ")
    assert collemu("validate", table, "--constants", "own.toml", "--brief").code == 0


def test_pictures_are_drawn_a_group(table: str, collemu: Collemu) -> None:
    pytest.importorskip("matplotlib")
    assert collemu("validate", table, "--brief", "--plot", "pictures").code == 0
    assert [path.name for path in Path("pictures").iterdir()] == ["NCCL_NVSwitch.png"]
    Path("file").write_text("")
    refused = collemu("validate", table, "--plot", "file")
    assert refused.code == 2 and "cannot write --plot file" in refused.err


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("h100_hgx,none,1,72", "72 ranks, but a domain of 8 chips and no network"),
        ("h100_hgx,efa_p5,16,8", "16 nodes cannot have 8 ranks"),
        ("h100_hgx,efa_p5,1,8", "one node, but a network, efa_p5"),
        ("h100_hgx,ethernet,2,16", "no network ethernet in the catalogue"),
        ("h100,none,1,8", "no system h100 in the catalogue"),
    ],
)
def test_what_cannot_have_been_measured_is_skipped(row, reason, table: str, collemu: Collemu) -> None:
    Path("odd.csv").write_text(
        ROWS.splitlines()[0] + f"\r\na,{row},all_reduce,float16,64,9,auto,auto,\r\n", "utf-8-sig"
    )
    for engine in ("model", "emulate", "both"):
        outcome = collemu("validate", "odd.csv", "--engine", engine)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"# skipped: a: {reason} (1 rows)" in outcome.out and "# 0 rows, 1 skipped" in outcome.out


def test_groups_are_by_columns(table: str, collemu: Collemu) -> None:
    outcome = collemu("validate", table, "--brief", "--by", "system,collective,ranks")
    assert outcome.code == 0
    assert "h100_hgx all_gather 8" in outcome.out and "h100_hgx all_reduce 8" in outcome.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("validate", "none.csv"), "cannot read none.csv"),
        (("validate", "rows.csv", "--where", "ranks"), "is no COLUMN=VALUE"),
        (("validate", "rows.csv", "--where", "rank=8"), "has no column rank"),
        (("validate", "rows.csv", "--engine", "guess"), "no engine 'guess'"),
        (("validate", "rows.log"), "give --system and --ranks"),
        (("validate", "rows.csv", "--by", "gpu"), "--by gpu: no column 'gpu'; choose system, network"),
        (("calibrate",), "give host, to measure this machine, or --from CSV"),
        (("calibrate", "host", "--from", "rows.csv"), "give host"),
        (("calibrate", "--from", "rows.csv", "--system", "x"), "no model has rows of it"),
        (("calibrate", "--from", "rows.csv", "--where", "case_id=nobody"), "nobody: it names no system that is known"),
        (("calibrate", "--from", "rows.csv", "-o", "x.json"), "must end in .toml"),
    ],
)
def test_what_cannot_be_is_one_line(words, expected, table: str, collemu: Collemu) -> None:
    outcome = collemu(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert expected in outcome.err and len(outcome.err.splitlines()) == 1
