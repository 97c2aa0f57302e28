"""Users' arrays as float32, without rounding them twice.

A float64 or an integer that float32 does not hold exactly is *rounded to odd*: cut toward zero, and its
last bit set. The set bit remembers that something was there, so any later rounding to at most 22 significant
bits, in any direction, gives what it would give for the exact value (Boldo and Melquiond, "When double
rounding is odd", 2005).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collemu.number_formats import ELEMENT_FORMATS


def as_float32(x: ArrayLike, what: str, *, to_odd: bool = True) -> NDArray[np.float32]:
    """The numbers of an array as float32, its shape kept.

    Parameters
    ----------
    x : array of numbers
        NumPy floats of at most 64 bits, integers, or an ml_dtypes array of a format that collemu knows.
    what : str
        How errors call the array.
    to_odd : bool
        Round what float32 does not hold to odd; False rounds to nearest even.

    Raises
    ------
    ValueError
        For other types, and for lists whose rows differ in length.
    """
    try:
        array = np.asarray(x)
    except ValueError:
        raise ValueError(f"{what}: rows of different lengths are no array; make them equally long") from None
    kind, width = array.dtype.kind, array.dtype.itemsize
    if array.dtype.name in ELEMENT_FORMATS or (kind == "f" and width <= 4):
        return np.require(array, np.float32, ["A", "W"])  # a kernel would be compiled anew for a read-only one
    if kind == "f" and width == 8:
        return _narrow(array.astype(np.float64, copy=False), to_odd)
    if kind in "iu":
        return _narrow(_integers_to_float64(array), to_odd)
    raise ValueError(f"{what} has dtype {array.dtype}; give floats of at most 64 bits, integers or ml_dtypes floats")


def _narrow(array: NDArray[np.float64], to_odd: bool) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        narrow = array.astype(np.float32)
    if not to_odd:
        return narrow
    inexact = (narrow != array) & ~np.isnan(array)
    rounded_away = inexact & (np.abs(narrow.astype(np.float64)) > np.abs(array))
    bits = np.atleast_1d(narrow).view(np.uint32)
    bits -= np.atleast_1d(rounded_away).astype(np.uint32)
    bits |= np.atleast_1d(inexact).astype(np.uint32)
    return bits.view(np.float32).reshape(array.shape)


def _integers_to_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """float64 of integers; beyond 2**53 one sticky bit stands for the lowest 11, enough to round by."""
    if array.dtype.itemsize < 8:
        return array.astype(np.float64)
    native = array.astype(array.dtype.newbyteorder("="))
    low = native & native.dtype.type(0x7FF)
    sticky = (native - low) | ((low != 0).astype(native.dtype) << native.dtype.type(11))
    small = (native < 2**53) & (native > -(2**53) if native.dtype.kind == "i" else native >= 0)
    return np.where(small, native, sticky).astype(np.float64)


def image_bytes_of(buffer: Any, what: str) -> NDArray[np.uint8]:
    """A copy of a wire image, given as bytes, a buffer of bytes, or an array of uint8.

    Raises
    ------
    ValueError
        For anything else; ``what`` is how the text calls it.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        view = None
    if view is None or view.itemsize != 1 or not view.contiguous:
        raise ValueError(f"{what} must be bytes, or an array of uint8 in one piece, as to_bytes gives them")
    return np.frombuffer(view, np.uint8).copy()


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array as kernels take it, a copy if it must be: C-contiguous, aligned and writable.

    Any other kind of array is a type of its own to Numba, for which it would compile every kernel anew.
    """
    return np.require(array, requirements=["C", "A", "W"])
