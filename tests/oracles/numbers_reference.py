"""Number formats from their definitions, in exact fractions: slow, short, and independent of the kernels.

An element format is the sorted list of its values. Rounding looks the two neighbours up; nothing here knows
how float32 lies in memory.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isinf, isnan

import numpy as np


@dataclass(frozen=True)
class Reference:
    """Sign, exponent, mantissa; which magnitudes are special."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_code: int
    infinity: int | None
    nan: int | None  # canonical, without sign
    negative_zero: bool = True

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    def magnitude(self, code: int) -> Fraction:
        exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
        fraction = Fraction(mantissa, 1 << self.mantissa_bits)
        if exponent == 0:
            return fraction * Fraction(2) ** (1 - self.bias)
        return (1 + fraction) * Fraction(2) ** (exponent - self.bias)

    def decode(self, code: int) -> Fraction | float:
        magnitude = code & (self.sign - 1)
        negative = bool(code & self.sign)
        if not self.negative_zero and code == self.sign:
            return float("nan")
        if magnitude == self.infinity:
            return float("-inf") if negative else float("inf")
        if magnitude > self.max_code:
            return float("nan")
        return -self.magnitude(magnitude) if negative else self.magnitude(magnitude)

    @cached_property
    def magnitudes(self) -> list[Fraction]:
        return [self.magnitude(code) for code in range(self.max_code + 2)]

    def encode(self, x: Fraction | float, *, negative=False, rounding="nearest_even", saturate=True) -> int:
        """Code of a magnitude with a sign (so that -0 can be said)."""
        sign = self.sign if negative else 0
        if isinstance(x, float) and isnan(x):
            assert self.nan is not None
            return self.nan | sign
        saturate = saturate or self.nan is None
        if isinstance(x, float) and isinf(x):
            code = self.max_code if saturate else self.max_code + 1
        else:
            code = self._round(Fraction(x), negative, rounding)
            code = min(code, self.max_code) if saturate else code
        if code == 0 and not self.negative_zero:
            sign = 0
        return code | sign

    def _round(self, x: Fraction, negative: bool, rounding: str) -> int:
        """Magnitude code; the code above the largest stands for all that overflows."""
        above = min(bisect_left(self.magnitudes, x), self.max_code + 1)
        below = max(bisect_right(self.magnitudes, x) - 1, 0)
        if above == below:
            return (
                above
                if rounding.startswith("nearest") or above <= self.max_code
                else self._directed(negative, rounding)
            )
        if rounding.startswith("nearest"):
            low, high = x - self.magnitudes[below], self.magnitudes[above] - x
            if low == high:
                return above if rounding == "nearest_away" or below % 2 else below
            return below if low < high else above
        away = rounding == ("down" if negative else "up")
        return above if away else below

    def _directed(self, negative: bool, rounding: str) -> int:
        return self.max_code + 1 if rounding == ("down" if negative else "up") else self.max_code


REFERENCES = {
    "float8_e4m3fn": Reference(4, 3, 7, 0x7E, None, 0x7F),
    "float8_e5m2": Reference(5, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fnuz": Reference(4, 3, 8, 0x7F, None, 0x80, negative_zero=False),
    "float8_e5m2fnuz": Reference(5, 2, 16, 0x7F, None, 0x80, negative_zero=False),
    "float8_e4m3": Reference(4, 3, 7, 0x77, 0x78, 0x7C),
    "float8_e3m4": Reference(3, 4, 3, 0x6F, 0x70, 0x78),
    "float8_e4m3b11fnuz": Reference(4, 3, 11, 0x7F, None, 0x80, negative_zero=False),
    "float6_e2m3fn": Reference(2, 3, 1, 0x1F, None, None),
    "float6_e3m2fn": Reference(3, 2, 3, 0x1F, None, None),
    "float4_e2m1fn": Reference(2, 1, 1, 0x7, None, None),
}
MX_ELEMENTS = {
    "mxfp8_e4m3": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp6_e2m3": "float6_e2m3fn",
    "mxfp6_e3m2": "float6_e3m2fn",
    "mxfp4": "float4_e2m1fn",
    "mxint8": "int8 / 64",
}


def encode_all(values, name, *, rounding="nearest_even", saturate=True):
    """Codes of floats, one by one."""
    reference = REFERENCES[name]
    codes = []
    for value in np.asarray(values).ravel().tolist():
        exact = abs(value) if isnan(value) or isinf(value) else Fraction(abs(value))
        negative = bool(np.signbit(value))
        codes.append(reference.encode(exact, negative=negative, rounding=rounding, saturate=saturate))
    return np.array(codes, np.uint8)


def floor_log2(x: Fraction) -> int:
    """Largest e with 2**e <= x, by comparing."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def mx_scale_code(amax: Fraction, element: str, mode: str) -> int:
    """E8M0 code of a block's scale by the names of the modes."""
    if amax == 0:
        return 0
    if element == "int8 / 64":
        largest, mantissa_bits = Fraction(127, 64), 6
    else:
        reference = REFERENCES[element]
        largest, mantissa_bits = reference.magnitudes[reference.max_code], reference.mantissa_bits
    emax = floor_log2(largest)
    floor = floor_log2(amax)
    if mode == "ceil":
        exponent = floor + (Fraction(2) ** floor != amax)
    elif mode == "even":
        unit = Fraction(2) ** (floor - mantissa_bits)
        exponent = floor_log2((amax / unit + Fraction(1, 2)) // 1 * unit)
    elif mode == "rceil":
        ratio = amax / largest
        exponent = floor_log2(ratio)
        exponent += (Fraction(2) ** exponent != ratio) + emax
    else:
        exponent = floor + (mode == "trn3")
    return min(max(exponent - emax, -127), 127) + 127


def mx_block(values, block_format, mode="floor"):
    """Scale code and element codes of one block of finite floats."""
    element = MX_ELEMENTS[block_format]
    exact = [Fraction(float(v)) for v in values]
    code = mx_scale_code(max(map(abs, exact)), element, mode)
    scale = Fraction(2) ** (code - 127)
    if element == "int8 / 64":
        return code, [min(max(round(64 * x / scale), -127), 127) % 256 for x in exact]
    signs = np.signbit(np.asarray(values))
    codes = [REFERENCES[element].encode(abs(x / scale), negative=bool(n)) for x, n in zip(exact, signs, strict=True)]
    return code, codes


def float32_scaled(values, block_format, mode):
    """Codes one a byte, and float32 scales, of a row of finite float32."""
    f = np.float32
    values = np.asarray(values, f)
    block = {"fp8_block128": 128, "fp8_row": values.size, "int4_block2048": 2048}.get(block_format, 32)
    largest = {"int8_block32": 127, "int4_block32": 7, "int4_block2048": 7}.get(block_format, 448)
    codes, scales = [], []
    with np.errstate(all="ignore"):
        for start in range(0, values.size, block):
            part = values[start : start + block]
            amax = np.abs(part).max()
            if amax == 0:
                factor = scale = f(1)
            elif block_format.startswith("int"):
                scale = max(amax / f(largest), f(2.0**-126))
                factor = f(1) / scale
            else:
                factor = min(f(largest) / amax, f(np.finfo(f).max))
                if mode == "pow2":
                    factor = f(2.0 ** floor_log2(Fraction(float(factor))))
                scale = f(1) / factor
            scales.append(scale)
            if block_format.startswith("int"):
                rounded = [min(max(round(Fraction(float(x))), -largest), largest) for x in part * factor]
                codes += [x % (2 * largest + 2) for x in rounded]
            else:
                codes += encode_all(part * factor, "float8_e4m3fn").tolist()
    return np.array(codes, np.uint8), np.array(scales, f)


def nvfp4(values):
    """Element codes, scale codes and tensor scale of a row of finite float32, as TransformerEngine."""
    f = np.float32
    values = np.asarray(values, f)
    largest = f(np.finfo(f).max)
    e4m3, e2m1 = REFERENCES["float8_e4m3fn"], REFERENCES["float4_e2m1fn"]
    with np.errstate(all="ignore"):
        amax = np.abs(values).max()
        encode_scale = min(f(448 * 6) / amax, largest) if amax > 0 else f(1)
        decode_scale = f(1) / encode_scale
        codes, scales = [], []
        for start in range(0, values.size, 16):
            block = values[start : start + 16]
            wanted = min(np.abs(block).max() * (encode_scale * (f(1) / f(6))), f(448))
            scale = e4m3.encode(Fraction(float(wanted)))
            factor = min(f(1) / (f(float(e4m3.magnitude(scale))) * decode_scale), largest)
            for value in block:
                product = value * factor + f(0)  # -0 becomes +0
                scaled = min(np.abs(product), f(6))
                codes.append(e2m1.encode(Fraction(float(scaled)), negative=bool(np.signbit(product))))
            scales.append(scale)
    return codes, scales, decode_scale
