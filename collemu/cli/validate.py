"""``collemu validate``: how far predicted times are from tables that others measured."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collemu.cli.options import DEFAULT_SYSTEM, collectives, whole
from collemu.cli.outputs import STDOUT, try_output, write_whole
from collemu.cli.progress import Progress
from collemu.cli.table import lines_of

if TYPE_CHECKING:
    from collemu.fidelity.measured import Measured
    from collemu.fidelity.predict import Predictions
    from collemu.fidelity.score import Score

DESCRIPTION = """\
Predict the times of measured collectives and say how far off they are: by case,
and by group, with the median, the 90th percentile and the worst relative error
of time, the bias (above 0: predicted too slow), and medians by band of sizes.
Reads a CSV (case_id, system_id, network_id, nodes, ranks, collective,
size_bytes, time_us, ...), or with --system what nccl-tests printed or wrote
with -J."""

EPILOG = """\
examples:
  collemu validate measured.csv --where health=healthy --where network_id=none
  collemu validate measured.csv --cross-validate --json errors.json
  collemu validate all_reduce.log --system h100_hgx --ranks 8"""

COLUMNS = ("system", "network", "collective", "nodes", "ranks", "dtype", "library")
ENGINES = ("model", "emulate", "both")


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "validate", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a CSV of measured cases, or the text or JSON of nccl-tests")
    add("--where", action="append", default=[], metavar="COL=VAL", help="only rows of the CSV with this; repeatable")
    add(
        "--engine",
        default="model",
        metavar="E",
        help="model: closed forms; emulate: collemu's emulator; both: beside each other (default model)",
    )
    add(
        "--constants",
        metavar="FILE",
        help="constants of your own, of collemu calibrate --from (default: those shipped)",
    )
    add("--cross-validate", action="store_true", help="fit again without the cases that are predicted")
    add("--diagnose", action="store_true", help="say which constant would have to change by how much to explain a case")
    add(
        "--by",
        metavar="C,C",
        help="groups by columns, such as system,collective (default: the models); of " + ", ".join(COLUMNS),
    )
    add("--brief", action="store_true", help="groups only, no cases")
    add("--json", metavar="FILE", help="also write every row and score; - for stdout")
    add("--plot", metavar="DIR", help="draw measured against predicted times, a picture a group")
    own = parser.add_argument_group("for what nccl-tests printed")
    own.add_argument(
        "--system", metavar="S", help=f"where it ran, such as h100_hgx (perf's default is {DEFAULT_SYSTEM})"
    )
    own.add_argument("--network", default="none", metavar="N", help="that joined the nodes (default none)")
    own.add_argument("--nodes", default="1", metavar="N", help="default 1")
    own.add_argument("--ranks", metavar="N", help="how many ranks there were")
    own.add_argument("--collective", metavar="C", help="where the file does not say")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from collemu.fidelity.constants import SHIPPED, load_constants
    from collemu.fidelity.diagnose import diagnoses
    from collemu.fidelity.emulated import emulated
    from collemu.fidelity.predict import predict

    if arguments.engine not in ENGINES:
        raise ValueError(f"no engine {arguments.engine!r}; choose {', '.join(ENGINES)}")
    columns: list[str] = arguments.by.split(",") if arguments.by else []
    for column in columns:
        if column not in COLUMNS:
            raise ValueError(f"--by {arguments.by}: no column {column!r}; choose {', '.join(COLUMNS)}")
    if arguments.json not in (None, STDOUT):
        try_output("--json", arguments.json)
    rows, skipped = _read(arguments)
    constants = load_constants(arguments.constants or SHIPPED)
    of_model = of_emulator = None
    if arguments.engine != "emulate":
        of_model = predict(rows, constants, cross_validate=arguments.cross_validate)
    if arguments.engine != "model":
        with Progress(len(rows), "rows") as progress:
            of_emulator = emulated(rows, constants, progress.count)
    found = of_model or of_emulator
    assert found is not None
    skipped += _reasons(rows, found)
    scores = _scores(rows, found, _groups(rows, found, columns))
    if arguments.json != STDOUT:
        print("\n".join(_report(rows, found, scores, skipped, brief=arguments.brief)))
        if of_model and of_emulator:
            print("\n".join(_beside(rows, of_model, of_emulator)))
        if arguments.diagnose:
            print("\n".join(str(each) for each in diagnoses(rows, constants)))
    if arguments.json:
        record = _record(rows, found, scores, skipped, of_emulator if of_model else None)
        write_whole(arguments.json, lambda file: json.dump(record, file, indent=1))
    if arguments.plot:
        from collemu.fidelity.plot import draw

        draw(rows, found, Path(arguments.plot))
    return 0


def _read(arguments: argparse.Namespace) -> "tuple[Measured, list[tuple[str, str, int]]]":
    from collemu.fidelity.measured import read_csv, read_nccl_tests

    if arguments.file.lower().endswith(".csv"):
        return read_csv(arguments.file, arguments.where)
    if arguments.where:
        raise ValueError("--where chooses rows of a CSV; this file is none (its name does not end in .csv)")
    if arguments.system is None or arguments.ranks is None:
        raise ValueError(f"{arguments.file} does not say where it ran: give --system and --ranks, or a .csv")
    if arguments.collective is not None and arguments.collective not in collectives():
        raise ValueError(f"no collective {arguments.collective!r}; choose {', '.join(collectives())}")
    where = (arguments.system, arguments.network, whole(arguments.nodes, "--nodes", least=1))
    return read_nccl_tests(arguments.file, *where, whole(arguments.ranks, "--ranks", least=1), arguments.collective), []


def _reasons(rows: "Measured", found: "Predictions") -> list[tuple[str, str, int]]:
    """Case, reason, and how many of its rows have no time for it."""
    counts: dict[tuple[str, str], int] = {}
    for place, reason in found.reasons.items():
        counts[rows.case[place], reason] = counts.get((rows.case[place], reason), 0) + 1
    return [(*key, count) for key, count in counts.items()]


def _groups(rows: "Measured", found: "Predictions", columns: Sequence[str]) -> Any:
    """The line of the summary that each row belongs to, as an array."""
    import numpy as np

    if not columns:
        return found.family
    texts = [[f"{value:g}" if isinstance(value, float) else value for value in getattr(rows, c)] for c in columns]
    return np.array([" ".join(filter(None, each)) for each in zip(*texts, strict=True)], object)


def _scores(rows: "Measured", found: "Predictions", group: Any) -> "tuple[list[Score], list[Score]]":
    """Of cases, and of groups; then of all."""
    import numpy as np

    from collemu.fidelity.score import score

    error = found.time_us / rows.time_us - 1
    told = ~np.isnan(found.time_us)

    def of(name: str, mask: Any) -> "Score":
        return score(name, rows.case[mask].tolist(), rows.size[mask], error[mask])

    cases = [of(case, told & (rows.case == case)) for case in dict.fromkeys(rows.case[told].tolist())]
    groups = [of(each, told & (group == each)) for each in sorted(set(group[told].tolist()))]
    if len(groups) > 1:
        groups.append(of("all", told))
    return cases, groups


def _beside(rows: "Measured", of_model: "Predictions", of_emulator: "Predictions") -> list[str]:
    """Both engines where both have times, and how far they are apart."""
    from dataclasses import replace

    from collemu.fidelity.score import score

    lines: list[tuple[str, ...]] = []
    for group in sorted(set(of_emulator.family.tolist()) - {""}):
        mask = of_emulator.family == group
        case, size, measured = rows.case[mask].tolist(), rows.size[mask], rows.time_us[mask]
        by_model, by_emulator = of_model.time_us[mask], of_emulator.time_us[mask]
        for name, error in (
            ("model", by_model / measured - 1),
            ("emulator", by_emulator / measured - 1),
            ("emulator against model", by_emulator / by_model - 1),
        ):
            lines.append(_cells(score(f"{group}: {name}", case, size, error)))
    heading = ("both engines", *HEADING, *_bands())
    table = ["", *lines_of(heading, lines, "<" + ">" * (len(heading) - 1)), ""] if lines else []
    only = {place: reason for place, reason in of_emulator.reasons.items() if place not in of_model.reasons}
    reasons = _reasons(rows, replace(of_emulator, reasons=only))
    return table + [f"# not emulated: {case}: {reason} ({count} rows)" for case, reason, count in reasons]


def _bands() -> list[str]:
    from collemu.fidelity.score import BANDS

    return [name for name, _ in BANDS]


HEADING = ("rows", "cases", "median", "90th", "worst", "bias")


def _report(
    rows: "Measured",
    found: "Predictions",
    scores: "tuple[list[Score], list[Score]]",
    skipped: Sequence[tuple[str, str, int]],
    *,
    brief: bool,
) -> list[str]:
    lines = ["# relative error of time in percent; bias above 0: predicted too slow; bands: median by size"]
    heading = (*HEADING, *_bands())
    for title, each in (("case", [] if brief else scores[0]), ("group", scores[1])):
        if each:
            lines += [*lines_of((title, *heading), list(map(_cells, each)), "<" + ">" * len(heading)), ""]
    for case, reason, count in skipped:
        lines.append(f"# skipped: {case}: {reason} ({count} rows)")
    lines.append(f"# {len(rows)} rows, {sum(count for *_, count in skipped)} skipped")
    return lines


def _cells(each: "Score") -> tuple[str, ...]:
    percent = [f"{100 * value:.1f}" for value in (each.median, each.p90, each.worst)]
    bands = ["-" if value is None else f"{100 * value:.1f}" for value in each.bands]
    return (each.name, str(each.rows), str(each.cases), *percent, f"{100 * each.bias:+.1f}", *bands)


def _record(
    rows: "Measured",
    found: "Predictions",
    scores: "tuple[list[Score], list[Score]]",
    skipped: Sequence[tuple[str, str, int]],
    of_emulator: "Predictions | None",
) -> dict[str, Any]:
    from dataclasses import asdict

    names = ("case", "system", "network", "collective", "ranks", "size", "time_us")
    columns = {name: getattr(rows, name).tolist() for name in names}
    for name, each in (("predicted_us", found), ("emulated_us", of_emulator)):
        if each is not None:
            columns[name] = [None if math.isnan(value) else value for value in each.time_us.tolist()]
    columns["group"] = found.family.tolist()
    return {
        "schema": 1,
        "rows": [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)],
        "cases": [asdict(each) for each in scores[0]],
        "groups": [asdict(each) for each in scores[1]],
        "skipped": [{"case": case, "reason": reason, "rows": count} for case, reason, count in skipped],
    }
