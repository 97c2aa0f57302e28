"""``collemu matmul``: what a quantised matrix product loses against float64."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collemu.accumulation import MODELS
from collemu.cli import options
from collemu.cli.table import lines_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_PRODUCTS = 2**34


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "matmul",
        description="Multiply two random (normal) matrices in quantised formats under a named accumulation model, and "
        "print the error against float64: relative Frobenius norm of the difference, and the element furthest off.",
    )
    parser.add_argument("-m", default="128", metavar="M", help="rows of A (default 128)")
    parser.add_argument("-n", default="128", metavar="N", help="columns of B (default 128)")
    parser.add_argument("-k", default="512", metavar="K", help="columns of A, rows of B (default 512)")
    parser.add_argument("--a", default="mxfp8_e4m3", metavar="F", help="format of A, or none (default mxfp8_e4m3)")
    parser.add_argument("--b", default="mxfp8_e4m3", metavar="F", help="format of B, or none (default mxfp8_e4m3)")
    parser.add_argument("--accumulate", default="float32", metavar="A", help=f"{', '.join(MODELS)} (default float32)")
    parser.add_argument("--seed", default="0", metavar="N", help="of the random matrices (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Print the error."""
    import numpy as np

    m, n, k = (options.whole(getattr(arguments, name), f"-{name}", least=1) for name in "mnk")
    if m * n * k > MOST_PRODUCTS:
        raise ValueError(f"-m {m} -n {n} -k {k} are {m * n * k} products; give at most {MOST_PRODUCTS}")
    random = np.random.default_rng(options.whole(arguments.seed, "--seed", least=0))
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    error, _ = product_error(a, b, arguments.a, arguments.b, arguments.accumulate)
    print(f"# {m} x {k} times {k} x {n}, normal random numbers, seed {arguments.seed}; error against float64")
    rows = [
        (arguments.a, arguments.b, arguments.accumulate, f"{error.relative:.3g}", f"{error.largest:.3g}", error.worst)
    ]
    heading = ("A", "B", "accumulate", "relative error", "max |error|", "worst element")
    print("\n".join(lines_of(heading, rows, "<<<>><")))
    return 0


@dataclass(frozen=True)
class ProductError:
    """What a quantised product lost: relative Frobenius norm, largest difference, and where it is in words."""

    relative: float
    largest: float
    worst: str


def product_error(
    a: "NDArray[np.float32]", b: "NDArray[np.float32]", a_format: str, b_format: str, accumulate: str
) -> "tuple[ProductError, NDArray[np.float32]]":
    """Quantise two matrices along k, multiply them, and compare with the float64 product of the originals.

    Parameters
    ----------
    a, b : float32 arrays, (M, K) and (K, N)
    a_format, b_format : str
        A block format, an element format, or ``none``.
    accumulate : str
        As `collemu.matmul` takes it.

    Returns
    -------
    error : ProductError
    product : float32 array (M, N)
    """
    import numpy as np

    from collemu import matmul

    left, of_left = _operand(a, a_format, -1)
    right, of_right = _operand(b, b_format, 0)
    product = matmul(left, right, accumulate=accumulate, a_format=of_left, b_format=of_right)
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
    if codes.dtype.itemsize == 1 and name != "float8_e8m0fnu":
        return codes, name
    return decode(codes, name), None
