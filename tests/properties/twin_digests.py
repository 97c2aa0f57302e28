"""Small runs of everything that has a kernel, one of each part a seed, as hashes: twins of a run must agree on them.

``python -m tests.properties.twin_digests 0 1 2`` prints them as JSON. What a case is depends on its seed alone, so
a process without Numba and one with it, or two threads, work on the same cases.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import collemu as ce
from collemu.accumulation import MODELS, FusedDot
from collemu.collectives import ROOTED
from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS
from collemu.payload import OPERATORS
from collemu.quantization import ROUNDINGS
from collemu.recipe import ACCUMULATE
from tests.built_in import BUILT_IN
from tests.oracles.hard_numbers import hard_numbers
from tests.oracles.random_processes import built_in

KINDS = ("plain", "wide", "mixed", "not_finite", "bits")
LENGTHS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 127, 129, 130)
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e3m4")
INTEGERS = ("int8", "uint8", "int32", "int64")
WIRES = [name for name in (*ELEMENT_FORMATS, *BLOCK_FORMATS) if name != "float8_e8m0fnu"]
OUT_DTYPES = ("float32", "float32", "float16", "bfloat16", "float8_e5m2")
SYSTEM = ce.load_system("trainium4_nvl72")

Random = np.random.Generator
Case = tuple[str, list[Any]]  # what was run, and what came out


def pick(random: Random, choices: Any) -> Any:
    """One of the choices, as it is: NumPy would make it a scalar of its own."""
    choices = list(choices)
    return choices[int(random.integers(len(choices)))]


def numbers(random: Random, shape: tuple[int, int], kinds: tuple[str, ...] = KINDS) -> NDArray[np.float32]:
    """Float32 numbers of a kind of `hard_numbers`, or any bits at all."""
    kind = pick(random, kinds)
    if kind == "bits":
        return random.integers(0, 2**32, shape, np.uint32).view(np.float32)
    return hard_numbers(int(random.integers(2**32)), shape, kind)


def elements(random: Random, scale: int) -> Case:
    """Numbers to codes and back."""
    name, rounding = pick(random, ELEMENT_FORMATS), pick(random, ROUNDINGS)
    how = {
        "rounding": "nearest_even" if name == "float8_e8m0fnu" and rounding.startswith("stochastic") else rounding,
        "saturate": pick(random, (True, False)),
        "nan": pick(random, ("propagate", "propagate", "zero")) if name != "float8_e8m0fnu" else "propagate",
        "seed": int(random.integers(2**32)),
    }
    if not ELEMENT_FORMATS[name].has_nan:
        how["nan"] = "zero"
    x = numbers(random, (3, pick(random, LENGTHS) * scale**2))
    codes = ce.encode(x, name, **how)
    return f"encode(x{x.shape}, {name}, {how})", [codes, ce.decode(codes, name)]


def blocks(random: Random, scale: int) -> Case:
    """Numbers to blocks, to a wire image, and back."""
    name = pick(random, BLOCK_FORMATS)
    block = BLOCK_FORMATS[name]
    how = {
        "scale_mode": pick(random, block.scale_modes),
        "rounding": pick(random, ROUNDINGS),
        "saturate": pick(random, (True, False)),
        "nan": pick(random, ("propagate", "zero")),
        "order": pick(random, ("low_first", "high_first")) if block.element.bits == 4 else "low_first",
        "axis": pick(random, (-1, 0)),
        "square": pick(random, (False, False, True)) if name != "fp8_row" else False,
        "seed": int(random.integers(2**32)),
    }
    how["square"] &= how["scale_mode"] != "asymmetric"
    x = numbers(random, (pick(random, (1, 3, 17)), pick(random, LENGTHS) * scale**2))
    q = ce.quantize(x, name, **how)
    image = q.to_bytes()
    back = ce.Quantized.from_bytes(image, name, q.shape, axis=q.axis, order=q.order)
    return f"quantize(x{x.shape}, {name}, {how})", [image, q.dequantize(), q.element_codes(), back.dequantize()]


def image_of(x: NDArray[np.float32], name: str) -> bytes:
    """Wire image of numbers in a block format, or in an element format of whole bytes."""
    if name in BLOCK_FORMATS:
        return ce.quantize(x, name).to_bytes()
    return ce.encode(x, name, nan="propagate" if ELEMENT_FORMATS[name].has_nan else "zero").tobytes()


def combining(random: Random, scale: int) -> Case:
    """Two wire images to one."""
    name, op = pick(random, (*ELEMENT_FORMATS, *BLOCK_FORMATS)), pick(random, OPERATORS)
    size = pick(random, LENGTHS) * scale**2
    if name in ELEMENT_FORMATS and ELEMENT_FORMATS[name].bits < 8:  # any bytes are codes
        a, b = random.bytes(3 * size), random.bytes(3 * size)
    else:
        a, b = (image_of(numbers(random, (1, size)).reshape(-1), name) for _ in range(2))
    accumulate = pick(random, ACCUMULATE)
    combined = ce.combine(a, b, name, op=op, accumulate=accumulate)
    return f"combine(a, b, {name}, op={op}, accumulate={accumulate}), {len(a)} bytes", [a, b, combined]


def codes(random: Random, shape: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """Any codes of an element format, or codes of small finite numbers."""
    bits = ELEMENT_FORMATS[name].bits
    mask = pick(random, (0xFF, 0x3B))
    return (random.integers(0, 1 << bits, shape) & mask & ((1 << bits) - 1)).astype(np.uint8)


def products(random: Random, scale: int) -> Case:
    """A small matrix product of plain numbers, codes or blocks, as its model allows."""
    model = MODELS[pick(random, MODELS)]
    m, k, n = (int(random.integers(1, top)) for top in (5 * scale, 70 * scale, 7 * scale))
    how: dict[str, Any] = {
        "accumulate": model.name,
        "out_dtype": pick(random, OUT_DTYPES),
        "promote_every": pick(random, (None, 32, 64)),
    }
    in_blocks = model.name == "block_exact" or pick(random, (False, True))
    if isinstance(model, FusedDot) and not (in_blocks and model.blocks):
        names = [pick(random, model.elements) for _ in range(2)]
        a, b = codes(random, (m, k), names[0]), codes(random, (k, n), names[1])
        how |= {"a_format": names[0], "b_format": names[1]}
        what = "codes"
    elif in_blocks:
        left = pick(random, _mx() if isinstance(model, FusedDot) else BLOCK_FORMATS)
        right = pick(random, [name for name in BLOCK_FORMATS if _same_blocks(name, left, model)])
        if BLOCK_FORMATS[left].block == 128:
            how["promote_every"] = pick(random, (None, 128))
        elif BLOCK_FORMATS[left].block > 128:
            how["promote_every"] = None
        x, y = numbers(random, (m, k)), numbers(random, (k, n))
        a, b = ce.quantize(x, left, nan="zero"), ce.quantize(y, right, nan="zero", axis=0)
        what = f"{left}, {right}"
    else:
        a, b = numbers(random, (m, k)), numbers(random, (k, n))
        what = "numbers"
    c = numbers(random, (m, n)) if pick(random, (True, False)) else None
    described = f"matmul({m} x {k} x {n} of {what}, c={'numbers' if c is not None else None}, {how})"
    return described, [ce.matmul(a, b, c, **how)]


def _mx() -> list[str]:
    return [name for name in BLOCK_FORMATS if _blackwell(name)]


def _blackwell(name: str) -> bool:
    block = BLOCK_FORMATS[name]
    return block.scale.bits == 8 and block.element.exponent_bits > 0


def _same_blocks(name: str, other: str, model: Any) -> bool:
    first, second = BLOCK_FORMATS[name], BLOCK_FORMATS[other]
    if isinstance(model, FusedDot):
        return _blackwell(name) and first.scale == second.scale
    return first.block == second.block


def collectives(random: Random, scale: int) -> Case:
    """A collective with data, its bytes and its times."""
    collective, algorithm = pick(random, BUILT_IN)
    ranks = int(random.integers(3, 6))
    root = int(random.integers(ranks)) if collective in ROOTED else 0
    channels, chunks = pick(random, ((1, None), (1, None), (2, None), (1, 2)))
    schedule = ce.build_schedule(collective, algorithm, ranks, root=root, channels=channels, chunks=chunks)
    wire = pick(random, (None, *WIRES))
    dtype = pick(random, (*FLOATS, *INTEGERS) if wire is None else [name for name in FLOATS if name != "float64"])
    count = int(random.integers(0, 40 * scale))
    shape = (ranks, schedule.input_regions * count)
    has_nan = wire not in ELEMENT_FORMATS or ELEMENT_FORMATS[wire].has_nan
    kinds = KINDS if has_nan else ("plain", "wide")
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        data: Any = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    else:
        data = numbers(random, shape, kinds)
    accumulate = pick(random, ACCUMULATE) if dtype not in ("float64", *INTEGERS) and has_nan else "float32"
    how = {
        "dtype": dtype,
        "op": pick(random, OPERATORS) if has_nan else pick(random, ("sum", "avg", "min", "max")),
        "recipe": ce.Recipe(wire or "none", accumulate, round_own=pick(random, (True, False))),
        "protocol": pick(random, ("auto", *SYSTEM.protocols)),
        "fidelity": pick(random, ("packet", "flow")),
    }
    if not has_nan and dtype == "float16":  # whose sums of wide numbers may be infinity minus infinity
        how["dtype"] = "float32"
    result = ce.emulate(schedule, SYSTEM, count=count, data=data, **how)
    lanes = f"ranks={ranks}, root={root}, channels={channels}, chunks={chunks}, count={count}"
    timeline, links = result.timeline, result.links
    books = [result.time_fs, result.time_s, result.wire_bytes, result.replicas_identical, result.bounds.total_fs]
    tables = [timeline.operations, timeline.messages, links.up_bytes, links.down_bytes, links.up_busy_s]
    return f"emulate({collective}, {algorithm}, {lanes}, {how})", [result.outputs, *books, *tables]


def processes(random: Random, scale: int) -> Case:
    """Times of processes of one machine; scale changes nothing."""
    case = built_in(int(random.integers(2**32)))
    result = case.emulate()
    what = f"{case.schedule}, count={case.count}, wire={case.wire}, {case.system.processes}"
    return what, [result.time_fs, result.timeline.operations, result.timeline.messages]


PARTS: dict[str, Callable[[Random, int], Case]] = {
    "elements": elements,
    "blocks": blocks,
    "combining": combining,
    "products": products,
    "collectives": collectives,
    "processes": processes,
}


def hashed(results: list[Any]) -> str:
    """Hash of results; the bits of a NaN among floats are nobody's promise."""
    total = hashlib.sha256()
    for result in results:
        if isinstance(result, np.ndarray):
            if result.dtype.kind == "f":
                result = np.where(np.isnan(result), result.dtype.type(np.nan), result)  # noqa: PLW2901
            total.update(f"{result.dtype} {result.shape}".encode())
            total.update(np.ascontiguousarray(result).tobytes())
        else:
            total.update(result if isinstance(result, bytes) else repr(result).encode())
    return total.hexdigest()


def digest(part: str, seed: int, scale: int = 1) -> str:
    """What ran and the hash of what came out; ``scale`` makes the case larger."""
    with np.errstate(all="ignore"):
        case, results = PARTS[part](np.random.default_rng([seed, list(PARTS).index(part)]), scale)
    return f"{case} -> {hashed(results)}"


if __name__ == "__main__":
    print(json.dumps([digest(part, int(seed)) for part in PARTS for seed in sys.argv[1:]]))
