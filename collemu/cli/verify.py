"""``collemu verify``: prove that schedules do what their collectives promise."""

import argparse
from typing import Any

from collemu.cli import options
from collemu.cli.progress import Progress
from collemu.cli.sizes import parse_numbers

DEFAULT_RANKS = "2-8,12,72"
MOST_RANKS = 1024  # more take minutes, and gigabytes where messages grow with their square
FAILED = 1


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        description="Prove that an algorithm's schedule does what its collective says, contribution by contribution, "
        "and runs to its end without deadlock or race. Exit code 1, with rank, thread, step and chunk, if it does not.",
    )
    parser.add_argument("algorithm", metavar="ALGORITHM", help="comma list, or all (see collemu algorithms)")
    parser.add_argument(
        "--collective", default="all", metavar="C", help="comma list (default all that have the algorithm)"
    )
    parser.add_argument("--ranks", default=DEFAULT_RANKS, metavar="N", help=f"also A-B (default {DEFAULT_RANKS})")
    parser.add_argument("-r", "--root", default="0", metavar="RANK", help="root of broadcast and reduce (default 0)")
    parser.add_argument("--channels", default="1", metavar="N", help="independent lanes (default 1)")
    parser.add_argument(
        "--chunks", default=None, metavar="N", help="pieces a lane's message is cut into (default: its own)"
    )
    parser.add_argument("--slots", default="2", metavar="N", help="FIFO slots of a connection (default 2)")


def run(arguments: argparse.Namespace) -> int:
    """Verify, and print one line a collective and algorithm."""
    from collemu import ScheduleError, build_schedule, verify

    chosen = options.names(arguments.collective, options.collectives(), "collective")
    runs = options.pairs(chosen, arguments.algorithm)
    rank_counts = parse_numbers(arguments.ranks, "--ranks", MOST_RANKS)
    root = options.whole(arguments.root, "-r", least=0)
    channels, chunks = options.lanes(arguments)
    slots = options.whole(arguments.slots, "--slots", least=1)
    failed = 0
    with Progress(len(runs) * len(rank_counts), "schedules") as progress:
        for collective, algorithm in runs:
            operations = messages = least = 0
            faults: list[str] = []
            for ranks in rank_counts:
                progress.step(f"{collective} {algorithm} {ranks} ranks")
                schedule = build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks)
                try:
                    report = verify(schedule, slots=slots)
                except ScheduleError as error:
                    faults.append(f"FAILED {collective} {algorithm} {ranks} ranks: {error}")
                    continue
                operations += report.operations
                messages += report.messages
                least = max(least, report.least_slots)
            progress.clear()
            failed += len(faults)
            good = len(rank_counts) - len(faults)
            for fault in faults:
                print(fault)
            if good:
                print(
                    f"ok {collective} {algorithm}: {good} rank counts, {operations} operations, {messages} messages, "
                    f"runs with {least} FIFO slot{'s' if least != 1 else ''}"
                )
    return FAILED if failed else 0
