"""``collemu errors``: how the error of a quantised collective grows with the number of ranks."""

import argparse
import csv
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collemu.cli import options
from collemu.cli.fits import Fit
from collemu.cli.options import AUTO, Point
from collemu.cli.outputs import try_outputs, write_whole
from collemu.cli.points import count_of, dealt, load, settled
from collemu.cli.progress import Progress
from collemu.cli.table import lines_of
from collemu.collectives import UNEVEN
from collemu.interop.nccl_tests import number

if TYPE_CHECKING:
    from collemu.error_growth import Error
    from collemu.tensors import Tensor

#: What is told apart in the table and the plot.
Line = tuple[str, str, str]  # collective, algorithm, recipe in words

DESCRIPTION = """\
Run a collective on made-up or real values over several numbers of ranks, and
compare with exact arithmetic. Below the table stands with which power of the
number of ranks the relative error of each algorithm grows."""

EPILOG = """\
example:
  collemu errors all_reduce --ranks 2,4,8,16,32,64 --algorithm ring,two_shot --wire float8_e4m3fn --plot growth.svg"""


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "errors", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_collective_flags(parser, sizes=("64K", "64K"))
    output = parser.add_argument_group("values and output")
    output.add_argument(
        "--values",
        default="normal",
        metavar="V",
        help="normal: zero mean; positive: uniform, so that sums only grow (default normal)",
    )
    output.add_argument("--data", metavar="FILE[:NAME]", help=".npy, .npz or .safetensors: your tensors instead")
    output.add_argument("--seed", default="0", metavar="N", help="of the values (default 0)")
    output.add_argument("--plot", metavar="FILE", help="draw it: .svg, .png or .pdf")
    output.add_argument("--csv", metavar="FILE", help="also write one row a point; - for stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and draw it if asked."""
    from collemu.error_growth import growth

    tensor = None
    if arguments.data is not None:
        from collemu.tensors import load_tensor

        tensor = load_tensor(arguments.data)
    seed = options.whole(arguments.seed, "--seed", least=0)
    points = options.resolve_points(arguments, fits=Fit(tensor))
    try_outputs(arguments.plot, arguments.csv)
    lines: dict[Line, list[Error]] = {}
    with Progress(len(points), "points") as progress:
        for point in points:
            progress.step(str(point))
            settled_point, error = _measure(point, arguments.values, seed, tensor)
            line = (point.collective, settled_point.algorithm, _words(point))
            lines.setdefault(line, []).append(error)
    if arguments.csv != "-":
        _print(lines)
        for (collective, algorithm, label), errors in lines.items():
            slope = growth(errors)
            if slope is not None:
                print(f"# {collective} {algorithm}, {label}: the relative error grows as ranks^{slope:.2f}")
    if arguments.csv:
        write_whole(arguments.csv, lambda file: _write_csv(file, lines))
    if arguments.plot:
        from collemu.interop.growth_plot import draw_growth

        named = {f"{algorithm}, {label}": errors for (_, algorithm, label), errors in lines.items()}
        draw_growth(named, arguments.plot)
    return 0


def _measure(point: Point, values_name: str, seed: int, tensor: "Tensor | None") -> "tuple[Point, Error]":
    from collemu.error_growth import measure_error, values
    from collemu.rows import input_size

    system = load(point.system)
    point = settled(point, system) if point.algorithm == AUTO else point
    schedule = point.schedule()
    if tensor is not None:
        data, _, _ = dealt(point, tensor)
    else:
        count = count_of(point, schedule)
        sizes = [input_size(schedule, count, rank) for rank in range(point.ranks)]
        data: Any = values(values_name, point.ranks, max(sizes), seed)
        if point.collective in UNEVEN:
            data = [row[:size] for row, size in zip(data, sizes, strict=True)]
    try:
        return point, measure_error(schedule, system, data, dtype=point.dtype, op=point.op, recipe=point.recipe)
    except ValueError as error:
        raise ValueError(f"{point}: {error}") from error


def _words(point: Point) -> str:
    return f"{point.label}, {point.dtype}"


def _print(lines: "dict[Line, list[Error]]") -> None:
    rows = [
        (
            *line,
            error.ranks,
            error.quantisations,
            number(error.relative),
            number(error.largest),
            number(error.worst),
            error.saturated,
        )
        for line, errors in lines.items()
        for error in errors
    ]
    heading = (
        "collective",
        "algorithm",
        "carries",
        "ranks",
        "roundings",
        "relative error",
        "max |error|",
        "worst case",
    )
    print("\n".join(lines_of((*heading, "saturated"), rows, "<<<>>>>>>")))


def _write_csv(file: Any, lines: "dict[Line, list[Error]]") -> None:
    from collemu.error_growth import Error

    fields = [field.name for field in dataclasses.fields(Error)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["collective", "algorithm", "carries", *fields])
    for line, errors in lines.items():
        writer.writerows([*line, *_values(error, fields)] for error in errors)


def _values(error: "Error", fields: Sequence[str]) -> list[object]:
    return ["" if getattr(error, name) is None else getattr(error, name) for name in fields]
