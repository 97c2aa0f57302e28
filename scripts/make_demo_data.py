"""Train a small network on handwritten digits, data-parallel over 72 virtual ranks; keep the demo's tensors.

    python scripts/make_demo_data.py [PATH]         default PATH: collemu/data/digits.npz

The network is 64-128-32-10 with ReLU and softmax cross-entropy, in float32 and plain NumPy. Every rank owns
20 training images and takes 5 of them a step; the mean of the 72 gradients, which a real run would
all-reduce, drives SGD with momentum. The file holds the middle layer (128-32): its per-rank gradients at one
mid-training step, its trained weights, and the activations that enter it. `collemu/data/README.md` describes
the arrays.

Matrix products go through `np.einsum(..., optimize=False)`, not BLAS: its order of additions does not depend
on the number of threads. Softmax is taken in float64 and rounded to float32, so that the last bit of a
platform's `exp` seldom matters.
"""

import argparse
import json
import platform
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.datasets import load_digits

SEED = 2026
RANKS = 72
IMAGES_PER_RANK = 20
IMAGES_PER_STEP = 5  # of each rank
LAYERS = (64, 128, 32, 10)
MIDDLE = 1  # the layer that the file holds: 128 inputs, 32 outputs
EPOCHS = 30
GRADIENT_STEP = 40  # counted from 0
LEARNING_RATE = 0.05
MOMENTUM = 0.9
DEFAULT_PATH = Path(__file__).resolve().parents[1] / "collemu" / "data" / "digits.npz"

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


class Layer(NamedTuple):
    """Weights (inputs, outputs) and bias (outputs); a gradient has a leading rank axis."""

    weights: Floats
    bias: Floats


class Split(NamedTuple):
    """Training images (ranks, images a rank, 64) and test images (images, 64), with their labels."""

    train_images: Floats
    train_labels: Labels
    test_images: Floats
    test_labels: Labels


def contract(subscripts: str, *operands: Floats) -> Floats:
    return np.einsum(subscripts, *operands, optimize=False)


def split_digits(rng: np.random.Generator) -> Split:
    """Shuffle the 1797 images; the first 1440 are the ranks' shards, the other 357 the test set."""
    digits: Any = load_digits()
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 16.0).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    trained = RANKS * IMAGES_PER_RANK
    return Split(
        images[:trained].reshape(RANKS, IMAGES_PER_RANK, -1),
        labels[:trained].reshape(RANKS, IMAGES_PER_RANK),
        images[trained:],
        labels[trained:],
    )


def initial_network(rng: np.random.Generator) -> list[Layer]:
    """He initialisation: normal weights of variance 2 / inputs, zero bias."""
    return [
        Layer(
            (rng.standard_normal((inputs, outputs)) * np.sqrt(2.0 / inputs)).astype(np.float32),
            np.zeros(outputs, np.float32),
        )
        for inputs, outputs in pairwise(LAYERS)
    ]


def forward(network: list[Layer], images: Floats) -> list[Floats]:
    """The input of every layer, then the logits; all (ranks, images, width)."""
    values = [images]
    for index, layer in enumerate(network):
        outputs = contract("rbi,ij->rbj", values[-1], layer.weights) + layer.bias
        values.append(outputs if index == len(network) - 1 else np.maximum(outputs, np.float32(0)))
    return values


def softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    return powers / powers.sum(axis=-1, keepdims=True)


def gradients(network: list[Layer], images: Floats, labels: Labels) -> list[Layer]:
    """Every rank's gradient of its mean cross-entropy, by layer: weights (ranks, inputs, outputs)."""
    values = forward(network, images)
    delta = softmax(values[-1])
    delta -= np.eye(LAYERS[-1])[labels]
    error = (delta / labels.shape[-1]).astype(np.float32)
    result: list[Layer] = []
    for index in reversed(range(len(network))):
        inputs = values[index]
        result.append(Layer(contract("rbi,rbj->rij", inputs, error), error.sum(axis=1)))
        if index > 0:  # these inputs left a ReLU: where one is 0, no error passes
            error = contract("rbj,ij->rbi", error, network[index].weights) * (inputs > 0)
    return result[::-1]


def flatten(layer: Layer) -> Floats:
    """One row a rank: the weights' gradient in row-major order, then the bias's."""
    ranks = len(layer.weights)
    return np.concatenate([layer.weights.reshape(ranks, -1), layer.bias], axis=1)


def loss(network: list[Layer], images: Floats, labels: Labels) -> float:
    chosen = np.take_along_axis(softmax(forward(network, images)[-1]), labels[..., None], axis=-1)
    return float(-np.log(chosen).mean())


def accuracy(network: list[Layer], images: Floats, labels: Labels) -> float:
    logits = forward(network, images[None])[-1][0]
    return float((logits.argmax(axis=-1) == labels).mean())


def train() -> dict[str, NDArray[Any]]:
    """Train from `SEED`; return the arrays of the file, without the metadata."""
    rng = np.random.default_rng(SEED)
    split = split_digits(rng)
    network = initial_network(rng)
    velocity = [Layer(np.zeros_like(layer.weights), np.zeros_like(layer.bias)) for layer in network]
    kept: dict[str, NDArray[Any]] = {}
    train_loss: list[float] = []
    test_accuracy: list[float] = []
    step = 0
    for _ in range(EPOCHS):
        # Each rank goes through its own shard in an order of its own.
        order = rng.permuted(np.tile(np.arange(IMAGES_PER_RANK), (RANKS, 1)), axis=1)
        for batch in np.split(order, IMAGES_PER_RANK // IMAGES_PER_STEP, axis=1):
            images = np.take_along_axis(split.train_images, batch[..., None], axis=1)
            labels = np.take_along_axis(split.train_labels, batch, axis=1)
            by_rank = gradients(network, images, labels)
            if step == GRADIENT_STEP:
                union = gradients(network, images.reshape(1, -1, LAYERS[0]), labels.reshape(1, -1))
                kept["gradients"] = flatten(by_rank[MIDDLE])
                kept["union_gradient"] = flatten(union[MIDDLE])[0]
            for index, (weights, bias) in enumerate(by_rank):
                velocity[index] = Layer(
                    MOMENTUM * velocity[index].weights + weights.mean(axis=0),
                    MOMENTUM * velocity[index].bias + bias.mean(axis=0),
                )
                network[index] = Layer(
                    network[index].weights - LEARNING_RATE * velocity[index].weights,
                    network[index].bias - LEARNING_RATE * velocity[index].bias,
                )
            step += 1
        train_loss.append(loss(network, split.train_images, split.train_labels))
        test_accuracy.append(accuracy(network, split.test_images, split.test_labels))
    middle, head = network[MIDDLE], network[MIDDLE + 1]
    return kept | {
        "activations": forward(network, split.test_images[None])[MIDDLE][0],
        "weights": middle.weights,
        "bias": middle.bias,
        "head_weights": head.weights,
        "head_bias": head.bias,
        "labels": split.test_labels.astype(np.uint8),
        "train_loss": np.array(train_loss, np.float32),
        "test_accuracy": np.array(test_accuracy),
    }


def metadata() -> dict[str, Any]:
    return {
        "data_set": "Optical Recognition of Handwritten Digits, test set (1797 8x8 images), UCI",
        "data_set_authors": "E. Alpaydin, C. Kaynak (1998)",
        "data_set_source": "https://doi.org/10.24432/C50P49, as sklearn.datasets.load_digits",
        "data_set_licence": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
        "script": "scripts/make_demo_data.py",
        "seed": SEED,
        "ranks": RANKS,
        "images_per_rank": IMAGES_PER_RANK,
        "images_per_rank_and_step": IMAGES_PER_STEP,
        "layers": list(LAYERS),
        "layer_kept": MIDDLE,
        "epochs": EPOCHS,
        "steps": EPOCHS * IMAGES_PER_RANK // IMAGES_PER_STEP,
        "gradient_step": GRADIENT_STEP,
        "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the digits data set and write the demo's tensors.")
    parser.add_argument("path", nargs="?", type=Path, default=DEFAULT_PATH, metavar="PATH")
    path: Path = parser.parse_args().path
    arrays = train()
    np.savez_compressed(path, allow_pickle=False, metadata=np.array(json.dumps(metadata())), **arrays)
    print(
        f"{path}: {path.stat().st_size} bytes, gradients {arrays['gradients'].shape}, "
        f"test accuracy {arrays['test_accuracy'][-1]:.3f}"
    )


if __name__ == "__main__":
    main()
