"""Products on the model of a matrix unit: ada, hopper, blackwell, cdna3."""

from functools import lru_cache
from typing import Any

import numpy as np
from collemu_kernels import fused_dot as kernels
from numpy.typing import NDArray

from collemu.accumulation import GROUPED_FRACTION_BITS, MODELS, Accumulation, FusedDot
from collemu.inputs import plain
from collemu.number_formats import BlockFormat, ElementFormat, find_block_format
from collemu.products.operands import Add, Coded, Matrix, Operand, block_codes, numbers_of
from collemu.quantization import Quantized, decode


def prepare(a: Matrix, b: Matrix, model: FusedDot, every: int | None) -> tuple[Operand, Operand, Add]:
    """Operands, and what passes an accumulator through the steps of the model."""
    if isinstance(a, Coded) and isinstance(b, Coded):
        return _plain(a.codes, a.element, "a", model), _plain(b.codes.T, b.element, "b", model), _aligned(model)
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, Quantized) and not model.blocks:
            other = "blackwell" if _is_multiplied(find_block_format(x.format), MODELS["blackwell"]) else "float32"
            raise ValueError(
                f"matmul: accumulate={model.name!r} multiplies numbers without scales, and {name} is a Quantized of "
                f"{x.format}; give {' or '.join(model.elements)}, or use accumulate={other!r}"
            )
    if not isinstance(a, Quantized) or not isinstance(b, Quantized):
        raise ValueError(f"matmul: accumulate={model.name!r} takes two Quantized or none; quantise a and b alike")
    blocks = find_block_format(a.format), find_block_format(b.format)
    _check_blocks(*blocks, model, every)
    grouped = all(block.element.bits == 4 for block in blocks)
    scaled = _grouped_operand if grouped else _aligned_operand
    return scaled(a, "a"), scaled(b, "b"), _grouped(blocks[0].block) if grouped else _aligned(model)


def tensor_factor(a: Matrix, b: Matrix) -> np.float32 | None:
    """Product of the tensor scales, rounded to float32; None if there are none."""
    scales = [x.tensor_scale for x in (a, b) if isinstance(x, Quantized) and x.tensor_scale is not None]
    return np.prod(np.array(scales, np.float32), dtype=np.float32) if scales else None


def _is_multiplied(block: BlockFormat, model: Accumulation) -> bool:
    """Whether a unit has the elements, and takes the scales: codes, not float32."""
    return isinstance(model, FusedDot) and block.element.name in model.elements and block.scale.bits == 8


def _check_blocks(a: BlockFormat, b: BlockFormat, model: FusedDot, every: int | None) -> None:
    for block in (a, b):
        if not _is_multiplied(block, model):
            raise ValueError(
                f"matmul: accumulate={model.name!r} does not multiply {block.name}, {block.element.name} with "
                f"{block.scale.name} scales; use accumulate='block_exact' or 'float32'"
            )
    if a.block != b.block or a.scale != b.scale:
        raise ValueError(
            f"matmul: accumulate={model.name!r} multiplies blocks of one size and kind of scale, not {a.name} and "
            f"{b.name}; quantise both alike"
        )
    if every is not None and every % a.block:
        raise ValueError(f"matmul: promote_every={every} cuts blocks; give a multiple of {a.block}")


def _plain(codes: NDArray[np.uint8], element: ElementFormat, name: str, model: FusedDot) -> Operand:
    """A matrix without scales, K as its last axis."""
    if element.name not in model.elements:
        raise ValueError(
            f"matmul: accumulate={model.name!r} does not multiply {element.name}, the format of {name}; choose "
            f"{', '.join(model.elements)}"
        )
    table, exponents = _aligned_tables(element)
    if codes.flags.f_contiguous:
        return Operand(codes.T.reshape(-1), 1, codes.shape[0], table, exponents)
    return Operand(plain(codes).reshape(-1), codes.shape[1], 1, table, exponents)


def _aligned_operand(quantized: Quantized, name: str) -> Operand:
    """Codes, and scales as exponents."""
    codes, scales = block_codes(quantized, name)
    table, exponents = _aligned_tables(find_block_format(quantized.format).element)
    of_scales, _ = _scale_tables(find_block_format(quantized.format).scale)
    flat_codes = plain(codes).reshape(-1)
    return Operand(flat_codes, codes.shape[1], 1, table, exponents, of_scales[scales].reshape(-1))


def _grouped_operand(quantized: Quantized, name: str) -> Operand:
    """FP4 codes, and scales as exponents and significands."""
    codes, scales = block_codes(quantized, name)
    block = find_block_format(quantized.format)
    table = (numbers_of(block.element) / block.element.min_subnormal).astype(np.int16)
    exponents, significands = (of_codes[scales].reshape(-1) for of_codes in _scale_tables(block.scale))
    flat_codes = plain(codes).reshape(-1)
    return Operand(flat_codes, codes.shape[1], 1, table, scales=exponents, significands=significands)


@lru_cache
def _aligned_tables(element: ElementFormat) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Numbers of the codes, zero where they are not finite, and the exponents that their fields say."""
    numbers = numbers_of(element)
    numbers = np.where(np.isfinite(numbers), numbers, 0)
    exponents = np.maximum(np.frexp(numbers)[1] - 1, int(np.frexp(element.min_normal)[1]) - 1)
    exponents = np.where(numbers == 0, kernels.NO_EXPONENT, exponents)
    return numbers.astype(np.float32), exponents.astype(np.int8)


@lru_cache
def _scale_tables(scale: ElementFormat) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Exponents of the codes of scales, and significands in eighths; of NaN 1, as its results are NaN anyhow.

    A sign counts for nothing: the units have unsigned E4M3.
    """
    numbers = np.abs(decode(np.arange(256, dtype=np.uint8), scale.name).astype(np.float64))
    numbers = np.where(np.isfinite(numbers), numbers, 1)
    exponents = np.maximum(np.frexp(numbers)[1] - 1, int(np.frexp(scale.min_normal)[1]) - 1)
    return exponents.astype(np.int16), np.ldexp(numbers, 3 - exponents).astype(np.int16)


def _aligned(model: FusedDot) -> Add:
    rule = kernels.EVEN_ODD if model.even_odd else kernels.ALIGNED

    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        kernels.multiply_fused(
            left.values, left.outer, left.k, left.table, left.exponents, _integers(left.scales),
            right.values, right.k, right.outer, right.table, right.exponents, _integers(right.scales),
            rule, model.step, model.fraction_bits, model.result_bits, first, last, m, n, c.reshape(-1),
        )  # fmt: skip

    return add


def _grouped(block: int) -> Add:
    def add(left: Operand, right: Operand, first: int, last: int, c: NDArray[np.float32]) -> None:
        m, n = c.shape
        kernels.multiply_grouped(
            left.values, left.outer, left.k, left.table, left.scales, left.significands,
            right.values, right.k, right.outer, right.table, right.scales, right.significands,
            block, GROUPED_FRACTION_BITS, first, last, m, n, c.reshape(-1),
        )  # fmt: skip

    return add


def _integers(scales: NDArray[Any]) -> NDArray[np.int16]:
    return scales.astype(np.int16, copy=False)
