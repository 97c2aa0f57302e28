"""The number formats, as frozen data.

An element format says what one code means. A block format says how many elements share a scale, and how.
What defines a format is one row of a kernel table (`collemu_kernels.format_ids`); this file gives the row a
name, documented fields and a way to find it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from collemu_kernels import format_ids as ids


@dataclass(frozen=True)
class ElementFormat:
    """One number of a few bits: sign, exponent, mantissa; or an integer.

    Attributes
    ----------
    name : str
        As ml_dtypes writes it, but for tfloat32, which it has not.
    format_id : int
        Its number in the kernels.
    bits, exponent_bits, mantissa_bits : int
        Widths; one bit more is the sign where `has_sign`. An integer has no exponent bits.
    bias : int
        The exponent field e of a normal number stands for 2**(e - bias).
    min, max : float
        Least and largest finite value.
    min_normal, min_subnormal : float
        Smallest positive normal and subnormal value (equal where there are no subnormals).
    has_sign, has_infinity, has_nan, has_negative_zero : bool
        What the codes can express.
    source : str
        Who defined the format.
    """

    name: str
    format_id: int
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    min: float
    max: float
    min_normal: float
    min_subnormal: float
    has_sign: bool
    has_infinity: bool
    has_nan: bool
    has_negative_zero: bool
    source: str

    @property
    def bits_per_element(self) -> Fraction:
        """Bits that an element takes on the wire: those of a code, but 32 for the 19 of tfloat32."""
        return Fraction(32 if self.bits > 16 else self.bits)


@dataclass(frozen=True)
class BlockFormat:
    """Numbers that share scales.

    Attributes
    ----------
    name : str
    format_id : int
        Its number in the kernels.
    element, scale : ElementFormat
        Of the codes and of the blocks' scales.
    block : int
        Elements that share a scale; a shorter last block has its own. `WHOLE_ROW`: all of a row.
    has_tensor_scale : bool
        Whether a float32 scale stands above the blocks' scales.
    scale_modes : tuple of str
        The rules by which a block's scale can follow from its largest magnitude; the first is the default.
    source : str
        Who defined the format.
    """

    name: str
    format_id: int
    element: ElementFormat
    scale: ElementFormat
    block: int
    has_tensor_scale: bool
    scale_modes: tuple[str, ...]
    source: str

    @property
    def bits_per_element(self) -> Fraction:
        """Bits that an element takes on the wire, its share of the block's scale included (none of a long row's)."""
        share = 0 if self.block == WHOLE_ROW else Fraction(self.scale.bits, self.block)
        return self.element.bits_per_element + share


@dataclass(frozen=True)
class LaneFormat:
    """Blocks of 64 numbers, of which the even and the odd ones share a float16 scale each: QuickReduce's wire.

    Attributes
    ----------
    name : str
    format_id : int
        Its number in the kernels.
    bits : int
        Of a code.
    element : str
        Name of the element format, or ``integer``: offset by half its range.
    source : str
        Who defined the format.
    """

    name: str
    format_id: int
    bits: int
    element: str
    source: str

    @property
    def bits_per_element(self) -> Fraction:
        """Bits that an element takes on the wire, its share of a lane's scale included."""
        return self.bits + Fraction(16, 32)


OCP_FP8 = "OCP 8-bit Floating Point Specification 1.0"
OCP_MX = "OCP Microscaling Formats 1.0"
FNUZ = "arXiv 2206.02915; AMD CDNA 3"
NVIDIA = "NVIDIA TransformerEngine"
INTEGER_BLOCKS = "clipped: ZeRO++, arXiv 2306.10209; asymmetric: QuickReduce of vLLM"
QUICKREDUCE = "QuickReduce: csrc/quickreduce of vLLM"
WHOLE_ROW = ids.WHOLE_ROW


def _element(name: str, format_id: int, source: str) -> ElementFormat:
    row = [int(value) for value in ids.ELEMENT_PARAMETERS[format_id]]
    bits, mantissa_bits, bias, max_code = (
        row[ids.BITS],
        row[ids.MANTISSA_BITS],
        row[ids.BIAS],
        row[ids.MAX_CODE],
    )
    significand = 1 + (max_code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    largest = significand * 2.0 ** ((max_code >> mantissa_bits) - bias)
    return ElementFormat(
        name,
        format_id,
        bits=bits,
        exponent_bits=bits - 1 - mantissa_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        min=-largest,
        max=largest,
        min_normal=2.0 ** (1 - bias),
        min_subnormal=2.0 ** (1 - bias - mantissa_bits),
        has_sign=True,
        has_infinity=row[ids.INFINITY_CODE] > max_code,
        has_nan=row[ids.NAN_CODE] != ids.NO_NAN,
        has_negative_zero=row[ids.NO_NEGATIVE_ZERO] == 0,
        source=source,
    )


def _integer(name: str, format_id: int, source: str) -> ElementFormat:
    """Two's complement; its step is its smallest number. Integers of block formats alone are symmetric."""
    row = [int(value) for value in ids.ELEMENT_PARAMETERS[format_id]]
    step = 2.0 ** (1 - row[ids.BIAS] - row[ids.MANTISSA_BITS])
    codes_below_zero = row[ids.MAX_CODE] + (format_id >= ids.FIRST_FULL_INTEGER)
    return ElementFormat(
        name,
        format_id,
        bits=row[ids.BITS],
        exponent_bits=0,
        mantissa_bits=row[ids.BITS] - 1,
        bias=0,
        min=-codes_below_zero * step,
        max=row[ids.MAX_CODE] * step,
        min_normal=step,
        min_subnormal=step,
        has_sign=True,
        has_infinity=False,
        has_nan=False,
        has_negative_zero=False,
        source=source,
    )


E8M0 = ElementFormat(
    "float8_e8m0fnu",
    ids.FLOAT8_E8M0FNU,
    bits=8,
    exponent_bits=8,
    mantissa_bits=0,
    bias=127,
    min=2.0**-127,
    max=2.0**127,
    min_normal=2.0**-127,
    min_subnormal=2.0**-127,
    has_sign=False,
    has_infinity=False,
    has_nan=True,
    has_negative_zero=False,
    source=OCP_MX,
)

ELEMENT_FORMATS = {
    element.name: element
    for element in (
        _element("float8_e4m3fn", ids.FLOAT8_E4M3FN, OCP_FP8),
        _element("float8_e5m2", ids.FLOAT8_E5M2, OCP_FP8),
        _element("float8_e4m3fnuz", ids.FLOAT8_E4M3FNUZ, FNUZ),
        _element("float8_e5m2fnuz", ids.FLOAT8_E5M2FNUZ, FNUZ),
        _element("float8_e4m3", ids.FLOAT8_E4M3, "IEEE 754 rules; AWS Neuron, Trainium 1 and 2"),
        _element("float8_e3m4", ids.FLOAT8_E3M4, "IEEE 754 rules; AWS Neuron, Trainium 1 and 2"),
        _element("float8_e4m3b11fnuz", ids.FLOAT8_E4M3B11FNUZ, "ml_dtypes"),
        E8M0,
        _element("float6_e2m3fn", ids.FLOAT6_E2M3FN, OCP_MX),
        _element("float6_e3m2fn", ids.FLOAT6_E3M2FN, OCP_MX),
        _element("float4_e2m1fn", ids.FLOAT4_E2M1FN, OCP_MX),
        _element("bfloat16", ids.BFLOAT16, "the upper half of IEEE 754 binary32"),
        _element("float16", ids.FLOAT16, "IEEE 754 binary16"),
        _element("tfloat32", ids.TFLOAT32, "NVIDIA A100 whitepaper; the upper 19 bits of IEEE 754 binary32"),
        _integer("int8", ids.FULL_INT8, "two's complement"),
        _integer("int4", ids.FULL_INT4, "two's complement"),
    )
}

FLOAT32 = ElementFormat(
    "float32",
    ids.FLOAT32,
    bits=32,
    exponent_bits=8,
    mantissa_bits=23,
    bias=127,
    min=-3.4028234663852886e38,
    max=3.4028234663852886e38,
    min_normal=2.0**-126,
    min_subnormal=2.0**-149,
    has_sign=True,
    has_infinity=True,
    has_nan=True,
    has_negative_zero=True,
    source="IEEE 754 binary32",
)

# Integers of block formats: under symmetric scales their most negative code is not used.
BLOCK_INTEGERS = (
    _integer("int8 / 64", ids.SIXTY_FOURTHS, OCP_MX),
    _integer("int8", ids.SYMMETRIC8, "two's complement"),
    _integer("int4", ids.SYMMETRIC4, "two's complement"),
)

MX_SCALE_MODES = ("floor", "ceil", "even", "rceil", "trn3")


def _block(name: str, format_id: int, source: str) -> BlockFormat:
    row = [int(value) for value in ids.BLOCK_PARAMETERS[format_id - ids.FIRST_BLOCK_FORMAT]]
    by_id = {element.format_id: element for element in (*ELEMENT_FORMATS.values(), *BLOCK_INTEGERS)}
    element = by_id[row[ids.BLOCK_ELEMENT]]
    scale, scale_modes = E8M0, MX_SCALE_MODES
    if row[ids.BLOCK_SCALE] == ids.TWO_LEVEL_SCALE:
        scale, scale_modes = by_id[ids.FLOAT8_E4M3FN], ("two_level", "torchao")
    elif row[ids.BLOCK_SCALE] == ids.FLOAT32_SCALE:
        integers = element.exponent_bits == 0
        scale, scale_modes = FLOAT32, ("amax", *(("asymmetric", "clipped") if integers else ("pow2", "margin")))
    return BlockFormat(
        name,
        format_id,
        element=element,
        scale=scale,
        block=row[ids.BLOCK_SIZE],
        has_tensor_scale=row[ids.BLOCK_SCALE] == ids.TWO_LEVEL_SCALE,
        scale_modes=scale_modes,
        source=source,
    )


BLOCK_FORMATS = {
    block.name: block
    for block in (
        _block("mxfp8_e4m3", ids.MXFP8_E4M3, OCP_MX),
        _block("mxfp8_e5m2", ids.MXFP8_E5M2, OCP_MX),
        _block("mxfp4", ids.MXFP4, OCP_MX),
        _block("nvfp4", ids.NVFP4, NVIDIA),
        _block("mxfp6_e2m3", ids.MXFP6_E2M3, OCP_MX),
        _block("mxfp6_e3m2", ids.MXFP6_E3M2, OCP_MX),
        _block("mxint8", ids.MXINT8, OCP_MX),
        _block("fp8_block128", ids.FP8_BLOCK128, f"DeepSeek-V3, arXiv 2412.19437; {NVIDIA}"),
        _block("fp8_row", ids.FP8_ROW, NVIDIA),
        _block("int8_block32", ids.INT8_BLOCK32, INTEGER_BLOCKS),
        _block("int4_block32", ids.INT4_BLOCK32, INTEGER_BLOCKS),
        _block("int4_block2048", ids.INT4_BLOCK2048, INTEGER_BLOCKS),
    )
}


def _lane(name: str, format_id: int, element: str, source: str) -> LaneFormat:
    bits = int(ids.LANE_PARAMETERS[format_id - ids.FIRST_LANE_FORMAT, ids.LANE_BITS])
    return LaneFormat(name, format_id, bits, element, source)


LANE_FORMATS = {
    lane.name: lane
    for lane in (
        _lane("int8_lanes32", ids.INT8_LANES32, "integer", QUICKREDUCE),
        _lane("int6_lanes32", ids.INT6_LANES32, "integer", QUICKREDUCE),
        _lane("int4_lanes32", ids.INT4_LANES32, "integer", QUICKREDUCE),
        _lane("fp8_lanes32", ids.FP8_LANES32, "float8_e4m3fnuz", "QuickReduce of AMD, for MI300X"),
        _lane("fp4_lanes32", ids.FP4_LANES32, "float4_e2m1fn", "QuickReduce of AMD, for MI355X"),
    )
}


def rounding_error(number_format: ElementFormat | BlockFormat) -> tuple[float, float]:
    """Largest error of one rounding to nearest: relative to the number, or its block's largest; and of tiny numbers.

    Half a step; or of a block, under its default scales, the way from the largest code to the next power of two, up to
    which its largest number may lie: 6 of 8 in FP4, 448 of 512 in E4M3.
    """
    if isinstance(number_format, BlockFormat):
        element = number_format.element
        half_step = 2.0 ** -(element.mantissa_bits + 1)
        if element.exponent_bits == 0:  # steps are even: they weigh most where the block's largest number is least
            least = 2.0 ** (math.frexp(element.max)[1] - 1) if number_format.scale is E8M0 else element.max
            half_step = element.min_subnormal / 2 / least
        return max(half_step, 1 - math.frexp(element.max)[0]), 0.0
    return 2.0 ** -(number_format.mantissa_bits + 1), number_format.min_subnormal / 2


def formats() -> tuple[str, ...]:
    """Names of the element formats and of the block formats; `wire_formats` are more."""
    return (*ELEMENT_FORMATS, *BLOCK_FORMATS)


def wire_formats() -> tuple[str, ...]:
    """Names of all formats that can travel: those of `formats`, and lane formats, which are for the wire alone."""
    return (*formats(), *LANE_FORMATS)


def find_format(name: str) -> ElementFormat | BlockFormat:
    """The format of a name of `formats`.

    Raises
    ------
    ValueError
        For an unknown name; the text lists the known ones.
    """
    if _is_in(name, ELEMENT_FORMATS):
        return ELEMENT_FORMATS[name]
    if _is_in(name, BLOCK_FORMATS):
        return BLOCK_FORMATS[name]
    raise ValueError(f"no format {name!r}; choose {', '.join(formats())}")


def find_wire_format(name: str) -> ElementFormat | BlockFormat | LaneFormat:
    """The format of a name of `wire_formats`; ValueError as `find_format`."""
    if _is_in(name, LANE_FORMATS):
        return LANE_FORMATS[name]
    if name not in wire_formats():
        raise ValueError(f"no format {name!r}; choose {', '.join(wire_formats())}")
    return find_format(name)


def find_element_format(name: str) -> ElementFormat:
    """The element format of a name; ValueError as `find_format`."""
    if _is_in(name, ELEMENT_FORMATS):
        return ELEMENT_FORMATS[name]
    hint = f" ({name} is a block format: use quantize)" if _is_in(name, BLOCK_FORMATS) else ""
    raise ValueError(f"no element format {name!r}{hint}; choose {', '.join(ELEMENT_FORMATS)}")


def find_block_format(name: str) -> BlockFormat:
    """The block format of a name; ValueError as `find_format`."""
    if _is_in(name, BLOCK_FORMATS):
        return BLOCK_FORMATS[name]
    hint = f" ({name} is an element format: use encode)" if _is_in(name, ELEMENT_FORMATS) else ""
    hint = f" ({name} is a lane format, for the wire of a collective alone)" if _is_in(name, LANE_FORMATS) else hint
    raise ValueError(f"no block format {name!r}{hint}; choose {', '.join(BLOCK_FORMATS)}")


def _is_in(name: Any, formats: Mapping[str, object]) -> bool:
    """Whether it is a name, of any type that a user may give, and known."""
    return isinstance(name, str) and name in formats
