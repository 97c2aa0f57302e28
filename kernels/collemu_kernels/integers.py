"""Numbers to two's complement integers of 8 or 4 bits, all of whose codes are used, and back."""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit
from collemu_kernels.elements import encode_elements_as, encode_rounded
from collemu_kernels.format_ids import NEAREST_EVEN, WIDE_INTEGER

RUN = 1024


@jit
def encode_integers(
    values: NDArray[np.float32], bits: int, rounding: int, random: NDArray[np.uint64], codes: NDArray[np.uint8]
) -> None:
    """Codes, one a byte, of float32 ``values`` that are no NaN, rounded and then limited to the range."""
    wide = np.empty(RUN, np.uint16)
    for start in range(0, values.size, RUN):
        stop = min(start + RUN, values.size)
        encode_integer_run(values[start:stop], bits, rounding, random[start:stop], codes[start:stop], wide)


@jit
def encode_integer_run(values, bits, rounding, random, codes, wide):
    """`encode_integers` of no more values than ``wide``, uint16, has room for."""
    most = np.int32((1 << (bits - 1)) - 1)
    mask = np.int32((1 << bits) - 1)
    if rounding == NEAREST_EVEN:
        encode_elements_as(values, WIDE_INTEGER, True, wide)
    else:
        encode_rounded(values, WIDE_INTEGER, True, rounding, random, wide)
    for i in range(values.size):
        magnitude = np.int32(wide[i] & np.uint16(0x7FFF))
        integer = np.int32(-magnitude) if wide[i] > np.uint16(0x7FFF) else magnitude
        integer = np.int32(min(max(integer, np.int32(-most - np.int32(1))), most))
        codes[i] = np.int32(integer & mask)


@jit
def decode_integers(codes: NDArray[np.uint8], bits: int, values: NDArray[np.float32]) -> None:
    """float32 ``values`` of codes, one a byte."""
    sign = np.int32(1 << (bits - 1))
    for i in range(values.size):
        values[i] = np.float32(np.int32(np.int32(np.int32(codes[i]) ^ sign) - sign))
