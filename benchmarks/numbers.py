"""Quantisation beside ml_dtypes, and the distance to a memory copy."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from collemu_kernels import format_ids, images

from benchmarks.rows import Row, best_seconds
from collemu.number_formats import find_format

TITLE = "Numbers: float32 <-> low precision, 4 Mi elements, nearest even, saturating where it can"
ELEMENTS = 1 << 22
PEERS = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "bfloat16": ml_dtypes.bfloat16,
}


def run() -> Iterator[Row]:
    values = np.random.default_rng(0).standard_normal(ELEMENTS, np.float32)
    other = np.empty_like(values)
    copy = best_seconds(lambda: np.copyto(other, values))
    yield Row("copy of 16 MiB", f"{2 * values.nbytes / copy / 1e9:.1f} GB/s", "read and written: the limit")
    for name, peer in PEERS.items():
        number = find_format(name).format_id
        image = np.empty(int(images.image_bytes(ELEMENTS, number)), np.uint8)
        codes = values.astype(peer)
        ours = best_seconds(lambda n=number, i=image: images.encode_image(values, n, True, i))
        theirs = best_seconds(lambda p=peer: values.astype(p), 3)
        yield _row(f"float32 to {name}", ours, theirs, "ml_dtypes", copy)
        ours = best_seconds(lambda n=number, i=image: images.decode_image(i, n, other))
        theirs = best_seconds(lambda c=codes: c.astype(np.float32), 3)
        yield _row(f"{name} to float32", ours, theirs, "ml_dtypes", copy)
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        number = find_format(name).format_id
        image = np.empty(int(images.image_bytes(ELEMENTS, number)), np.uint8)
        ours = best_seconds(lambda n=number, i=image: images.encode_image(values, n, True, i))
        theirs = best_seconds(lambda: mx_by_ml_dtypes(values), 2) if name == "mxfp8_e4m3" else None
        yield _row(f"float32 to {name}", ours, theirs, "the usual NumPy and ml_dtypes recipe", copy)
        ours = best_seconds(lambda n=number, i=image: images.decode_image(i, n, other))
        yield _row(f"{name} to float32", ours, None, "", copy)
    yield hop(values)


def mx_by_ml_dtypes(values: np.ndarray) -> np.ndarray:
    """MXFP8 E4M3, floor scale, as one writes it with NumPy and ml_dtypes."""
    blocks = values.reshape(-1, 32)
    exponent = np.frexp(np.abs(blocks).max(axis=1, keepdims=True))[1] - 1 - 8
    scaled = np.clip(np.ldexp(blocks, -exponent), -448, 448)
    return scaled.astype(ml_dtypes.float8_e4m3fn)


def hop(values: np.ndarray) -> Row:
    """What a ring does to a chunk on every hop: decode, add the rank's own float32, encode."""
    number = format_ids.MXFP8_E4M3
    chunk = values[: 1 << 18]
    total = np.empty_like(chunk)
    image = np.empty(int(images.image_bytes(chunk.size, number)), np.uint8)
    images.encode_image(chunk, number, True, image)

    def once() -> None:
        images.decode_image(image, number, total)
        np.add(total, chunk, out=total)
        images.encode_image(total, number, True, image)

    seconds = best_seconds(once)
    rate = f"{image.nbytes / seconds / 1e9:.2f} GB/s of wire"
    return Row("mxfp8_e4m3 hop: decode, add, encode; 1 MiB of float32", rate)


def _row(what: str, ours: float, theirs: float | None, peer: str, copy: float) -> Row:
    rate = f"{ELEMENTS / ours / 1e9:.2f} G elements/s"
    limit = f"{copy / ours:.0%} of the copy's time"
    if theirs is None:
        return Row(what, rate, limit)
    return Row(what, rate, f"{peer} {ELEMENTS / theirs / 1e9:.2f} G/s; {limit}", theirs / ours)
