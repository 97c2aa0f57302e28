"""The table of a sweep: one tidy row a point, as CSV or Parquet, with everything that it depends on."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from collemu.cli.measure import Outcome
from collemu.cli.outputs import write_whole
from collemu.cli.sweep_journal import Finished
from collemu.cli.sweep_plan import Plan, Task
from collemu.collectives import ROOTED
from collemu.interop.nccl_tests import Row

SCHEMA_VERSION = 1
SUFFIXES = (".csv", ".parquet")

#: Column -> type: whose row it is, what was asked, what came out, and what it depends on. Times in microseconds,
#: bandwidths in decimal GB/s, as in `Row`.
_ROW = {name: next(iter(get_args(kind)), kind) for name, kind in get_type_hints(Row).items()}
COLUMNS: dict[str, type] = {
    "schema_version": int,
    "sweep": str,
    "point": int,
    "error": str,
    "asked_algorithm": str,
    "asked_size": int,
    "channels": int,
    "chunks": int,
    "like": str,
    "check": int,
    "data": str,
    **_ROW,
    "notes": str,
    "system_fingerprint": str,
    "estimates": int,
    "seed": int,
    "plan": str,
    "sources": str,
    "collemu": str,
    "python": str,
    "numpy": str,
    "numba": str,
}


def columns_of(outcome: Outcome) -> dict[str, Any]:
    """What came out of a point."""
    header = outcome.header
    return dataclasses.asdict(outcome.row) | {
        "notes": "; ".join(outcome.notes),
        "system_fingerprint": header["system_fingerprint"],
        "estimates": len(header["estimates"]),
    }


def row_of(number: int, plan: Plan, finished: Finished, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table; what a failed point has no value for is None."""
    task = plan.tasks[number]
    asked = {
        "schema_version": SCHEMA_VERSION,
        "sweep": plan.name,
        "point": number,
        "error": finished.error,
        "asked_algorithm": task.point.algorithm,
        "asked_size": task.point.size,
        "channels": task.point.channels,
        "chunks": task.point.chunks,
        "like": task.point.like,
        "check": task.check,
        "data": task.data,
        "seed": plan.seed,
    }
    return dict.fromkeys(COLUMNS) | _of_point(task) | finished.columns | asked | dict(provenance)


def _of_point(task: Task) -> dict[str, Any]:
    """What is known of a row before it has run."""
    point = task.point
    return {
        "count": point.count,
        "type": point.dtype,
        "redop": point.op if point.reduces else "none",
        "root": point.root if point.collective in ROOTED else -1,
        "system": point.system,
        "collective": point.collective,
        "algorithm": point.algorithm,
        "ranks": point.ranks,
        "protocol": point.protocol,
        "fidelity": point.fidelity,
        "wire": point.wire,
        "recipe": point.recipe.name,
        "accumulate": point.recipe.accumulate,
        "scale_mode": point.recipe.scale_mode or "",
        "requantise": point.recipe.requantise,
    }


def check_output(output: str) -> None:
    """Refuse a table that could not be written.

    Raises
    ------
    ValueError
        For another kind of file, or Parquet without pyarrow.
    """
    if Path(output).suffix not in SUFFIXES:
        raise ValueError(f"-o {output} must end in .csv or .parquet")
    if Path(output).suffix == ".parquet":
        try:
            import_module("pyarrow.parquet")
        except ImportError:
            raise ValueError(
                f'-o {output}: Parquet needs pyarrow; install it with: pip install "collemu[parquet]", or give a .csv'
            ) from None


@dataclass(frozen=True)
class WholeTable:
    """A table that lies where one is to be written: what its rows depend on, and how many there are.

    Attributes
    ----------
    provenance : dict
        Its plan and sources.
    rows, failed, wrong : int
        Rows, those with an error, and elements that came out wrong.
    """

    provenance: dict[str, str]
    rows: int
    failed: int
    wrong: int

    def refuse_other(self, output: str, provenance: Mapping[str, Any], points: int) -> None:
        """Refuse one that this sweep would not write.

        Raises
        ------
        ValueError
        """
        for name, value in self.provenance.items():
            if value != provenance[name]:
                raise ValueError(f"{output} holds another sweep, of {name} {value}: give another -o, or --restart")
        if self.rows != points:
            raise ValueError(f"{output} holds {self.rows} of {points} points: give another -o, or --restart")


def whole_table(output: str) -> WholeTable | None:
    """The table that lies there, if there is one.

    Raises
    ------
    ValueError
        If something else lies there.
    """
    if not Path(output).exists():
        return None
    try:
        rows = _read(output, ["plan", "sources", "error", "nwrong"])
        provenance = {name: rows[0][name] for name in ("plan", "sources")}
        failed, wrong = sum(bool(row["error"]) for row in rows), sum(int(row["nwrong"] or 0) for row in rows)
    except (OSError, ValueError, LookupError, csv.Error):
        raise ValueError(f"{output} is no table of a sweep; give another -o, or replace it with --restart") from None
    return WholeTable(provenance, len(rows), failed, wrong)


def _read(output: str, names: list[str]) -> list[dict[str, Any]]:
    if Path(output).suffix == ".parquet":
        parquet: Any = import_module("pyarrow.parquet")
        return parquet.read_table(output, columns=names).to_pylist()
    with Path(output).open(encoding="utf-8", newline="") as file:
        return [{name: row[name] for name in names} for row in csv.DictReader(file)]


def write_table(output: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write the whole table, in place of an older one."""
    if Path(output).suffix == ".parquet":
        write_whole(output, lambda file: _write_parquet(file, rows), binary=True)
    else:
        write_whole(output, lambda file: _write_csv(file, rows))


def _write_csv(file: Any, rows: Sequence[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _write_parquet(file: Any, rows: Sequence[dict[str, Any]]) -> None:
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    types: dict[type, Any] = {
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
        str: pyarrow.string(),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), file)
