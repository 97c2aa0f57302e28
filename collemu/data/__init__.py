"""Tensors of a real training run, small enough to ship: the demo's gradients, activations and weights.

`README.md` in this folder says where they come from; `scripts/make_demo_data.py` makes them again.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class DigitsRun:
    """The 128-32 layer of a 64-128-32-10 ReLU network, trained on 8x8 images of digits over 72 ranks.

    Attributes
    ----------
    gradients : float32 (72, 4128)
        One row a rank: the gradient of its own 5 images at step `metadata["gradient_step"]`, before the ranks
        average. The weights' 128 x 32 elements in row-major order come first, then the bias's 32. Inputs that
        no image of the rank activated leave rows of exact zeros.
    union_gradient : float32 (4128,)
        The gradient of all 360 images in one batch. Ranks have equally many images, so it is the mean of the
        rows of `gradients`, up to float32 rounding.
    activations : float32 (357, 128)
        What enters the trained layer for each test image; not negative, 43 % are exact zeros.
    weights, bias : float32 (128, 32), float32 (32,)
        The trained layer: it computes ``maximum(activations @ weights + bias, 0)``.
    head_weights, head_bias : float32 (32, 10), float32 (10,)
        The layer after it, which gives the logits of the ten digits.
    labels : uint8 (357,)
        The digit that each test image shows.
    train_loss, test_accuracy : float32 (epochs,), float64 (epochs,)
        After each epoch: mean cross-entropy of the training images (nats), share of test images classified
        correctly.
    metadata : dict
        Data set, source, licence, script, seed, hyperparameters and library versions.
    """

    gradients: NDArray[np.float32]
    union_gradient: NDArray[np.float32]
    activations: NDArray[np.float32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    head_weights: NDArray[np.float32]
    head_bias: NDArray[np.float32]
    labels: NDArray[np.uint8]
    train_loss: NDArray[np.float32]
    test_accuracy: NDArray[np.float64]
    metadata: dict[str, Any]


def load_digits_run() -> DigitsRun:
    """Read `digits.npz` of this package; every call returns arrays of its own."""
    with (files(__name__) / "digits.npz").open("rb") as file, np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    metadata = json.loads(str(arrays.pop("metadata")))
    return DigitsRun(**arrays, metadata=metadata)
