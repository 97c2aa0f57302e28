"""``collemu verify``: prove that schedules do what their collectives promise."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from collemu.cli import options
from collemu.cli.files import (
    find_python,
    is_file,
    is_python,
    load_counts_for,
    load_layouts,
    refuse_other_ranks,
    run_python,
)
from collemu.cli.points import build
from collemu.cli.progress import Progress
from collemu.cli.sizes import parse_numbers

if TYPE_CHECKING:
    from collemu.schedule import Schedule

DEFAULT_RANKS = "2-8,12,72"
MOST_RANKS = 1024  # more take minutes, and gigabytes where messages grow with their square
FAILED = 1


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        description="Prove that an algorithm's schedule does what its collective says, contribution by contribution, "
        "and runs to its end without deadlock or race. Exit code 1, with rank, thread, step and chunk, if it does not. "
        "An XML file is verified for its own ranks, in place and out of place as it says.",
    )
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM|FILE",
        help="comma list, or all (see collemu algorithms); FILE.py: your own; FILE.xml: MSCCL; FILE.json: MSCCL++",
    )
    parser.add_argument(
        "--collective", default="all", metavar="C", help="comma list (default all that have the algorithm)"
    )
    parser.add_argument("--ranks", default=None, metavar="N", help=f"also A-B (default {DEFAULT_RANKS})")
    parser.add_argument("-r", "--root", default="0", metavar="RANK", help="root, where there is one (default 0)")
    parser.add_argument("--channels", default="1", metavar="N", help="independent lanes (default 1)")
    parser.add_argument(
        "--chunks", default=None, metavar="N", help="pieces a lane's message is cut into (default: its own)"
    )
    parser.add_argument(
        "--counts", metavar="FILE", help=".npy or .csv: n x n elements of alltoallv (default rccl-tests' staircase)"
    )
    options.add_group_flag(parser)
    parser.add_argument("--slots", default="2", metavar="N", help="FIFO slots of a connection (default 2)")


def run(arguments: argparse.Namespace) -> int:
    """Verify, and print one line a collective and algorithm."""
    from collemu import ScheduleError, verify

    slots = options.whole(arguments.slots, "--slots", least=1)
    try:
        lines = _lines(arguments)
    except ScheduleError as error:  # of a file
        print(f"FAILED {error}")
        return FAILED
    failed = 0
    with Progress(sum(map(len, lines.values())), "schedules") as progress:
        for (collective, algorithm), schedules in lines.items():
            operations = messages = least = 0
            faults: list[str] = []
            good: list[str] = []
            for label, build in schedules.items():
                progress.step(f"{collective} {algorithm} {label}")
                try:
                    report = verify(build(), slots=slots)
                except ScheduleError as error:
                    faults.append(f"FAILED {collective} {algorithm} {label}: {error}")
                    continue
                good.append(label)
                operations += report.operations
                messages += report.messages
                least = max(least, report.least_slots)
            progress.clear()
            failed += len(faults)
            for fault in faults:
                print(fault)
            if good:
                counted = is_python(algorithm) or not is_file(algorithm)
                what = f"{len(good)} rank counts" if counted else " and ".join(good)
                print(
                    f"ok {collective} {algorithm}: {what}, {operations} operations, {messages} messages, "
                    f"runs with {least} FIFO slot{'s' if least != 1 else ''}"
                )
    return FAILED if failed else 0


def _lines(arguments: argparse.Namespace) -> "dict[tuple[str, str], dict[str, Callable[[], Schedule]]]":
    """What to verify for each line: what to call it, and how to get it."""
    chosen = options.names(arguments.collective, options.collectives(), "collective")
    runs = options.pairs(chosen, arguments.algorithm)
    rank_counts = parse_numbers(arguments.ranks or DEFAULT_RANKS, "--ranks", MOST_RANKS)
    root = options.whole(arguments.root, "-r", least=0)
    channels, chunks = options.lanes(arguments)
    table = load_counts_for(arguments.counts, chosen)
    group = options.group(arguments)
    lines: dict[tuple[str, str], dict[str, Callable[[], Schedule]]] = {}
    for collective, name in runs:
        schedules = lines[collective, name] = {}
        if is_python(name) or not is_file(name):
            here = rank_counts
            if table is not None and collective == "alltoallv":
                if arguments.ranks is not None:
                    refuse_other_ranks(arguments.counts, len(table), rank_counts)
                here = [len(table)]
            for ranks in here:
                make = partial(build, collective, name, ranks, root, channels, chunks)
                make = partial(make, group=group, count=ranks, file=arguments.counts)
                if is_python(name):  # not proved yet
                    written = find_python(name, collective)
                    make = partial(run_python, written, ranks, root=root, channels=channels, chunks=chunks)
                schedules[f"{ranks} ranks"] = make
            continue
        for schedule in load_layouts(name, collective):
            if arguments.ranks is not None:
                refuse_other_ranks(name, schedule.ranks, rank_counts)
            layout = "in place" if schedule.in_place else "out of place"
            schedules[f"{schedule.ranks} ranks {layout}"] = lambda schedule=schedule: schedule
    return lines
