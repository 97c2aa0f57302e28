"""Run one point of a table: its row, what it depends on, and what a reader must know."""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from collemu.cli.fits import beyond
from collemu.cli.options import Point
from collemu.cli.points import count_of, dealt, load, settled
from collemu.collectives import ROOTED
from collemu.interop import nccl_tests

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.emulator import Result
    from collemu.recipe import Recipe
    from collemu.tensors import Tensor


def add_measure_flags(parser: Any, data: Any) -> None:
    """Add the flags of `measure` beside those that say which points: to a parser, and to its group on data."""
    parser.add_argument(
        "-c", "--check", default="1", metavar="N", help="0: no check of the outputs; 2: check full size too (default 1)"
    )
    parser.add_argument(
        "--like", default="all", metavar="L", help="whose algorithms auto has: nccl, rccl, custom (default all)"
    )
    data.add_argument(
        "--data",
        metavar="FILE[:NAME]",
        help=".npy, .npz or .safetensors: your tensors instead of sizes; adds the wire format's error to the table",
    )


@dataclass(frozen=True)
class Outcome:
    """What came of a point: its row, what it depends on, and what a reader must know."""

    row: nccl_tests.Row
    header: dict[str, Any]
    notes: tuple[str, ...]


class _Numbers(TypedDict):
    dtype: str
    op: str
    recipe: "Recipe"
    protocol: str


def measure(point: Point, check: int, tensor: "Tensor | None" = None, seed: int = 0) -> Outcome:
    """Run a point; what it cannot be run for names it.

    Parameters
    ----------
    point : Point
    check : int
        0: none; 1: at most at an affordable size; 2: at full size.
    tensor : Tensor, optional
        To use instead of a size.
    seed : int
        As `collemu.emulate` takes it.
    """
    from collemu.program import ProgramError

    try:
        return _measure(point, check, tensor, seed)
    except ProgramError:
        raise  # which names the line
    except ValueError as error:
        raise ValueError(f"{point}: {error}") from error


def _measure(point: Point, check: int, tensor: "Tensor | None", seed: int) -> Outcome:
    from collemu import emulate
    from collemu.check import check as check_outputs

    system = load(point.system)
    notes: list[str] = []
    data = None
    if tensor is not None:
        data, count, how = dealt(point, tensor)
        point = dataclasses.replace(point, count=count)
        notes.append(f"data {tensor.origin}: {how}")
        notes += filter(None, [beyond(tensor, point.dtype)])
    point = settled(point, system)
    schedule = point.schedule()
    count = count_of(point, schedule)
    if schedule.protocol not in ("auto", *system.protocols):
        notes.append(
            f"{schedule.algorithm} was written for protocol {schedule.protocol}, which {system.name} has not: "
            f"it runs with {point.protocol}"
        )
    numbers: _Numbers = {"dtype": point.dtype, "op": point.op, "recipe": point.recipe, "protocol": point.protocol}
    outcome = None
    if check:
        outcome = check_outputs(schedule, system, count=count, full=check > 1, fidelity=point.fidelity, **numbers)
    if outcome and not outcome.exact:
        notes.append(f"#wrong of {point.op} over {point.label} allows the roundings of its formats")
    if outcome and outcome.count != count:
        notes.append(
            "#wrong of large sizes is counted at a smaller count with the same remainder; -c 2 checks all of it"
        )
    if outcome and outcome.count == count and data is None:
        result = outcome.result
    else:
        rest: dict[str, Any] = {"fidelity": point.fidelity, "timeline": False, "seed": seed}
        result = emulate(schedule, system, count=count, data=data, **rest, **numbers)
    if result.memory_utilisation > 1:
        notes.append(
            f"chips of {system.name} would need more than their memory's rate in some rows: those times are too short"
        )
    row = _row(point, system, result, outcome.wrong if outcome else None)
    if data is not None:
        row = dataclasses.replace(row, **_errors(point, data, result))
    return Outcome(row, result.header, tuple(notes))


def _row(point: Point, system: "System", result: "Result", wrong: int | None) -> nccl_tests.Row:
    from collemu.dtypes import find_dtype
    from collemu.model.bandwidth import algbw, busbw, size_bytes

    item_bytes = find_dtype(point.dtype).item_bytes
    size = size_bytes(point.collective, point.ranks, point.count, item_bytes)
    if (schedule := result.lowered.schedule).counts is not None:
        size = count_of(point, schedule) * item_bytes
    return nccl_tests.Row(
        size=size,
        count=point.count,
        type=point.dtype,
        redop=point.op if point.reduces else "none",
        root=point.root if point.collective in ROOTED else -1,
        time_us=result.time_s * 1e6,
        algbw_gbps=algbw(size, result.time_s) / 1e9,
        busbw_gbps=busbw(point.collective, point.ranks, size, result.time_s) / 1e9,
        nwrong=wrong,
        system=system.name,
        collective=point.collective,
        algorithm=point.algorithm,
        ranks=point.ranks,
        protocol=result.header["protocol"],
        fidelity=result.header["fidelity"],
        wire=point.wire,
        recipe=point.recipe.name,
        accumulate=point.recipe.accumulate,
        scale_mode=point.recipe.scale_mode or "",
        requantise=point.recipe.requantise,
        wire_bytes=result.wire_bytes,
        bound_us=result.bounds.total_s * 1e6,
        bound=result.bounds.name,
        efficiency=result.bounds.total_s / result.time_s if result.time_s else 1.0,
        max_link_utilisation=result.links.max_utilisation,
    )


def _errors(point: Point, data: Any, result: "Result") -> dict[str, Any]:
    """How far the outputs are from what exact arithmetic gives; None for a difference that is no number."""
    from collemu.reference import difference

    assert result.outputs is not None
    relative, largest = difference(point.collective, data, result.outputs, point.op, point.root)
    return {
        "relative_error": relative if math.isfinite(relative) else None,
        "max_abs_error": largest if math.isfinite(largest) else None,
        "identical": result.replicas_identical,
        "quantisations": result.quantisations.most,
        "saturated": result.saturated,
    }
