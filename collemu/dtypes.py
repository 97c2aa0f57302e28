"""The types that collectives add: their bytes in memory, and how users' arrays become those bytes and come back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from collemu_kernels import format_ids
from collemu_kernels.images import decode_image, encode_image
from numpy.typing import DTypeLike, NDArray

from collemu.inputs import as_float32, plain
from collemu.number_formats import ELEMENT_FORMATS

FLOATING = "floating"
INTEGER = "integer"


@dataclass(frozen=True)
class Dtype:
    """A type of a collective's elements.

    Attributes
    ----------
    name : str
    format_id : int
        Its number in the kernels.
    storage : numpy.dtype
        How its bytes lie in NumPy arrays: itself, or unsigned codes where NumPy has no such type.
    kind : str
        ``floating`` or ``integer``.
    """

    name: str
    format_id: int
    storage: np.dtype[Any]
    kind: str

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return self.storage.itemsize

    @property
    def is_codes(self) -> bool:
        """Whether NumPy has no such type, so that arrays hold its codes."""
        return self.kind == FLOATING and self.storage.kind == "u"

    @property
    def overflows_early(self) -> bool:
        """Whether an unscaled sum of a few ordinary values can leave its range: floats of at most 16 bits."""
        return self.kind == FLOATING and self.item_bytes <= 2


def _table() -> dict[str, Dtype]:
    native = {
        "float32": (format_ids.FLOAT32, FLOATING),
        "float64": (format_ids.FLOAT64, FLOATING),
        "float16": (format_ids.FLOAT16, FLOATING),
        "int8": (format_ids.INT8, INTEGER),
        "int32": (format_ids.INT32, INTEGER),
        "int64": (format_ids.INT64, INTEGER),
        "uint8": (format_ids.UINT8, INTEGER),
    }
    table = {name: Dtype(name, number, np.dtype(name), kind) for name, (number, kind) in native.items()}
    table["bfloat16"] = Dtype("bfloat16", format_ids.BFLOAT16, np.dtype(np.uint16), FLOATING)
    for name, element in ELEMENT_FORMATS.items():
        if element.bits == 8 and element.has_sign and element.exponent_bits:
            table[name] = Dtype(name, element.format_id, np.dtype(np.uint8), FLOATING)
    return table


DTYPES = _table()
ALIASES = {
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def find_dtype(name: DTypeLike) -> Dtype:
    """Look a dtype up by its name, or by the short name that nccl-tests uses for it.

    NumPy's and ml_dtypes' own types of these names, such as ``np.float32``, are taken for them.

    Raises
    ------
    ValueError
        For an unknown name; the text lists the known ones.
    """
    key = ALIASES.get(name, name) if isinstance(name, str) else _numpy_name(name)
    if key not in DTYPES:
        raise ValueError(f"no dtype {name!r}; choose {', '.join(DTYPES)}")
    return DTYPES[key]


def _numpy_name(dtype: Any) -> str:
    """NumPy's name of one of its types, or none: None would be float64 to NumPy."""
    try:
        return "" if dtype is None else np.dtype(dtype).name
    except TypeError:
        return ""


def to_storage(data: Any, dtype: Dtype, what: str = "data") -> NDArray[Any]:
    """A user's array as contiguous bytes of a dtype.

    Floats given for a type without a NumPy equivalent are rounded to it (nearest even; 8-bit types saturate).
    Unsigned integers of its width, and arrays of the ml_dtypes type of its name, are taken as codes.

    Raises
    ------
    ValueError
        If the array cannot become that type without changing its meaning.
    """
    try:
        array = np.asarray(data)
    except ValueError:
        raise ValueError(f"{what}: rows of different lengths are no array; give one row of numbers a rank") from None
    if dtype.is_codes and (array.dtype == dtype.storage or array.dtype.name == dtype.name):
        return np.ascontiguousarray(array).view(dtype.storage)
    if dtype.kind == INTEGER:
        return _integers(array, dtype, what)
    if dtype.is_codes:
        values = plain(as_float32(array, what)).reshape(-1)
        image = np.empty(values.size * dtype.item_bytes, np.uint8)
        encode_image(values, dtype.format_id, dtype.item_bytes == 1, image)
        return image.view(dtype.storage).reshape(array.shape)
    if array.dtype.kind not in "fiu" and array.dtype.name not in ELEMENT_FORMATS:
        raise ValueError(f"{what}: an array of {array.dtype} cannot be taken as {dtype.name}; give numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array.astype(dtype.storage, copy=False))


def _integers(array: NDArray[Any], dtype: Dtype, what: str) -> NDArray[Any]:
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{what}: an array of {array.dtype} cannot be taken as {dtype.name}; give integers")
    limits = np.iinfo(dtype.storage)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise ValueError(f"{what}: values from {array.min()} to {array.max()} do not fit {dtype.name}")
    return np.ascontiguousarray(array, dtype.storage)


def to_values(storage: NDArray[Any], dtype: Dtype) -> NDArray[np.float32]:
    """Bytes of a floating dtype of at most 32 bits as the float32 numbers that they stand for, exactly."""
    if not dtype.is_codes:
        return storage.astype(np.float32, copy=False)
    values = np.empty(storage.size, np.float32)
    image = plain(storage).reshape(-1).view(np.uint8)
    decode_image(image, dtype.format_id, values)
    return values.reshape(storage.shape)


def to_user(storage: NDArray[Any], dtype: Dtype, like: Any) -> NDArray[Any]:
    """Bytes of a dtype in the clothes of the data that came in: codes for codes, else numbers."""
    given = np.asarray(like).dtype
    if not dtype.is_codes:
        return storage
    if given == dtype.storage or given.name == dtype.name:
        return storage.view(given)
    return to_values(storage, dtype)
