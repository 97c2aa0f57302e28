"""Codes side by side in bytes: FP4 and 4-bit integers two a byte, FP6 four in three bytes, wider codes whole bytes.

Code i lies at the bits from i times its width on, counted from the lowest bit of the first byte. A row ends with a
whole byte, whose unused bits are zero.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.format_ids import BITS, ELEMENT_PARAMETERS, FLOAT8_E8M0FNU, TFLOAT32


@jit
def code_bytes(n: int, element: int) -> np.int64:
    """Bytes of the codes of n elements in a row."""
    if element == TFLOAT32:
        return np.int64(4 * n)
    bits = np.int64(8) if element == FLOAT8_E8M0FNU else ELEMENT_PARAMETERS[element, BITS]
    return np.int64((n * bits + 7) // 8)


@jit
def pack(codes, bits, packed):
    """Codes of 4 or 6 bits, one a byte, side by side."""
    if bits == 4:
        pack_nibbles(codes, packed)
    else:
        pack_sixes(codes, packed)


@jit
def unpack(packed: NDArray[np.uint8], bits: int, codes: NDArray[np.uint8]) -> None:
    """Reverse of `pack`."""
    if bits == 4:
        unpack_nibbles(packed, codes)
    else:
        unpack_sixes(packed, codes)


@jit
def pack_nibbles(codes, packed):
    """Two 4-bit codes a byte, the first in the low nibble."""
    pairs = codes.size // 2
    for i in range(pairs):
        packed[i] = np.uint32(codes[2 * i]) | np.uint32(np.uint32(codes[2 * i + 1]) << np.uint32(4))
    if codes.size % 2:
        packed[pairs] = codes[codes.size - 1]


@jit
def unpack_nibbles(packed, codes):
    """Reverse of `pack_nibbles`."""
    pairs = codes.size // 2
    for i in range(pairs):
        codes[2 * i] = np.uint32(packed[i]) & np.uint32(15)
        codes[2 * i + 1] = np.uint32(packed[i]) >> np.uint32(4)
    if codes.size % 2:
        codes[codes.size - 1] = np.uint32(packed[pairs]) & np.uint32(15)


@jit
def pack_sixes(codes, packed):
    """Four 6-bit codes in three bytes."""
    fours = codes.size // 4
    for i in range(fours):
        a = np.uint32(codes[4 * i])
        b = np.uint32(codes[4 * i + 1])
        c = np.uint32(codes[4 * i + 2])
        d = np.uint32(codes[4 * i + 3])
        packed[3 * i] = np.uint32(a | np.uint32(b << np.uint32(6))) & np.uint32(255)
        packed[3 * i + 1] = np.uint32(np.uint32(b >> np.uint32(2)) | np.uint32(c << np.uint32(4))) & np.uint32(255)
        packed[3 * i + 2] = np.uint32(c >> np.uint32(4)) | np.uint32(d << np.uint32(2))
    word = np.uint32(0)
    for i in range(codes.size - 4 * fours):
        word = np.uint32(word | np.uint32(np.uint32(codes[4 * fours + i]) << np.uint32(6 * i)))
    for i in range(3 * fours, packed.size):
        packed[i] = np.uint32(word & np.uint32(255))
        word = np.uint32(word >> np.uint32(8))


@jit
def unpack_sixes(packed, codes):
    """Reverse of `pack_sixes`."""
    fours = codes.size // 4
    for i in range(fours):
        a = np.uint32(packed[3 * i])
        b = np.uint32(packed[3 * i + 1])
        c = np.uint32(packed[3 * i + 2])
        codes[4 * i] = np.uint32(a & np.uint32(63))
        codes[4 * i + 1] = np.uint32(np.uint32(a >> np.uint32(6)) | np.uint32(b << np.uint32(2))) & np.uint32(63)
        codes[4 * i + 2] = np.uint32(np.uint32(b >> np.uint32(4)) | np.uint32(c << np.uint32(4))) & np.uint32(63)
        codes[4 * i + 3] = np.uint32(c >> np.uint32(2))
    word = np.uint32(0)
    for i in range(packed.size - 3 * fours):
        word = np.uint32(word | np.uint32(np.uint32(packed[3 * fours + i]) << np.uint32(8 * i)))
    for i in range(4 * fours, codes.size):
        codes[i] = np.uint32(word & np.uint32(63))
        word = np.uint32(word >> np.uint32(6))


@jit
def copy_bytes(source, target):
    """Copy bytes one by one, which compiles to a plain copy at any alignment."""
    for i in range(target.size):
        target[i] = source[i]
