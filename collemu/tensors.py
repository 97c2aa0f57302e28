"""The user's own tensors: read from a file, and dealt out to the ranks of a collective."""

import contextlib
import zipfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

ENDINGS = (".npy", ".npz", ".safetensors")


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
        raise ValueError(f"data {path}: no such file")
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
    parts.

    Parameters
    ----------
    tensor : Tensor
    collective : str
    ranks : int
    regions : int
        Equal blocks in a rank's input: the number of ranks for reduce_scatter and alltoall, else 1.

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
    if array.ndim > 1 and array.shape[0] == ranks:
        data, how = array.reshape(ranks, -1), "row r of it is what rank r contributes"
    elif collective in ("all_gather", "alltoall"):
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
        raise ValueError(f"data {text}: give a .npy, .npz or .safetensors file, or FILE:NAME for an array in it")
    return Path(path), name


def _read_numpy(path: Path) -> NDArray[Any]:
    try:
        return cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"data {path}: not a .npy file of numbers: {error}") from None


def _read_archive(path: Path, name: str) -> tuple[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data {path}: not a .npz file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            chosen = _choose(path, name, names)
            for each in [chosen] if chosen else names:
                array = archive[each]
                if chosen or _is_numeric(array):
                    return each, array
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"data {path}: not a .npz file: {error}") from None
    raise ValueError(f"data {path}: holds no array of numbers")


def _read_safetensors(path: Path, name: str) -> tuple[str, NDArray[Any]]:
    try:
        safetensors: Any = import_module("safetensors")
    except ImportError:
        raise ValueError(
            f'data {path}: reading .safetensors needs one more package: pip install "collemu[data]"'
        ) from None
    with contextlib.suppress(ImportError):
        import_module("ml_dtypes")  # teaches NumPy bfloat16
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = [str(each) for each in file.keys()]  # noqa: SIM118  # no mapping
            chosen = _choose(path, name, names) or (names[0] if names else "")
            if not chosen:
                raise ValueError(f"data {path}: holds no array")
            return chosen, file.get_tensor(chosen)
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:
        raise ValueError(f"data {path}: cannot be read: {error}") from None


def _choose(path: Path, name: str, names: list[str]) -> str:
    if name and name not in names:
        raise ValueError(f"data {path}: no array {name!r}; there are {', '.join(names[:20])}")
    return name


def _is_numeric(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fiu" or array.dtype.name.startswith(("bfloat", "float"))


def _numbers(array: NDArray[Any], origin: str) -> NDArray[Any]:
    if not _is_numeric(array) or array.ndim == 0:
        raise ValueError(f"data {origin}: {array.dtype} of shape {array.shape}; give an array of numbers")
    return array
