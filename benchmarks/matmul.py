"""Matrix products with specified rounding beside float32 BLAS and mmaemu, in one process, on one thread."""

from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

import collemu
from benchmarks.one_thread import blas_kernel
from benchmarks.peers import peer
from benchmarks.rows import Row, bar, best_seconds, race

TITLE = "Matrix products, 1024 x 1024 x 1024; the limit is NumPy's float32 BLAS, which promises no order of sums"
SIZE = 1024
FLOPS = 2 * SIZE**3
FLOAT32_BAR = 0.35  # of BLAS
MXFP4_BAR = 20  # GFLOP/s
MMAEMU_BAR = 5  # times mmaemu's speed
MMAEMU_SIZE = 512  # mmaemu takes seconds for more
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
        mine, blas = race(lambda: collemu.matmul(a, b), lambda: a @ b)
    yield Row("BLAS sgemm", f"{FLOPS / blas / 1e9:.1f} GFLOP/s", f"{blas_kernel()}: the limit")
    yield _row("float32, rounded product and sum, k ascending", mine, blas, bar(blas / mine, FLOAT32_BAR, " of BLAS"))
    for left, right in PAIRS:
        x, y = collemu.quantize(a, left), collemu.quantize(b, right, axis=0)
        ours = best_seconds(lambda x=x, y=y: collemu.matmul(x, y, accumulate="block_exact"))
        promise = bar(FLOPS / ours / 1e9, MXFP4_BAR, " GFLOP/s") if left == right == "mxfp4" else ""
        yield _row(f"block_exact, {left} x {right}", ours, blas, promise)
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
    yield beside_mmaemu(a[:MMAEMU_SIZE, :MMAEMU_SIZE], b[:MMAEMU_SIZE, :MMAEMU_SIZE])


def beside_mmaemu(a: np.ndarray, b: np.ndarray) -> Row:
    """The bits of an H100's FP8 product: the float32 accumulators, no split of K, fast accumulation."""
    what = f"hopper, float8_e4m3fn, {MMAEMU_SIZE} x {MMAEMU_SIZE} x {MMAEMU_SIZE}"
    torch, mmaemu = peer("torch"), peer("mmaemu")
    if torch is None or mmaemu is None:
        return Row(what, "not compared", "mmaemu is absent", bar=bar(None, MMAEMU_BAR))
    name = "float8_e4m3fn"
    x, y = collemu.encode(a, name), collemu.encode(b, name)
    left, right = (torch.from_numpy(codes).view(torch.float8_e4m3fn) for codes in (x, np.ascontiguousarray(y.T)))
    results: dict[str, np.ndarray] = {}

    def ours() -> None:
        results["ours"] = collemu.matmul(x, y, accumulate="hopper", a_format=name, b_format=name)

    def theirs() -> None:
        results["theirs"] = mmaemu.accumulate(left, right, use_fast_accum=True, splitk=1).numpy()

    seconds, peer_seconds = race(ours, theirs)
    flops = 2 * MMAEMU_SIZE**3
    same = np.array_equal(results["ours"].view(np.uint32), results["theirs"].view(np.uint32))
    return Row(
        what,
        f"{flops / seconds / 1e9:.1f} GFLOP/s",
        f"mmaemu {flops / peer_seconds / 1e9:.2f} GFLOP/s, {'the same bits' if same else 'OTHER BITS'}",
        peer_seconds / seconds,
        bar(peer_seconds / seconds, MMAEMU_BAR),
    )


def _row(name: str, ours: float, blas: float, promise: str = "") -> Row:
    return Row(name, f"{FLOPS / ours / 1e9:.1f} GFLOP/s", bar=promise, limit=f"{blas / ours:.0%}")
