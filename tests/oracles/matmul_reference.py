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
    "float6_e2m3fn": (2, 3, 1),
    "float6_e3m2fn": (3, 2, 3),
    "float4_e2m1fn": (2, 1, 1),
}
INTEGERS = {"64ths": (8, 64), "int8": (8, 1), "int4": (4, 1)}  # bits, what the number is divided by
ROW = 1 << 40
BLOCKS = {  # element, block
    "mxfp8_e4m3": ("float8_e4m3fn", 32),
    "mxfp8_e5m2": ("float8_e5m2", 32),
    "mxfp6_e2m3": ("float6_e2m3fn", 32),
    "mxfp6_e3m2": ("float6_e3m2fn", 32),
    "mxfp4": ("float4_e2m1fn", 32),
    "mxint8": ("64ths", 32),
    "nvfp4": ("float4_e2m1fn", 16),
    "fp8_block128": ("float8_e4m3fn", 128),
    "fp8_row": ("float8_e4m3fn", ROW),
    "int8_block32": ("int8", 32),
    "int4_block32": ("int4", 32),
    "int4_block2048": ("int4", 2048),
}
FLOAT32_SCALES = ("fp8_block128", "fp8_row", "int8_block32", "int4_block32", "int4_block2048")


@dataclass
class Blocks:
    """A matrix in a block format: ``codes[row][k]``, one a number, and ``scales[row][block]``.

    Rows are rows of a, columns of b. Scales are codes, or float32 numbers.
    """

    format: str
    codes: list[list[int]]
    scales: list[list[int]] | list[list[float]]
    tensor_scale: float = 1.0


def exponent_of(number: Fraction) -> int:
    """Power of two of the leading bit of a number other than zero."""
    size = abs(number)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    return exponent - 1 if size < Fraction(2) ** exponent else exponent


def round_to_float32(exact: Fraction) -> float:
    """Nearest float32, ties to even; zero is +0 unless a negative number underflows."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    unit = Fraction(2) ** (max(exponent_of(exact), -126) - 23)
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


def block_length(name: str, k: int) -> int:
    """Elements that share a scale in rows of K."""
    block = BLOCKS[name][1]
    return max(k, 1) if block == ROW else block


def element_bits(name: str) -> int:
    """Bits of a code."""
    return INTEGERS[name][0] if name in INTEGERS else 1 + sum(FIELDS[name][:2])


def element(code: int, name: str) -> Fraction | float:
    """Number of a code; infinities and NaN are floats."""
    if name in INTEGERS:
        bits, divisor = INTEGERS[name]
        return Fraction(code - (1 << bits) if code >> (bits - 1) else code, divisor)
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


def block_scale(code: float, name: str) -> Fraction | float:
    """Scale of a block."""
    if name in FLOAT32_SCALES:
        return exact(code)
    code = int(code)
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
    a_element, _ = BLOCKS[a.format]
    block = block_length(a.format, len(a.codes[0]) if a.codes else 0)
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


def matmul_pairwise(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], promote: int | None = None
) -> list[list[float]]:
    """pairwise mode: neighbours are added, level by level; the total is added to c."""

    def tree(terms: list[float]) -> float:
        while len(terms) > 1:
            pairs = [add(x, y) for x, y in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(pairs) * 2 :]
        return terms[0]

    def one(row: list[float], column: list[float], start: float) -> float:
        terms = [multiply(x, y) for x, y in zip(row, column, strict=True)]
        run = promote or max(len(terms), 1)
        for first in range(0, len(terms), run):
            total = tree(terms[first : first + run])
            start = add(start, total if promote is None else add(0.0, total))
        return start

    return [[one(row, column, c[i][j]) for j, column in enumerate(b)] for i, row in enumerate(a)]


NARROW = {"float16": (10, -14, 65504.0), "bfloat16": (7, -126, 3.3895313892515355e38)}  # mantissa, emin, max


def round_to(x: Fraction | float, name: str) -> float:
    """Nearest number of a 16-bit type, ties to even; the sign of a float zero is kept."""
    if not isinstance(x, Fraction):
        if x == 0 or not math.isfinite(x):
            return x
        x = Fraction(x)
    bits, least, largest = NARROW[name]
    unit = Fraction(2) ** (max(exponent_of(x), least) - bits)
    rounded = round(x / unit) * unit
    result = math.inf if abs(rounded) > largest else float(abs(rounded))
    return -result if x < 0 else result


def matmul_narrow(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], name: str, promote: int | None = None
) -> list[list[float]]:
    """float16 and bfloat16 mode."""

    def times(x: float, y: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
            return x * y
        return round_to(Fraction(x) * Fraction(y), name)

    def plus(x: float, y: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y)) or x == y == 0:
            return x + y
        total = Fraction(x) + Fraction(y)
        return round_to(total, name) if total else 0.0

    def one(row: list[float], column: list[float], start: float) -> float:
        terms = [times(x, y) for x, y in zip(row, column, strict=True)]
        if promote is None:
            start = round_to(start, name)
            for term in terms:
                start = plus(start, term)
            return start
        for first in range(0, len(terms), promote):
            partial = 0.0
            for term in terms[first : first + promote]:
                partial = plus(partial, term)
            start = add(start, partial)
        return start

    return [[one(row, column, c[i][j]) for j, column in enumerate(b)] for i, row in enumerate(a)]


def matmul_exact(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], promote: int | None = None
) -> list[list[float]]:
    """exact mode; a sum with an infinite or NaN term is what IEEE 754 makes of all its terms."""

    def kind(x: float) -> float:
        return x if not math.isfinite(x) else float((x > 0) - (x < 0))

    def one(row: list[float], column: list[float], start: float) -> float:
        if not row:
            return start
        kinds = sum((kind(x) * kind(y) for x, y in zip(row, column, strict=True)), start=kind(start))
        if not math.isfinite(kinds):
            return kinds
        terms = [Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
        if promote is None:
            return round_to_float32(sum(terms, start=Fraction(start)))
        for first in range(0, len(terms), promote):
            start = add(start, round_to_float32(sum(terms[first : first + promote], start=Fraction(0))))
        return start

    return [[one(row, column, c[i][j]) for j, column in enumerate(b)] for i, row in enumerate(a)]
