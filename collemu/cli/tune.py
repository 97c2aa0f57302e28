"""``collemu tune``: what a library would choose for every size, and where one choice takes over from another."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from collemu.arguments import one_of
from collemu.cli import options
from collemu.cli.numbers import add_recipe_flags, recipes_of
from collemu.cli.outputs import try_outputs, write_whole
from collemu.cli.points import load
from collemu.cli.progress import Progress
from collemu.cli.sizes import parse_numbers, parse_size, sizes
from collemu.cli.table import lines_of

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.model.choose import Task
    from collemu.model.tuning import Range

SCHEMA_VERSION = 1

DESCRIPTION = """\
Emulate a library's algorithms, with every protocol of the system and several
numbers of channels, over sizes, and print which is fastest from which size on."""

EPILOG = """\
examples:
  collemu tune all_reduce --system h100_hgx --like nccl
  collemu tune all_reduce --ranks 8 --like all --protocol all --channels 1,4 -b 1K -e 64M --json table.json"""


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("collective", metavar="COLLECTIVE", help="all_reduce, all_gather, ...")
    add("-b", "--minbytes", default="1K", metavar="SIZE", help="smallest size (default 1K)")
    add("-e", "--maxbytes", default="1G", metavar="SIZE", help="largest size (default 1G)")
    add("-f", "--stepfactor", default="2", metavar="N", help="factor from size to size (default 2)")
    add("-d", "--datatype", default="float32", metavar="D", help="dtype (default float32)")
    add("-o", "--op", default="sum", metavar="OP", help="sum, prod, min, max, avg (default sum)")
    add("-r", "--root", default="0", metavar="RANK", help="of rooted collectives (default 0)")
    add("--ranks", metavar="N", help="default all chips of the domain")
    add("--system", default=options.DEFAULT_SYSTEM, metavar="S", help=f"(default {options.DEFAULT_SYSTEM})")
    add("--like", default="all", metavar="L", help="nccl, rccl, custom: the algorithms of a library (default all)")
    add("--protocol", default="auto", metavar="P", help="comma list, or all (default the system's own)")
    add("--channels", metavar="N", help="comma list (default powers of two, as the library has them)")
    add("--fidelity", default="flow", metavar="F", help="auto, packet or flow (default flow)")
    add("--json", metavar="FILE", help="also write the ranges; - for stdout")
    add_recipe_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the crossovers."""
    from collemu.cli.outputs import STDOUT
    from collemu.emulator import FIDELITIES
    from collemu.model.libraries import LIBRARIES, choices_of
    from collemu.model.tuning import tune

    system = load(arguments.system)
    if arguments.fidelity not in FIDELITIES:
        raise ValueError(f"no fidelity {arguments.fidelity!r}; choose {', '.join(FIDELITIES)}")
    library = one_of(arguments.like, LIBRARIES, "--like")
    task = _task(arguments, system)
    channels = (
        None
        if arguments.channels is None
        else tuple(parse_numbers(arguments.channels, "--channels", options.MOST_CHANNELS))
    )
    choices = choices_of(LIBRARIES[library], task.collective, system, _protocols(arguments, system), channels)
    factor = options.whole(arguments.stepfactor, "-f", least=2)
    wanted = sizes(parse_size(arguments.minbytes), parse_size(arguments.maxbytes), 1, factor)
    last = parse_size(arguments.maxbytes)
    wanted += [last] if wanted[-1] < last else []
    try_outputs(arguments.json, None)
    with Progress(len(wanted), "sizes") as progress:
        ranges = tune(task, choices, wanted, told=lambda size: progress.step(f"{task.collective} {size} B"))
    if arguments.json != STDOUT:
        print(f"# {task.collective} of {task.ranks} ranks on {system.name} ({system.fingerprint}), {task.dtype}")
        print(f"# like {library}: {LIBRARIES[library].source}; {len(choices)} choices; model {arguments.fidelity}")
        print(f"# recipe {task.recipe}; estimates: {len(system.estimates())} constants")
        print("\n".join(_table(task, ranges)))
    if arguments.json:
        document = _document(task, library, ranges, arguments)
        write_whole(arguments.json, lambda file: print(json.dumps(document, indent=1), file=file))
    return 0


def _task(arguments: argparse.Namespace, system: "System") -> "Task":
    from collemu.counts import staircase
    from collemu.dtypes import find_dtype
    from collemu.model.choose import Task
    from collemu.payload import payload_of

    (collective,) = _one(options.names(arguments.collective, options.collectives(), "collective"), "collective")
    (recipe,) = _one(recipes_of(arguments), "--wire and --recipe")
    (ranks,) = _one(
        [system.chips] if arguments.ranks is None else parse_numbers(arguments.ranks, "--ranks", system.max_ranks),
        "--ranks",
    )
    root = options.whole(arguments.root, "-r", least=0)
    if root >= ranks:
        raise ValueError(f"root {root} is not one of the {ranks} ranks; choose 0 to {ranks - 1}")
    if collective == "alltoallv":
        raise ValueError(f"the sizes of an alltoallv are a table ({staircase.__name__} or --counts); tune alltoall")
    dtype = find_dtype(arguments.datatype).name
    payload_of(collective, dtype, recipe, arguments.op)
    return Task(
        collective, ranks, system, dtype=dtype, op=arguments.op, recipe=recipe, root=root, fidelity=arguments.fidelity
    )


def _one(values: list[Any], what: str) -> list[Any]:
    if len(values) != 1:
        raise ValueError(f"{what}: tune looks at one at a time, not at {len(values)}")
    return values


def _protocols(arguments: argparse.Namespace, system: "System") -> tuple[str, ...]:
    from collemu.emulator import find_protocol

    named = options.listed(arguments.protocol, tuple(system.protocols))
    return tuple(dict.fromkeys(find_protocol(system, name) for name in named))


def _table(task: "Task", ranges: "list[Range]") -> list[str]:
    from collemu.model.bandwidth import busbw

    rows = [
        (
            each.min_bytes,
            each.max_bytes,
            each.choice.algorithm,
            each.choice.protocol,
            each.choice.channels,
            "-" if each.choice.chunks is None else each.choice.chunks,
            f"{each.first_s * 1e6:.2f}",
            f"{each.last_s * 1e6:.2f}",
            f"{busbw(task.collective, task.ranks, each.max_bytes, each.last_s) / 1e9:.2f}",
            f"{100 * _bound_s(task, each.max_bytes) / each.last_s:.1f}" if each.last_s else "-",
        )
        for each in ranges
    ]
    heading = ("from (B)", "to (B)", "algorithm", "protocol", "channels", "chunks", "first (us)", "last (us)")
    return lines_of((*heading, "busbw (GB/s)", "of bound (%)"), rows, ">><<>>>>>>")


def _bound_s(task: "Task", size: int) -> float:
    from collemu.in_switch import switch_adds
    from collemu.model.bounds import lower_bound
    from collemu.model.tuning import count_of
    from collemu.payload import payload_of

    payload = payload_of(task.collective, task.dtype, task.recipe, task.op)
    adds = switch_adds(task.system, payload)
    count = count_of(task, size)
    return lower_bound(task.collective, task.ranks, count, payload.wire_bits, task.system, switch_adds=adds).total_s


def _document(task: "Task", library: str, ranges: "list[Range]", arguments: argparse.Namespace) -> dict[str, Any]:
    import collemu

    return {
        "schema_version": SCHEMA_VERSION,
        "args": arguments.words,
        "header": {
            "collemu": collemu.__version__,
            "system": task.system.name,
            "system_fingerprint": task.system.fingerprint,
            "fidelity": task.fidelity,
            "like": library,
            "collective": task.collective,
            "ranks": task.ranks,
            "dtype": task.dtype,
            "op": task.op,
            "recipe": str(task.recipe),
            "estimates": list(task.system.estimates()),
        },
        "ranges": [
            {
                "min_bytes": each.min_bytes,
                "max_bytes": each.max_bytes,
                **vars(each.choice),
                "first_us": each.first_s * 1e6,
                "last_us": each.last_s * 1e6,
            }
            for each in ranges
        ],
    }
