"""``collemu export``: an algorithm as a file that the runtimes of MSCCL run."""

import argparse
from dataclasses import replace
from typing import Any

from collemu.cli import options
from collemu.cli.files import find_python, is_python, run_python
from collemu.cli.outputs import STDOUT, write_whole
from collemu.cli.progress import Progress
from collemu.interop.schedules import ENDING


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export",
        description="Write an algorithm's schedule as MSCCL XML, once it is verified.",
        epilog="example: collemu export ring --collective all_reduce --ranks 8 --channels 4 ring8.xml",
    )
    parser.add_argument("algorithm", metavar="ALGORITHM|FILE.py", help="see collemu algorithms; FILE.py: your own")
    parser.add_argument("file", metavar="FILE.xml", help="what to write; - for stdout")
    parser.add_argument("--collective", metavar="C", help="what it does, if there is a choice")
    parser.add_argument("--ranks", required=True, metavar="N", help="rank count")
    parser.add_argument("-r", "--root", default="0", metavar="RANK", help="root, where there is one (default 0)")
    parser.add_argument("--channels", default="1", metavar="N", help="independent lanes (default 1)")
    parser.add_argument(
        "--chunks", default=None, metavar="N", help="pieces a lane's message is cut into (default: its own)"
    )
    options.add_group_flag(parser)
    parser.add_argument("--in-place", action="store_true", help="input and output are one buffer")
    parser.add_argument("--proto", default=None, metavar="P", help="Simple, LL or LL128 (default Simple)")


def run(arguments: argparse.Namespace) -> int:
    """Write the file."""
    from collemu import ScheduleError, build_schedule, verify
    from collemu.interop.msccl import msccl_text

    name, file = arguments.algorithm, arguments.file
    if file != STDOUT and not file.lower().endswith(ENDING):
        raise ValueError(f"{file} does not end in {ENDING}, which says that it is MSCCL XML")
    chosen = options.names(arguments.collective or "all", options.collectives(), "collective")
    found = options.pairs(chosen, name)
    if len(found) != 1:
        raise ValueError(
            f"{name} does {', '.join(collective for collective, _ in found)}; choose one with --collective"
        )
    if found[0][0] == "alltoallv":
        raise ValueError("MSCCL has no counts for pairs of ranks, which an alltoallv needs; export alltoall")
    ranks = options.whole(arguments.ranks, "--ranks", least=1)
    channels, chunks = options.lanes(arguments)
    root = options.whole(arguments.root, "-r", least=0)
    if is_python(name):
        with Progress(1, "schedules") as progress:
            progress.say(f"{name} {ranks} ranks")
            in_place = arguments.in_place or None  # else as the file says
            own = find_python(name, found[0][0])
            schedule = run_python(own, ranks, root=root, channels=channels, chunks=chunks, in_place=in_place)
    else:
        group = options.group(arguments)
        schedule = build_schedule(found[0][0], name, ranks, root=root, channels=channels, chunks=chunks, group=group)
        schedule = replace(schedule, in_place=arguments.in_place)
    text = msccl_text(schedule, arguments.proto)
    try:
        report = verify(schedule)
    except ScheduleError as error:
        if schedule.origin is not None:
            raise  # which names the line
        raise ValueError(f"{name} does not work {'in' if schedule.in_place else 'out of'} place: {error}") from None
    write_whole(file, lambda out: print(text, end="", file=out))
    if file != STDOUT:
        print(
            f"{file}: {schedule.collective} {name}, {ranks} ranks, {report.threads} thread blocks, "
            f"{report.operations} steps"
        )
    return 0
