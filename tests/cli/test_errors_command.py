"""``collemu errors`` and ``collemu recipes``, and ``--recipe`` where it is a flag."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collemu.published import recipes
from tests.cli.conftest import Outcome

Collemu = Callable[..., Outcome]


def test_errors_says_how_they_grow_and_draws_it(collemu: Collemu, tmp_path: Path) -> None:
    words = ("all_reduce", "--ranks", "2,4,8,16", "--algorithm", "ring,two_shot", "--wire", "float8_e4m3fn", "-b", "8K")
    outcome = collemu("errors", *words, "--plot", tmp_path / "g.svg", "--csv", tmp_path / "g.csv")
    assert outcome.code == 0
    slopes = [float(line.rsplit("^")[1]) for line in outcome.out.splitlines() if line.startswith("# ")]
    assert 0.3 < slopes[0] < 0.6
    assert -0.1 < slopes[1] < 0.15
    rows = list(csv.DictReader((tmp_path / "g.csv").read_text().splitlines()))
    assert [row["quantisations"] for row in rows] == ["2", "4", "8", "16", "2", "2", "2", "2"]
    assert all(float(row["largest"]) <= float(row["worst"]) for row in rows)
    assert "ring, wire float8_e4m3fn" in (tmp_path / "g.svg").read_text()


def test_errors_of_own_data(collemu: Collemu, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 640), np.float32))
    outcome = collemu("errors", "all_reduce", "--ranks", "4", "--algorithm", "ring", "--data", tmp_path / "x.npy")
    ranks, roundings, relative, largest, worst, saturated = outcome.out.splitlines()[2].split()[-6:]
    assert (ranks, roundings, relative, largest, saturated) == ("4", "0", "0", "0", "0")
    assert 0 < float(worst) < 1e-5


def test_rows_of_perf_say_how_they_quantise(collemu: Collemu) -> None:
    flags = ("--ranks", "2", "-b", "1K", "-e", "1K", "--wire", "mxfp4", "--scale-mode", "ceil", "--requantise", "hop")
    row = next(csv.DictReader(collemu("perf", "all_reduce", *flags, "--csv", "-").out.splitlines()))
    assert (row["recipe"], row["accumulate"]) == ("", "float32")
    assert (row["scale_mode"], row["requantise"]) == ("ceil", "hop")


@pytest.mark.parametrize("collective", ["gather", "scatter", "alltoallv"])
def test_errors_of_uneven_collectives(collemu: Collemu, collective: str) -> None:
    words = (collective, "--ranks", "2,3", "--algorithm", "direct", "--wire", "mxfp4", "-b", "1K", "-e", "1K")
    outcome = collemu("errors", *words, "--csv", "-")
    assert outcome.code == 0
    rows = list(csv.DictReader(outcome.out.splitlines()))
    assert [(row["ranks"], row["quantisations"]) for row in rows] == [("2", "1"), ("3", "1")]
    assert all(0 < float(row["largest"]) <= float(row["worst"]) for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--values", "gauss"), "no values 'gauss'; choose normal, positive"),
        (("--seed", "-1"), "--seed is -1; give 0 or more"),
        (("--recipe", "quickreduce_int5"), "no recipe 'quickreduce_int5': did you mean"),
        (("--recipe", "deepep_dispatch"), "recipe deepep_dispatch is for alltoall"),
        (("--recipe", "nccl_fp8", "--accumulate", "float16"), "--accumulate goes with --wire; a recipe has its own"),
        (("--accumulate", "float8"), "recipe: accumulate='float8' is not an accumulate type"),
        (("--wire", "mxfp4", "--scale-mode", "amax"), "scale_mode='amax' is not one of wire mxfp4"),
        (("--requantise", "hop"), "requantise='hop' needs a wire format"),
    ],
)
def test_what_does_not_go_together_is_told_in_one_line(collemu: Collemu, words: tuple[str, ...], told: str) -> None:
    outcome = collemu("errors", "all_reduce", "--ranks", "2", "-b", "64", *words)
    assert outcome.code == 2
    assert told in outcome.err
    assert outcome.err.count("\n") == 1


def test_recipes_are_listed_and_explained(collemu: Collemu) -> None:
    listed = collemu("recipes").out
    assert all(name in listed for name in recipes())
    told = collemu("recipes", "zeropp_qgz").out
    assert "7/8" in told
    assert "reduce_scatter: " in told
    assert collemu("recipes", "nothing").code == 2


def test_perf_compares_recipes_on_own_data(collemu: Collemu, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((8, 640)).astype(np.float32))
    words = ("all_reduce", "--ranks", "8", "--data", tmp_path / "x.npy", "--json", tmp_path / "o.json")
    outcome = collemu("perf", *words, "--recipe", "quickreduce_int8,quickreduce_int4,nccl_fp8", "--wire", "none")
    assert outcome.code == 0, outcome.err
    rows = json.loads((tmp_path / "o.json").read_text())["results"]
    found = {row["recipe"]: row for row in rows}
    assert list(found) == ["", "quickreduce_int8", "quickreduce_int4", "nccl_fp8"]
    assert found["quickreduce_int4"]["algorithm"] == "two_shot"
    assert found["nccl_fp8"]["algorithm"] in ("ring", "tree")
    assert found[""]["relative_error"] < found["quickreduce_int8"]["relative_error"]
    assert found["quickreduce_int8"]["relative_error"] < found["quickreduce_int4"]["relative_error"]
    assert found["quickreduce_int4"]["quantisations"] == 2
    assert found["quickreduce_int4"]["saturated"] > 0
    assert "# recipe quickreduce_int4: wire int4_lanes32" in outcome.out


def test_all_recipes_are_those_that_go_with_the_system(collemu: Collemu) -> None:
    outcome = collemu("perf", "all_reduce", "--ranks", "4", "-b", "8K", "-e", "8K", "--recipe", "all", "-d", "bfloat16")
    assert outcome.code == 0, outcome.err
    assert "nvls_fp8" not in "".join(line for line in outcome.out.splitlines() if line[0] != "#")
    adding = collemu(
        "perf", "all_reduce", "--ranks", "4", "-b", "8K", "-e", "8K", "--recipe", "nvls_fp8", "--system", "gb200_nvl72"
    )
    assert adding.code == 0, adding.err
