"""``collemu algorithms``: what there is for every collective, and how much it does for a number of ranks."""

import argparse
import inspect
from typing import Any

from collemu.cli import options
from collemu.cli.points import build
from collemu.cli.progress import Progress
from collemu.cli.table import lines_of

DEFAULT_RANKS = "72"
MOST_RANKS = 1024  # more take minutes, and gigabytes where messages grow with their square


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "algorithms",
        description="List the algorithms by collective, with their steps, messages and operations.",
    )
    parser.add_argument("--ranks", default=DEFAULT_RANKS, metavar="N", help=f"rank count (default {DEFAULT_RANKS})")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    from collemu import verify
    from collemu.builders import BUILDERS

    ranks = options.whole(arguments.ranks, "--ranks", least=1, most=MOST_RANKS)
    rows: list[tuple[object, ...]] = []
    pairs = options.pairs(options.collectives(), "all")
    with Progress(len(pairs), "schedules") as progress:
        for collective, name in pairs:
            progress.step(f"{collective} {name} {ranks} ranks")
            try:
                schedule = build(collective, name, ranks, 0, 1, None, count=ranks)
            except ValueError as error:
                rows.append((collective, name, "-", "-", "-", str(error)))
                continue
            depth = verify(schedule, slots=8).depth
            text = (inspect.getdoc(BUILDERS[collective][name]) or "").split("\n")[0].replace("``", "")
            rows.append((collective, name, depth, schedule.n_messages, len(schedule.ops), text))
    heading = ("collective", "algorithm", "steps", "messages", "operations", f"with {ranks} ranks")
    print("\n".join(lines_of(heading, rows, "<<>>><")))
    print(
        "\nsteps: messages on the longest chain that follow one another; messages and operations: of all ranks together"
    )
    return 0
