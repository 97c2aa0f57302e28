"""Runs a schedule in plain NumPy and ml_dtypes: what every rank holds afterwards, and what it sent.

Written from the rules, not from the package; it shares only the schedule's tables and the numbers of the kinds.

- A wire format set: memory is float32. What travels is rounded to the wire format; a chunk that came from a
  message, or was published, remembers what travelled, and is sent on as it is.
- No wire format: the dtype travels; floats below 32 bits are added in float32 and rounded at every addition.
- Publishing: the destination keeps what travels (always for PUBLISH_FINAL, for PUBLISH_OWN if the recipe
  rounds own terms).
- An average divides the contributions where a sum could overflow (floats of at most 16 bits, unscaled wire
  formats, a narrow accumulate type), else the sum; integers truncate toward zero.
- A narrow accumulate type: both terms of every addition are rounded to it, and their sum.
"""

from collections import deque
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from collemu_kernels import kinds

from tests.oracles.schedule_interpreter import READS, WRITES, StuckError

MX = {
    "mxfp8_e4m3": ("float8_e4m3fn", 8),
    "mxfp8_e5m2": ("float8_e5m2", 15),
    "mxfp6_e2m3": ("float6_e2m3fn", 2),
    "mxfp6_e3m2": ("float6_e3m2fn", 4),
    "mxfp4": ("float4_e2m1fn", 2),
    "mxint8": ("int8 / 64", 0),
}
# bits of a code, elements that share a float32 scale (None: all), largest element
FLOAT32_SCALED = {
    "fp8_block128": (8, 128, 448),
    "fp8_row": (8, None, 448),
    "int8_block32": (8, 32, 127),
    "int4_block32": (4, 32, 7),
}
FLT_MAX = np.finfo(np.float32).max


def numpy_type(name: str) -> np.dtype:
    """The NumPy or ml_dtypes type of that name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def narrow(dtype: np.dtype) -> bool:
    """Whether a dtype is a float that is added in float32."""
    return dtype.kind not in "iu" and dtype.itemsize <= 2


def rounded(values: np.ndarray, dtype: np.dtype, saturate: bool) -> np.ndarray:
    """Numbers as the nearest of a float type; saturating, whatever lies beyond becomes the largest, infinity too."""
    with np.errstate(all="ignore"):
        if saturate:
            largest = np.float32(ml_dtypes.finfo(dtype).max)
            values = np.clip(values, -largest, largest)
        return values.astype(dtype)


def sum_up(operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two contributions as one, in their type; minimum and maximum propagate NaN and put -0 below +0."""
    with np.errstate(all="ignore"):
        if operator in ("sum", "avg"):
            return a + b
        if operator == "prod":
            return a * b
        best = np.minimum(a, b) if operator == "min" else np.maximum(a, b)
        if a.dtype.kind in "iu":
            return best
        negative = np.signbit(a) | np.signbit(b) if operator == "min" else np.signbit(a) & np.signbit(b)
        zero = np.where(negative, a.dtype.type(-0.0), a.dtype.type(0.0))
        return np.where((a == 0) & (b == 0), zero, best)


def image_bytes(n: int, wire: str) -> int:
    """Bytes of the wire image of n elements."""
    if n == 0:
        return 0
    if wire in MX:
        bits = 4 if wire == "mxfp4" else 6 if wire.startswith("mxfp6") else 8
        return -(-n * bits // 8) + -(-n // 32)
    if wire in FLOAT32_SCALED:
        bits, size, _ = FLOAT32_SCALED[wire]
        return -(-n * bits // 8) + 4 * -(-n // (size or n))
    if wire == "nvfp4":
        return -(-n // 2) + -(-n // 16) + 4
    if wire.startswith("float6"):
        return -(-6 * n // 8)
    if wire in ("float4_e2m1fn", "int4"):
        return -(-n // 2)
    return 4 * n if wire == "tfloat32" else n * numpy_type(wire).itemsize


def round_trip(values: np.ndarray, wire: str) -> np.ndarray:
    """Float32 numbers as they arrive: encoded to a wire format, blocks from the first element, and decoded."""
    if not len(values):
        return values
    if wire in MX:
        return _mx(values, *MX[wire])
    if wire in FLOAT32_SCALED:
        return _float32_scaled(values, wire)
    if wire == "nvfp4":
        return _nvfp4(values)
    if wire in ("int8", "int4"):
        top = 127 if wire == "int8" else 7
        return np.clip(np.rint(values), -top - 1, top) + np.float32(0)
    if wire == "tfloat32":
        return tfloat32(values)
    return rounded(values, numpy_type(wire), saturate=True).astype(np.float32)


def tfloat32(values: np.ndarray) -> np.ndarray:
    """Numbers with 11 significant bits, of float32's range."""
    largest = (2 - 2.0**-10) * 2.0**127
    wide = np.clip(values.astype(np.float64), -largest, largest)
    step = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 11, -136))
    return np.clip(np.rint(wide / step) * step, -largest, largest).astype(np.float32)


def _blocks(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a block each, zeros after the end; which have a NaN or an infinity; the largest magnitudes."""
    rows = np.zeros((-(-len(values) // size), size), np.float32)
    rows.reshape(-1)[: len(values)] = values
    spoilt = ~np.isfinite(rows).all(axis=1)
    largest = np.abs(np.where(spoilt[:, None], np.float32(0), rows)).max(axis=1)
    return rows, spoilt, largest


def _mx(values: np.ndarray, element: str, largest_exponent: int) -> np.ndarray:
    rows, spoilt, largest = _blocks(values, 32)
    exponent = np.clip(np.frexp(largest)[1] - 1 - largest_exponent, -127, 127)
    exponent[largest == 0] = -127
    scale = np.ldexp(1.0, exponent)[:, None]
    with np.errstate(all="ignore"):
        scaled = (rows / scale).astype(np.float32)
        if element == "int8 / 64":
            number = np.clip(np.rint(scaled * np.float32(64)), -127, 127) / np.float32(64) + np.float32(0)
        else:
            number = rounded(scaled, numpy_type(element), saturate=True)
        out = (number.astype(np.float64) * scale).astype(np.float32)
    out[spoilt] = np.nan
    return out.reshape(-1)[: len(values)]


def _float32_scaled(values: np.ndarray, wire: str) -> np.ndarray:
    """Float32 arithmetic: FP8 by TransformerEngine's factor, integers by the largest magnitude; these have no -0."""
    _, size, top = FLOAT32_SCALED[wire]
    rows, spoilt, largest = _blocks(values, size or len(values))
    one, top = np.float32(1), np.float32(top)
    with np.errstate(all="ignore"):
        if wire.startswith("int"):
            scale = np.maximum(largest / top, np.float32(2.0**-126))
            factor = one / scale
        else:
            factor = np.minimum(top / largest, FLT_MAX)
            factor[largest == 0] = 1
            scale = one / factor
        scaled = rows * factor[:, None]
        if wire.startswith("int"):
            out = (np.clip(np.rint(scaled), -top, top) + np.float32(0)) * scale[:, None]
        else:
            out = rounded(scaled, numpy_type("float8_e4m3fn"), saturate=True).astype(np.float32) * scale[:, None]
    out[spoilt] = np.nan
    return out.reshape(-1)[: len(values)]


def _nvfp4(values: np.ndarray) -> np.ndarray:
    """TransformerEngine's arithmetic, in float32: a scale for all, an E4M3 scale for each 16; -0 becomes +0."""
    one, six = np.float32(1), np.float32(6)
    e4m3, e2m1 = numpy_type("float8_e4m3fn"), numpy_type("float4_e2m1fn")
    rows, spoilt, largest = _blocks(values, 16)
    with np.errstate(all="ignore"):
        encode = min(np.float32(448 * 6) / largest.max(), FLT_MAX) if largest.max() > 0 else one
        decode = one / encode
        scale = rounded(largest * (encode * (one / six)), e4m3, saturate=True).astype(np.float32)
        factor = np.minimum(one / (scale * decode), FLT_MAX)[:, None]
        code = rounded(np.clip(rows * factor + np.float32(0), -six, six), e2m1, saturate=True).astype(np.float32)
        out = code * scale[:, None] * decode
    out[spoilt] = np.nan
    return out.reshape(-1)[: len(values)]


@dataclass
class Chunk:
    """What a rank holds of a chunk, and, if it is known, what of it has travelled or will."""

    values: np.ndarray
    travelled: np.ndarray | None = None


@dataclass(frozen=True)
class Numbers:
    """How numbers are held, added and sent."""

    dtype: np.dtype
    wire: str
    operator: str
    round_own: bool
    accumulate: str = "float32"

    @property
    def quantised(self) -> bool:
        return self.wire != "none"

    @property
    def held(self) -> np.dtype:
        return np.dtype(np.float32) if self.quantised else self.dtype

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not narrow(self.held) and self.accumulate == "float32":
            return sum_up(self.operator, a, b)
        kind = numpy_type(self.accumulate)
        with np.errstate(all="ignore"):
            total = sum_up(self.operator, a.astype(kind), b.astype(kind)).astype(np.float32)
        if not narrow(self.held):
            return total
        return rounded(total, self.held, saturate=self.held.itemsize == 1)

    def sent(self, chunk: Chunk) -> np.ndarray:
        if not self.quantised:
            return chunk.values
        return round_trip(chunk.values, self.wire) if chunk.travelled is None else chunk.travelled

    def nbytes(self, n: int) -> int:
        return image_bytes(n, self.wire) if self.quantised else n * self.dtype.itemsize

    def published(self, chunk: Chunk, publish: int) -> Chunk:
        if not self.quantised or publish == kinds.KEEP:
            return chunk
        if publish == kinds.PUBLISH_OWN and not self.round_own:
            return chunk
        return Chunk(self.sent(chunk), self.sent(chunk))

    def divides_first(self) -> bool:
        unscaled = self.quantised and self.wire not in MX and self.wire != "nvfp4"
        return self.operator == "avg" and (narrow(self.dtype) or unscaled or self.accumulate != "float32")

    def divided(self, values: np.ndarray, ranks: int) -> np.ndarray:
        if values.dtype.kind in "iu":
            return np.array([int(v) // ranks if v >= 0 else -(-int(v) // ranks) for v in values], values.dtype)
        if narrow(values.dtype):
            quotient = values.astype(np.float32) / np.float32(ranks)
            return rounded(quotient, values.dtype, saturate=values.dtype.itemsize == 1)
        return values / values.dtype.type(ranks)

    def inside(self, row: np.ndarray, ranks: int) -> np.ndarray:
        """A contribution as memory holds it."""
        values = row.astype(self.held)
        return self.divided(values, ranks) if self.divides_first() else values

    def outside(self, values: np.ndarray, ranks: int) -> np.ndarray:
        """What memory holds in the end, in the dtype."""
        if self.operator == "avg" and not self.divides_first():
            values = self.divided(values, ranks)
        if values.dtype == self.dtype:
            return values
        return rounded(values, self.dtype, saturate=self.dtype.itemsize == 1)


def interpret(schedule, data, count, *, dtype="float32", wire="none", op="sum", round_own=True, accumulate="float32"):
    """Outputs of all ranks (arrays of the dtype) and bytes that each sent, for ``data[rank]`` in the dtype."""
    numbers = Numbers(numpy_type(dtype), wire, op if _reduces(schedule) else "sum", round_own, accumulate)
    memories = []
    for row in data:
        outputs = np.zeros(count * schedule.output_regions, numbers.held)
        given = numbers.inside(row, schedule.ranks)
        memories.append(
            [_cut(schedule, given, count), _cut(schedule, outputs, count), [None] * schedule.scratch_chunks]
        )
    threads, ops = schedule.threads, schedule.ops
    done = np.zeros(len(ops), bool)
    cursors = [int(first) for first in threads["first"]]
    fifos: dict[tuple[int, int, int], deque] = {}
    sent_bytes = [0] * schedule.ranks
    progress = True
    while progress:
        progress = False
        for number, thread in enumerate(threads):
            while cursors[number] < thread["first"] + thread["length"]:
                op_ = ops[cursors[number]]
                rank, kind, size = int(thread["rank"]), int(op_["kind"]), int(op_["count"])
                coming = fifos.setdefault((int(thread["recv_peer"]), rank, int(thread["channel"])), deque())
                if (op_["dep"] >= 0 and not done[op_["dep"]]) or ("I" in READS[kind] and not coming):
                    break
                source = memories[rank][op_["src_buffer"]][op_["src"] : op_["src"] + size]
                target, at = memories[rank][op_["dst_buffer"]], int(op_["dst"])
                operands = {"S": source, "D": target[at : at + size]}
                if "I" in READS[kind]:
                    operands["I"] = [Chunk(part, part) for part in coming.popleft()]
                results = []
                for parts in zip(*(operands[what] for what in READS[kind]), strict=True):
                    result = parts[0]
                    for part in parts[1:]:
                        result = Chunk(numbers.add(result.values, part.values))
                    results.append(numbers.published(result, op_["publish"]))
                if "D" in WRITES[kind]:
                    target[at : at + size] = results
                if "O" in WRITES[kind]:
                    message = [numbers.sent(chunk) for chunk in results]
                    going = (rank, int(thread["send_peer"]), int(thread["channel"]))
                    fifos.setdefault(going, deque()).append(message)
                    sent_bytes[rank] += sum(numbers.nbytes(len(part)) for part in message)
                done[cursors[number]] = True
                cursors[number] += 1
                progress = True
    if not done.all() or any(fifos.values()):
        raise StuckError
    return [
        numbers.outside(_join(memory[kinds.OUTPUT], numbers.held), schedule.ranks) for memory in memories
    ], sent_bytes


def _reduces(schedule) -> bool:
    return schedule.collective in ("all_reduce", "reduce", "reduce_scatter")


def _cut(schedule, values: np.ndarray, count: int) -> list[Chunk]:
    k = schedule.region_chunks
    sizes = [count // k + (chunk < count % k) for chunk in range(k)]
    regions = values.reshape(-1, count) if count else [values] * max(1, schedule.ranks)
    return [Chunk(part) for region in regions for part in np.split(region, np.cumsum(sizes)[:-1])]


def _join(chunks: list[Chunk], dtype: np.dtype) -> np.ndarray:
    return np.concatenate([chunk.values for chunk in chunks]) if chunks else np.zeros(0, dtype)
