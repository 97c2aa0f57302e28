"""What published recipes do to a two_shot all_reduce, and to two hops, in plain NumPy.

Written from what the systems' sources say, not from the package: QuickReduce in NumPy's own float16 arithmetic,
ZeRO++'s quantiser in float32, NCCL's FP8 sums through ml_dtypes.
"""

import ml_dtypes
import numpy as np

F16 = np.float16
LARGEST = F16(65504)


def clamped(x: np.ndarray) -> np.ndarray:
    """Float16 with overflow to the largest number, as the units are set."""
    with np.errstate(over="ignore"):
        return np.clip(np.asarray(x).astype(F16), -LARGEST, LARGEST)


INTEGER = {"int8": (8, F16(-1 / 128)), "int6": (6, F16(-1 / 32)), "int4": (4, F16(-1 / 8))}
FLOAT = {"fp8": (ml_dtypes.float8_e4m3fnuz, F16(1 / 240)), "fp4": (ml_dtypes.float4_e2m1fn, F16(1 / 6))}


def quickreduce_lane(x: np.ndarray, kind: str) -> np.ndarray:
    """One lane of up to 32 float16 numbers, encoded and decoded."""
    if not len(x):
        return x
    with np.errstate(all="ignore"):
        most, least = x.max(initial=F16(0)), x.min(initial=F16(0))
        largest = most if abs(most) > abs(least) else least
        factor = INTEGER[kind][1] if kind in INTEGER else FLOAT[kind][1]
        scale = clamped(largest * factor)
        step = clamped(scale + F16(2**-24))
        reciprocal = clamped(F16(1) / step) if step else F16(np.inf)
        product = x * reciprocal
        if kind in INTEGER:
            half = F16(1 << (INTEGER[kind][0] - 1))
            product = np.where(np.isnan(product), -half, product)
            code = np.rint(np.clip(product, -half, half - F16(1)).astype(np.float32)).astype(F16)
        else:
            element = FLOAT[kind][0]
            top = F16(float(ml_dtypes.finfo(element).max))
            product = np.where(np.isnan(product), F16(0), product)
            code = np.clip(product, -top, top).astype(np.float32).astype(element).astype(np.float32).astype(F16)
        return clamped(code * scale)


def quickreduce(x: np.ndarray, kind: str) -> np.ndarray:
    """A chunk of float32 numbers as it arrives: blocks of 64, even and odd elements apart."""
    out = np.empty(len(x), F16)
    halves = clamped(x)
    for start in range(0, len(x), 64):
        for lane in range(2):
            out[start + lane : start + 64 : 2] = quickreduce_lane(halves[start + lane : start + 64 : 2], kind)
    return out


def quickreduce_two_shot(data: np.ndarray, kind: str) -> np.ndarray:
    """Outputs of all ranks: the chunks of every rank, its own too, are encoded, added in float16, and encoded again."""
    parts = []
    for owner, chunk in enumerate(np.array_split(np.arange(data.shape[1]), len(data))):
        del owner
        total = quickreduce(data[0, chunk], kind)
        for rank in range(1, len(data)):
            with np.errstate(over="ignore"):
                total = clamped(total + quickreduce(data[rank, chunk], kind))
        parts.append(quickreduce(total.astype(np.float32), kind))
    return np.concatenate(parts).astype(np.float32)


def zeropp(x: np.ndarray, bits: int = 4, group: int = 2048) -> np.ndarray:
    """ZeRO++'s symmetric quantiser: the range over twice the largest magnitude, clipped to two's complement."""
    out = np.empty(len(x), np.float32)
    for start in range(0, len(x), group):
        part = x[start : start + group].astype(np.float32)
        largest = np.abs(part).max()
        factor = np.float32(1 << bits) / (np.float32(2) * largest) if largest else np.float32(1)
        code = np.clip(np.rint(part * factor), -(1 << (bits - 1)), (1 << (bits - 1)) - 1).astype(np.float32)
        out[start : start + group] = code * (np.float32(1) / factor)
    return out


def nccl_fp8_ring(data: np.ndarray) -> np.ndarray:
    """A ring all_reduce of FP8 numbers: each hop adds in float16 and rounds to FP8, saturating."""
    fp8 = ml_dtypes.float8_e4m3fn

    def narrow(x: np.ndarray) -> np.ndarray:
        return np.clip(x.astype(np.float32), -448, 448).astype(fp8)

    ranks = len(data)
    given = narrow(data)
    parts = []
    for block, chunk in enumerate(np.array_split(np.arange(data.shape[1]), ranks)):
        order = [(block + 1 + hop) % ranks for hop in range(ranks)]  # its owner adds last
        total = given[order[0], chunk]
        for rank in order[1:]:
            total = narrow(given[rank, chunk].astype(F16) + total.astype(F16))
        parts.append(total)
    return np.concatenate(parts).astype(np.float32)
