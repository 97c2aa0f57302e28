"""Contributions with everything that breaks number code: zeros of both signs, subnormals, ties, huge values."""

import numpy as np

TIES = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 1.0625, 1.1875, 232.0, 464.0, 65520.0])
EDGES = np.float32([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 2.0**-9, 2.0**-10, 448.0, 449.0, 57344.0, 61440.0, 65504.0])
HUGE = np.float32([3.0e38, -3.4e38, 1.7e38])
NOT_FINITE = np.float32([np.inf, -np.inf, np.nan])


def hard_numbers(seed: int, shape: tuple[int, int], kind: str = "mixed") -> np.ndarray:
    """Float32 numbers: ``plain`` (normal), ``wide`` (all magnitudes), ``mixed`` (with edges), ``not_finite``."""
    random = np.random.default_rng(seed)
    plain = random.standard_normal(shape, np.float32)
    if kind == "plain":
        return plain
    wide = plain * np.ldexp(np.float32(1), random.integers(-20, 18, shape)).astype(np.float32)
    if kind == "wide":
        return wide
    special = np.concatenate([TIES, EDGES, -TIES, -EDGES, HUGE] + [NOT_FINITE] * (kind == "not_finite"))
    share = 0.15 if kind == "mixed" else 0.05
    values = np.where(random.random(shape) < share, random.choice(special, shape), wide)
    zeros = random.random(shape[0]) < 0.1
    values[zeros] = 0
    return values.astype(np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two float32 or float64 arrays hold the same bits, any NaN being as good as any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan = np.isnan(a)
    bits = f"u{a.dtype.itemsize}"
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view(bits)[~nan], b.view(bits)[~nan]))
