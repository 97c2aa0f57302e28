"""nccl-tests' table and JSON, and tidy CSV, from one record a line.

Times are microseconds, bandwidths decimal GB/s. Emulation has no difference between in place and out of place, so one
set of columns stands for both. What nccl-tests lacks stands to the right of its columns.
"""

import csv
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

JSON_VERSION = 2  # of nccl-tests' file whose shape this has
SCHEMA_VERSION = 1  # of what collemu adds
RUNNING = "# Collective test starting: "


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    size, count : int
        Bytes and elements as nccl-tests counts them for the collective.
    type, redop : str
        dtype and operator, ``none`` where nothing is reduced.
    root : int
        -1 where there is none.
    time_us, algbw_gbps, busbw_gbps : float
    nwrong : int or None
        Elements that came out wrong in the check; None if it was off.
    system, collective, algorithm, protocol, fidelity, wire, recipe, accumulate, scale_mode, requantise : str
        ``recipe`` is the name of a published one, or empty; ``scale_mode`` is empty where it is the wire's own.
    ranks : int
    wire_bytes : int
        Wire images that all ranks sent together: codes, scales and tensor scales, without lines and packet headers.
    bound_us : float
        No schedule ends sooner.
    bound : str
        Name of that bound.
    efficiency : float
        That bound over the time, 0 to 1.
    max_link_utilisation : float
        Share of the time for which the busiest link was sending, 0 to 1.
    relative_error, max_abs_error : float or None
        Of the user's tensors: relative Frobenius norm and largest difference from the exact result.
    identical : bool or None
        Whether all replicas hold the same bits; None where they need not, or without data.
    quantisations : int or None
        Most roundings to a narrower type that a number went through; None without data.
    saturated : int or None
        Numbers that were cut down to the largest of their format; None without data.
    """

    size: int
    count: int
    type: str
    redop: str
    root: int
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    nwrong: int | None
    system: str
    collective: str
    algorithm: str
    ranks: int
    protocol: str
    fidelity: str
    wire: str
    recipe: str
    accumulate: str
    scale_mode: str
    requantise: str
    wire_bytes: int
    bound_us: float
    bound: str
    efficiency: float
    max_link_utilisation: float
    relative_error: float | None = None
    max_abs_error: float | None = None
    identical: bool | None = None
    quantisations: int | None = None
    saturated: int | None = None


#: Columns of the table: heading, unit, least width.
COLUMNS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 7),
    ("redop", "", 6),
    ("root", "", 5),
    ("time", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 6),
    ("algorithm", "", 9),
    ("protocol", "", 8),
    ("model", "", 6),
    ("wire", "", 5),
    ("ranks", "", 5),
    ("wire bytes", "(B)", 13),
    ("bound", "(us)", 10),
    ("eff", "(%)", 5),
    ("link", "(%)", 5),
)
DATA_COLUMNS = (
    ("error", "(relative)", 10),
    ("max |error|", "", 11),
    ("replicas", "", 9),
    ("roundings", "", 9),
    ("saturated", "", 9),
)
RECIPE_COLUMN = ("recipe", "", 6)


class Table:
    """The table as text, two lines of heading and one a row.

    Parameters
    ----------
    longest : mapping of str to int
        Characters of the longest entry of columns whose width depends on what runs: type, algorithm, wire, ...
    with_data : bool
        Whether the columns on the error of the user's tensors are there.
    """

    def __init__(self, longest: Mapping[str, int], *, with_data: bool = False) -> None:
        self._with_data = with_data
        self._with_recipes = longest.get("recipe", 0) > 0
        self._columns = COLUMNS + DATA_COLUMNS if with_data else COLUMNS
        if self._with_recipes:
            at = [title for title, _, _ in COLUMNS].index("wire")
            self._columns = (*self._columns[:at], RECIPE_COLUMN, *self._columns[at:])
        self._widths = [max(width, longest.get(title, 0)) for title, _, width in self._columns]

    def heading(self) -> list[str]:
        """Lines above the rows; they begin with ``#``."""
        titles, units, _ = zip(*self._columns, strict=True)
        lines = (self._line(titles), self._line(units))
        return ["#" + line[1:] for line in lines]

    def row(self, row: Row) -> str:
        """A line of values."""
        cells = [
            str(row.size),
            str(row.count),
            row.type,
            row.redop,
            str(row.root),
            f"{row.time_us:.3f}",
            f"{row.algbw_gbps:.2f}",
            f"{row.busbw_gbps:.2f}",
            "N/A" if row.nwrong is None else str(row.nwrong),
            row.algorithm,
            row.protocol,
            row.fidelity,
            *((row.recipe or "-",) if self._with_recipes else ()),
            row.wire,
            str(row.ranks),
            str(row.wire_bytes),
            f"{row.bound_us:.3f}",
            f"{100 * row.efficiency:.1f}",
            f"{100 * row.max_link_utilisation:.1f}",
        ]
        if self._with_data:
            cells += [number(row.relative_error), number(row.max_abs_error), replicas(row.identical)]
            cells += ["-" if count is None else str(count) for count in (row.quantisations, row.saturated)]
        return self._line(cells)

    def _line(self, cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def footer(rows: Sequence[Row]) -> list[str]:
    """Lines below the table."""
    wrong = total_wrong(rows)
    return [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average_busbw(rows):.4g} GB/s",
    ]


def number(value: float | None) -> str:
    """An error in few digits; ``-`` where there is none."""
    return "-" if value is None else f"{value:.3g}"


def replicas(identical: bool | None) -> str:
    """Whether replicas are identical, in a word; ``-`` where they need not be."""
    return "-" if identical is None else "identical" if identical else "differ"


def total_wrong(rows: Iterable[Row]) -> int:
    """Wrong elements of all rows."""
    return sum(row.nwrong or 0 for row in rows)


def average_busbw(rows: Sequence[Row]) -> float:
    """Mean of the busbw column in GB/s, as nccl-tests prints it."""
    return sum(row.busbw_gbps for row in rows) / len(rows) if rows else 0.0


def write_json(file: TextIO, rows: Sequence[Row], header: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Write the shape of nccl-tests' ``-J`` file, with what collemu adds to a result and a ``header``.

    The file holds no date and no environment: the same arguments give the same bytes.
    """
    wrong = total_wrong(rows)
    document = {
        "version": JSON_VERSION,
        "schema_version": SCHEMA_VERSION,
        "args": list(arguments),
        "header": dict(header),
        "results": [_result(row) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": average_busbw(rows), "okay": True},
    }
    json.dump(document, file, indent=1, allow_nan=False)
    file.write("\n")


def write_csv(file: TextIO, rows: Iterable[Row]) -> None:
    """Write one tidy row a point: first what was asked, then what came out; an empty cell is no value."""
    names = [field.name for field in dataclasses.fields(Row)]
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)


def _result(row: Row) -> dict[str, Any]:
    result: dict[str, Any] = {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "out_of_place": {
            "time": row.time_us,
            "alg_bw": row.algbw_gbps,
            "bus_bw": row.busbw_gbps,
            "nwrong": row.nwrong,
        },
    }
    measured = ("time_us", "algbw_gbps", "busbw_gbps", "nwrong")
    rest = {name: value for name, value in dataclasses.asdict(row).items() if name not in measured}
    return result | rest
