"""What libraries choose from: their algorithms by collective, their protocols and channels."""

from collections.abc import Mapping
from dataclasses import dataclass

from collemu.builders import IN_SWITCH
from collemu.catalogue import System
from collemu.model.choose import Choice
from collemu.schedule import algorithms

#: Pieces that are worth trying where they pipeline; elsewhere the algorithm's own number.
PIECES: dict[str, tuple[int, ...]] = {"nvls": (1, 4, 16), "nvls_tree": (1, 4), "hierarchical": (1, 4)}


@dataclass(frozen=True)
class Library:
    """The set of a library.

    Attributes
    ----------
    name : str
    algorithms : mapping of str to tuple of str, or None
        By collective; None: all that there are.
    channels : tuple of int
        Numbers of channels that are tried.
    source : str
        Who says so.
    """

    name: str
    algorithms: Mapping[str, tuple[str, ...]] | None
    channels: tuple[int, ...]
    source: str


_POWERS = (1, 2, 4, 8, 16, 32)

LIBRARIES = {
    each.name: each
    for each in (
        Library(
            "nccl",
            {
                "all_reduce": ("ring", "tree", "nvls", "nvls_tree"),
                "reduce_scatter": ("ring", "nvls", "pat"),
                "all_gather": ("ring", "nvls", "pat"),
                "broadcast": ("ring",),
                "reduce": ("ring",),
                "alltoall": ("direct",),
                "alltoallv": ("direct",),
                "gather": ("direct",),
                "scatter": ("direct",),
                "sendrecv": ("direct",),
            },
            _POWERS,
            "NCCL 2.27, graph/tuning.cc: which algorithms it knows for a collective; its point-to-point collectives",
        ),
        Library(
            "rccl",
            {
                "all_reduce": ("ring", "tree"),
                "reduce_scatter": ("ring",),
                "all_gather": ("ring",),
                "broadcast": ("ring",),
                "reduce": ("ring",),
                "alltoall": ("direct",),
                "alltoallv": ("direct",),
                "gather": ("direct",),
                "scatter": ("direct",),
                "sendrecv": ("direct",),
            },
            _POWERS,
            "RCCL: the classic algorithms of NCCL that need no switch, over point-to-point messages for the rest",
        ),
        Library(
            "custom",
            {"all_reduce": ("one_shot", "two_shot", "nvls"), "reduce_scatter": ("direct",), "all_gather": ("direct",)},
            (1, 2, 4, 8),
            "the kernels for one domain of TensorRT-LLM (custom_all_reduce), vLLM (custom_all_reduce.cuh), MSCCL++",
        ),
        Library("all", None, (1, 2, 4, 8), "every built-in algorithm"),
    )
}


def names_of(library: Library, collective: str, system: System) -> list[str]:
    """The algorithms of a library for a collective that a system can run; there may be none."""
    known = algorithms(collective, system)
    mine = known if library.algorithms is None else library.algorithms.get(collective, ())
    return [name for name in mine if name in known]


def choices_of(
    library: Library,
    collective: str,
    system: System,
    protocols: tuple[str, ...],
    channels: tuple[int, ...] | None = None,
) -> list[Choice]:
    """What a library can choose from on a system.

    Raises
    ------
    ValueError
        If it has no algorithm for the collective that the system can run.
    """
    names = names_of(library, collective, system)
    if not names:
        raise ValueError(f"{library.name} has no algorithm for {collective} on {system.name}; try --like all")
    in_lines = {name for name, spoken in system.protocols.items() if spoken.line_bytes != spoken.data_bytes}
    return [
        Choice(name, protocol, lanes, pieces)
        for name in names
        for protocol in protocols
        if not (name in IN_SWITCH and protocol in in_lines)  # what a switch adds and copies has no flags in its lines
        for lanes in channels or library.channels
        for pieces in PIECES.get(name, (None,))
    ]
