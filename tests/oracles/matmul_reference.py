"""What `matmul` promises, in exact fractions: one result at a time, nothing shared with the kernels.

Finite numbers are Fractions where they are exact, Python floats where they are float32.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

NAN = math.nan
FIELDS = {  # exponent bits, mantissa bits, bias
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2": (5, 2, 15),
    "float4_e2m1fn": (2, 1, 1),
}
BLOCKS = {  # element, block
    "mxfp8_e4m3": ("float8_e4m3fn", 32),
    "mxfp8_e5m2": ("float8_e5m2", 32),
    "mxfp4": ("float4_e2m1fn", 32),
    "nvfp4": ("float4_e2m1fn", 16),
}


@dataclass
class Blocks:
    """A matrix in a block format: ``codes[row][k]``, one a number, and ``scales[row][block]``.

    Rows are rows of a, columns of b.
    """

    format: str
    codes: list[list[int]]
    scales: list[list[int]]
    tensor_scale: float = 1.0


def round_to_float32(exact: Fraction) -> float:
    """Nearest float32, ties to even; zero is +0 unless a negative number underflows."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(size / unit) * unit  # Python rounds a Fraction's ties to even
    result = math.inf if rounded >= 2**128 else float(rounded)
    return -result if exact < 0 else result


def multiply(x: float, y: float) -> float:
    """float32 product."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y
    result = round_to_float32(Fraction(x) * Fraction(y))
    return math.copysign(result, math.copysign(1, x) * math.copysign(1, y))


def add(x: float, y: float) -> float:
    """float32 sum."""
    if not (math.isfinite(x) and math.isfinite(y)) or x == y == 0:
        return x + y
    return round_to_float32(Fraction(x) + Fraction(y))


def element(code: int, name: str) -> Fraction | float:
    """Number of a code; infinities and NaN are floats."""
    exponent_bits, mantissa_bits, bias = FIELDS[name]
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if name == "float8_e4m3fn" and code & 0x7F == 0x7F:
        return NAN
    if name == "float8_e5m2" and exponent == 31:
        return sign * math.inf if mantissa == 0 else NAN
    significand = Fraction(mantissa, 1 << mantissa_bits) + (1 if exponent else 0)
    return sign * significand * Fraction(2) ** (max(exponent, 1) - bias)


def block_scale(code: int, name: str) -> Fraction | float:
    """Scale of a block."""
    if name == "nvfp4":
        return element(code, "float8_e4m3fn")
    return NAN if code == 0xFF else Fraction(2) ** (code - 127)


def product(*factors: Fraction | float) -> Fraction | float:
    """Exact product; a float where a factor is infinite or NaN."""
    if all(isinstance(factor, Fraction) for factor in factors):
        return math.prod(factors, start=Fraction(1))
    result = 1.0
    for factor in factors:  # by sign and kind alone, so that nothing overflows on the way
        small = factor if not isinstance(factor, Fraction) else (factor > 0) - (factor < 0)
        result *= small
    return result


def block_term(numbers: list[tuple[Fraction | float, Fraction | float]], *scales: Fraction | float) -> float:
    """What a block adds: its exact sum times the scales, rounded once; an exact zero is +0."""
    products = [product(x, y) for x, y in numbers]
    special = [p for p in products if not isinstance(p, Fraction)]
    total = sum(special) if special else sum(products, start=Fraction(0))
    term = product(total, *scales)
    return round_to_float32(term) if isinstance(term, Fraction) else term


def exact(value: float) -> Fraction | float:
    """A float32 as a Fraction, if it is finite."""
    return Fraction(value) if math.isfinite(value) else value


def accumulate(terms: list[float], start: float, promote: int | None) -> float:
    """Sum of float32 terms in their order, or of the sums of runs of ``promote`` terms."""
    if promote is not None:
        runs = [terms[first : first + promote] for first in range(0, len(terms), promote)]
        terms = [accumulate(run, 0.0, None) for run in runs]
    for term in terms:
        start = add(start, term)
    return start


def matmul_float32(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], promote: int | None = None
) -> list[list[float]]:
    """float32 mode: ``a[row][k]``, ``b[column][k]``."""
    return [
        [
            accumulate([multiply(x, y) for x, y in zip(row, column, strict=True)], c[i][j], promote)
            for j, column in enumerate(b)
        ]
        for i, row in enumerate(a)
    ]


def matmul_block_exact(a: Blocks, b: Blocks, c: list[list[float]], promote: int | None = None) -> list[list[float]]:
    """block_exact mode; ``promote`` counts k's."""
    a_element, block = BLOCKS[a.format]
    b_element, _ = BLOCKS[b.format]
    tensor_scales = (exact(a.tensor_scale), exact(b.tensor_scale))
    result: list[list[float]] = []
    for i, row in enumerate(a.codes):
        result.append([])
        for j, column in enumerate(b.codes):
            numbers = [(element(x, a_element), element(y, b_element)) for x, y in zip(row, column, strict=True)]
            terms = [
                block_term(
                    numbers[first : first + block],
                    block_scale(a.scales[i][first // block], a.format),
                    block_scale(b.scales[j][first // block], b.format),
                    *tensor_scales,
                )
                for first in range(0, len(numbers), block)
            ]
            result[i].append(accumulate(terms, c[i][j], None if promote is None else promote // block))
    return result
