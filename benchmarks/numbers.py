"""Quantisation beside ml_dtypes, torch and torchao, and beside a memory copy."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
from collemu_kernels import format_ids, images

import collemu
from benchmarks.peers import peer
from benchmarks.rows import Row, bar, best_seconds, race
from collemu.number_formats import find_format

TITLE = "Numbers, nearest even, saturating: 4 Mi elements in element formats, 256 Ki (a chunk) in block formats"
ELEMENTS = 1 << 22
CHUNK_ELEMENTS = 1 << 18  # also where torchao is at its best: its temporaries stay in the cache
ELEMENT_FORMATS = ("float8_e4m3fn", "float8_e5m2", "bfloat16")
BLOCK_FORMATS = ("mxfp8_e4m3", "mxfp4", "nvfp4")

# What is promised, as a multiple of the peer's speed: by what is measured, and the peer.
BARS = {
    ("float32 to float8_e4m3fn", "torch"): 1.2,
    ("float8_e4m3fn to float32", "torch"): 5,
    ("float32 to mxfp8_e4m3", "torchao"): 3,
    ("float32 to mxfp4", "torchao"): 10,
    ("float32 to nvfp4", "torchao"): 10,
}
HOP_BAR = 1.3  # GB/s of wire

Casts = tuple[Callable[[], object], Callable[[], object] | None]


def run() -> Iterator[Row]:
    values = np.random.default_rng(0).standard_normal(ELEMENTS, np.float32)
    other = np.empty_like(values)
    bandwidth = 2 * values.nbytes / best_seconds(lambda: np.copyto(other, values), seconds=0.3)
    yield Row("copy of 16 MiB", f"{bandwidth / 1e9:.1f} GB/s", "bytes read and written: the limit")
    for name in ELEMENT_FORMATS:
        yield from _casts(name, values, {"torch": torch_casts, "ml_dtypes": ml_dtypes_casts}, bandwidth)
    chunk = values[:CHUNK_ELEMENTS]
    for name in BLOCK_FORMATS:
        yield from _casts(name, chunk, {"torchao": torchao_casts, "NumPy and ml_dtypes": recipe_casts}, bandwidth)
    yield from hop(chunk, bandwidth)


def _casts(
    name: str, values: np.ndarray, peers: dict[str, Callable[[str, np.ndarray], Casts | None]], bandwidth: float
) -> Iterator[Row]:
    """To a format and back, beside each peer that has it."""
    number = find_format(name).format_id
    image = np.empty(int(images.image_bytes(values.size, number)), np.uint8)
    decoded = np.empty_like(values)

    def encode() -> None:
        images.encode_image(values, number, True, image)

    def decode() -> None:
        images.decode_image(image, number, decoded)

    rivals = {title: casts for title, make in peers.items() if (casts := make(name, values)) is not None}
    moved = values.nbytes + image.nbytes
    for way, (what, ours) in enumerate(((f"float32 to {name}", encode), (f"{name} to float32", decode))):
        timed = [(title, casts[way]) for title, casts in rivals.items()]
        timed = [(title, theirs) for title, theirs in timed if theirs is not None]
        for title, theirs in timed:
            seconds, peer_seconds = race(ours, theirs)
            ratio = peer_seconds / seconds
            yield Row(
                what,
                f"{values.size / seconds / 1e9:.2f} G elements/s",
                f"{title} {values.size / peer_seconds / 1e9:.2f} G/s",
                ratio,
                bar(ratio, BARS.get((what, title))),
                f"{moved / seconds / bandwidth:.0%}",
            )
        for title in sorted({title for key, title in BARS if key == what} - set(rivals)):
            yield Row(what, "not compared", f"{title} is absent", bar=bar(None, BARS[what, title]))
        if not timed:
            seconds = best_seconds(ours, seconds=0.3)
            rate = f"{values.size / seconds / 1e9:.2f} G elements/s"
            yield Row(what, rate, "no peer", limit=f"{moved / seconds / bandwidth:.0%}")


def ml_dtypes_casts(name: str, values: np.ndarray) -> Casts:
    """NumPy's casts to and from an ml_dtypes type."""
    codes = values.astype(getattr(ml_dtypes, name))
    back = np.empty_like(values)
    return lambda: np.copyto(codes, values, casting="unsafe"), lambda: np.copyto(back, codes)


def torch_casts(name: str, values: np.ndarray) -> Casts | None:
    """Casts of torch into tensors that are already there, as ours."""
    torch = peer("torch")
    if torch is None:
        return None
    numbers = torch.from_numpy(values)
    codes = numbers.to(getattr(torch, name))
    back = torch.empty_like(numbers)
    return lambda: codes.copy_(numbers), lambda: back.copy_(codes)


def torchao_casts(name: str, values: np.ndarray) -> Casts | None:
    """torchao's eager functions, floor scales; its nvfp4 with the tensor's scale, whose search is part of both."""
    torch = peer("torch")
    mx, nv = (peer(f"torchao.prototype.mx_formats.{module}") for module in ("mx_tensor", "nvfp4_tensor"))
    if torch is None or mx is None or nv is None:
        return None
    numbers = torch.from_numpy(values).reshape(-1, 4096)
    if name == "nvfp4":
        return lambda: nv.nvfp4_quantize(numbers, 16, nv.per_tensor_amax_to_scale(numbers.abs().max())), None
    element = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}[name]
    scales, codes = mx.to_mx(numbers, element, 32)
    return lambda: mx.to_mx(numbers, element, 32), lambda: mx.to_dtype(codes, scales, element, 32, torch.float32)


def recipe_casts(name: str, values: np.ndarray) -> Casts | None:
    """MXFP8 E4M3, floor scale, as one writes it with NumPy and ml_dtypes."""

    def encode() -> np.ndarray:
        blocks = values.reshape(-1, 32)
        exponent = np.frexp(np.abs(blocks).max(axis=1, keepdims=True))[1] - 1 - 8
        scaled = np.clip(np.ldexp(blocks, -exponent), -448, 448)
        return scaled.astype(ml_dtypes.float8_e4m3fn)

    return (encode, None) if name == "mxfp8_e4m3" else None


def hop(values: np.ndarray, bandwidth: float) -> Iterator[Row]:
    """What a ring does to a chunk on every hop, in the kernels; and `collemu.combine`, which decodes both sides.

    The rate is of one image: what a link must deliver, and takes away, to keep this thread busy.
    """
    number = format_ids.MXFP8_E4M3
    total = np.empty_like(values)
    image = np.empty(int(images.image_bytes(values.size, number)), np.uint8)
    images.encode_image(values, number, True, image)
    wire = image.tobytes()

    def once() -> None:
        images.decode_image(image, number, total)
        np.add(total, values, out=total)
        images.encode_image(total, number, True, image)

    for what, work, moved in (
        ("mxfp8_e4m3 hop in kernels: decode, add float32, encode", once, 2 * image.nbytes + values.nbytes),
        (
            "collemu.combine of two mxfp8_e4m3 images, 256 Ki elements",
            lambda: collemu.combine(wire, wire, "mxfp8_e4m3"),
            3 * image.nbytes,
        ),
    ):
        seconds = best_seconds(work, seconds=1.0)
        rate = image.nbytes / seconds / 1e9
        yield Row(
            what,
            f"{rate:.2f} GB/s of wire",
            bar=bar(rate, HOP_BAR, " GB/s"),
            limit=f"{moved / seconds / bandwidth:.0%}",
        )
