"""``collemu formats``: the number formats, and what every code of one stands for."""

import argparse
from typing import TYPE_CHECKING, Any

from collemu.cli.table import lines_of

if TYPE_CHECKING:
    from collemu.number_formats import BlockFormat, ElementFormat, LaneFormat

LARGEST_TABLE = 8  # bits of a format whose codes are listed


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "formats",
        description="List the number formats; with a name, its parameters and, up to 8 bits, the value of every code.",
    )
    parser.add_argument("format", nargs="?", metavar="NAME", help="such as float8_e4m3fn or mxfp4")


def run(arguments: argparse.Namespace) -> int:
    """Print the formats or one of them."""
    from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS, LANE_FORMATS, find_wire_format

    if arguments.format is None:
        elements = [_element_row(each) for each in ELEMENT_FORMATS.values()]
        blocks = [_block_row(each) for each in BLOCK_FORMATS.values()]
        print("\n".join(lines_of(("element format", *_ELEMENT_HEADING), elements, "<>>>>>>")))
        print()
        print("\n".join(lines_of(("block format", *_BLOCK_HEADING), blocks, "<<<>>")))
        print()
        lanes = [(each.name, each.element, f"{float(each.bits_per_element):g}") for each in LANE_FORMATS.values()]
        print("\n".join(lines_of(("lane format (wire alone)", "elements", "bits an element"), lanes, "<<>")))
        return 0
    print("\n".join(_lines(find_wire_format(arguments.format))))
    return 0


_ELEMENT_HEADING = ("bits", "exponent", "mantissa", "max", "min normal", "min subnormal", "infinity", "NaN")
_BLOCK_HEADING = ("elements", "scale a block", "block (elements)", "bits an element")


def _element_row(element: "ElementFormat") -> tuple[object, ...]:
    return (
        element.name,
        element.bits,
        element.exponent_bits,
        element.mantissa_bits,
        f"{element.max:.8g}",
        f"{element.min_normal:.6g}",
        f"{element.min_subnormal:.6g}",
        "yes" if element.has_infinity else "no",
        "yes" if element.has_nan else "no",
    )


def _block_row(block: "BlockFormat") -> tuple[object, ...]:
    scale = block.scale.name + (" and a float32 a chunk" if block.has_tensor_scale else "")
    return (block.name, block.element.name, scale, _block_size(block), f"{float(block.bits_per_element):g}")


def _block_size(block: "BlockFormat") -> str:
    from collemu.number_formats import WHOLE_ROW

    return "a row" if block.block == WHOLE_ROW else str(block.block)


def _lines(chosen: "ElementFormat | BlockFormat | LaneFormat") -> list[str]:
    from collemu.number_formats import BlockFormat, ElementFormat

    if isinstance(chosen, ElementFormat):
        return _element_lines(chosen)
    if isinstance(chosen, BlockFormat):
        return _block_lines(chosen)
    codes = "offset by half their range" if chosen.element == "integer" else f"collemu formats {chosen.element}"
    return [
        f"{chosen.name}: {chosen.source}",
        "blocks of 64 elements; the even ones share a float16 scale, and the odd ones another",
        f"on the wire: {float(chosen.bits_per_element):g} bits an element; codes, then scales, no padding",
        "NaN policy: a NaN or an infinity makes its whole lane NaN",
        f"codes: {chosen.bits} bits, {codes}",
        "all arithmetic is float16's; for the wire of collectives alone",
    ]


def _element_lines(element: "ElementFormat") -> list[str]:
    nan = "yes" if element.has_nan else "none: encoding a NaN is an error"
    sign, exponent, mantissa = int(element.has_sign), element.exponent_bits, element.mantissa_bits
    infinity, negative_zero = ("yes" if has else "no" for has in (element.has_infinity, element.has_negative_zero))
    travel = f", {element.bits_per_element} of them on the wire" if element.bits_per_element > element.bits else ""
    lines = [
        f"{element.name}: {element.source}",
        f"{element.bits} bits{travel}: sign {sign}, exponent {exponent} with bias {element.bias}, mantissa {mantissa}",
        f"from {element.min:.8g} to {element.max:.8g}",
        f"min normal {element.min_normal:.8g}, min subnormal {element.min_subnormal:.8g}",
        f"infinity: {infinity}; NaN: {nan}; -0: {negative_zero}",
    ]
    return lines + (["", *_code_table(element)] if element.bits <= LARGEST_TABLE else [])


def _code_table(element: "ElementFormat") -> list[str]:
    """Values of all codes, 8 a line."""
    import numpy as np

    from collemu import decode

    codes = np.arange(2**element.bits, dtype=np.uint8)
    values = [f"{value:.8g}" for value in decode(codes, element.name)]
    rows = [(f"0x{first:02x}", *values[first : first + 8]) for first in range(0, len(values), 8)]
    return lines_of(("code", *(f"+{offset}" for offset in range(8))), rows, "<" + 8 * ">")


def _block_lines(block: "BlockFormat") -> list[str]:
    tensor_scale = "one float32 a chunk, little-endian, after the scales" if block.has_tensor_scale else "none"
    return [
        f"{block.name}: {block.source}",
        f"elements: {block.element.name} (max {block.element.max:g})",
        f"scales: {block.scale.name}, one for {_block_size(block)}",
        f"tensor scale: {tensor_scale}",
        f"on the wire: {float(block.bits_per_element):g} bits an element; codes, then scales, no padding",
        f"scale modes: {', '.join(block.scale_modes)} (default {block.scale_modes[0]})",
        "NaN policy: a NaN or an infinity makes its whole block NaN",
        f"codes: {_codes(block.element)}",
    ]


def _codes(element: "ElementFormat") -> str:
    if element.exponent_bits == 0:
        return f"two's complement in steps of {element.min_subnormal:g}"
    return f"collemu formats {element.name}"
