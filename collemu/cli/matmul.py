"""``collemu matmul``: what a quantised matrix product loses against float64, and how long a chip would take."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collemu.accumulation import MODELS
from collemu.cli import options
from collemu.cli.table import lines_of, quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collemu.catalogue import Chip

MOST_PRODUCTS = 2**34
SCALES_ALONE = "float8_e8m0fnu"  # has neither sign nor zero
HEADING = ("A", "B", "accumulate", "relative error", "max |error|", "saturated", "flushed", "time", "worst element")


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "matmul",
        description="Multiply two random (normal) matrices in quantised formats under a named accumulation model, and "
        "print the error against float64: relative Frobenius norm of the difference, and the element furthest off; how "
        "many numbers of A and B saturated, and were flushed to zero; and an estimate of the time on one chip.",
    )
    parser.add_argument("-m", default="128", metavar="M", help="rows of A (default 128)")
    parser.add_argument("-n", default="128", metavar="N", help="columns of B (default 128)")
    parser.add_argument("-k", default="512", metavar="K", help="columns of A, rows of B (default 512)")
    parser.add_argument(
        "--a", default="mxfp8_e4m3", metavar="F", help="formats of A, a comma list, none, or all (default mxfp8_e4m3)"
    )
    parser.add_argument("--b", default=None, metavar="F", help="formats of B, each with each of A (default: A's own)")
    parser.add_argument("--accumulate", default="float32", metavar="A", help=f"{', '.join(MODELS)} (default float32)")
    parser.add_argument("--promote-every", default=None, metavar="N", help="k's in an accumulator of their own")
    parser.add_argument("--out-dtype", default="float32", metavar="D", help="of the product (default float32)")
    parser.add_argument(
        "--system",
        default=options.DEFAULT_SYSTEM,
        metavar="S",
        help=f"whose chip; or a .toml file (default {options.DEFAULT_SYSTEM})",
    )
    parser.add_argument("--seed", default="0", metavar="N", help="of the random matrices (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each pair of formats."""
    import numpy as np

    from collemu import load_system

    m, n, k = (options.whole(getattr(arguments, name), f"-{name}", least=1) for name in "mnk")
    if m * n * k > MOST_PRODUCTS:
        raise ValueError(f"-m {m} -n {n} -k {k} are {m * n * k} products; give at most {MOST_PRODUCTS}")
    every = arguments.promote_every
    every = None if every is None else options.whole(every, "--promote-every", least=1)
    pairs = _pairs(arguments.a, arguments.b)
    system = load_system(arguments.system)
    random = np.random.default_rng(options.whole(arguments.seed, "--seed", least=0))
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    lost_of_a = {name: _lost(a, name, -1) for name, _ in pairs}
    lost_of_b = {name: _lost(b, name, 0) for _, name in pairs}
    rows: list[tuple[object, ...]] = []
    refusal: ValueError | None = None
    for a_format, b_format in pairs:
        try:
            error, _ = product_error(
                a, b, a_format, b_format, arguments.accumulate, promote_every=every, out_dtype=arguments.out_dtype
            )
        except ValueError as reason:
            refusal = refusal or reason
            continue
        lost = lost_of_a[a_format], lost_of_b[b_format]
        seconds = estimated_time_s(system.chip, m, n, k, a_format, b_format)
        rows.append(
            (
                a_format,
                b_format,
                arguments.accumulate,
                f"{error.relative:.3g}",
                f"{error.largest:.3g}",
                *map(sum, zip(*lost, strict=True)),
                "no rate" if seconds is None else _rounded_time(seconds),
                error.worst,
            )
        )
    if refusal is not None and not rows:
        raise refusal
    print(f"# {m} x {k} times {k} x {n}, normal random numbers, seed {arguments.seed}; error against float64")
    print("# saturated, flushed: numbers of A and B beyond their format's largest, and those that became zero")
    print(f"# time: an estimate, 2 M N K flop at the dense FP8 or FP4 rate of one {system.name} chip, and nothing else")
    if len(rows) < len(pairs):
        print(f"# left out: {len(pairs) - len(rows)} pairs, the first because {refusal}")
    print("\n".join(lines_of(HEADING, rows, "<<<>>>>><")))
    return 0


def _pairs(a_text: str, b_text: str | None) -> list[tuple[str, str]]:
    from collemu import formats

    known = ("none", *(name for name in formats() if name != SCALES_ALONE))
    of_a = options.names(a_text, known, "format of matrices")
    if b_text is None:
        return [(name, name) for name in of_a]
    return [(a, b) for a in of_a for b in options.names(b_text, known, "format of matrices")]


def estimated_time_s(chip: "Chip", m: int, n: int, k: int, a_format: str, b_format: str) -> float | None:
    """Seconds that one chip needs for a product at its dense rate, which no real kernel reaches.

    Parameters
    ----------
    chip : Chip
    m, n, k : int
    a_format, b_format : str
        As `product_error` takes them.

    Returns
    -------
    float or None
        The FP4 rate holds where both elements have 4 bits, the FP8 rate for other floating-point elements of at most
        8 bits; None for what the catalogue has no rate of: integers, 16 and 32 bits.
    """
    from collemu.number_formats import BlockFormat, find_format

    if "none" in (a_format, b_format):
        return None
    found = (find_format(a_format), find_format(b_format))
    elements = [x.element if isinstance(x, BlockFormat) else x for x in found]
    widest = max(element.bits for element in elements)
    if widest > 8 or any(element.exponent_bits == 0 for element in elements):
        return None
    return 2 * m * n * k / (chip.fp4_dense_flop_per_s if widest == 4 else chip.fp8_dense_flop_per_s)


def _rounded_time(seconds: float) -> str:
    return quantity(float(f"{seconds:.3g}"), "s")


def _lost(matrix: "NDArray[np.float32]", name: str, axis: int) -> tuple[int, int]:
    """How many numbers saturate in a format, and how many become zero."""
    from collemu import quantization_report
    from collemu.number_formats import BLOCK_FORMATS

    if name == "none":
        return 0, 0
    along = {"axis": axis} if name in BLOCK_FORMATS else {}
    report = quantization_report(matrix, name, **along)
    return report.saturated, report.flushed_to_zero


@dataclass(frozen=True)
class ProductError:
    """What a quantised product lost: relative Frobenius norm, largest difference, and where it is in words."""

    relative: float
    largest: float
    worst: str


def product_error(
    a: "NDArray[np.float32]",
    b: "NDArray[np.float32]",
    a_format: str,
    b_format: str,
    accumulate: str,
    *,
    promote_every: int | None = None,
    out_dtype: str = "float32",
) -> "tuple[ProductError, NDArray[Any]]":
    """Quantise two matrices along k, multiply them, and compare with the float64 product of the originals.

    Parameters
    ----------
    a, b : float32 arrays, (M, K) and (K, N)
    a_format, b_format : str
        A block format, an element format, or ``none``.
    accumulate, promote_every, out_dtype
        As `collemu.matmul` takes them.

    Returns
    -------
    error : ProductError
    product : array (M, N)
    """
    import numpy as np

    from collemu import matmul

    left, of_left = _operand(a, a_format, -1)
    right, of_right = _operand(b, b_format, 0)
    product = matmul(
        left,
        right,
        accumulate=accumulate,
        out_dtype=out_dtype,
        promote_every=promote_every,
        a_format=of_left,
        b_format=of_right,
    )
    got = product.astype(np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(got - exact)
    row, column = (int(place) for place in np.unravel_index(int(error.argmax()), error.shape))
    worst = f"[{row}, {column}]: {got[row, column]:.6g}, exactly {exact[row, column]:.6g}"
    norm = float(np.linalg.norm(exact))
    relative = float(np.linalg.norm(error)) / norm if norm else float(np.linalg.norm(error))
    return ProductError(relative, float(error.max()), worst), product


def _operand(matrix: "NDArray[np.float32]", name: str, axis: int) -> "tuple[Any, str | None]":
    """A matrix as `collemu.matmul` takes it, blocks along k, and the format that its codes are in, if they are."""
    from collemu import decode, encode, quantize
    from collemu.number_formats import BLOCK_FORMATS, find_format

    if name == "none":
        return matrix, None
    element = find_format(name)
    if element.name in BLOCK_FORMATS:
        return quantize(matrix, name, axis=axis), None
    codes = encode(matrix, name)
    if codes.dtype.itemsize == 1 and name != SCALES_ALONE:
        return codes, name
    return decode(codes, name), None
