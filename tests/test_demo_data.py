"""The demo's tensors come from a run that learned, fit together, and can be made again."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from collemu.data import DigitsRun, load_digits_run

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_demo_data.py"
SHAPES = {
    "gradients": (72, 4128),
    "union_gradient": (4128,),
    "activations": (357, 128),
    "weights": (128, 32),
    "bias": (32,),
    "head_weights": (32, 10),
    "head_bias": (10,),
    "labels": (357,),
    "train_loss": (30,),
    "test_accuracy": (30,),
}
DTYPES = dict.fromkeys(SHAPES, np.float32) | {"labels": np.uint8, "test_accuracy": np.float64}


@pytest.fixture(scope="module")
def run() -> DigitsRun:
    return load_digits_run()


@pytest.mark.parametrize("name", SHAPES)
def test_arrays_have_the_documented_shape_and_dtype_and_are_finite(run: DigitsRun, name: str) -> None:
    array = getattr(run, name)
    assert array.shape == SHAPES[name]
    assert array.dtype == DTYPES[name]
    assert np.isfinite(array).all()


def test_gradients_differ_between_all_ranks(run: DigitsRun) -> None:
    assert len(np.unique(run.gradients, axis=0)) == 72
    assert np.abs(run.gradients).max(axis=1).min() > 0


def test_mean_over_ranks_is_the_gradient_of_the_union(run: DigitsRun) -> None:
    mean = run.gradients.mean(axis=0, dtype=np.float64)
    # Room for one float32 rounding per image, each at most that of the largest rank gradient over 72.
    tolerance = 360 * np.finfo(np.float32).eps * np.abs(run.gradients).max() / 72
    np.testing.assert_allclose(mean, run.union_gradient, rtol=0, atol=tolerance)
    assert np.abs(run.union_gradient).max() > 1000 * tolerance


def test_gradients_are_heavy_tailed_and_centred(run: DigitsRun) -> None:
    values = run.gradients.astype(np.float64)
    deviation = values - values.mean()
    assert abs(values.mean()) < 0.05 * values.std()
    assert (deviation**4).mean() / (deviation**2).mean() ** 2 > 10  # 3 for a normal distribution


def test_training_learned(run: DigitsRun) -> None:
    assert run.test_accuracy[-1] > 0.9
    assert run.train_loss[-1] < 0.1 * run.train_loss[0]


def test_stored_layers_give_the_stored_accuracy(run: DigitsRun) -> None:
    hidden = np.maximum(run.activations @ run.weights + run.bias, 0)
    digits = (hidden @ run.head_weights + run.head_bias).argmax(axis=1)
    # One image of slack: another order of additions may tip a near tie.
    assert abs((digits == run.labels).mean() - run.test_accuracy[-1]) <= 1 / 357


def test_metadata_names_origin_and_making(run: DigitsRun) -> None:
    metadata = run.metadata
    assert "Handwritten Digits" in metadata["data_set"]
    assert "Alpaydin" in metadata["data_set_authors"]
    assert "10.24432/C50P49" in metadata["data_set_source"]
    assert "CC BY 4.0" in metadata["data_set_licence"]
    assert (SCRIPT.parents[1] / metadata["script"]) == SCRIPT
    assert metadata["ranks"] == len(run.gradients)
    assert metadata["epochs"] == len(run.train_loss)
    assert 0 < metadata["gradient_step"] < metadata["steps"]
    assert metadata["versions"].keys() == {"python", "numpy", "scikit-learn"}
    assert isinstance(metadata["seed"], int)


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_demo_data", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_makes_the_same_arrays_again(run: DigitsRun) -> None:
    pytest.importorskip("sklearn")
    arrays = load_script().train()
    assert arrays.keys() == SHAPES.keys()
    for name, array in arrays.items():
        stored = getattr(run, name)
        # Near-cancelled elements have no relative accuracy to compare, so the scale of the array counts too.
        np.testing.assert_allclose(
            array, stored, rtol=1e-4, atol=1e-4 * np.abs(stored).max(), err_msg=name, strict=True
        )
