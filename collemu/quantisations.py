"""How often a collective rounds numbers to a narrower type: the first thing that its error depends on."""

from dataclasses import dataclass

import numpy as np
from collemu_kernels import kinds
from collemu_kernels.roundings import count_roundings
from numpy.typing import NDArray

from collemu.endpoint import cells_of, conversions_of, order_of, sender_of
from collemu.lower import Lowered
from collemu.payload import Payload
from collemu.rows import input_size

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Quantisations:
    """Roundings to the wire format, or to a narrow dtype that memory holds; not that of contributions to the dtype.

    Attributes
    ----------
    most : int
        Of a contribution on its way to an output, one after the other: n in a ring over n ranks, 2 in two_shot.
    mean : float
        The same over all elements of the outputs that count: the most of any contribution to each.
    encoded : int
        Elements encoded into the wire format by all ranks; 0 without one.
    """

    most: int
    mean: float
    encoded: int


def quantisations_of(lowered: Lowered, payload: Payload) -> Quantisations:
    """Follow every chunk through a schedule.

    Parameters
    ----------
    lowered : Lowered
    payload : Payload
    """
    schedule, pieces = lowered.schedule, lowered.pieces
    ops = schedule.ops
    source, target = cells_of(lowered)
    bases, cells = schedule.cell_bases()
    known, held = np.zeros(cells, np.uint8), np.zeros(cells, np.int32)
    travelled = np.zeros(cells, np.int32)
    encoded = 0
    if payload.rounds_input:
        ranks = [rank for rank in range(schedule.ranks) if input_size(schedule, lowered.count, rank)]
        inputs = bases[ranks, kinds.INPUT][:, None] + np.arange(schedule.input_chunks)
        known[inputs], held[inputs], travelled[inputs] = 1, 1, 1
        encoded = int(np.diff(schedule.chunk_starts_of_ranks(kinds.INPUT, lowered.count))[ranks].sum())
    encoded += int(conversions_of(lowered, known)[0].sum())
    narrow = payload.runs_in.overflows_early or payload.recipe.accumulate != "float32"
    group_first, group_ranks = _groups(lowered)
    count_roundings(
        order_of(lowered),
        np.ascontiguousarray(ops["kind"]),
        np.ascontiguousarray(ops["publish"]),
        sender_of(lowered),
        group_first,
        group_ranks,
        cells // schedule.ranks,
        pieces.first,
        source,
        target,
        payload.quantised,
        int(narrow and not payload.quantised),
        payload.recipe.round_own,
        known,
        held,
        travelled,
        np.zeros(len(pieces.operation), np.int32),
    )
    ranks = [schedule.root] if schedule.collective in ("reduce", "gather") else list(range(schedule.ranks))
    outputs = bases[ranks, kinds.OUTPUT][:, None] + np.arange(schedule.output_chunks)
    elements = np.diff(schedule.chunk_starts_of_ranks(kinds.OUTPUT, lowered.count))[ranks]
    roundings, total = held[outputs], int(elements.sum())
    return Quantisations(
        most=int(roundings[elements > 0].max(initial=0)),
        mean=float((roundings * elements).sum() / total) if total else 0.0,
        encoded=encoded,
    )


def _groups(lowered: Lowered) -> tuple[Int32, Int32]:
    """Of each operation: the first rank of its switch group, relative to its own, and how many there are."""
    size = lowered.schedule.group_ranks or lowered.schedule.ranks
    first = lowered.rank // size * size
    members = np.minimum(size, lowered.schedule.ranks - first)
    return (first - lowered.rank).astype(np.int32), members.astype(np.int32)
