"""``collemu calibrate``: constants from measurements, of the machine one stands on, or of a table of measured cases."""

import argparse
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collemu.cli.options import whole
from collemu.cli.outputs import try_output, write_whole
from collemu.cli.progress import Progress
from collemu.cli.sizes import parse_size
from collemu.cli.together import run_together

if TYPE_CHECKING:
    from collemu.ranks.calibrate import Measurements, Spread
    from collemu.ranks.part import Communicator

START = "mpirun -n 2 collemu calibrate host"

DESCRIPTION = """\
host: measure what MPI processes of this machine spend when they stand for
chips: on operations, copies, sums, conversions to wire formats and messages of
all sizes; and write a system file, which --system takes. There crosscheck tells
how far the emulated time is from the measured one. Let nothing else run meanwhile.

--from: fit the constants of closed forms to a table of measured cases, and write
them down with their uncertainties, for collemu validate --constants."""


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "calibrate",
        description=DESCRIPTION,
        epilog=f"""examples:
  {START} -o host.toml; mpirun -n 2 collemu crosscheck all_reduce --system host.toml
  collemu calibrate --from measured.csv --where health=healthy -o constants.toml""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="?", choices=["host"], help="this machine")
    add("-o", "--output", metavar="FILE", help="the file (default host.toml; with --from constants.toml)")
    add("-e", "--maxbytes", default="32M", metavar="SIZE", help="largest message (default 32M)")
    add("-n", "--iters", default="15", metavar="N", help="runs of each measurement (default 15)")
    add(
        "--from",
        dest="table",
        nargs="+",
        metavar="CSV",
        help="tables of measured cases, as collemu validate reads them",
    )
    add("--system", metavar="S", help="with --from: only what the system has a part in, such as h100_hgx")
    add("--where", action="append", default=[], metavar="COL=VAL", help="with --from: only these rows; repeatable")


def run(arguments: argparse.Namespace) -> int:
    """Measure or fit, and write the file."""
    if (arguments.what is None) == (arguments.table is None):
        raise ValueError("give host, to measure this machine, or --from CSV, to fit a table")
    if arguments.table is not None:
        return _fit(arguments)
    arguments.output = arguments.output or "host.toml"
    return run_together(arguments, lambda comm: _run(comm, arguments), start=START)


def _run(comm: "Communicator", arguments: argparse.Namespace) -> int:
    from collemu.catalogue.host_file import host_text
    from collemu.ranks.agreement import agree, agree_on_start
    from collemu.ranks.calibrate import calibrate
    from collemu.ranks.crosscheck import load_kernels
    from collemu.ranks.launch import library

    agree_on_start(comm, arguments.words)
    repeats = agree(comm, lambda: whole(arguments.iters, "-n", least=3))
    largest = agree(comm, lambda: parse_size(arguments.maxbytes))
    agree(comm, lambda: _check(arguments.output, comm))
    with Progress(0, "measurements") as progress:
        progress.say("loading kernels")
        load_kernels(comm)
        found = calibrate(comm, largest=largest, repeats=repeats, step=progress.step)
    if found is not None:
        machine = f"{platform.system()} {platform.machine()}"
        text = host_text(found, name=Path(arguments.output).stem, library=library(comm), machine=machine)
        write_whole(arguments.output, lambda file: print(text, end="", file=file))
        print(_summary(found, arguments.output))
    comm.Barrier()
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    """Fit constants, print each with what it rests on, and write them."""
    import numpy as np

    from collemu.fidelity.constants import USUAL, constants_text, load_constants, remarks
    from collemu.fidelity.fit import Estimate, fit
    from collemu.fidelity.measured import joined, read_csv
    from collemu.fidelity.predict import assigned
    from collemu.ranks.launch import launched_rank

    if launched_rank() != 0:
        return 0
    output = arguments.output or "constants.toml"
    if not output.endswith(".toml"):
        raise ValueError(f"-o {output} must end in .toml")
    try_output("-o", output)
    tables = [read_csv(each, arguments.where) for each in arguments.table]
    rows = joined([table for table, _ in tables])
    of_system = [
        (form, group, mask)
        for form, group, mask in assigned(rows)
        if arguments.system is None or arguments.system in rows.system[mask]
    ]
    if not of_system:
        names = ", ".join(sorted(set(rows.system.tolist())))
        if arguments.system is not None and names:
            raise ValueError(f"--system {arguments.system}: no model has rows of it; there are {names}")
        why = [f"{case}: {reason}" for _, skipped in tables for case, reason, _ in skipped]
        raise ValueError("no row that a model is for; " + ("; ".join(why[:3]) or f"they are of {names}"))
    shipped = load_constants()
    found: dict[tuple[str, str], list[Estimate]] = {}
    cases: dict[tuple[str, str], list[str]] = {}
    with Progress(len(of_system), "fits") as progress:
        for form, group, mask in of_system:
            progress.step(f"{form.name} {group}")
            found[form.name, group] = fit(form, group, rows.where(mask), shipped.get(form.name, {}).get(group, {}))
            cases[form.name, group] = sorted(set(rows.case[mask].tolist()))
    write_whole(output, lambda file: print(constants_text(found, cases), file=file))  # first: printing may be cut short
    for (form_name, group), estimates in found.items():
        print(f"# {form_name} {group}: {len(cases[form_name, group])} cases")
        for each in estimates:
            name = f"{each.constant.name} {(each.owner or USUAL) if each.constant.spread else ''}".strip()
            sure = f"{100 * each.uncertainty:.1f} %" if np.isfinite(each.uncertainty) else "unknown"
            rests = f"{each.rows} rows of {len(each.cases)} cases"
            notes = "".join(f"; {note}" for note in remarks(each))
            print(f"{name:<28} {each.value:>10.4g} {each.constant.unit:<5} +- {sure:<8} {rests}{notes}")
    print(f"# written: {output}")
    return 0


def _check(output: str, comm: "Communicator") -> None:
    from collemu.ranks.calibrate import LEAST_PROCESSES

    if comm.size < LEAST_PROCESSES:
        raise ValueError(f"one process sends nothing, start two or more: {START}")
    if not output.endswith(".toml"):
        raise ValueError(f"-o {output} must end in .toml, as systems do")
    if comm.rank == 0:
        try_output("-o", output)


def _summary(found: "Measurements", output: str) -> str:
    """What was measured, in a few lines."""

    def shown(spread: "Spread") -> str:
        return f"{spread.value * 1e6:.2f} us ({spread.low * 1e6:.2f} to {spread.high * 1e6:.2f})"

    lines = [
        f"# {found.processes} processes measured at once, {found.cores} cores; half of the runs between",
        f"start      {shown(found.launch_s)}",
        f"operation  {shown(found.operation_s)}",
        f"  a send   {shown(found.send_s)} more",
        f"notice     {shown(found.notice_s)}",
        f"wake       {shown(found.wake_s)}",
        f"eager      up to {found.eager_bytes} bytes",
        f"# {'size (B)':>10} {'copy (us)':>12} {'add (us)':>12} {'message (us)':>12}",
    ]
    for row in zip(found.sizes_bytes, found.copy_s, found.reduce_s, found.transfer_s, strict=True):
        lines.append(f"{row[0]:>12} " + " ".join(f"{spread.value * 1e6:>12.2f}" for spread in row[1:]))
    lines.append(f"# written: {output}")
    return "\n".join(lines)
