"""``mpirun -n N collemu crosscheck``: real processes, one a chip, against the emulator."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from collemu.cli import options
from collemu.cli.files import is_file
from collemu.cli.fits import Fit
from collemu.cli.outputs import STDOUT, try_outputs, write_whole
from collemu.cli.points import count_of, refuse_oversized
from collemu.cli.progress import Progress
from collemu.cli.together import run_together
from collemu.cli.words import seconds

if TYPE_CHECKING:
    from collemu.ranks.clock import Clock
    from collemu.ranks.crosscheck import Verdict
    from collemu.ranks.part import Communicator, Trial
    from collemu.ranks.watchdog import Watchdog
    from collemu.schedule import Schedule

START = "mpirun -n 4 collemu crosscheck all_reduce"
# Elements a rank when no size is given. 1 and 1001 leave chunks empty, and cut blocks and packets short. The last is
# an odd number of about 1 MiB of float32 in all: enough to check bytes, light enough for many ranks on few cores.
SMALL_COUNTS = (1, 1001)
LARGE_COUNT = 2**18 + 1


class _Plan(NamedTuple):
    points: "list[tuple[options.Point, Trial]]"
    repeats: int
    warmups: int
    left_out: list[str]
    against_mpi: bool


class _How(TypedDict):
    watchdog: "Watchdog"
    clock: "Clock"
    against_mpi: bool


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser = subparsers.add_parser(
        "crosscheck",
        help="real MPI processes run the same schedule: same bytes, same messages, times side by side",
        description="Run a collective in real MPI processes, one a chip, and in the emulator, and compare: the "
        "output bytes of every rank, the messages (who, to whom, in which order, how many bytes), what in-switch "
        "operations read and write of whom, and MPI's own collective on data for which it is exact in any order. Exit "
        "code 1 if anything differs.",
        epilog=f"example: {START} --algorithm all --wire none,mxfp4",
        conflict_handler="resolve",  # some of the shared flags have other defaults here
    )
    options.add_collective_flags(parser, algorithm="all", ranks="the number of processes")
    counts = f"{', '.join(map(str, SMALL_COUNTS))} and {LARGE_COUNT}"
    group = parser.add_argument_group("what crosscheck does differently")
    add = group.add_argument
    add("-b", "--minbytes", metavar="SIZE", help=f"smallest size (no -b, no -e: {counts} elements; bytes are checked)")
    add("-e", "--maxbytes", metavar="SIZE", help="largest size (default: that of -b)")
    add("-d", "--datatype", metavar="D", help="dtypes (default float32; int32 and int64 with wire none, small sizes)")
    add("-n", "--iters", default="1", metavar="N", help="timed runs, each compared; prints their median (default 1)")
    add("-w", "--warmup_iters", default="0", metavar="N", help="runs before, compared but not timed (default 0)")
    add("--timeout", metavar="S", help="end all and say who waits for whom after S seconds without progress")
    add("--against", metavar="mpi", help="mpi: time MPI's own collective too, of the dtype itself")
    add("--not-finite", action="store_true", help="put NaN and infinities among float inputs")
    add("--json", metavar="FILE", help="write header and rows as JSON")
    add("--csv", metavar="FILE", help="write rows as CSV")
    add("--verbose", action="store_true", help="say on stderr how MPI was set up")


def run(arguments: argparse.Namespace) -> int:
    """Cross-check every point.

    Returns
    -------
    int
        0 all identical, 1 something differs, 2 bad input; the same in every process.
    """
    return run_together(
        arguments,
        lambda comm: _run(comm, arguments),
        start=f"{START} (or --ranks 1, which sends nothing)",
        alone=arguments.ranks is not None and arguments.ranks.strip() == "1",
    )


def _run(comm: "Communicator", arguments: argparse.Namespace) -> int:
    from collemu.cli import crosscheck_table as table
    from collemu.ranks.agreement import agree, agree_on_start
    from collemu.ranks.clock import Clock
    from collemu.ranks.crosscheck import crosscheck, load_kernels
    from collemu.ranks.watchdog import Watchdog

    first = comm.rank == 0
    agree_on_start(comm, arguments.words)
    timeout = agree(comm, lambda: seconds(arguments.timeout, "--timeout"))
    plan = agree(comm, lambda: _plan(arguments, comm.size))
    agree(comm, lambda: try_outputs(arguments.json, arguments.csv) if first else None)
    watchdog = Watchdog(comm, timeout, "collemu crosscheck")
    header = table.header_of(comm)
    columns = table.columns_of(
        repeats=plan.repeats,
        predicts=any(trial.system.processes for _, trial in plan.points),
        against_mpi=plan.against_mpi,
    )
    if first:
        print(table.header_text(header, columns), flush=True)
        if arguments.verbose:
            _tell_setup(header)
    rows: list[table.Row] = []

    def write_files(wanted: Callable[[str], bool] = bool) -> None:
        if rows and arguments.json and wanted(arguments.json):
            write_whole(arguments.json, lambda file: table.write_json(file, header, rows))
        if rows and arguments.csv and wanted(arguments.csv):
            write_whole(arguments.csv, lambda file: table.write_csv(file, rows))

    def tell_partial() -> None:
        if 0 < len(rows) < len(plan.points):
            for name in filter(None, (arguments.json, arguments.csv)):
                text = f"collemu crosscheck: {name} holds {len(rows)} of {len(plan.points)} points"
                print(text, file=sys.stderr, flush=True)

    try:
        with Progress(len(plan.points)) as progress, watchdog:
            progress.say("loading kernels")
            load_kernels(comm)
            clock = Clock(comm)
            for point, trial in plan.points:
                if first and (not rows or rows[-1].point.system != point.system):
                    progress.clear()
                    print(table.system_text(trial.system), flush=True)
                progress.step(str(point))
                how: _How = {"watchdog": watchdog, "clock": clock, "against_mpi": plan.against_mpi}
                verdict = _named(
                    point, lambda trial=trial, how=how: crosscheck(comm, trial, plan.repeats, plan.warmups, **how)
                )
                progress.clear()
                if verdict is not None:
                    rows.append(table.Row(point, verdict))
                    print(rows[-1].text(columns), flush=True)
                    write_files(_is_plain)  # at once: whoever fails next ends this process too
    except BaseException:
        write_files()  # rows are at the first process alone
        tell_partial()
        raise
    agree(comm, write_files)
    if first:
        systems = {trial.system.name: trial.system for _, trial in plan.points}.values()
        notes = plan.left_out + [note for each in systems if (note := table.regime_note(each, comm.size))]
        print("\n".join([*(f"# note: {text}" for text in notes), table.footer_text(rows)]), flush=True)
    return int(any(comm.allgather(not all(row.verdict.identical for row in rows))))


def _is_plain(name: str) -> bool:
    """Whether a file can be written again and again."""
    return name != STDOUT and (Path(name).is_file() or not Path(name).exists())


def _named(point: options.Point, work: "Callable[[], Verdict | None]") -> "Verdict | None":
    """Do work on a point, and say which one it was if it cannot be done."""
    from collemu.ranks.agreement import AgreedError

    try:
        return work()
    except AgreedError as error:
        raise AgreedError(f"{point}: {error}") from None
    except BaseException as error:
        error.add_note(f"at {point}")
        raise


def _check_size(ranks: str | None, processes: int) -> None:
    if processes == 1 and ranks is None:
        raise ValueError(f"one process sends nothing, start more: {START} (or --ranks 1 if that is meant)")
    if ranks is not None and ranks.strip() != str(processes):
        raise ValueError(f"--ranks {ranks}, but mpirun started {processes} processes; crosscheck runs one rank in each")


def _plan(arguments: argparse.Namespace, ranks: int) -> _Plan:
    """Points and what to run for each; every process finds the same."""
    from collemu import load_system, verify
    from collemu.ranks.part import Trial

    _check_size(arguments.ranks, ranks)
    repeats = options.whole(arguments.iters, "-n", least=1)
    warmups = options.whole(arguments.warmup_iters, "-w", least=0)
    fit = Fit(not_finite=arguments.not_finite)
    points = _points(arguments, ranks, fit)
    refuse_oversized(points)
    systems = {name: load_system(name) for name in {point.system for point in points}}
    schedules: list[Schedule] = []
    with Progress(len(points), "schedules") as progress:
        for point in points:
            progress.step(f"{point.collective} {point.algorithm}")
            schedules.append(point.schedule())
    for (_, _, algorithm), schedule in dict(zip(map(_lane, points), schedules, strict=True)).items():
        if is_file(algorithm):  # processes would wait for ever for what it never sends
            verify(schedule, slots=min(system.endpoint.fifo_slots for system in systems.values()))
    trials = [
        Trial(
            schedule=schedule,
            system=systems[point.system],
            count=count_of(point, schedule),
            dtype=point.dtype,
            op=point.op,
            recipe=point.recipe,
            protocol=point.protocol,
            fidelity=point.fidelity,
            not_finite=arguments.not_finite,
        )
        for point, schedule in zip(points, schedules, strict=True)
    ]
    if arguments.against not in (None, "mpi"):
        raise ValueError(f"--against {arguments.against!r} is nothing to compare with; choose mpi")
    return _Plan(list(zip(points, trials, strict=True)), repeats, warmups, fit.left_out, arguments.against == "mpi")


def _lane(point: options.Point) -> tuple[str, str, str]:
    return point.system, point.collective, point.algorithm


def _points(arguments: argparse.Namespace, ranks: int, fit: Fit) -> list[options.Point]:
    """Points in the order of systems, collectives and algorithms."""
    given = dict(vars(arguments))
    sized = given["minbytes"] is not None or given["maxbytes"] is not None
    smallest = given["minbytes"] or given["maxbytes"] or "4"
    given |= {"minbytes": smallest, "maxbytes": given["maxbytes"] or smallest}
    floats = given | {"datatype": given["datatype"] or "float32"}
    points = _resolved(floats, ranks, None if sized else (*SMALL_COUNTS, LARGE_COUNT), fit)
    wires = [] if given["recipe"] else (given["wire"] or "none").split(",")
    if given["datatype"] is None and {"none", "all"} & set(wires):
        integers = given | {"datatype": "int32,int64", "wire": "none"}
        points += _resolved(integers, ranks, None if sized else SMALL_COUNTS, fit)
    order = list(dict.fromkeys((point.system, _lane(point)) for point in points))
    return sorted(points, key=lambda point: order.index((point.system, _lane(point))))


def _resolved(given: dict[str, Any], ranks: int, counts: Sequence[int] | None, fit: Fit) -> list[options.Point]:
    """Points of the shared flags, with these counts, if there are any, in place of sizes."""
    from collemu.dtypes import find_dtype
    from collemu.model.bandwidth import BLOCKWISE, size_bytes

    points = options.resolve_points(argparse.Namespace(**given), ranks, fit)
    if any(point.algorithm == options.AUTO for point in points):
        raise ValueError("crosscheck runs algorithms by name; give all, or names that collemu algorithms lists")
    if counts is None:
        return points

    def with_count(point: options.Point, count: int) -> options.Point:
        blocks = ranks if count == LARGE_COUNT and point.collective in BLOCKWISE else 1
        own = max(1, count // blocks)
        size = size_bytes(point.collective, ranks, own, find_dtype(point.dtype).item_bytes)
        return replace(point, count=own, size=size)

    return [point for point in points if point.counts] + [
        with_count(point, count) for point in points if not point.counts for count in counts
    ]


def _tell_setup(header: dict[str, Any]) -> None:
    from collemu.ranks.launch import settings_of

    chosen = [f"{name}={value}" for name, value in settings_of(header["mpi"]).items()]
    setup = "{processes} processes, {cores} cores, {mpi}".format(**header)
    print(f"collemu crosscheck: {setup}; {', '.join(chosen) or 'no settings'}", file=sys.stderr, flush=True)
