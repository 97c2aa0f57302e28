"""Entry point: finds the command, runs it, and turns what users did wrong into one line and exit code 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import collemu

#: command -> what it does. A command is the module of its name, imported only when it runs.
COMMANDS = {
    "demo": "the main job, end to end: real gradients, three algorithms, four wire formats, a picture and a trace",
    "perf": "nccl-tests' table of a collective on an emulated system, with what travels and how fast it could be",
    "sweep": "many points from a file, on one process or many; goes on where it was interrupted",
    "crosscheck": "real MPI processes run the same schedule: same bytes, same messages, times side by side",
    "calibrate": "measure this machine's processes as a system, or fit constants to a table of measured cases",
    "validate": "how far predicted times are from tables that others measured, and what would explain a slow one",
    "verify": "prove that an algorithm's schedule does what its collective says, without deadlock or race",
    "export": "write an algorithm's schedule as MSCCL XML",
    "matmul": "error of a quantised matrix product against float64",
    "tune": "the fastest algorithm, protocol and channels of a library for every size, as a table of crossovers",
    "errors": "how the error of a quantised collective grows with the number of ranks, as a table and a plot",
    "moe": "dispatch and combine of a mixture of experts: times, imbalance, what the wires lose",
    "systems": "the systems of the catalogue, and every number of one with its source",
    "formats": "the number formats, and the codes or parameters of one",
    "recipes": "how published systems quantise on the wire, and what --recipe takes",
    "algorithms": "the algorithms of every collective, their steps and messages",
    "warm": "compile the kernels into the cache and remove caches of older sources",
}

#: Commands that processes of mpirun run together; of others one process does all.
SHARED = ("perf", "sweep", "crosscheck", "calibrate")
BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Print the fault and where help is, once under mpirun too, and leave with exit code 2."""
        from collemu.ranks.launch import launched_rank

        text = f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n"
        self.exit(BAD_INPUT, text if launched_rank() == 0 else None)


def one_line(text: object) -> str:
    """Text on one line, without characters that a terminal would act on."""
    return " ".join("".join(each if each.isprintable() else " " for each in str(text)).split())


def build_parser(chosen: str | None = None) -> Parser:
    """The parser of all commands; only the chosen one is imported and has its flags."""
    parser = Parser(
        prog="collemu", description="What a quantised collective will do, on a fabric that you do not have yet."
    )
    parser.add_argument("--version", action="version", version=f"collemu {collemu.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, text in COMMANDS.items():
        if name == chosen:
            import_module(f"collemu.cli.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.set_defaults(parser=command)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str
        Without the program's name.

    Returns
    -------
    int
        0 good, 1 a check failed, 2 bad input.
    """
    closed = sys.stdout is None  # pyright: ignore[reportUnnecessaryComparison]
    sys.stdout, sys.stderr = (each or open(os.devnull, "w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115
    try:
        code = _run(argv)
        if code == BAD_INPUT:
            from collemu.ranks.launch import let_first_speak

            let_first_speak()
        return code or (PIPE_CLOSED if closed else 0)
    except BrokenPipeError:
        _give_up_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if chosen not in SHARED or not {"-h", "--help", "--version"}.isdisjoint(argv):
        from collemu.ranks.launch import launched_rank

        if launched_rank() != 0:
            return 0
    try:
        parser = build_parser(chosen if chosen in COMMANDS else None)
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        arguments.words = ["collemu", *argv]
    except SystemExit as leaving:
        return int(leaving.code or 0)
    try:
        code = import_module(f"collemu.cli.{arguments.command}").run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, MemoryError) as error:
        if arguments.debug:
            raise
        from collemu.ranks.launch import launched_rank

        if launched_rank() == 0:  # under mpirun every process finds the same fault
            print(f"collemu {arguments.command}: {one_line(error) or type(error).__name__}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _give_up_stdout()
        return BAD_INPUT
    return int(code)


def _give_up_stdout() -> None:
    """What is left to print has nowhere to go; the interpreter would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> NoReturn:
    """Run as the `collemu` script."""
    sys.exit(main(sys.argv[1:]))
