"""``collemu perf``: nccl-tests' table of a collective on an emulated system, and what that table lacks."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

from collemu.cli import options
from collemu.cli.options import AUTO, Point
from collemu.cli.progress import Progress
from collemu.interop import nccl_tests

if TYPE_CHECKING:
    from collemu.emulator import Result
    from collemu.schedule import Schedule
    from collemu.catalogue import System
    from collemu.tensors import Tensor

ROOTED = ("broadcast", "reduce")

DESCRIPTION = """\
Emulate a collective and print nccl-tests' table: time in microseconds, bandwidths in decimal GB/s. To its right stand
the algorithm that ran, the bytes of all wire images, the time below which no schedule can end, and the share of the
time for
which the busiest link was sending. Exit code 1 if an element came out wrong."""

EPILOG = """\
examples:
  collemu perf all_reduce -b 1K -e 64M -f 4 --algorithm ring,two_shot
  collemu perf all_reduce --ranks 8,72 --wire none,bfloat16,mxfp8_e4m3,mxfp4 --csv out.csv
  collemu perf all_reduce --data gradients.npy --wire mxfp4"""


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "perf",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_collective_flags(parser)
    parser.add_argument(
        "-c", "--check", default="1", metavar="N", help="0: no check of the outputs; 2: check full size too (default 1)"
    )
    output = parser.add_argument_group("data and output")
    output.add_argument(
        "--data",
        metavar="FILE[:NAME]",
        help=".npy, .npz or .safetensors: your tensors instead of sizes; adds the wire format's error to the table",
    )
    output.add_argument(
        "--json", metavar="FILE", help="also write nccl-tests' JSON with the added columns; - for stdout"
    )
    output.add_argument("--csv", metavar="FILE", help="also write one tidy row a point; - for stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 1 if an element came out wrong."""
    check = options.whole(arguments.check, "-c", least=0)
    if "-" in (arguments.json, arguments.csv) and arguments.json == arguments.csv:
        raise ValueError("--json - and --csv - both want stdout; give one of them a file")
    tensor = None
    if arguments.data:
        from collemu.tensors import load_tensor

        tensor = load_tensor(arguments.data)
        arguments.minbytes = arguments.maxbytes = "0"
    points = options.resolve_points(arguments)
    table = None if "-" in (arguments.json, arguments.csv) else sys.stdout
    with _open(arguments.json) as json_file, _open(arguments.csv) as csv_file:
        report = _Report(table, nccl_tests.Table(_longest(points), with_data=tensor is not None))
        with Progress(len(points)) as progress:
            for point in points:
                progress.step(f"{point.collective} {point.algorithm} {point.ranks} ranks {point.size} B")
                outcome = measure(point, check, tensor)
                progress.clear()
                report.add(*outcome)
        report.end()
        if json_file:
            nccl_tests.write_json(json_file, report.rows, report.header, arguments.words)
        if csv_file:
            nccl_tests.write_csv(csv_file, report.rows)
    return 1 if nccl_tests.total_wrong(report.rows) else 0


class _Numbers(TypedDict):
    dtype: str
    op: str
    wire: str
    protocol: str


def measure(
    point: Point, check: int, tensor: "Tensor | None" = None
) -> "tuple[nccl_tests.Row, Result, tuple[str, ...]]":
    """Run a point.

    Parameters
    ----------
    point : Point
    check : int
        0: none; 1: at most at an affordable size; 2: at full size.
    tensor : Tensor, optional
        To use instead of a size.

    Returns
    -------
    row : Row
    result : Result
        Of the run that was timed.
    notes : tuple of str
        What a reader of the row must know.
    """
    from collemu import emulate
    from collemu.check import check as check_outputs

    system = load(point.system)
    notes: list[str] = []
    data = None
    if tensor is not None:
        from collemu.tensors import deal

        regions = point.ranks if point.collective in ("reduce_scatter", "alltoall") else 1
        data, how = deal(tensor, point.collective, point.ranks, regions)
        point = dataclasses.replace(point, count=data.shape[1] // regions)
        notes.append(f"data {tensor.origin}: {how}")
    point = _settled(point, system)
    schedule = build(point.collective, point.algorithm, point.ranks, point.root, point.channels, point.chunks)
    numbers: _Numbers = {"dtype": point.dtype, "op": point.op, "wire": point.wire, "protocol": point.protocol}
    outcome = check_outputs(schedule, system, count=point.count, full=check > 1, **numbers) if check else None
    if outcome and not outcome.exact:
        notes.append(f"#wrong of {point.op} over wire {point.wire} allows the roundings of its formats")
    if outcome and outcome.count != point.count:
        notes.append(
            "#wrong of large sizes is counted at a smaller count with the same remainder; -c 2 checks all of it"
        )
    if outcome and outcome.count == point.count and data is None:
        result = outcome.result
    else:
        result = emulate(
            schedule, system, count=point.count, data=data, fidelity=point.fidelity, timeline=False, **numbers
        )
    row = _row(point, system, result, outcome.wrong if outcome else None)
    if data is not None:
        row = dataclasses.replace(row, **_errors(point, data, result))
    return row, result, tuple(notes)


@lru_cache
def load(name: str) -> "System":
    """A system, read once."""
    from collemu import load_system

    return load_system(name)


@lru_cache(maxsize=8)
def build(collective: str, algorithm: str, ranks: int, root: int, channels: int, chunks: int | None) -> "Schedule":
    """A schedule, built once for all sizes, dtypes and wire formats."""
    from collemu import build_schedule

    return build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks)


def _settled(point: Point, system: "System") -> Point:
    """The point with an algorithm in place of ``auto``."""
    if point.algorithm != AUTO:
        return point
    from collemu.model.choose import choose_algorithm

    name = choose_algorithm(
        point.collective,
        point.ranks,
        system,
        count=point.count,
        dtype=point.dtype,
        op=point.op,
        wire=point.wire,
        root=point.root,
        channels=point.channels,
        chunks=point.chunks,
        protocol=point.protocol,
    )
    return dataclasses.replace(point, algorithm=name)


def _row(point: Point, system: "System", result: "Result", wrong: int | None) -> nccl_tests.Row:
    from collemu.dtypes import find_dtype
    from collemu.model.bandwidth import algbw, busbw, size_bytes

    size = size_bytes(point.collective, point.ranks, point.count, find_dtype(point.dtype).item_bytes)
    return nccl_tests.Row(
        size=size,
        count=point.count,
        type=point.dtype,
        redop=point.op if point.reduces else "none",
        root=point.root if point.collective in ROOTED else -1,
        time_us=result.time_s * 1e6,
        algbw_gbps=algbw(size, result.time_s) / 1e9,
        busbw_gbps=busbw(point.collective, point.ranks, size, result.time_s) / 1e9,
        nwrong=wrong,
        system=system.name,
        collective=point.collective,
        algorithm=point.algorithm,
        ranks=point.ranks,
        protocol=result.header["protocol"],
        wire=point.wire,
        wire_bytes=result.wire_bytes,
        bound_us=result.bounds.total_s * 1e6,
        bound=result.bounds.name,
        max_link_utilisation=result.links.max_utilisation,
    )


def _errors(point: Point, data: Any, result: "Result") -> dict[str, Any]:
    """How far the outputs are from what exact arithmetic gives; None for a difference that is no number."""
    import numpy as np

    from collemu.reference import difference

    relative, largest = difference(point.collective, data, np.asarray(result.outputs), point.op, point.root)
    return {
        "relative_error": relative if math.isfinite(relative) else None,
        "max_abs_error": largest if math.isfinite(largest) else None,
        "identical": result.replicas_identical,
    }


class _Report:
    """Rows as they come: banner, a heading for each collective, and the footer."""

    def __init__(self, file: TextIO | None, table: nccl_tests.Table) -> None:
        self.rows: list[nccl_tests.Row] = []
        self.header: dict[str, Any] = {}
        self._file, self._table = file, table
        self._section: tuple[str, str] | None = None
        self._notes: dict[str, None] = {}

    def add(self, row: nccl_tests.Row, result: "Result", notes: Sequence[str]) -> None:
        """Print a row, and above the first of a system and collective what it depends on."""
        if not self.rows:
            self.header = header_of(result)
        section = (row.system, row.collective)
        if section != self._section:
            if self._section is None or self._section[0] != row.system:
                self._print(banner(result))
            self._print([nccl_tests.RUNNING + row.collective, *self._table.heading()])
            self._section = section
        self.rows.append(row)
        self._notes |= dict.fromkeys(notes)
        self._print([self._table.row(row)])

    def end(self) -> None:
        """Print what stands below the table."""
        self._print([*nccl_tests.footer(self.rows), *(f"# {note}" for note in self._notes)])

    def _print(self, lines: Sequence[str]) -> None:
        if self._file:
            print("\n".join(lines), file=self._file, flush=True)


def _longest(points: Sequence[Point]) -> dict[str, int]:
    """Characters of the longest name in each column of names."""
    from collemu import algorithms

    chosen = [name for point in points if point.algorithm == AUTO for name in algorithms(point.collective)]
    return {
        "type": max(len(point.dtype) for point in points),
        "wire": max(len(point.wire) for point in points),
        "algorithm": max(map(len, [*chosen, *(point.algorithm for point in points)])),
    }


def header_of(result: "Result") -> dict[str, Any]:
    """What all rows depend on: versions, system, fidelity, the rest of the recipe, estimated constants."""
    of_a_row = ("collective", "algorithm", "ranks", "channels", "dtype", "op", "wire", "protocol")
    return {name: value for name, value in result.header.items() if name not in of_a_row}


def banner(result: "Result") -> list[str]:
    """Comment lines above the table."""
    header = result.header
    estimates = len(header["estimates"])
    return [
        f"# collemu {header['collemu']} python {header['python']} numpy {header['numpy']}",
        f"# system {header['system']} fingerprint {header['system_fingerprint']} fidelity {header['fidelity']}",
        f"# recipe accumulate {header['accumulate']} round_own {str(header['round_own']).lower()}",
        f"# estimates: {estimates} constants, see collemu systems {header['system']}",
    ]


@contextmanager
def _open(name: str | None) -> Generator[TextIO | None]:
    """A file to write, stdout for ``-``, or None; opened before anything runs, so that a bad path fails at once."""
    if name is None or name == "-":
        yield sys.stdout if name else None
        return
    with open(name, "w", encoding="utf-8", newline="") as file:
        yield file
