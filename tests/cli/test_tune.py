"""``collemu tune``: its table, its JSON, its refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]
WORDS = ("tune", "all_reduce", "--ranks", "4", "-b", "1K", "-e", "1M", "-f", "8", "--channels", "1,4")


def test_table_and_json_say_the_same(collemu: Collemu, tmp_path: Path) -> None:
    outcome = collemu(*WORDS, "--like", "all", "--json", tmp_path / "t.json")
    assert outcome.code == 0, outcome.err
    table = json.loads((tmp_path / "t.json").read_text())
    rows = [line.split() for line in outcome.out.splitlines() if line[:1] not in ("#", "f", "-")]
    assert [(int(row[0]), int(row[1]), row[2]) for row in rows] == [
        (each["min_bytes"], each["max_bytes"], each["algorithm"]) for each in table["ranges"]
    ]
    assert table["header"]["collective"] == "all_reduce"
    assert table["ranges"][0]["min_bytes"] == 1024
    assert table["ranges"][-1]["max_bytes"] == 2**20
    assert all(0 < float(row[-1]) <= 100 for row in rows)


def test_json_alone_goes_to_stdout(collemu: Collemu) -> None:
    assert json.loads(collemu(*WORDS, "--json", "-").out)["schema_version"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tune", "all_reduce", "--like", "gloo"), "--like='gloo' is not supported; choose nccl, rccl, custom, all"),
        (("tune", "all_reduce,broadcast"), "collective: tune looks at one at a time, not at 2"),
        (("tune", "all_reduce", "--wire", "none,mxfp4"), "--wire and --recipe: tune looks at one at a time"),
        (("tune", "all_reduce", "--ranks", "2-4"), "--ranks: tune looks at one at a time, not at 3"),
        (("tune", "alltoallv"), "tune alltoall"),
        (("tune", "reduce", "--ranks", "4", "-r", "4"), "root 4 is not one of the 4 ranks"),
        (("tune", "all_reduce", "--protocol", "tcp"), "no protocol 'tcp'"),
        (("tune", "all_reduce", "-f", "1"), "-f is 1; give 2 or more"),
        (("tune", "broadcast", "--like", "custom"), "custom has no algorithm for broadcast"),
        (("tune", "all_reduce", "-d", "int32", "--wire", "mxfp4"), "wire mxfp4 carries floats, not int32"),
        (("tune", "all_reduce", "--fidelity", "exact"), "no fidelity 'exact'"),
    ],
)
def test_what_makes_no_sense_is_one_line(collemu: Collemu, words: tuple[str, ...], told: str) -> None:
    outcome = collemu(*words)
    assert outcome.code == 2
    assert told in outcome.err
    assert outcome.err.count("\n") == 1
