"""What libraries choose from: their algorithms by collective, their protocols and channels."""

from collections.abc import Mapping
from dataclasses import dataclass

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
            "RCCL, which has no switches to add",
        ),
        Library(
            "custom",
            {"all_reduce": ("one_shot", "two_shot", "nvls"), "reduce_scatter": ("direct",), "all_gather": ("direct",)},
            (1, 2, 4, 8),
            "kernels of TensorRT-LLM, vLLM and MSCCL++ for one domain",
        ),
        Library("all", None, (1, 2, 4, 8), "every built-in algorithm"),
    )
}


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
    known = algorithms(collective, system)
    mine = known if library.algorithms is None else library.algorithms.get(collective, ())
    names = [name for name in mine if name in known]
    if not names:
        raise ValueError(f"{library.name} has no algorithm for {collective} on {system.name}; try --like all")
    return [
        Choice(name, protocol, lanes, pieces)
        for name in names
        for protocol in protocols
        for lanes in channels or library.channels
        for pieces in PIECES.get(name, (None,))
    ]
