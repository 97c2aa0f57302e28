"""``collemu perf``: nccl-tests' table of a collective on an emulated system, and what that table lacks."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from collemu.cli import options
from collemu.cli.fits import Fit, count_not_finite
from collemu.cli.measure import Outcome, add_measure_flags, measure
from collemu.cli.options import AUTO, Point
from collemu.cli.outputs import STDOUT, try_outputs, write_whole
from collemu.cli.points import refuse_oversized
from collemu.cli.progress import Progress
from collemu.cli.words import seconds
from collemu.interop import nccl_tests

if TYPE_CHECKING:
    from collemu.ranks.part import Communicator
    from collemu.ranks.watchdog import Watchdog
    from collemu.recipe import Recipe
    from collemu.tensors import Tensor


DESCRIPTION = """\
Emulate a collective and print nccl-tests' table: time in microseconds,
bandwidths in decimal GB/s. To its right stand the algorithm that ran, the bytes
of all wire images, the time below which no schedule can end, and the share of
the time for which the busiest link was sending. Exit code 1 if an element came
out wrong."""

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
        "--timeout", metavar="S", help="under mpirun: end all where a process does no point in S seconds, and name it"
    )
    output = parser.add_argument_group("data and output")
    add_measure_flags(parser, output)
    output.add_argument(
        "--json", metavar="FILE", help="also write nccl-tests' JSON with the added columns; - for stdout"
    )
    output.add_argument("--csv", metavar="FILE", help="also write one tidy row a point; - for stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 1 if an element came out wrong."""
    from collemu.ranks.agreement import agree, agree_on_start
    from collemu.ranks.launch import abort, fault_text
    from collemu.ranks.watchdog import Watchdog

    timeout = seconds(arguments.timeout, "--timeout")
    check = options.whole(arguments.check, "-c", least=0, most=2)
    tensor, notes = _tensor(arguments)
    fit = Fit(tensor)
    points = options.resolve_points(arguments, fits=fit)
    notes += [*_left_out(arguments, points), *fit.left_out]
    comm = _processes()
    try:
        agree_on_start(comm, arguments.words)
        agree(comm, lambda: _prepare(arguments, points, comm))
        table = sys.stdout if comm.rank == 0 and STDOUT not in (arguments.json, arguments.csv) else None
        recipes = list(dict.fromkeys(point.recipe for point in points))
        report = _Report(table, nccl_tests.Table(_longest(points), with_data=tensor is not None), recipes)
        try:
            with Watchdog(comm, timeout, "collemu perf", each="process") as watchdog:
                for outcome in _outcomes(points, check, tensor, comm, watchdog):
                    report.add(outcome)
            report.note(notes)
            if comm.rank == 0:
                report.end()
        except BaseException:
            _write(arguments, report, len(points))
            raise
        agree(comm, lambda: _write(arguments, report, len(points)))
        return max(comm.allgather(int(nccl_tests.total_wrong(report.rows) > 0)))
    except ValueError:
        raise
    except BaseException as error:
        abort(comm, f"collemu perf: process {comm.rank} of {comm.size}: {fault_text(error)}")
        raise


def _tensor(arguments: argparse.Namespace) -> "tuple[Tensor | None, list[str]]":
    """The user's tensor, if there is one, which then stands for all sizes; and what to say of it."""
    if arguments.data is None:
        return None, []
    from collemu.tensors import load_tensor

    tensor = load_tensor(arguments.data)
    sized = arguments.minbytes is not None or arguments.maxbytes is not None
    arguments.minbytes = arguments.maxbytes = "0"
    notes = ["-b and -e are ignored: the size is that of --data"] if sized else []
    if lost := count_not_finite(tensor):
        notes.append(f"data {tensor.origin}: {lost} NaN or infinities; errors that they reach are shown as -")
    return tensor, notes


def _prepare(arguments: argparse.Namespace, points: Sequence[Point], comm: "Communicator") -> None:
    """Find what would fail later before anything runs."""
    if comm.rank == 0:
        try_outputs(arguments.json, arguments.csv)
    refuse_oversized(points)


def _write(arguments: argparse.Namespace, report: "_Report", points: int) -> None:
    """Write the files that were asked for; if something failed or was interrupted, with what was done until then."""
    rows = report.rows
    if not rows:
        return
    if arguments.json:
        write_whole(arguments.json, lambda file: nccl_tests.write_json(file, rows, report.header, arguments.words))
    if arguments.csv:
        write_whole(arguments.csv, lambda file: nccl_tests.write_csv(file, rows))
    if len(rows) < points:
        for name in filter(None, (arguments.json, arguments.csv)):
            print(f"collemu perf: {name} holds {len(rows)} of {points} points", file=sys.stderr, flush=True)


def _processes() -> "Communicator":
    """All processes that mpirun started; without it, or with one, this process and no MPI."""
    from collemu.ranks.alone import Alone
    from collemu.ranks.launch import launched_alone, start_mpi

    return Alone() if launched_alone() else start_mpi()


def _outcomes(
    points: Sequence[Point], check: int, tensor: "Tensor | None", comm: "Communicator", watchdog: "Watchdog"
) -> Iterator[Outcome]:
    """Outcomes in order as they come; under mpirun the processes share the points, and the first has all at the end."""
    from collemu.ranks.agreement import agree
    from collemu.ranks.crosscheck import load_kernels

    if comm.size == 1:
        with Progress(len(points)) as progress:
            for point in points:
                progress.step(f"emulating {point}")
                outcome = measure(point, check, tensor)
                progress.clear()
                yield outcome
        return
    load_kernels(comm)
    mine: list[Outcome] = []
    fault: ValueError | None = None
    try:
        for point in points[comm.rank :: comm.size]:
            watchdog.begin(lambda point=point: f"is at {point}")
            mine.append(measure(point, check, tensor))
    except ValueError as error:
        fault = error
    watchdog.end()
    parts = comm.gather(mine) or []
    for place in range(len(points) if parts else 0):
        finished = parts[place % comm.size]
        yield from finished[place // comm.size :][:1]
    agree(comm, lambda: _raise(fault))


def _raise(fault: ValueError | None) -> None:
    if fault:
        raise fault


class _Report:
    """Rows as they come: banner, a heading for each collective, and the footer."""

    def __init__(self, file: TextIO | None, table: nccl_tests.Table, recipes: "Sequence[Recipe]") -> None:
        self.rows: list[nccl_tests.Row] = []
        self.header: dict[str, Any] = {}
        self._file, self._table, self._recipes = file, table, recipes
        self._section: tuple[str, str] | None = None
        self._notes: dict[str, None] = {}

    def add(self, outcome: Outcome) -> None:
        """Print a row, and above the first of a system and collective what it depends on."""
        row = outcome.row
        if not self.rows:
            self.header = header_of(outcome.header)
        section = (row.system, row.collective)
        if section != self._section:
            if self._section is None or self._section[0] != row.system:
                self._print(banner(outcome.header, self._recipes))
            self._print([nccl_tests.RUNNING + row.collective, *self._table.heading()])
            self._section = section
        self.rows.append(row)
        self.note(outcome.notes)
        self._print([self._table.row(row)])

    def note(self, notes: Sequence[str]) -> None:
        """Say something below the table, once."""
        self._notes |= dict.fromkeys(notes)

    def end(self) -> None:
        """Print what stands below the table."""
        self._print([*nccl_tests.footer(self.rows), *(f"# note: {note}" for note in self._notes)])

    def _print(self, lines: Sequence[str]) -> None:
        if self._file:
            print("\n".join(lines), file=self._file, flush=True)


def _left_out(arguments: argparse.Namespace, points: Sequence[Point]) -> list[str]:
    """Collectives that were asked for but have none of the algorithms."""
    asked = options.names(arguments.collective, options.collectives(), "collective")
    have = {point.collective for point in points}
    why = "none of the recipes is for it" if arguments.algorithm == AUTO else f"it has no {arguments.algorithm}"
    return [f"{name} is left out: {why}" for name in asked if name not in have]


def _longest(points: Sequence[Point]) -> dict[str, int]:
    """Characters of the longest name in each column of names."""
    from collemu import algorithms

    chosen = [name for point in points if point.algorithm == AUTO for name in algorithms(point.collective)]
    return {
        "type": max(len(point.dtype) for point in points),
        "wire": max(len(point.wire) for point in points),
        "recipe": max(len(point.recipe.name) for point in points),
        "algorithm": max(map(len, [*chosen, *(point.algorithm for point in points)])),
    }


def header_of(header: dict[str, Any]) -> dict[str, Any]:
    """What all rows depend on: versions, system, estimated constants."""
    of_a_row = ("collective", "algorithm", "ranks", "channels", "dtype", "op", "protocol", "fidelity")
    of_a_recipe = ("recipe", "runs_in", "wire", "accumulate", "round_own", "scale_mode", "requantise", "round_input")
    return {name: value for name, value in header.items() if name not in (*of_a_row, *of_a_recipe)}


def banner(header: dict[str, Any], recipes: "Sequence[Recipe]") -> list[str]:
    """Comment lines above the table."""
    return [
        f"# collemu {header['collemu']} python {header['python']} numpy {header['numpy']} numba {header['numba']}",
        f"# system {header['system']} fingerprint {header['system_fingerprint']}",
        *(f"# recipe {recipe}" for recipe in recipes),
        f"# estimates: {len(header['estimates'])} constants, see collemu systems {header['system']}",
    ]
