"""The matrix units of `matmul` in exact fractions: one result at a time, nothing shared with the kernels.

A term is a value and the exponent that the hardware aligns by: the sum of the exponents of the fields, whatever
the significands are. Only what is not zero has one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tests.oracles.matmul_reference import exponent_of, round_to_float32

FIELDS = {  # exponent bits, mantissa bits, bias
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2": (5, 2, 15),
    "float8_e4m3fnuz": (4, 3, 8),
    "float8_e5m2fnuz": (5, 2, 16),
    "float6_e2m3fn": (2, 3, 1),
    "float6_e3m2fn": (3, 2, 3),
    "float4_e2m1fn": (2, 1, 1),
}
UNITS = {  # k's a step, fraction bits, fraction bits of the accumulator
    "ada": (16, 13, 13),
    "hopper": (32, 13, 13),
    "blackwell": (32, 25, 23),
}
Term = tuple[Fraction, int]


@dataclass(frozen=True)
class Number:
    """What a code stands for: a float where it is infinite or NaN, else a term."""

    special: float | None
    value: Fraction = Fraction(0)
    exponent: int = 0


def power(exponent: int) -> Fraction:
    """2**exponent."""
    return Fraction(2) ** exponent


def number(code: int, name: str) -> Number:
    """A code of an element format."""
    exponent_bits, mantissa_bits, bias = FIELDS[name]
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    field = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if name.endswith("fnuz") and code == 0x80:
        return Number(math.nan)
    if name == "float8_e4m3fn" and code & 0x7F == 0x7F:
        return Number(math.nan)
    if name == "float8_e5m2" and field == 31:
        return Number(sign * math.inf if mantissa == 0 else math.nan)
    exponent = max(field, 1) - bias
    significand = Fraction(mantissa, 1 << mantissa_bits) + (1 if field else 0)
    return Number(None, sign * significand * power(exponent), exponent)


def float32_term(x: float) -> Term:
    """A finite float32; zero has the least exponent."""
    exponent = -126 if x == 0 else max(math.frexp(x)[1] - 1, -126)
    return Fraction(x), exponent


def cut(value: Fraction, exponent: int) -> Fraction:
    """The multiple of 2**exponent next to zero."""
    return math.trunc(value / power(exponent)) * power(exponent)


def cut_down(value: Fraction, exponent: int) -> Fraction:
    """The next lower multiple of 2**exponent."""
    return math.floor(value / power(exponent)) * power(exponent)


def leading(value: Fraction) -> int:
    """Exponent of a number as float32 has it."""
    return max(exponent_of(value), -126) if value else -126


def toward_zero(total: Fraction, bits: int) -> float:
    """A number with so many fraction bits and the exponents of float32; infinity beyond."""
    kept = cut(total, leading(total) - bits)
    if abs(kept) >= power(128):
        return math.copysign(math.inf, kept)
    return float(kept) if kept else 0.0


def aligned(terms: list[Term], c: float, fraction_bits: int, result_bits: int, least: int) -> float:
    """One step of NVIDIA's units."""
    if math.isinf(c):
        return c
    start = float32_term(c)
    present = [term for term in [*terms, start] if term[0]]
    largest = max([least, *(exponent for _, exponent in present)])
    total = sum((cut(value, largest - fraction_bits) for value, _ in present), start=Fraction(0))
    return toward_zero(total, result_bits)


def even_odd(terms: list[Term], c: float) -> float:
    """One step of CDNA 3."""
    halves: list[Term] = []
    for half in (terms[::2], terms[1::2]):
        exponents = [exponent for value, exponent in half if value]
        if exponents:
            unit = max(exponents) - 24
            halves.append((sum((cut(value, unit) for value, _ in half), start=Fraction(0)), max(exponents)))
    value, exponent = float32_term(c)
    largest = max([exponent, *(of_half for _, of_half in halves)])
    total = Fraction(0)
    if halves:
        of_dot = max(of_half for _, of_half in halves)
        dot = sum((cut_down(half, of_dot - 24) for half, _ in halves), start=Fraction(0))
        total += cut_down(dot, largest - 32)
    if exponent >= largest - 25:
        total += cut_down(value, largest - 24)
    return round_to_float32(cut_down(total, leading(total) - 31))


def groups_of_16(products: list[Fraction], scales: list[tuple[Fraction, int]], block: int, c: float) -> float:
    """One step of FP4 with scales: the exponent of a group is that of its scales."""
    terms: list[Term] = []
    start = float32_term(c)
    if math.isinf(c):
        return c
    for first in range(0, len(products), 16):
        scale, exponent = scales[first // block]
        group = products[first : first + 16]
        if any(group) and scale:
            terms.append((sum(group, start=Fraction(0)) * scale, exponent))
    if start[0]:
        terms.append(start)
    largest = max([-139, *(exponent for _, exponent in terms)])
    total = sum((cut(value, largest - 35) for value, _ in terms), start=Fraction(0))
    return toward_zero(total, 23)


def products_of(a: list[Number], b: list[Number]) -> list[Term]:
    """Exact products."""
    return [(x.value * y.value, x.exponent + y.exponent) for x, y in zip(a, b, strict=True)]


def kind(a: list[Number], b: list[Number], c: float) -> float | None:
    """IEEE sum of c and all products if it is infinite or NaN."""

    def sign(x: Number) -> float:
        return x.special if x.special is not None else float((x.value > 0) - (x.value < 0))

    total = c if not math.isfinite(c) else 0.0
    for x, y in zip(a, b, strict=True):
        total += sign(x) * sign(y)
    return None if math.isfinite(total) else total


def chain(k: int, step: int, start: float, one: Callable[[int, int, float], float]) -> float:
    """Steps one after the other."""
    for first in range(0, k, step):
        start = one(first, min(first + step, k), start)
    return start


def promoted(k: int, c: float, every: int | None, run: Callable[[int, int, float], float]) -> float:
    """All k's from c, or the sums of runs from +0, added to c in float32."""
    if every is None:
        return run(0, k, c)
    for first in range(0, k, every):
        partial = run(first, min(first + every, k), 0.0)
        finite = math.isfinite(partial) and math.isfinite(c)
        c = round_to_float32(Fraction(c) + Fraction(partial)) if finite else c + partial
    return c


def fused_dot(a: list[int], b: list[int], a_name: str, b_name: str, c: float, unit: str, every: int | None) -> float:
    """A row times a column of plain codes."""
    x, y = [number(code, a_name) for code in a], [number(code, b_name) for code in b]
    special = kind(x, y, c)
    if special is not None:
        return special
    terms = products_of(x, y)
    if unit == "cdna3":

        def run(first: int, last: int, start: float) -> float:
            return chain(last - first, 16, start, lambda i, j, s: even_odd(terms[first + i : first + j], s))
    else:
        step, bits, result_bits = UNITS[unit]

        def run(first: int, last: int, start: float) -> float:
            def one(i: int, j: int, s: float) -> float:
                return aligned(terms[first + i : first + j], s, bits, result_bits, -133)

            return chain(last - first, step, start, one)

    return promoted(len(a), c, every, run)


def scale_term(code: int, name: str) -> tuple[Fraction, int] | None:
    """A block's scale and its exponent; None for NaN. E4M3 scales have no sign."""
    if name == "nvfp4":
        of_code = number(code & 0x7F, "float8_e4m3fn")
        return None if of_code.special is not None else (of_code.value, of_code.exponent)
    return None if code == 0xFF else (power(code - 127), code - 127)


def blackwell_blocks(
    a: list[int], b: list[int], names: tuple[str, str], scale_codes: tuple[list[int], list[int]],
    formats: tuple[str, str], block: int, c: float, every: int | None,
) -> float:  # fmt: skip
    """A row times a column in blocks; ``names`` are the elements', ``formats`` the blocks'."""
    x, y = [number(code, names[0]) for code in a], [number(code, names[1]) for code in b]
    scales: list[tuple[Fraction, int]] = []
    for left, right in zip(*scale_codes, strict=True):
        of_left, of_right = scale_term(left, formats[0]), scale_term(right, formats[1])
        if of_left is None or of_right is None:
            return math.nan
        scales.append((of_left[0] * of_right[0], of_left[1] + of_right[1]))
    special = kind(x, y, c)
    if special is not None:
        return special
    terms = products_of(x, y)

    def run(first: int, last: int, start: float) -> float:
        if names == ("float4_e2m1fn", "float4_e2m1fn"):

            def grouped(i: int, j: int, s: float) -> float:
                of_step = [value for value, _ in terms[first + i : first + j]]
                return groups_of_16(of_step, scales[(first + i) // block :], block, s)

            return chain(last - first, 64, start, grouped)

        def one(i: int, j: int, s: float) -> float:
            scale, exponent = scales[(first + i) // block]
            of_step = [(value * scale, of_value + exponent) for value, of_value in terms[first + i : first + j]]
            return aligned(of_step, s, 25, 23, -133)

        return chain(last - first, 32, start, one)

    return promoted(len(a), c, every, run)
