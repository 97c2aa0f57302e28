"""``collemu recipes``: how published systems quantise on the wire."""

import argparse
from typing import Any

from collemu.cli.table import lines_of


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "recipes",
        description="List the recipes of published systems, for --recipe; with a name, what it rounds and where.",
    )
    parser.add_argument("recipe", nargs="?", metavar="NAME", help="such as quickreduce_int4")


def run(arguments: argparse.Namespace) -> int:
    """Print the recipes or one of them."""
    from collemu.published import PUBLISHED, find_published

    if arguments.recipe is None:
        rows = [(each.name, str(each.recipe).split(": ")[1], each.source) for each in PUBLISHED.values()]
        print("\n".join(lines_of(("recipe", "wire, sums, and what is not as usual", "source"), rows)))
        return 0
    chosen = find_published(arguments.recipe)
    print(str(chosen.recipe))
    print(f"rule: {chosen.rule}")
    for collective, algorithms in chosen.algorithms.items():
        print(f"{collective}: {', '.join(algorithms)}")
    print(f"source: {chosen.source}")
    print(f"limits: {chosen.limits or 'none known'}")
    return 0
