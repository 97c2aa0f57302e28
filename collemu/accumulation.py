"""The accumulation models of `collemu.matmul`, as frozen data: where a dot product is rounded, and in which order.

A result is exact to its model. Whether silicon follows the model is another matter: each entry says who found
that out, and how far it was checked. There is no entry for Trainium: AWS documents that its tensor engine
writes float32 or bfloat16, and neither the order nor the rounding inside.
"""

from dataclasses import dataclass

MMA_SIM = "arXiv 2511.10909 (MMA-Sim, version 2.1.1), which compared with the hardware bit for bit"


@dataclass(frozen=True)
class Accumulation:
    """One model.

    Attributes
    ----------
    name : str
        As `collemu.matmul` takes it.
    rule : str
        What is rounded, and when.
    source : str
        Who defined the rule.
    limits : str
        What the model does not cover.
    """

    name: str
    rule: str
    source: str
    limits: str


@dataclass(frozen=True)
class FusedDot(Accumulation):
    """A matrix unit: some k's and the accumulator aligned, cut, added as integers, and rounded together.

    Attributes
    ----------
    elements : tuple of str
        Element formats of plain operands; the first is that of numbers without a stated format.
    step : int
        k's of plain numbers, and of blocks of 8-bit and mixed elements, that meet the accumulator at once.
    fraction_bits : int
        Bits kept below the largest exponent of a step.
    result_bits : int
        Fraction bits of the accumulator, which has the exponents of float32.
    even_odd : bool
        Even and odd k's are aligned and added apart, and cut downward when they are joined.
    blocks : bool
        Takes operands in block formats too.
    """

    elements: tuple[str, ...]
    step: int
    fraction_bits: int
    result_bits: int
    even_odd: bool
    blocks: bool


GROUPED_FRACTION_BITS = 35  # of steps of 64 FP4 numbers with scales, on Blackwell

MODELS: dict[str, Accumulation] = {
    model.name: model
    for model in (
        Accumulation(
            "float32",
            "operands are dequantised to float32; each product is rounded to float32, and each sum, k ascending, "
            "without fused multiply-add",
            "IEEE 754 binary32",
            "a definition, not a machine",
        ),
        Accumulation(
            "pairwise",
            "products as in float32; neighbours 2i and 2i+1 are added, level by level, a last one without a "
            "neighbour moving up as it is; the total is added to c",
            "a balanced binary tree, as in adder trees and pairwise summation",
            "a definition, not a machine",
        ),
        Accumulation(
            "float16",
            "operands are dequantised to float32; c, each exact product, and each sum, k ascending, are rounded to "
            "float16",
            "IEEE 754 binary16",
            "a definition, not a machine",
        ),
        Accumulation(
            "bfloat16",
            "operands are dequantised to float32; c, each exact product, and each sum, k ascending, are rounded to "
            "bfloat16",
            "IEEE 754 rules on the upper half of binary32",
            "a definition, not a machine",
        ),
        Accumulation(
            "exact",
            "operands are dequantised to float32; the nearest float32 (ties to even) of the exact sum of c and all "
            "products; an exact zero is +0",
            "U. Kulisch, exact dot product",
            "a definition, not a machine",
        ),
        Accumulation(
            "block_exact",
            "the products of a block's elements are summed exactly, times the scales of both blocks, and rounded to "
            "float32 once; these terms are added in float32, k ascending",
            "IEEE 754 binary32",
            "a definition, not a machine; two Quantized with equal blocks, fp8_row with K up to 171196",
        ),
        FusedDot(
            "ada",
            "T-FDPA: 16 k's and the accumulator, 13 bits, toward zero; accumulator with 13 fraction bits",
            MMA_SIM,
            "FP8 mma of Ada Lovelace with a float32 accumulator; split-K and epilogues of libraries are not in it",
            elements=("float8_e4m3fn", "float8_e5m2"),
            step=16,
            fraction_bits=13,
            result_bits=13,
            even_odd=False,
            blocks=False,
        ),
        FusedDot(
            "hopper",
            "T-FDPA: 32 k's and the accumulator, 13 bits, toward zero; accumulator with 13 fraction bits",
            MMA_SIM,
            "FP8 wgmma of Hopper with a float32 accumulator, not its mma; split-K and epilogues are not in it",
            elements=("float8_e4m3fn", "float8_e5m2"),
            step=32,
            fraction_bits=13,
            result_bits=13,
            even_odd=False,
            blocks=False,
        ),
        FusedDot(
            "blackwell",
            "T-FDPA: 32 k's and the accumulator, 25 bits, toward zero, to float32. Blocks with E8M0 scales: ST-FDPA, "
            "the same with the scales in the exponents. FP4 on both sides with scales: GST-FDPA, exact sums of 16, "
            "times their scales' significands, at their scales' exponents, 64 k's and the accumulator, 35 bits",
            MMA_SIM,
            "tcgen05 of Blackwell with a float32 accumulator. A tensor scale is no part of it: it multiplies the "
            "finished sum",
            elements=("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
            step=32,
            fraction_bits=25,
            result_bits=23,
            even_odd=False,
            blocks=True,
        ),
        FusedDot(
            "cdna3",
            "GTR-FDPA: 16 k's, even and odd ones apart, 24 bits, toward zero; joined with the accumulator at 32 and "
            "24 bits, downward; cut to 31 fraction bits, downward, and rounded to the nearest float32",
            MMA_SIM,
            "FP8 mfma of CDNA 3 with a float32 accumulator; infinite accumulators follow IEEE 754",
            elements=("float8_e4m3fnuz", "float8_e5m2fnuz"),
            step=16,
            fraction_bits=24,
            result_bits=23,
            even_odd=True,
            blocks=False,
        ),
    )
}


def find_accumulation(name: str) -> Accumulation:
    """The model of a name.

    Raises
    ------
    ValueError
        For an unknown name; the text lists the known ones.
    """
    if name in MODELS:
        return MODELS[name]
    reason = "is not there"
    if name.startswith(("trainium", "trn")):
        reason = "is not there: AWS does not document where Trainium's tensor engine rounds"
    raise ValueError(f"matmul: accumulate={name!r} {reason}; choose {', '.join(MODELS)}")
