"""Sets of small numbers as rows of bits in uint64 words: which inputs of a switch output have a packet there."""

import numpy as np

from collemu_kernels._jit import jit_lean

NONE = -1  # no bit


@jit_lean
def trailing_zeros(word):
    """Index of the lowest set bit of a non-zero uint64."""
    index = 0
    if word & np.uint64(0xFFFFFFFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(32))
        index += 32
    if word & np.uint64(0xFFFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(16))
        index += 16
    if word & np.uint64(0xFF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(8))
        index += 8
    if word & np.uint64(0xF) == np.uint64(0):
        word = np.uint64(word >> np.uint64(4))
        index += 4
    if word & np.uint64(0x3) == np.uint64(0):
        word = np.uint64(word >> np.uint64(2))
        index += 2
    if word & np.uint64(0x1) == np.uint64(0):
        index += 1
    return index


@jit_lean
def set_bit(mask, row, bit):
    """Set a bit of one row of a mask."""
    mask[row, bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)


@jit_lean
def clear_bit(mask, row, bit):
    """Clear a bit of one row of a mask."""
    mask[row, bit >> 6] &= ~(np.uint64(1) << np.uint64(bit & 63))


@jit_lean
def has_bit(mask, row, bit):
    """Whether a bit of a row is set."""
    return mask[row, bit >> 6] & (np.uint64(1) << np.uint64(bit & 63)) != np.uint64(0)


@jit_lean
def next_bit(mask, row, start):
    """First set bit of a row at or after ``start``, cyclically; NONE if the row is empty."""
    words = mask.shape[1]
    word = start >> 6
    here = mask[row, word] & (np.uint64(0xFFFFFFFFFFFFFFFF) << np.uint64(start & 63))
    for _ in range(words + 1):
        if here != np.uint64(0):
            return (word << 6) + trailing_zeros(here)
        word += 1
        if word == words:
            word = 0
        here = mask[row, word]
    return NONE


@jit_lean
def only_bit(mask, row, bit):
    """Whether a row has no other bit set than ``bit``."""
    for word in range(mask.shape[1]):
        here = mask[row, word]
        if word == bit >> 6:
            here &= ~(np.uint64(1) << np.uint64(bit & 63))
        if here != np.uint64(0):
            return False
    return True
