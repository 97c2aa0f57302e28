"""What `collemu crosscheck` prints and writes: a row a point, and below it what differs."""

import csv
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from collemu.cli.options import Point

if TYPE_CHECKING:
    from collemu import System
    from collemu.ranks.crosscheck import Verdict
    from collemu.ranks.part import Communicator

#: Name, layout and unit of each column.
COLUMNS = (
    ("collective", "<15", ""),
    ("algorithm", "<18", ""),
    ("wire", "<16", ""),
    ("dtype", "<9", ""),
    ("op", "<5", ""),
    ("size", ">11", "(B)"),
    ("count", ">10", "(elements)"),
    ("ranks", ">6", ""),
    ("bytes", ">10", ""),
    ("messages", ">9", ""),
    ("log", ">10", ""),
    ("mpi", ">10", ""),
    ("model", ">11", "(us)"),
    ("real", ">11", "(us)"),
    ("noise", ">7", "(%)"),
    ("error", ">7", "(%)"),
    ("MPI's own", ">11", "(us)"),
)
TELLING = 0.15  # an error from which on a row says where it comes from


@dataclass(frozen=True)
class Row:
    """A point and what came of it."""

    point: Point
    verdict: "Verdict"

    def record(self) -> dict[str, Any]:
        """One tidy row: what was run, then what came of it."""
        point, verdict = self.point, self.verdict
        return {
            "system": point.system,
            "collective": point.collective,
            "algorithm": point.algorithm,
            "wire": point.wire,
            "recipe": str(point.recipe),
            "dtype": point.dtype,
            "op": point.op,
            "root": point.root,
            "size": point.size,
            "count": point.count,
            "ranks": point.ranks,
            "bytes_identical": verdict.bytes_identical,
            "messages": verdict.messages,
            "messages_identical": verdict.messages_identical,
            "mpi_identical": verdict.mpi_identical,
            "model_us": verdict.model_s * 1e6,
            "real_us": verdict.real.median_s * 1e6,
            "real_low_us": verdict.real.low_s * 1e6,
            "real_high_us": verdict.real.high_s * 1e6,
            "runs": verdict.real.runs,
            "noise": verdict.real.noise,
            "error": verdict.error,
            "differs_most": str(verdict.phases[0]) if verdict.phases else None,
            "mpi_us": verdict.mpi.median_s * 1e6 if verdict.mpi else None,
            "lagging": verdict.lagging,
            "mismatches": list(verdict.mismatches),
        }

    def text(self, columns: Sequence[str]) -> str:
        """The row of a table with these columns."""
        point, verdict = self.point, self.verdict
        cells = (
            *(point.collective, point.algorithm, point.recipe.name or point.wire, point.dtype, point.op),
            *(point.size, point.count, point.ranks),
            _word(verdict.bytes_identical),
            *(verdict.messages, _word(verdict.messages_identical)),
            _word(verdict.mpi_identical),
            *(f"{verdict.model_s * 1e6:.2f}", f"{verdict.real.median_s * 1e6:.1f}"),
            f"{verdict.real.noise * 100:.0f}" if verdict.real.runs > 1 else "-",
            "-" if verdict.error is None else f"{verdict.error * 100:+.0f}",
            "-" if verdict.mpi is None else f"{verdict.mpi.median_s * 1e6:.1f}",
        )
        below = list(verdict.mismatches)
        if verdict.error is not None and abs(verdict.error) > TELLING:
            below.append(f"differs most in {verdict.phases[0]}")
        below += filter(None, [verdict.lagging])
        return "\n".join([_line(cells, columns), *(f"    {text}" for text in below)])


def header_of(comm: "Communicator") -> dict[str, Any]:
    """What a run depends on, but for the systems."""
    import numpy as np

    import collemu
    from collemu.ranks.launch import cores, library

    return {
        "collemu": collemu.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi": library(comm),
        "processes": comm.size,
        "cores": cores(),
    }


def columns_of(*, repeats: int, predicts: bool, against_mpi: bool) -> list[str]:
    """Names of the columns that say something.

    Parameters
    ----------
    repeats : int
        Timed runs: more than one have a spread.
    predicts : bool
        Whether a system is one of processes.
    against_mpi : bool
    """
    silent = {"noise": repeats == 1, "error": not predicts, "MPI's own": not against_mpi}
    return [name for name, _, _ in COLUMNS if not silent.get(name)]


def header_text(header: dict[str, Any], columns: Sequence[str]) -> str:
    """The lines above the table."""
    explained = {
        "noise": "# noise: distance of the quartiles of the real times, in percent of their median",
        "error": "# error: how much longer the model takes than the processes; the model is one of processes",
    }
    lines = [
        "# collemu {collemu}, Python {python}, NumPy {numpy}, {mpi}",
        "# model: time on the emulated system; real: slowest of {processes} processes on {cores} cores, median of runs",
        "# bytes: outputs of every rank; log: messages by connection and by thread; mpi: MPI's own, where it is exact",
        *(text for name, text in explained.items() if name in columns),
        _line(("# collective", *(name for name, _, _ in COLUMNS[1:])), columns),
        _line(("#", *(unit for _, _, unit in COLUMNS[1:])), columns),
    ]
    return "\n".join(lines).format(**header)


def system_text(system: "System") -> str:
    """The line that names the system of the rows below it."""
    estimates = len(system.estimates())
    return (
        f"# system {system.name} {system.fingerprint}, {estimates} of its constants are estimates: "
        f"see collemu systems {system.name}"
    )


def regime_note(system: "System", processes: int) -> str | None:
    """What to say where a machine was measured with cores to itself and is asked of shared ones, or the other way."""
    own = system.processes
    if own is None or (own.measured > own.cores) == (processes > own.cores):
        return None
    return (
        f"{system.name} was measured with {own.measured} processes on {own.cores} cores, and {processes} ran: "
        f"mpirun -n {processes} collemu calibrate host"
    )


def footer_text(rows: Sequence[Row]) -> str:
    """The line below the table."""
    verdicts = [row.verdict for row in rows]
    asked = sum(verdict.mpi_identical is not None for verdict in verdicts)
    messages = sum(verdict.messages for verdict in verdicts)
    differing = sum(not verdict.identical for verdict in verdicts)
    outcome = f"{differing} points DIFFER" if differing else "all identical"
    return f"# {len(rows)} points, {messages} messages, {asked} points with MPI's own collective: {outcome}"


def write_json(file: TextIO, header: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write header and rows."""
    json.dump({"schema": 1, "header": header, "results": [row.record() for row in rows]}, file, indent=1)


def write_csv(file: TextIO, rows: Sequence[Row]) -> None:
    """Write the rows; what differs lies in one column."""
    records = [row.record() for row in rows]
    writer = csv.DictWriter(file, list(records[0]))
    writer.writeheader()
    writer.writerows(record | {"mismatches": "; ".join(record["mismatches"])} for record in records)


def _word(identical: bool | None) -> str:
    if identical is None:
        return "-"
    return "identical" if identical else "DIFFERENT"


def _line(cells: Sequence[object], columns: Sequence[str]) -> str:
    laid_out = [f"{cell!s:{layout}}" for cell, (name, layout, _) in zip(cells, COLUMNS, strict=True) if name in columns]
    return " ".join(laid_out).rstrip()
