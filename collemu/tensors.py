"""The user's own tensors: read from a file, and dealt out to the ranks of a collective."""

import json
import zipfile
import zlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from collemu.dtypes import find_dtype, to_values

ENDINGS = (".npy", ".npz", ".safetensors")
SAVE = "save an array of numbers with numpy.save or numpy.savez"
GIVE = "give a .npy, .npz or .safetensors file, or FILE:NAME for an array in it"
#: safetensors' names of types that NumPy lacks
NARROW = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "BF16": "bfloat16"}


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array of numbers and where it came from, as ``file:name``."""

    array: NDArray[Any]
    origin: str


def load_tensor(text: str) -> Tensor:
    """Read ``FILE`` or ``FILE:NAME``.

    Parameters
    ----------
    text : str
        A .npy, .npz or .safetensors file; of the latter two the array of that name, or else the first one of numbers.

    Raises
    ------
    ValueError
        If there is no such file or array, or it holds no numbers; the text names what there is.
    """
    path, name = _split(text)
    if not path.is_file():
        raise ValueError(f"data {path}: {'no file but a folder' if path.is_dir() else 'no such file'}; {GIVE}")
    if path.suffix == ".npy":
        if name:
            raise ValueError(f"data {path}: a .npy file holds one array without a name; leave {':' + name!r} away")
        return Tensor(_numbers(_read_numpy(path), str(path)), str(path))
    found = _read_safetensors(path, name) if path.suffix == ".safetensors" else _read_archive(path, name)
    return Tensor(_numbers(found[1], f"{path}:{found[0]}"), f"{path}:{found[0]}")


def deal(tensor: Tensor, collective: str, ranks: int, regions: int) -> tuple[NDArray[Any], str]:
    """What each rank contributes, and a sentence on how it follows from the tensor.

    A tensor whose first dimension is the number of ranks holds a contribution a row. Any other is one tensor:
    reductions and broadcasts give it to every rank, and collectives that only move data cut it into equal contiguous
    parts. Of a scatter all of it is the root's.

    Parameters
    ----------
    tensor : Tensor
    collective : str
    ranks : int
    regions : int
        Equal blocks in a rank's input: the number of ranks for reduce_scatter, alltoall and scatter, else 1.

    Returns
    -------
    data : array (ranks, elements)
        ``elements`` is a multiple of ``regions``.
    how : str

    Raises
    ------
    ValueError
        If there are too few elements for that.
    """
    array = tensor.array
    if collective == "scatter":
        data, how = (
            np.broadcast_to(array.reshape(-1), (ranks, array.size)),
            "the root has it, and gives each rank a part",
        )
    elif array.ndim > 1 and array.shape[0] == ranks:
        data, how = array.reshape(ranks, -1), "row r of it is what rank r contributes"
    elif collective in ("all_gather", "alltoall", "gather"):
        flat = array.reshape(-1)
        part = flat.size // ranks
        data, how = flat[: part * ranks].reshape(ranks, part), f"cut into {ranks} contiguous parts, one a rank"
    else:
        data = np.broadcast_to(array.reshape(-1), (ranks, array.size))
        how = "every rank contributes the same tensor, as its first dimension is not the number of ranks"
    elements = data.shape[1] // regions * regions
    if elements == 0:
        raise ValueError(
            f"data {tensor.origin}: {array.size} elements are too few for {collective} over {ranks} ranks; "
            f"give {ranks * regions} or more"
        )
    left_out = array.size - (elements if data.strides[0] == 0 else elements * ranks)
    return data[:, :elements], how + (f"; the last {left_out} elements are left out" if left_out else "")


def _split(text: str) -> tuple[Path, str]:
    if text.endswith(ENDINGS):
        return Path(text), ""
    path, _, name = text.rpartition(":")
    if not path.endswith(ENDINGS):
        raise ValueError(f"data {text!r}: {GIVE}")
    return Path(path), name


def _read_numpy(path: Path) -> NDArray[Any]:
    try:
        return cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"data {path}: not a whole .npy file of numbers ({_plain(error)}); {SAVE}") from None


def _read_archive(path: Path, name: str) -> tuple[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data {path}: not a .npz file; {SAVE}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            chosen = _choose(path, name, names)
            for each in [chosen] if chosen else names:
                try:
                    array = archive[each]
                except ValueError as error:  # an array of objects, which only a pickle could hold
                    if chosen:
                        raise ValueError(f"data {path}:{each}: no numbers ({_plain(error)}); {SAVE}") from None
                    continue
                if chosen or _is_numeric(array):
                    return each, array
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"data {path}: not a whole .npz file ({_plain(error)}); {SAVE}") from None
    raise ValueError(f"data {path}: holds no array of numbers; {SAVE}")


def _read_safetensors(path: Path, name: str) -> tuple[str, NDArray[Any]]:
    try:
        safetensors: Any = import_module("safetensors")
    except ImportError:
        raise ValueError(
            f'data {path}: reading .safetensors needs one more package: pip install "collemu[data]"'
        ) from None
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = [str(each) for each in file.keys()]  # noqa: SIM118  # no mapping
            chosen = _choose(path, name, names) or (names[0] if names else "")
            if not chosen:
                raise ValueError(f"data {path}: holds no array")
            kind = str(file.get_slice(chosen).get_dtype())
            return chosen, _read_narrow(path, chosen, NARROW[kind]) if kind in NARROW else file.get_tensor(chosen)
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:
        raise ValueError(f"data {path}: not a whole .safetensors file of types that NumPy has: {error}") from None


def _read_narrow(path: Path, name: str, dtype_name: str) -> NDArray[np.float32]:
    """Numbers of a type that NumPy lacks, from the codes that lie in the file; float32 holds them exactly."""
    dtype = find_dtype(dtype_name)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")  # the file is a header's size, the header as JSON, the bytes
        entry = json.loads(file.read(size))[name]
        first, end = entry["data_offsets"]
        file.seek(8 + size + first)
        codes = np.frombuffer(file.read(end - first), dtype.storage.newbyteorder("<"))
    return to_values(codes.reshape(entry["shape"]), dtype)


def _plain(error: Exception) -> str:
    """An error's first sentence, without NumPy's advice to switch pickles on."""
    return (str(error) or type(error).__name__).split(" when ")[0].split("\n")[0]


def _choose(path: Path, name: str, names: list[str]) -> str:
    if name and name not in names:
        raise ValueError(f"data {path}: no array {name!r}; there are {', '.join(names[:20])}")
    return name


def _is_numeric(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fiu" or array.dtype.name.startswith(("bfloat", "float"))


def _numbers(array: NDArray[Any], origin: str) -> NDArray[Any]:
    if array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.itemsize <= 2:
        width, example = (8, "float8_e4m3fn") if array.dtype.itemsize == 1 else (16, "bfloat16")
        raise ValueError(
            f"data {origin}: {array.dtype.str} is NumPy's word for narrow floats; save array.view(numpy.uint{width}) "
            f"and name the type of its codes, such as -d {example}"
        )
    if not _is_numeric(array) or array.ndim == 0:
        raise ValueError(f"data {origin}: {array.dtype} of shape {array.shape}; give an array of numbers")
    return array
