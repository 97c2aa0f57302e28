"""Numbers that share a scale: rows of values to codes and scales, and back.

A row is worked on in tiles that stay in the first-level cache, pass after pass: the largest magnitude of every block,
its scale, the scale's factor spread over the block, then one pass over the tile. Each pass is a flat loop, which LLVM
vectorises; a loop over blocks with a loop inside would not be.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit, jit_lean
from collemu_kernels.elements import (
    EXPONENT,
    MAGNITUDE,
    RUN,
    add_products,
    all_finite,
    complement,
    decode_products,
    encode_products,
    encode_rounded,
)
from collemu_kernels.format_ids import (
    ASYMMETRIC,
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    BLOCK_SIZE,
    CLIPPED,
    E8M0_SCALE,
    ELEMENT_PARAMETERS,
    FIRST_BLOCK_FORMAT,
    FIRST_INTEGER_ELEMENT,
    NEAREST_EVEN,
    TORCHAO,
    TWO_LEVEL_SCALE,
)
from collemu_kernels.integers import encode_integer_run
from collemu_kernels.packing import code_bytes, pack, unpack
from collemu_kernels.scales import asymmetric_scales, decode_scales, encode_scales, scale_width, two_level_tensor_scale

TILE = 1024
SPREAD = 32
SMALLEST_FLOAT = np.float32(2.0**-149)


@jit
def block_amax(values, block, work, amax):
    """Bits of the largest magnitude of every block; infinity and NaN are larger than any number.

    Whole blocks are halved pair by pair, which vectorises. ``work`` (uint32) holds half of ``values``.
    """
    bits = values.view(np.uint32)
    whole = values.size // block
    size = whole * block // 2
    for i in range(size):
        a = np.uint32(bits[2 * i] & MAGNITUDE)
        b = np.uint32(bits[2 * i + 1] & MAGNITUDE)
        work[i] = a if a > b else b
    while size > whole:
        size //= 2
        for i in range(size):
            a = work[2 * i]
            b = work[2 * i + 1]
            work[i] = a if a > b else b
    for i in range(whole):
        amax[i] = work[i]
    if whole * block < values.size:
        largest = np.uint32(0)
        for i in range(whole * block, values.size):
            magnitude = np.uint32(bits[i] & MAGNITUDE)
            largest = magnitude if magnitude > largest else largest
        amax[whole] = largest


@jit
def spread(factors, block, spread_factors):
    """Repeat each block's factor for its elements.

    A fill of fewer than 32 floats would leave vector code, so it runs on into the next block, which then
    overwrites it; ``spread_factors`` is that much longer than the tile.
    """
    width = max(block, SPREAD)
    for i in range(factors.size):
        spread_factors[i * block : i * block + width] = factors[i]


@jit
def gather_amax(values, block, amax):
    """Raise ``amax``, bits of the largest magnitude of every block so far, by those of one more row."""
    work = np.empty(TILE // 2, np.uint32)
    tile_amax = np.empty(TILE, np.uint32)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        first = start // block
        block_amax(tile, block, work, tile_amax)
        for i in range((tile.size + block - 1) // block):
            amax[first + i] = max(amax[first + i], tile_amax[i])


@jit
def finite_max(amax):
    """Largest of the bits of magnitudes that are finite."""
    largest = np.uint32(0)
    for i in range(amax.size):
        if amax[i] < EXPONENT and amax[i] > largest:
            largest = amax[i]
    return largest


class Work(NamedTuple):
    """Arrays to work on a tile in."""

    halves: NDArray[np.uint32]
    amax: NDArray[np.uint32]
    factors: NDArray[np.float32]
    spread_factors: NDArray[np.float32]
    unpacked: NDArray[np.uint8]
    wide: NDArray[np.uint16]
    no_amax: NDArray[np.uint32]  # empty: magnitudes that nobody knows yet
    no_random: NDArray[np.uint64]


@jit
def tile_work():
    """Work arrays for tiles one after another."""
    return Work(
        np.empty(TILE, np.uint32),
        np.empty(TILE, np.uint32),
        np.empty(TILE, np.float32),
        np.empty(TILE + SPREAD, np.float32),
        np.empty(TILE, np.uint8),
        np.empty(TILE, np.uint16),
        np.empty(0, np.uint32),
        np.empty(0, np.uint64),
    )


@jit_lean
def encode_tile(tile, format_id, scale_mode, rounding, saturate, random, tensor_amax, known_amax, codes, scales, work):
    """Codes and scale bytes of at most `TILE` float32 values, from the start of a block on.

    ``tensor_amax``: bits of the largest magnitude of the whole tensor, for formats with a tensor scale.
    ``known_amax``: bits of the blocks' largest magnitudes, or of rows that share the scales, if they are known.
    The codes of a block that holds a NaN or an infinity are zero; its scale is NaN.
    """
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    bits = ELEMENT_PARAMETERS[element, BITS]
    size = tile.size
    blocks = (size + block - 1) // block
    asymmetric = scale_mode == ASYMMETRIC
    torchao = kind == TWO_LEVEL_SCALE and scale_mode == TORCHAO
    all_codes = asymmetric or scale_mode == CLIPPED  # of integers, the most negative one too
    straight = rounding == NEAREST_EVEN and not all_codes and not torchao  # product and code in one pass
    # TransformerEngine encodes -0 as +0 in NVFP4
    zero = np.float32(0.0) if kind == TWO_LEVEL_SCALE and not torchao else np.float32(-0.0)
    amax = work.amax[:blocks]
    factors = work.factors[:blocks]
    if known_amax.size > 0:
        for i in range(blocks):
            amax[i] = known_amax[i]
    else:
        block_amax(tile, block, work.halves, amax)
    if asymmetric:
        asymmetric_scales(tile, amax, block, element, scales, factors)
    else:
        encode_scales(amax, format_id, scale_mode, tensor_amax, scales, factors)
    runs = straight and block == RUN and size % RUN == 0
    if not runs:
        spread(factors, block, work.spread_factors)
    bytewise = work.unpacked[:size] if bits < 8 else codes
    if straight:
        tile_factors = factors if runs else work.spread_factors
        encode_products(tile, tile_factors, runs, zero, element, saturate, bytewise)
    else:
        scaled = work.halves.view(np.float32)[:size]
        for i in range(size):
            product = np.float32(np.float32(tile[i] * work.spread_factors[i]) + zero)
            if product == np.float32(0) and tile[i] != np.float32(0) and kind == E8M0_SCALE:
                product = math.copysign(SMALLEST_FLOAT, tile[i])  # exact scales: it is not zero, only below float32
            elif math.isnan(product):  # zero times the infinite factor of a tiny tensor; or no matter
                product = np.float32(0)
            scaled[i] = product
        if all_codes:
            encode_integer_run(scaled, bits, rounding, random, bytewise, work.wide)
        else:
            encode_rounded(scaled, element, saturate, rounding, random, bytewise)
    if element >= FIRST_INTEGER_ELEMENT and not all_codes:
        complement(bytewise, element)
    largest = np.uint32(0)
    for i in range(blocks):
        largest = max(largest, amax[i])
    for i in range(blocks if largest >= EXPONENT else 0):
        if amax[i] >= EXPONENT:
            bytewise[i * block : min((i + 1) * block, size)] = 0
    if bits < 8:
        pack(bytewise, bits, codes)


@jit_lean
def decode_tile(codes, scales, tensor_scale, format_id, tile, work):
    """At most `TILE` float32 values: the product of code and scale, times the tensor scale."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    bits = ELEMENT_PARAMETERS[element, BITS]
    size = tile.size
    factors = work.factors[: (size + block - 1) // block]
    decode_scales(scales, kind, factors)
    runs = block == RUN and size % RUN == 0
    if not runs:
        spread(factors, block, work.spread_factors)
    tile_factors = factors if runs else work.spread_factors
    if bits < 8:
        unpack(codes, bits, work.unpacked[:size])
        decode_products(work.unpacked[:size], tile_factors, runs, element, tile)
    else:
        decode_products(codes, tile_factors, runs, element, tile)
    if kind == TWO_LEVEL_SCALE:
        for i in range(size):
            tile[i] = np.float32(tile[i] * tensor_scale)


@jit_lean
def add_tile(codes, scales, format_id, tile, work):
    """Add to a tile what `decode_tile` would give, in the same pass; False, and nothing, where that does not work."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    runs = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE] == RUN and tile.size % RUN == 0
    if not runs or ELEMENT_PARAMETERS[element, BITS] != 8 or element >= FIRST_INTEGER_ELEMENT:
        return False
    if not all_finite(codes, element):
        return False
    decode_scales(scales, kind, work.factors[: tile.size // RUN])
    add_products(codes, work.factors, element, tile)
    return True


@jit
def encode_row(values, format_id, scale_mode, rounding, saturate, random, tensor_amax, known_amax, codes, scales):
    """`encode_tile` for a row of any length; ``known_amax`` may be empty."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    width = scale_width(BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE])
    if block > TILE and known_amax.size == 0:
        known_amax = np.zeros((values.size + block - 1) // block, np.uint32)
        gather_amax(values, block, known_amax)
    work = tile_work()
    for start in range(0, values.size, TILE):
        stop = min(start + TILE, values.size)
        first = start // block
        last = (stop + block - 1) // block
        encode_tile(
            values[start:stop],
            format_id,
            scale_mode,
            rounding,
            saturate,
            random[start:stop],
            tensor_amax,
            known_amax[first:last],
            codes[code_bytes(start, element) : code_bytes(stop, element)],
            scales[first * width : last * width],
            work,
        )


@jit
def decode_row(codes, scales, tensor_scale, format_id, values):
    """`decode_tile` for a row of any length."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    width = scale_width(BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE])
    work = tile_work()
    for start in range(0, values.size, TILE):
        stop = min(start + TILE, values.size)
        first = start // block
        last = (stop + block - 1) // block
        tile_codes = codes[code_bytes(start, element) : code_bytes(stop, element)]
        tile_scales = scales[first * width : last * width]
        decode_tile(tile_codes, tile_scales, tensor_scale, format_id, values[start:stop], work)


@jit
def encode_rows(
    values: NDArray[np.float32],
    format_id: int,
    scale_mode: int,
    rounding: int,
    saturate: bool,
    random: NDArray[np.uint64],
    matrix_rows: int,
    tile_rows: int,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    tensor_scale: NDArray[np.float32],
) -> None:
    """Codes and scale bytes of every row of float32 values, and the one tensor scale if the format has it.

    Up to ``tile_rows`` of the ``matrix_rows`` rows of a matrix share their scales, and each keeps them.
    """
    rows, columns = values.shape
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    two_level = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE] == TWO_LEVEL_SCALE
    tiles = (matrix_rows + tile_rows - 1) // tile_rows  # of a matrix
    blocks = (columns + block - 1) // block if two_level or tile_rows > 1 else 0
    amax = np.zeros(((rows + matrix_rows - 1) // matrix_rows * tiles, blocks), np.uint32)
    if blocks > 0:
        for row in range(rows):
            tile = row // matrix_rows * tiles + row % matrix_rows // tile_rows
            gather_amax(values[row], block, amax[tile])
    tensor_amax = finite_max(amax.reshape(-1))
    if two_level:
        tensor_scale[0] = two_level_tensor_scale(tensor_amax, scale_mode)
    for row in range(rows):
        tile = row // matrix_rows * tiles + row % matrix_rows // tile_rows
        bits = random[row * columns : (row + 1) * columns]
        encode_row(
            values[row],
            format_id,
            scale_mode,
            rounding,
            saturate,
            bits,
            tensor_amax,
            amax[tile],
            codes[row],
            scales[row],
        )


@jit
def decode_rows(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    tensor_scale: np.float32,
    format_id: int,
    values: NDArray[np.float32],
) -> None:
    """Values of every row of a matrix of codes and scales."""
    for row in range(values.shape[0]):
        decode_row(codes[row], scales[row], tensor_scale, format_id, values[row])
