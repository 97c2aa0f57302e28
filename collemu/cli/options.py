"""Flags that commands share, and the points that they span.

The letters mean what they mean in nccl-tests. A *point* is one line of a table: one collective with one algorithm,
rank count, dtype, wire format, operator and size on one system.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collemu.arguments import one_of
from collemu.cli.files import (
    collectives_of,
    is_file,
    is_python,
    load_counts_for,
    load_for,
    load_for_flags,
    refuse_other_ranks,
)
from collemu.cli.numbers import add_recipe_flags, algorithm_of, numbers
from collemu.cli.sizes import parse_numbers, parse_size, sizes
from collemu.cli.words import listed, names, whole
from collemu.collectives import REDUCTIONS

if TYPE_CHECKING:
    from collemu.cli.fits import Fit
    from collemu.recipe import Recipe
    from collemu.schedule import Schedule

AUTO = "auto"
DEFAULT_SYSTEM = "trainium4_nvl72"
MOST_CHANNELS = 64
MOST_CHUNKS = 4096


@dataclass(frozen=True)
class Point:
    """What to run for one line of a table.

    Attributes
    ----------
    system : str
        Name in the catalogue, or path of a TOML file.
    collective, algorithm, dtype, op : str
        ``algorithm`` may be ``auto`` where the command allows it, or the path of a file. ``op`` is ``sum`` where
        nothing is reduced.
    recipe : Recipe
    ranks, root : int
    size : int
        Bytes that were asked for.
    count : int
        Elements a rank, as nccl-tests counts them for that size; of an alltoallv a block's on average.
    channels : int
    chunks : int or None
    protocol, fidelity : str
    counts : str or None
        Path of an alltoallv's counts.
    like : str
        Library whose algorithms ``auto`` chooses from.
    """

    system: str
    collective: str
    algorithm: str
    ranks: int
    dtype: str
    op: str
    recipe: "Recipe"
    root: int
    size: int
    count: int
    channels: int = 1
    chunks: int | None = None
    protocol: str = AUTO
    fidelity: str = AUTO
    counts: str | None = None
    like: str = "all"

    def __str__(self) -> str:
        """What errors and progress call it."""
        return f"{self.collective} {self.algorithm} {self.ranks} ranks {self.dtype} {self.label} {self.size} B"

    @property
    def wire(self) -> str:
        """Name of what travels."""
        return self.recipe.wire

    @property
    def label(self) -> str:
        """The recipe in a few words."""
        return self.recipe.name or f"wire {self.wire}"

    @property
    def reduces(self) -> bool:
        """Whether values of different ranks are combined."""
        return self.collective in REDUCTIONS

    def schedule(self) -> "Schedule":
        """Its schedule, on the domains of its system; the algorithm must not be ``auto``."""
        from collemu.cli.points import build, load

        count, file = (self.count, self.counts) if self.collective == "alltoallv" else (0, None)
        group = load(self.system).group_of(self.ranks)
        lanes = self.channels, self.chunks
        return build(
            self.collective, self.algorithm, self.ranks, self.root, *lanes, group=group, count=count, file=file
        )


def add_collective_flags(
    parser: argparse.ArgumentParser,
    *,
    algorithm: str = AUTO,
    sizes: tuple[str, str] = ("32M", "32M"),
    ranks: str = "all chips of the domain",
) -> None:
    """Add the flags that say which points to run.

    Parameters
    ----------
    parser : ArgumentParser
    algorithm : str
        Default of ``--algorithm``.
    sizes : pair of str
        Defaults of ``-b`` and ``-e``.
    ranks : str
        Words for the default of ``--ranks``, which the command itself gives to `resolve_points`.
    """
    parser.add_argument("collective", metavar="COLLECTIVE", help="all_reduce, all_gather, ...; a comma list, or all")
    size = parser.add_argument_group("sizes (bytes; K, M, G are binary)")
    beyond = "; one of -b and -e alone, beyond the other's default, is the only size"
    parser.set_defaults(default_sizes=sizes)
    size.add_argument("-b", "--minbytes", metavar="SIZE", help=f"smallest size (default {sizes[0]}{beyond})")
    size.add_argument("-e", "--maxbytes", metavar="SIZE", help=f"largest size (default {sizes[1]})")
    size.add_argument("-i", "--stepbytes", default="1M", metavar="SIZE", help="add this from size to size (default 1M)")
    size.add_argument(
        "-f", "--stepfactor", default="1", metavar="N", help="multiply by this instead; 1 or less: use -i (default 1)"
    )
    what = parser.add_argument_group("what runs (comma lists and 'all' where a list is possible)")
    what.add_argument("-d", "--datatype", default="float32", metavar="D", help="dtypes (default float32)")
    what.add_argument("-o", "--op", default="sum", metavar="OP", help="sum, prod, min, max, avg (default sum)")
    what.add_argument("-r", "--root", default="0", metavar="RANK", help="root, where there is one (default 0)")
    what.add_argument(
        "--algorithm",
        default=algorithm,
        metavar="A",
        help=f"see collemu algorithms; or FILE.py, your own; or MSCCL XML: FILE.xml (default {algorithm})",
    )
    add_recipe_flags(what)
    what.add_argument("--ranks", default=None, metavar="N", help=f"also A-B (default {ranks})")
    what.add_argument(
        "--system",
        default=DEFAULT_SYSTEM,
        metavar="S",
        help=f"NAME, NAME@NETWORK, a .toml file or NCCL's .xml; collemu systems lists them (default {DEFAULT_SYSTEM})",
    )
    what.add_argument(
        "--counts",
        metavar="FILE",
        help=".npy or .csv: n x n elements from each rank to each, of alltoallv (default rccl-tests' staircase)",
    )
    what.add_argument("--channels", default="1", metavar="N", help="independent lanes of an algorithm (default 1)")
    what.add_argument(
        "--chunks", default=None, metavar="N", help="pieces a lane's message is cut into (default: its own)"
    )
    what.add_argument(
        "--protocol",
        default=AUTO,
        metavar="P",
        help="auto, dma, simple, ll, ll128 (auto: the one that a file was written for, or else the system's)",
    )
    what.add_argument("--fidelity", default=AUTO, metavar="F", help="auto, packet or flow (default auto)")
    for flags, default in ((("-n", "--iters"), 20), (("-w", "--warmup_iters"), 1)):
        text = "accepted as nccl-tests does; emulation is deterministic, so one run is all"
        what.add_argument(*flags, default=str(default), metavar="N", help=text)


def resolve_points(arguments: argparse.Namespace, ranks: int | None = None, fits: "Fit | None" = None) -> list[Point]:
    """Spell out the flags of `add_collective_flags`.

    A value that came from ``all``, or is one of several, is left out where it does not go together with another
    (alltoall has no ring; integers have no wire format). A value that goes with nothing is an error.

    Parameters
    ----------
    arguments : Namespace
    ranks : int, optional
        Rank count where ``--ranks`` was not given; without it all chips of the system.
    fits : Fit, optional
        Refuses pairs of dtype and wire format that do not go together with the command's data, and algorithms that the
        system's switches cannot carry out.

    Raises
    ------
    ValueError
        For a name, number or pair that does not exist; the text says what does.
    """
    from collemu import load_system, systems
    from collemu.counts import largest_buffer
    from collemu.dtypes import DTYPES, find_dtype
    from collemu.emulator import FIDELITIES, find_protocol
    from collemu.model.bandwidth import count_for_size
    from collemu.model.libraries import LIBRARIES
    from collemu.payload import OPERATORS

    known = collectives()
    chosen = names(arguments.collective, known, "collective")
    wanted = sizes(
        *_ends(arguments),
        parse_size(arguments.stepbytes),
        whole(arguments.stepfactor, "-f", least=0),
    )
    root = whole(arguments.root, "-r", least=0)
    channels, chunks = lanes(arguments)
    like = one_of(getattr(arguments, "like", "all"), LIBRARIES, "--like")
    whole(arguments.iters, "-n", least=0)
    whole(arguments.warmup_iters, "-w", least=0)
    if arguments.fidelity not in FIDELITIES:
        raise ValueError(f"no fidelity {arguments.fidelity!r}; choose {', '.join(FIDELITIES)}")
    dtypes = [find_dtype(name).name for name in listed(arguments.datatype, tuple(DTYPES))]
    triples = numbers(dtypes, arguments, tuple(OPERATORS), fits)
    runs = pairs(chosen, arguments.algorithm)
    table = load_counts_for(arguments.counts, chosen)

    points: list[Point] = []
    for system_name in listed(arguments.system, systems()):
        system = load_system(system_name)
        protocol = find_protocol(system, arguments.protocol)
        rank_counts = [ranks or system.chips]
        if arguments.ranks is not None:
            rank_counts = parse_numbers(arguments.ranks, "--ranks", system.max_ranks, everything=system.chips)
        if rank_counts[-1] > system.max_ranks:
            raise ValueError(f"{rank_counts[-1]} ranks are more than the {system.max_ranks} chips of {system.name}")
        if root >= min(rank_counts):
            least = min(rank_counts)
            raise ValueError(f"root {root} is not one of the {least} ranks; choose 0 to {least - 1}")
        cases: list[tuple[str, str, int, int, str]] = []
        for collective, algorithm in runs:
            if is_file(algorithm) and not is_python(algorithm):
                schedule = load_for_flags(algorithm, collective, root, (channels, chunks), system)
                if ranks is not None or arguments.ranks is not None:
                    refuse_other_ranks(algorithm, schedule.ranks, rank_counts)
                spoken = find_protocol(system, arguments.protocol, schedule.protocol)
                cases.append((collective, algorithm, schedule.ranks, schedule.root, spoken))
            elif table is not None and collective == "alltoallv":
                if ranks is not None or arguments.ranks is not None:
                    refuse_other_ranks(arguments.counts, len(table), rank_counts)
                cases.append((collective, algorithm, len(table), 0, protocol))
            else:
                cases += [(collective, algorithm, each, root, protocol) for each in rank_counts]
        for collective, algorithm, count_of_ranks, root_of_case, spoken in cases:
            reduces = collective in REDUCTIONS
            file = arguments.counts if collective == "alltoallv" else None
            seen: set[tuple[str, Recipe, str]] = set()
            for dtype, recipe, op in triples:
                own = algorithm_of(recipe, collective, algorithm, arguments)
                if own is None:
                    continue
                key = (dtype, recipe, op if reduces else "sum")
                if key in seen:
                    continue
                seen.add(key)
                item_bytes = find_dtype(dtype).item_bytes
                amounts = [(size, count_for_size(collective, count_of_ranks, size, item_bytes)) for size in wanted]
                if file and table is not None:
                    amounts = [(largest_buffer(table) * item_bytes, largest_buffer(table) // len(table))]
                points += [
                    Point(
                        system=system_name,
                        collective=collective,
                        algorithm=own,
                        ranks=count_of_ranks,
                        dtype=dtype,
                        op=key[2],
                        recipe=recipe,
                        root=root_of_case,
                        size=size,
                        count=count,
                        channels=channels,
                        chunks=chunks,
                        protocol=spoken,
                        fidelity=arguments.fidelity,
                        counts=file,
                        like=like,
                    )
                    for size, count in amounts
                ]
    return points if fits is None else _able(points, arguments, fits)


def _able(points: list[Point], arguments: argparse.Namespace, fits: "Fit") -> list[Point]:
    """Points that switches can carry out; an error where a value that was named goes with none of them."""
    from collemu import load_system

    loaded = {name: load_system(name) for name in dict.fromkeys(point.system for point in points)}
    refusals = [fits.refusal(point, loaded[point.system]) for point in points]
    able = [point for point, refusal in zip(points, refusals, strict=True) if refusal is None]
    given = {"dtype": "datatype"}
    for field in ("system", "collective", "algorithm", "ranks", "dtype", "wire", "recipe", "op"):
        text = getattr(arguments, given.get(field, field))
        if text is None or "all" in text.split(","):
            continue  # nobody named them
        used = {getattr(point, field) for point in able}
        for point, refusal in zip(points, refusals, strict=True):
            if field == "algorithm" and point.algorithm not in text.split(","):
                continue  # the recipe's
            if refusal is not None and getattr(point, field) not in used:
                raise ValueError(f"{point}: {refusal}")
    return able


def collectives() -> tuple[str, ...]:
    """Collectives that some algorithm does."""
    from collemu.builders import BUILDERS

    return tuple(BUILDERS)


def lanes(arguments: argparse.Namespace) -> tuple[int, int | None]:
    """Channels and chunks of the flags."""
    channels = whole(arguments.channels, "--channels", least=1, most=MOST_CHANNELS)
    chunks = arguments.chunks
    return channels, None if chunks is None else whole(chunks, "--chunks", least=1, most=MOST_CHUNKS)


def add_group_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says how many ranks a domain has, where no system says it."""
    parser.add_argument(
        "--group",
        default=None,
        metavar="N",
        help="ranks of a domain, for hierarchical and nvls_tree (default: near sqrt)",
    )


def group(arguments: argparse.Namespace) -> int | None:
    """What `add_group_flag` was given."""
    return None if arguments.group is None else whole(arguments.group, "--group", least=1)


def _ends(arguments: argparse.Namespace) -> tuple[int, int]:
    """Smallest and largest size; one that is given alone draws the other's default to itself."""
    smallest, largest = arguments.minbytes, arguments.maxbytes
    defaults = arguments.default_sizes
    ends = [parse_size(defaults[0] if smallest is None else smallest)]
    ends += [parse_size(defaults[1] if largest is None else largest)]
    if ends[0] > ends[1] and (smallest is None or largest is None):
        ends = [ends[1] if smallest is None else ends[0]] * 2
    return ends[0], ends[1]


def pairs(chosen: Sequence[str], text: str) -> list[tuple[str, str]]:
    """Pairs of collective and algorithm, or file; each must do one of the collectives at least."""
    from collemu import algorithms

    runs: list[tuple[str, str]] = []
    used: set[str] = set()
    wanted = {collective: listed(text, algorithms(collective)) for collective in chosen}
    for collective in chosen:
        for algorithm in wanted[collective]:
            if is_python(algorithm):
                does = collective in collectives_of(algorithm)
            elif is_file(algorithm):
                does = load_for(algorithm, chosen).collective == collective
            else:
                does = algorithm == AUTO or algorithm in algorithms(collective)
            if does:
                runs.append((collective, algorithm))
                used.add(algorithm)
    for name in itertools.chain.from_iterable(wanted.values()):
        if name not in used and is_python(name):
            does = ", ".join(dict.fromkeys(collectives_of(name)))
            raise ValueError(f"{name}: it does {does}, not {', '.join(chosen)}")
        if name not in used:
            raise ValueError(
                f"no algorithm {name!r} for {', '.join(chosen)}; choose "
                + ", ".join(dict.fromkeys(itertools.chain.from_iterable(algorithms(each) for each in chosen)))
            )
    return runs
