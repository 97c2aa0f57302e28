"""The user's tensors: read from files, and dealt out to ranks."""

from pathlib import Path

import numpy as np
import pytest

from collemu.tensors import Tensor, deal, load_tensor


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.int16).reshape(2, 3))
    tensor = load_tensor(str(tmp_path / "x.npy"))
    assert tensor.array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensor.origin == str(tmp_path / "x.npy")


def test_npz_by_name_and_the_first_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, words=np.array(["a"]), w=np.ones(3), b=np.zeros(2))
    assert load_tensor(str(path)).origin == f"{path}:w"
    assert load_tensor(f"{path}:b").array.tolist() == [0, 0]
    with pytest.raises(ValueError, match="no array 'c'; there are words, w, b"):
        load_tensor(f"{path}:c")
    with pytest.raises(ValueError, match="give an array of numbers"):
        load_tensor(f"{path}:words")


def test_safetensors(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    numpy.save_file({"w": np.ones((2, 2), np.float32), "v": np.zeros(3, np.float16)}, path)
    assert load_tensor(f"{path}:w").array.tolist() == [[1, 1], [1, 1]]
    assert load_tensor(str(path)).array.size in (3, 4)
    with pytest.raises(ValueError, match="no array 'u'"):
        load_tensor(f"{path}:u")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"nonsense" * 10])
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load_tensor(str(tmp_path / name))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x\.npy"):
        load_tensor(str(tmp_path / "x.npy"))


def test_a_row_a_rank() -> None:
    data, how = deal(Tensor(np.arange(24).reshape(4, 2, 3), "x"), "all_reduce", 4, 1)
    assert data.tolist() == np.arange(24).reshape(4, 6).tolist()
    assert "row r" in how


def test_rows_are_cut_to_whole_blocks() -> None:
    data, how = deal(Tensor(np.arange(20).reshape(4, 5), "x"), "reduce_scatter", 4, 4)
    assert data.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8], [10, 11, 12, 13], [15, 16, 17, 18]]
    assert "the last 4 elements are left out" in how


def test_one_tensor_is_cut_for_collectives_that_move() -> None:
    data, how = deal(Tensor(np.arange(7), "x"), "all_gather", 3, 1)
    assert data.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert "3 contiguous parts" in how
    assert "the last 1 elements" in how


def test_one_tensor_is_everybodys_for_collectives_that_add() -> None:
    data, how = deal(Tensor(np.arange(7), "x"), "all_reduce", 3, 1)
    assert data.shape == (3, 7)
    assert "same tensor" in how
    assert "left out" not in how


def test_too_few_elements() -> None:
    with pytest.raises(ValueError, match="give 9 or more"):
        deal(Tensor(np.arange(2), "x"), "alltoall", 3, 3)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_safetensors_of_types_that_numpy_lacks(tmp_path: Path, name: str) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 3, 21).reshape(3, 7).astype(getattr(ml_dtypes, name))
    numpy.save_file({"first": np.ones(3, np.uint8), "w": x}, tmp_path / "x.safetensors")
    array = load_tensor(f"{tmp_path / 'x.safetensors'}:w").array
    assert array.dtype == np.float32
    assert array.tolist() == x.astype(np.float32).tolist()


def test_narrow_floats_in_numpys_files_are_explained(tmp_path: Path) -> None:
    for width, dtype in ((8, "|V1"), (16, "|V2")):
        np.save(tmp_path / "x.npy", np.zeros(4, dtype))
        with pytest.raises(ValueError, match=rf"view\(numpy\.uint{width}\) and name .* -d "):
            load_tensor(str(tmp_path / "x.npy"))


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", o=np.array([{}], object))
    np.save(tmp_path / "whole.npy", np.ones(1000))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:200])
    (tmp_path / "folder.npy").mkdir()
    for name in ("o.npz", "o.npz:o", "cut.npy"):
        with pytest.raises(ValueError, match=rf"{name}.*; save an array of numbers"):
            load_tensor(str(tmp_path / name))
    with pytest.raises(ValueError, match="a folder; give"):
        load_tensor(str(tmp_path / "folder.npy"))
    with pytest.raises(ValueError, match="data '': give"):
        load_tensor("")
