"""``mpirun -n N collemu crosscheck``: each process is a chip; same bytes, same messages, times side by side."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from collemu.cli import options

if TYPE_CHECKING:
    from collemu.ranks.crosscheck import Communicator, Trial, Verdict

START = "mpirun -n 4 collemu crosscheck all_reduce"
# Elements a rank when no size is given. 1 and 1001 leave chunks empty, or cut blocks and packets short; the last is an odd
# number of about 1 MiB of float32 in all. This is enough to check bytes, and light enough for many ranks on few cores.
SMALL_COUNTS = (1, 1001)
LARGE_COUNT = 2**18 + 1

COLUMNS = (
    ("collective", "<15", ""),
    ("algorithm", "<18", ""),
    ("wire", "<14", ""),
    ("dtype", "<9", ""),
    ("op", "<5", ""),
    ("root", ">5", ""),
    ("size", ">11", "(B)"),
    ("count", ">10", "(elements)"),
    ("ranks", ">6", ""),
    ("bytes", ">10", ""),
    ("messages", ">9", ""),
    ("log", ">10", ""),
    ("mpi", ">10", ""),
    ("model", ">11", "(us)"),
    ("real", ">11", "(us)"),
)


@dataclass(frozen=True)
class _Row:
    point: options.Point
    verdict: "Verdict"

    def record(self) -> dict[str, Any]:
        """One tidy row: what was run, then what came of it."""
        point, verdict = self.point, self.verdict
        return {
            "system": point.system,
            "collective": point.collective,
            "algorithm": point.algorithm,
            "wire": point.wire,
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
            "real_us": verdict.real_s * 1e6,
            "mismatches": list(verdict.mismatches),
        }

    def lines(self) -> str:
        """The row of the table, and below it what differs."""
        record = self.record()
        cells = [
            *(
                record[name]
                for name in (
                    "collective",
                    "algorithm",
                    "wire",
                    "dtype",
                    "op",
                    "root",
                    "size",
                    "count",
                    "ranks",
                )
            ),
            _word(self.verdict.bytes_identical),
            self.verdict.messages,
            _word(self.verdict.messages_identical),
            _word(self.verdict.mpi_identical),
            f"{record['model_us']:.2f}",
            f"{record['real_us']:.1f}",
        ]
        return "\n".join([_line(cells), *(f"    {mismatch}" for mismatch in self.verdict.mismatches)])


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser = subparsers.add_parser(
        "crosscheck",
        help="real MPI processes run the same schedule: same bytes, same messages, times side by side",
        description="Run a collective in real MPI processes, one a chip, and in the emulator, and compare: the output "
        "bytes of every rank, the messages (who, to whom, in which order, how many bytes), and, where its result is exact "
        "in any order, MPI's own collective. Exit code 1 if anything differs.",
        epilog=f"example: {START} --algorithm all --wire none,mxfp4",
        conflict_handler="resolve",  # a few of the shared flags mean more, or something else by default
    )
    options.add_collective_flags(parser, algorithm="all", ranks="the number of processes")
    light = f"{', '.join(map(str, SMALL_COUNTS))} and {LARGE_COUNT} elements: enough to check bytes; bandwidth is not measured"
    runs = parser.add_argument_group("what crosscheck does differently")
    runs.add_argument("-b", "--minbytes", metavar="SIZE", help=f"smallest size (without -b and -e: {light})")
    runs.add_argument("-e", "--maxbytes", metavar="SIZE", help="largest size (default: that of -b)")
    runs.add_argument(
        "-d",
        "--datatype",
        metavar="D",
        help="dtypes (default float32, and int32 and int64 at the small sizes)",
    )
    runs.add_argument(
        "-n",
        "--iters",
        default="3",
        metavar="N",
        help="timed runs, each compared; their median is printed (default 3)",
    )
    runs.add_argument(
        "-w",
        "--warmup_iters",
        default="0",
        metavar="N",
        help="runs before, compared but not timed (default 0)",
    )
    runs.add_argument(
        "--not-finite", action="store_true", help="put NaN and infinities among the float inputs"
    )
    runs.add_argument("--json", metavar="FILE", help="write header and rows as JSON")
    runs.add_argument("--csv", metavar="FILE", help="write rows as CSV")
    runs.add_argument("--verbose", action="store_true", help="say on stderr how MPI was set up")


def run(arguments: argparse.Namespace) -> int:
    """Cross-check every point; 0 all identical, 1 something differs, 2 bad input, decided alike in all processes."""
    from collemu.ranks.crosscheck import AgreedError
    from collemu.ranks.launch import abort, launched_rank

    try:
        comm = _communicator(arguments.ranks)
    except ValueError as error:
        return _refuse(error, launched_rank(), arguments.debug)
    try:
        return _run(comm, arguments)
    except AgreedError as error:
        return _refuse(error, comm.rank, arguments.debug)
    except BaseException as error:
        if arguments.debug:
            traceback.print_exc()
        abort(comm, f"collemu crosscheck: rank {comm.rank} of {comm.size}: {type(error).__name__}: {error}")
        raise


def _communicator(ranks: str | None) -> "Communicator":
    """All processes of the launch, or this one alone where a single rank was asked for."""
    from collemu.ranks.alone import Alone
    from collemu.ranks.launch import launched_size, start_mpi, under_mpirun

    alone = ranks is not None and ranks.strip() == "1"
    if not under_mpirun():
        if alone:
            return Alone()
        raise ValueError(
            f"crosscheck needs real processes: {START} (or --ranks 1 for one rank without messages)"
        )
    try:
        comm = start_mpi()
    except ValueError:
        if alone and launched_size() == 1:
            return Alone()
        raise
    if comm.size == 1 and not alone:
        raise ValueError(
            f"crosscheck has one process, and nothing to send: {START} (or --ranks 1 if that is meant)"
        )
    if ranks is not None and ranks.strip() != str(comm.size):
        raise ValueError(
            f"--ranks {ranks}, but mpirun started {comm.size} processes: crosscheck runs one rank a process"
        )
    return comm


def _run(comm: "Communicator", arguments: argparse.Namespace) -> int:
    from collemu.ranks.crosscheck import agree, crosscheck, load_kernels

    trials, repeats, warmups = agree(comm, lambda: _resolve(arguments, comm.size))
    first = comm.rank == 0
    if first:
        _print_header(trials, comm, arguments.verbose)
    load_kernels(comm)
    rows: list[_Row] = []
    for point, trial in trials:
        verdict = crosscheck(comm, trial, repeats, warmups)
        if verdict is not None:
            rows.append(_Row(point, verdict))
            print(rows[-1].lines(), flush=True)
    agree(comm, lambda: _write_files(rows, arguments) if first else None)
    if first:
        _print_footer(rows)
    differing = sum(not row.verdict.identical for row in rows)
    return int(any(comm.allgather(differing)))


def _resolve(
    arguments: argparse.Namespace, ranks: int
) -> "tuple[list[tuple[options.Point, Trial]], int, int]":
    """Points and what to run for each; pure, so that every process finds the same."""
    from collemu import load_system
    from collemu.ranks.crosscheck import Trial

    repeats = options.whole(arguments.iters, "-n", least=1)
    warmups = options.whole(arguments.warmup_iters, "-w", least=0)
    points = _points(arguments, ranks)
    systems = {name: load_system(name) for name in dict.fromkeys(point.system for point in points)}
    schedules = {_schedule_key(point): point.schedule() for point in points}
    trials = [
        Trial(
            schedule=schedules[_schedule_key(point)],
            system=systems[point.system],
            count=point.count,
            dtype=point.dtype,
            op=point.op,
            wire=point.wire,
            protocol=point.protocol,
            not_finite=arguments.not_finite,
        )
        for point in points
    ]
    return list(zip(points, trials, strict=True)), repeats, warmups


def _schedule_key(point: options.Point) -> tuple[str, str]:
    return (point.collective, point.algorithm)


def _points(arguments: argparse.Namespace, ranks: int) -> list[options.Point]:
    given = dict(vars(arguments))
    light = given["minbytes"] is None and given["maxbytes"] is None
    smallest = given["minbytes"] or given["maxbytes"] or "4"
    given |= {"minbytes": smallest, "maxbytes": given["maxbytes"] or smallest}
    floats = dict(given, datatype=given["datatype"] or "float32")
    points = _resolved(floats, ranks, (*SMALL_COUNTS, LARGE_COUNT) if light else None)
    if given["datatype"] is None and {"none", "all"} & set(given["wire"].split(",")):
        integers = dict(given, datatype="int32,int64", wire="none")
        points += _resolved(integers, ranks, SMALL_COUNTS if light else None)
    order = list(dict.fromkeys(_schedule_key(point) for point in points))
    return sorted(points, key=lambda point: order.index(_schedule_key(point)))


def _resolved(given: dict[str, Any], ranks: int, counts: Sequence[int] | None) -> list[options.Point]:
    """Points of the shared flags, at these counts if any are given in place of sizes."""
    from collemu.dtypes import find_dtype
    from collemu.model.bandwidth import BLOCKWISE, size_bytes

    points = options.resolve_points(argparse.Namespace(**given), ranks)
    for point in points:
        if point.algorithm == options.AUTO:
            raise ValueError("crosscheck needs algorithms by name; choose all, or see collemu algorithms")
    if counts is None:
        return points
    result: list[options.Point] = []
    for point in points:
        for count in counts:
            shared = ranks if count == LARGE_COUNT and point.collective in BLOCKWISE else 1
            own = max(1, count // shared)
            size = size_bytes(point.collective, ranks, own, find_dtype(point.dtype).item_bytes)
            result.append(replace(point, count=own, size=size))
    return result


def _print_header(
    trials: "Sequence[tuple[options.Point, Trial]]", comm: "Communicator", verbose: bool
) -> None:
    import platform

    import numpy as np

    import collemu
    from collemu.ranks.launch import cores, library, oversubscribed

    for system in {trial.system.name: trial.system for _, trial in trials}.values():
        estimates = len(system.estimates())
        print(
            f"# system {system.name} {system.fingerprint}; {estimates} of its constants are estimates: collemu systems {system.name}"
        )
    print(
        f"# collemu {collemu.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, {library(comm)}"
    )
    print(
        f"# {comm.size} processes on {cores()} cores; real: median over runs of the slowest process here, which is no such chip"
    )
    print(
        "# bytes: outputs of every rank; log: messages by connection and by thread; mpi: MPI's own collective (-: not exact)"
    )
    print(_line(["# " + COLUMNS[0][0], *(name for name, _, _ in COLUMNS[1:])]))
    print(_line(["#", *(unit for _, _, unit in COLUMNS[1:])]), flush=True)
    if verbose:
        how = (
            "MPIR_CVAR_ENABLE_HEAVY_YIELD=1: waiting processes sleep"
            if oversubscribed()
            else "no settings changed"
        )
        print(
            f"collemu crosscheck: {comm.size} processes, {cores()} cores, {library(comm)}; {how}",
            file=sys.stderr,
        )


def _print_footer(rows: Sequence[_Row]) -> None:
    verdicts = [row.verdict for row in rows]
    asked = [verdict for verdict in verdicts if verdict.mpi_identical is not None]
    messages = sum(verdict.messages for verdict in verdicts)
    differing = sum(not verdict.identical for verdict in verdicts)
    print(
        f"# {len(rows)} points, {messages} messages, {len(asked)} points with MPI's own collective: "
        + (f"{differing} points DIFFER" if differing else "all identical")
    )


def _write_files(rows: Sequence[_Row], arguments: argparse.Namespace) -> None:
    import csv
    import json

    records = [row.record() for row in rows]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "results": records}, file, indent=1)
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(record | {"mismatches": "; ".join(record["mismatches"])} for record in records)


def _word(identical: bool | None) -> str:
    return "-" if identical is None else "identical" if identical else "DIFFERENT"


def _line(cells: Sequence[object]) -> str:
    return " ".join(
        f"{cell!s:{layout}}" for cell, (_, layout, _) in zip(cells, COLUMNS, strict=True)
    ).rstrip()


def _refuse(error: Exception, rank: int, debug: bool) -> int:
    """Say once what is wrong; every process leaves with the same exit code."""
    if rank == 0:
        if debug:
            traceback.print_exception(error)
        print(f"collemu crosscheck: {' '.join(str(error).split())}", file=sys.stderr)
    return 2
