"""Matrix products with specified rounding beside float32 BLAS, in one process, on one thread."""

from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

import collemu
from benchmarks.rows import Row, best_seconds

TITLE = "Matrix products, 1024 x 1024 x 1024; the peer is NumPy's float32 BLAS, which promises no order of sums"
SIZE = 1024
FLOPS = 2 * SIZE**3
NUMBER_MODELS = ("pairwise", "exact", "float16", "bfloat16")
UNITS = {"ada": "float8_e4m3fn", "hopper": "float8_e4m3fn", "blackwell": "float8_e4m3fn", "cdna3": "float8_e4m3fnuz"}
PAIRS = (
    ("mxfp4", "mxfp4"),
    ("nvfp4", "nvfp4"),
    ("mxfp8_e4m3", "mxfp4"),
    ("mxfp8_e4m3", "mxfp8_e4m3"),
    ("mxfp8_e4m3", "mxfp8_e5m2"),
    ("mxfp8_e5m2", "mxfp8_e5m2"),
)


def run() -> Iterator[Row]:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((SIZE, SIZE), np.float32) for _ in "ab")
    with threadpool_limits(1):
        blas = best_seconds(lambda: a @ b)
    yield Row("BLAS sgemm", f"{FLOPS / blas / 1e9:.1f} GFLOP/s", "the limit")
    yield _row("float32, rounded product and sum, k ascending", best_seconds(lambda: collemu.matmul(a, b)), blas)
    for left, right in PAIRS:
        x, y = collemu.quantize(a, left), collemu.quantize(b, right, axis=0)
        ours = best_seconds(lambda x=x, y=y: collemu.matmul(x, y, accumulate="block_exact"))
        yield _row(f"block_exact, {left} x {right}", ours, blas)
    narrow = [collemu.decode(collemu.encode(x, "float8_e4m3fn"), "float8_e4m3fn") for x in (a, b)]
    for model in NUMBER_MODELS:
        ours = best_seconds(lambda model=model: collemu.matmul(*narrow, accumulate=model))
        yield _row(f"{model}, float8_e4m3fn numbers", ours, blas)
    for model, name in UNITS.items():
        x, y = collemu.encode(a, name), collemu.encode(b, name)
        ours = best_seconds(
            lambda x=x, y=y, model=model, name=name: collemu.matmul(
                x, y, accumulate=model, a_format=name, b_format=name
            )
        )
        yield _row(f"{model}, {name}", ours, blas)
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        x, y = collemu.quantize(a, name), collemu.quantize(b, name, axis=0)
        ours = best_seconds(lambda x=x, y=y: collemu.matmul(x, y, accumulate="blackwell"))
        yield _row(f"blackwell, {name}", ours, blas)


def _row(name: str, ours: float, blas: float) -> Row:
    return Row(name, f"{FLOPS / ours / 1e9:.1f} GFLOP/s", "BLAS sgemm", blas / ours)
