"""Numbers in blocks that share a scale: what `quantize` returns, how it lies in memory and on the wire."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from collemu_kernels.blocks import decode_rows
from collemu_kernels.packing import code_bytes, unpack
from numpy.typing import NDArray

from collemu.arguments import one_of, whole
from collemu.inputs import image_bytes_of, plain
from collemu.number_formats import BlockFormat, find_block_format

ORDERS = ("low_first", "high_first")
_MOST_AXES = 64  # of a NumPy array


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes with the scales that they share.

    Attributes
    ----------
    codes : numpy.ndarray of uint8
        As ``shape``, but along ``axis`` it counts bytes: codes of 4 and 6 bits lie side by side, from the lowest bit
        of the first byte on, and end with a whole byte. 0-d counts as one element.
    scales : numpy.ndarray of uint8 or float32
        As ``shape``, but along ``axis`` it counts blocks. Codes of a scale format, or float32 numbers.
    tensor_scale : numpy.float32 or None
        What every decoded value is multiplied by (NVFP4).
    shape : tuple of int
        Of the numbers.
    format : str
        Name of the block format.
    axis : int
        Along which blocks lie.
    order : str
        Of codes of 4 bits in a byte: low_first or high_first.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    tensor_scale: np.float32 | None
    shape: tuple[int, ...]
    format: str
    axis: int = -1
    order: str = "low_first"

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: codes, scales and tensor scale."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.tensor_scale is None else 4)

    def dequantize(self) -> NDArray[np.float32]:
        """float32 numbers: element times scale, rounded to float32 (powers of two: exact), times the tensor scale."""
        block = find_block_format(self.format)
        codes = in_order(rows_along(self.codes, self.axis), self.order, block)
        scales = _scale_bytes(rows_along(self.scales, self.axis))
        lead, length = split_shape(self.shape, self.axis)
        values = np.empty((prod(lead), length), np.float32)
        tensor_scale = np.float32(1) if self.tensor_scale is None else self.tensor_scale
        with np.errstate(all="ignore"):
            decode_rows(codes, scales, tensor_scale, block.format_id, values)
        return from_rows(values, lead, self.axis).reshape(self.shape)

    def element_codes(self) -> NDArray[np.uint8]:
        """The codes one a byte, in the shape of the numbers."""
        block = find_block_format(self.format)
        packed = in_order(rows_along(self.codes, self.axis), self.order, block)
        lead, length = split_shape(self.shape, self.axis)
        bits = block.element.bits
        if bits == 8:
            return from_rows(packed, lead, self.axis).reshape(self.shape)
        codes = np.empty((len(packed), length), np.uint8)
        if length * bits % 8 == 0:  # rows meet without a gap
            unpack(packed.reshape(-1), bits, codes.reshape(-1))
        else:
            for row, row_codes in zip(packed, codes, strict=True):
                unpack(row, bits, row_codes)
        return from_rows(codes, lead, self.axis).reshape(self.shape)

    def to_bytes(self) -> bytes:
        """The wire image: codes, then scales, then the tensor scale if there is one; float32 are little-endian.

        Rows along ``axis`` follow each other in C order of the other axes.
        """
        image = rows_along(self.codes, self.axis).tobytes() + _scale_bytes(rows_along(self.scales, self.axis)).tobytes()
        if self.tensor_scale is not None:
            image += np.array(self.tensor_scale, "<f4").tobytes()
        return image

    @classmethod
    def from_bytes(
        cls,
        buf: bytes | bytearray | memoryview | NDArray[np.uint8],
        block_format: str,
        shape: int | tuple[int, ...],
        *,
        axis: int = -1,
        order: str = "low_first",
    ) -> "Quantized":
        """Read a wire image that `to_bytes` wrote.

        Raises
        ------
        ValueError
            If the bytes are not as many as the format and shape need.
        """
        block = find_block_format(block_format)
        refuse_order(order, block)
        lengths = shape if isinstance(shape, Iterable) else (shape,)
        shape = tuple(whole(length, "from_bytes: a length of shape") for length in lengths)
        axis = index_of_axis(axis)
        lead, length = split_shape(shape, axis)
        rows = prod(lead)
        row_codes, row_scales = row_sizes(block, length)
        image = image_bytes_of(buf, "from_bytes: buf")
        codes_end = rows * row_codes
        scales_end = codes_end + rows * row_scales
        has_tensor_scale = block.has_tensor_scale and scales_end > 0
        needed = scales_end + (4 if has_tensor_scale else 0)
        if image.size != needed:
            raise ValueError(f"from_bytes: {block.name} of shape {shape} takes {needed} bytes, not {image.size}")
        return cls(
            codes=from_rows(image[:codes_end].reshape(rows, row_codes), lead, axis),
            scales=from_rows(scale_numbers(image[codes_end:scales_end].reshape(rows, row_scales), block), lead, axis),
            tensor_scale=np.float32(image[scales_end:].view("<f4")[0]) if has_tensor_scale else None,
            shape=shape,
            format=block.name,
            axis=axis,
            order=order,
        )


def index_of_axis(axis: Any) -> int:
    """A user's axis as an int; `split_shape` says whether the shape has it."""
    return whole(axis, "axis", least=-_MOST_AXES, most=_MOST_AXES - 1)


def split_shape(shape: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], int]:
    """Lengths of the other axes, and the length along the axis; a 0-d shape is one of one element."""
    if not shape:
        shape = (1,)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis={axis} is outside shape {shape}; choose -{len(shape)} to {len(shape) - 1}")
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :]), shape[axis]


def rows_along(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """The rows along an axis as a C-contiguous matrix."""
    array = np.atleast_1d(array)
    moved = np.moveaxis(array, axis, -1)
    return plain(moved).reshape(prod(moved.shape[:-1]), moved.shape[-1])


def from_rows(rows: NDArray[Any], lead: tuple[int, ...], axis: int) -> NDArray[Any]:
    """Reverse of `rows_along`: the axis back in its place."""
    return np.moveaxis(rows.reshape(*lead, rows.shape[-1]), -1, axis)


def row_sizes(block: BlockFormat, length: int) -> tuple[int, int]:
    """Bytes of the codes and of the scales of a row."""
    return int(code_bytes(length, block.element.format_id)), -(-length // block.block) * (block.scale.bits // 8)


def scale_numbers(scales: NDArray[np.uint8], block: BlockFormat) -> NDArray[Any]:
    """Scales as users see them, from the bytes of rows: uint8 codes, or float32."""
    return scales if block.scale.bits == 8 else np.ascontiguousarray(scales).view("<f4").astype(np.float32, copy=False)


def _scale_bytes(scales: NDArray[Any]) -> NDArray[np.uint8]:
    """Reverse of `scale_numbers`."""
    return scales if scales.dtype == np.uint8 else scales.astype("<f4", copy=False).view(np.uint8)


def refuse_order(order: str, block: BlockFormat) -> None:
    """Refuse an unknown order of nibbles, and one for codes that are no nibbles."""
    one_of(order, ORDERS, "order")
    if order != "low_first" and block.element.bits != 4:
        raise ValueError(
            f"order={order!r} is for codes of 4 bits; {block.name} has {block.element.bits}, leave it away"
        )


def in_order(codes: NDArray[np.uint8], order: str, block: BlockFormat) -> NDArray[np.uint8]:
    """Codes as the kernels pack them, low nibble first, from ``order`` or into it."""
    if order == "low_first" or block.element.bits != 4:
        return codes
    return (codes >> np.uint8(4)) | (codes << np.uint8(4))
