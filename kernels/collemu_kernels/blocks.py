"""Numbers that share a scale: rows of values to codes and scales, and back.

A row is worked on in tiles that stay in the first-level cache, pass after pass: the largest magnitude of every block,
its scale, the scale's factor spread over the block, then one pass over the tile. Each pass is a flat loop, which LLVM
vectorises; a loop over blocks with a loop inside would not be.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.elements import (
    EXPONENT,
    MAGNITUDE,
    RUN,
    complement,
    decode_products,
    encode_products,
    encode_rounded,
)
from collemu_kernels.format_ids import (
    BITS,
    BLOCK_ELEMENT,
    BLOCK_PARAMETERS,
    BLOCK_SCALE,
    BLOCK_SIZE,
    ELEMENT_PARAMETERS,
    FIRST_BLOCK_FORMAT,
    FIRST_INTEGER_ELEMENT,
    NEAREST_EVEN,
    TORCHAO,
    TWO_LEVEL_SCALE,
)
from collemu_kernels.packing import code_bytes, pack, unpack
from collemu_kernels.scales import decode_scales, encode_scales, scale_width, two_level_tensor_scale

TILE = 1024
SPREAD = 32


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


@jit
def encode_row(values, format_id, scale_mode, rounding, saturate, random, tensor_amax, shared_amax, codes, scales):
    """Codes and scale bytes of one row of float32 ``values``.

    ``tensor_amax``: bits of the largest magnitude of the whole tensor, for formats with a tensor scale.
    ``shared_amax``: bits of the blocks' largest magnitudes if they are known, or of rows that share the scales; else
    empty.
    The codes of a block that holds a NaN or an infinity are zero; its scale is NaN.
    """
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    bits = ELEMENT_PARAMETERS[element, BITS]
    width = scale_width(kind)
    # TransformerEngine encodes -0 as +0 in NVFP4
    zero = np.float32(0.0) if kind == TWO_LEVEL_SCALE and scale_mode != TORCHAO else np.float32(-0.0)
    if block > TILE and shared_amax.size == 0:
        shared_amax = np.zeros(1, np.uint32)
        gather_amax(values, block, shared_amax)
    work = np.empty(TILE, np.uint32)
    amax = np.empty(TILE, np.uint32)
    factors = np.empty(TILE, np.float32)
    spread_factors = np.empty(TILE + SPREAD, np.float32)
    unpacked = np.empty(TILE, np.uint8)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        size = tile.size
        first = start // block
        blocks = (size + block - 1) // block
        if shared_amax.size > 0:
            amax[:blocks] = shared_amax[first : first + blocks]
        else:
            block_amax(tile, block, work, amax)
        tile_scales = scales[first * width : (first + blocks) * width]
        encode_scales(amax[:blocks], format_id, scale_mode, tensor_amax, tile_scales, factors[:blocks])
        runs = rounding == NEAREST_EVEN and block == RUN and size % RUN == 0
        if not runs:
            spread(factors[:blocks], block, spread_factors)
        tile_codes = unpacked[:size] if bits < 8 else codes[start : start + size]
        if rounding == NEAREST_EVEN:
            tile_factors = factors if runs else spread_factors
            encode_products(tile, tile_factors, runs, zero, element, saturate, tile_codes)
        else:
            scaled = work.view(np.float32)
            for i in range(size):
                scaled[i] = np.float32(np.float32(tile[i] * spread_factors[i]) + zero)
            encode_rounded(scaled[:size], element, saturate, rounding, random[start : start + size], tile_codes)
        if element >= FIRST_INTEGER_ELEMENT:
            complement(tile_codes, element)
        for i in range(blocks):
            if amax[i] >= EXPONENT:
                tile_codes[i * block : min((i + 1) * block, size)] = 0
        if bits < 8:
            pack(tile_codes, bits, codes[code_bytes(start, element) : code_bytes(start + size, element)])


@jit
def decode_row(codes, scales, tensor_scale, format_id, values):
    """float32 ``values`` of one row: the product of code and scale, times the tensor scale."""
    element = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_ELEMENT]
    block = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SIZE]
    kind = BLOCK_PARAMETERS[format_id - FIRST_BLOCK_FORMAT, BLOCK_SCALE]
    bits = ELEMENT_PARAMETERS[element, BITS]
    width = scale_width(kind)
    factors = np.empty(TILE, np.float32)
    spread_factors = np.empty(TILE + SPREAD, np.float32)
    unpacked = np.empty(TILE, np.uint8)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        size = tile.size
        first = start // block
        blocks = (size + block - 1) // block
        decode_scales(scales[first * width : (first + blocks) * width], kind, factors[:blocks])
        runs = block == RUN and size % RUN == 0
        if not runs:
            spread(factors[:blocks], block, spread_factors)
        tile_factors = factors if runs else spread_factors
        if bits < 8:
            packed = codes[code_bytes(start, element) : code_bytes(start + size, element)]
            unpack(packed, bits, unpacked[:size])
            decode_products(unpacked[:size], tile_factors, runs, element, tile)
        else:
            decode_products(codes[start : start + size], tile_factors, runs, element, tile)
        if kind == TWO_LEVEL_SCALE:
            for i in range(size):
                tile[i] = np.float32(tile[i] * tensor_scale)


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
