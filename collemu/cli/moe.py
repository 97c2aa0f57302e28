"""``collemu moe``: what dispatch and combine of a mixture of experts take, and what their wires lose."""

import argparse
from typing import TYPE_CHECKING, Any

from collemu.cli import options
from collemu.cli.outputs import try_outputs, write_whole
from collemu.cli.sizes import parse_numbers
from collemu.cli.table import lines_of

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.emulator import Result
    from collemu.moe import Copies, Exchange, Ids
    from collemu.recipe import Recipe

MOST_TOKENS = 2**16  # a rank
MOST_EXPERTS = 2**14
CHECK_ELEMENTS = 2**23  # of all copies: inputs and outputs of a check are some 100 MB then
BLOCK = 128  # elements that the widest block format scales together
UNIFORM, ZIPF = "uniform", "zipf:"
#: Columns of the table, and their names in CSV.
COLUMNS = {
    "ranks": "ranks",
    "tokens": "tokens",
    "phase": "phase",
    "wire": "wire",
    "time (us)": "time_us",
    "bound (us)": "bound_us",
    "bytes a rank": "bytes_a_rank",
    "GB/s": "bandwidth_gbps",
    "imbalance": "imbalance",
    "wire bytes": "wire_bytes",
    "link (%)": "link_percent",
}


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "moe",
        description="Emulate how tokens of a mixture of experts go to the ranks of their experts (dispatch) and come "
        "back (combine), as two alltoallv with the counts of a routing. Experts are spread over ranks as evenly as can "
        "be. bytes a rank: what a rank receives on average, its own tokens included; GB/s: that over the time, as "
        "DeepEP prints it; imbalance: the most that a rank receives, over the average.",
        epilog="example: collemu moe --ranks 72 --tokens 128 --routing zipf:1.2 --check",
    )
    add = parser.add_argument
    add("--ranks", default=None, metavar="N", help="also A-B and lists (default all chips of the domain)")
    add("--tokens", default=None, metavar="N", help="of each rank; also A-B and lists (default 128)")
    add("--topk", default=None, metavar="K", help="experts of a token (default 8)")
    add("--experts", default="256", metavar="E", help="experts of all ranks together (default 256)")
    add("--hidden", default="7168", metavar="H", help="elements of a token (default 7168)")
    add("-d", "--datatype", default="bfloat16", metavar="D", help="of the tokens (default bfloat16)")
    to, back = "deepep_dispatch", "deepep_combine"
    add(
        "--dispatch-wire",
        default=to,
        metavar="F",
        help=f"format or recipe to the experts; none: the dtype (default {to})",
    )
    add("--combine-wire", default=back, metavar="F", help=f"format or recipe back (default {back})")
    add(
        "--routing",
        default=UNIFORM,
        metavar="R",
        help=f"{UNIFORM}, {ZIPF}EXPONENT, or a .npy file of expert numbers, tokens x k (default {UNIFORM})",
    )
    add("--per-expert", action="store_true", help="a copy an expert, as DeepEP's low latency (default: one a rank)")
    add("--seed", default="0", metavar="N", help="of routing and tokens (default 0)")
    add("--check", action="store_true", help="send real tokens there and back: their error against float64")
    add("--system", default=options.DEFAULT_SYSTEM, metavar="S", help=f"(default {options.DEFAULT_SYSTEM})")
    add("--algorithm", default="direct", metavar="A", help="direct or pairwise (default direct)")
    add("--protocol", default=options.AUTO, metavar="P", help="auto, dma, simple, ll, ll128 (default the system's)")
    add("--fidelity", default=options.AUTO, metavar="F", help="auto, packet or flow (default auto)")
    add("--csv", metavar="FILE", help="also write one row a phase; - for stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print a line a phase."""
    from collemu import load_system
    from collemu.cli.perf import banner
    from collemu.moe import copies_of

    system = load_system(arguments.system)
    given = arguments.ranks or str(system.chips)
    rank_counts = parse_numbers(given, "--ranks", system.max_ranks, everything=system.chips)
    experts = options.whole(arguments.experts, "--experts", least=1, most=MOST_EXPERTS)
    hidden = options.whole(arguments.hidden, "--hidden", least=1)
    try_outputs(None, arguments.csv)
    rows: list[tuple[object, ...]] = []
    notes: list[str] = []
    header: dict[str, Any] = {}
    for ranks in rank_counts:
        for ids in _routings(arguments, ranks, experts):
            copies = copies_of(ids, experts, per_expert=arguments.per_expert)
            outcome = _exchange(arguments, copies, hidden, system)
            header = header or outcome.dispatch.header
            rows += _rows(copies, hidden, outcome)
            if arguments.check:
                notes.append(_checked(arguments, ids, experts, hidden, system))
    how = "a copy of a token goes to each of its experts" if arguments.per_expert else "a token goes once to a rank"
    if arguments.csv != "-":
        print("\n".join(banner(header, ())))
        print(f"# {_routing_text(arguments)}, {experts} experts, hidden {hidden}, {arguments.datatype}; {how}")
        print("\n".join(lines_of(tuple(COLUMNS), rows, ">><<>>>>>>>")))
        print("".join(f"# {note}\n" for note in notes), end="")
    if arguments.csv:
        text = "\n".join(",".join(map(str, row)) for row in [COLUMNS.values(), *rows])
        write_whole(arguments.csv, lambda file: print(text, file=file))
    return 0


def _routing_text(arguments: argparse.Namespace) -> str:
    """The routing in words."""
    name = arguments.routing
    return f"routing {name}" + (f" seed {arguments.seed}, top {arguments.topk or 8}" if _is_drawn(name) else "")


def _is_drawn(routing: str) -> bool:
    return routing == UNIFORM or routing.startswith(ZIPF)


def _routings(arguments: argparse.Namespace, ranks: int, experts: int) -> "list[Ids]":
    """Experts of every token, for each number of tokens."""
    from collemu.moe import load_routing, route

    name = arguments.routing
    seed = options.whole(arguments.seed, "--seed", least=0)
    if not _is_drawn(name):
        for flag in ("tokens", "topk"):
            if getattr(arguments, flag) is not None:
                raise ValueError(f"--{flag} is for drawn routings; {name} has its own: leave it out")
        return [load_routing(name, ranks, experts)]
    try:
        exponent = float(name.removeprefix(ZIPF)) if name != UNIFORM else 0.0
    except ValueError:
        raise ValueError(f"routing {name!r}: the exponent is no number; give {ZIPF}1.2") from None
    topk = options.whole(arguments.topk or "8", "--topk", least=1)
    return [
        route(ranks, tokens, topk, experts, exponent=exponent, seed=seed)
        for tokens in parse_numbers(arguments.tokens or "128", "--tokens", MOST_TOKENS)
    ]


def _exchange(
    arguments: argparse.Namespace, copies: "Copies", hidden: int, system: "System", x: Any = None
) -> "Exchange":
    from collemu.moe import exchange

    return exchange(
        copies,
        hidden,
        system,
        x=x,
        dtype=arguments.datatype,
        dispatch=_recipe(arguments.dispatch_wire),
        combine=_recipe(arguments.combine_wire),
        algorithm=arguments.algorithm,
        protocol=arguments.protocol,
        fidelity=arguments.fidelity,
    )


def _recipe(word: str) -> "Recipe":
    """The published recipe of a name, or one of a format."""
    from collemu.published import PUBLISHED
    from collemu.recipe import Recipe

    return PUBLISHED[word].recipe if word in PUBLISHED else Recipe(wire=word)


def _rows(copies: "Copies", hidden: int, outcome: "Exchange") -> list[tuple[object, ...]]:
    counts = copies.counts
    phases = (("dispatch", outcome.dispatch, counts), ("combine", outcome.combine, counts.T))
    return [(copies.ranks, copies.tokens, *_phase(name, result, table, hidden)) for name, result, table in phases]


def _phase(name: str, result: "Result", table: "Ids", hidden: int) -> tuple[object, ...]:
    received = table.sum(axis=0)
    mean = float(received.mean())
    nbytes = mean * hidden * float(result.payload.wire_bits) / 8
    return (
        name,
        result.payload.recipe.name or result.payload.recipe.wire,
        f"{result.time_s * 1e6:.3f}",
        f"{result.bounds.total_s * 1e6:.3f}",
        f"{nbytes:.0f}",
        f"{nbytes / result.time_s / 1e9:.2f}",
        f"{received.max() / mean if mean else 1.0:.3f}",
        result.wire_bytes,
        f"{100 * result.links.max_utilisation:.1f}",
    )


def _checked(arguments: argparse.Namespace, ids: "Ids", experts: int, hidden: int, system: "System") -> str:
    """A sentence on the error of real tokens with random gates; long ones are cut to affordable whole blocks."""
    import numpy as np

    from collemu.dtypes import find_dtype, to_storage, to_values
    from collemu.moe import copies_of

    dtype = find_dtype(arguments.datatype)
    if dtype.kind != "floating" or dtype.item_bytes > 4:
        raise ValueError(f"--check sends floats of at most 32 bits, not {dtype.name}; use -d bfloat16")
    random = np.random.default_rng(options.whole(arguments.seed, "--seed", least=0))
    gates = random.exponential(size=ids.shape)
    gates /= gates.sum(axis=2, keepdims=True)
    copies = copies_of(ids, experts, gates=gates, per_expert=arguments.per_expert)
    blocks = CHECK_ELEMENTS // max(len(copies.token), 1) // BLOCK
    shown = min(hidden, max(1, blocks) * BLOCK)
    x = random.standard_normal((copies.ranks, copies.tokens, shown), np.float32)
    outcome = _exchange(arguments, copies, shown, system, to_values(to_storage(x, dtype), dtype))
    return (
        f"{copies.ranks} ranks, {copies.tokens} tokens there and back: relative error {outcome.relative_error:.3g}, "
        f"max |error| {outcome.max_abs_error:.3g} against float64"
        + (f", of {shown} of {hidden} elements a token" if shown < hidden else "")
        + "; experts return what they get"
    )
