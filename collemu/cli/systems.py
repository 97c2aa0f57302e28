"""``collemu systems``: the catalogue, and every number of a system with where it comes from."""

import argparse
from typing import TYPE_CHECKING, Any

from collemu.cli.table import lines_of, quantity

if TYPE_CHECKING:
    from collemu.catalogue import Quantity, System


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "systems",
        description="List the systems; with a name or a .toml file, every number with unit, source and confidence.",
    )
    parser.add_argument(
        "system",
        nargs="?",
        metavar="NAME|FILE",
        help="a system of the catalogue, or your own .toml file or NCCL's .xml, perhaps @NETWORK",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue or a system."""
    from collemu import load_system, systems
    from collemu.catalogue.load import networks

    if arguments.system is None:
        found = [load_system(name) for name in systems()]
        rows = [
            (
                each.name,
                each.chips,
                quantity(each.chip_bytes_per_s, "bytes/s"),
                len(each.estimates()),
                each.title,
            )
            for each in found
        ]
        print("\n".join(lines_of(("name", "chips", "rate a chip, one way", "estimates", "title"), rows, "<>>><")))
        print()
        print(f"networks, as in h100_hgx@{networks()[0]}: {', '.join(networks())}")
        return 0
    print("\n".join(_described(load_system(arguments.system))))
    return 0


def _shown(number: "Quantity") -> str:
    if isinstance(number.value, tuple):
        return ", ".join(map(str, number.value))
    return quantity(number.value, number.unit)


def _described(system: "System") -> list[str]:
    numbers = [
        (name, _shown(each), each.confidence, each.source, each.note) for name, each in system.provenance.items()
    ]
    derived = [
        ("links x link rate: a chip, one way", quantity(system.chip_bytes_per_s, "bytes/s")),
        ("both ways added, as headlines do", quantity(system.chip_bytes_per_s_both_directions, "bytes/s")),
        ("a domain, both ways added", quantity(system.domain_bytes_per_s_both_directions, "bytes/s")),
        ("a domain, dense FP8", quantity(system.domain_fp8_dense_flop_per_s, "flop/s")),
        ("a domain, dense FP4", quantity(system.domain_fp4_dense_flop_per_s, "flop/s")),
        ("a domain, memory rate", quantity(system.domain_hbm_bytes_per_s, "bytes/s")),
    ]
    sources = [(key, f"{source.title} {source.address}".rstrip()) for key, source in system.sources.items()]
    estimates, topology = len(system.estimates()), system.domain.topology
    return [
        f"{system.name}: {system.title}",
        *([f"status: {system.status}"] if system.status else []),
        f"fingerprint {system.fingerprint}; default protocol {system.default_protocol}",
        f"{system.scaleout.domains} x {system.domain.chips} chips, {topology}: {system.domain.links} links a chip",
        f"{estimates} of {len(numbers)} numbers are estimates",
        "",
        *lines_of(("number", "value", "confidence", "source", "note"), numbers, "<><<<"),
        "",
        *lines_of(("derived total", "value"), derived, "<>"),
        "",
        *lines_of(("source", "what"), sources),
    ]
