"""All 2**32 float32 numbers through every cast to 8 bits or fewer: python -m tests.exhaustive.

Beside ml_dtypes; and torch, where it is installed and has the cast; beside NumPy for integers.

Minutes a format, so pytest does not collect it; ``make test-exhaustive`` runs it. ``--every N`` looks at every N-th
stretch of 2**22 numbers only. Progress goes to stderr; exit 1 if a code differs.
"""

import argparse
import sys
import time
from importlib.util import find_spec

import ml_dtypes
import numpy as np

from collemu.number_formats import ELEMENT_FORMATS
from collemu.quantization import decode, encode

STRETCH = 1 << 22
STRETCHES = (1 << 32) // STRETCH
CASTS = [name for name, element in ELEMENT_FORMATS.items() if element.bits <= 8]


def wrong_codes(name: str, values: np.ndarray) -> np.ndarray:
    """Which of the numbers have a code that ml_dtypes, or NumPy for integers, does not give them, saturating or not."""
    if ELEMENT_FORMATS[name].exponent_bits == 0:
        values = values[~np.isnan(values)]
        largest = ELEMENT_FORMATS[name].max
        expected = np.clip(np.rint(values), -largest - 1, largest).astype(np.int8).view(np.uint8)
        return values[encode(values, name) != expected & np.uint8((1 << ELEMENT_FORMATS[name].bits) - 1)]
    element, dtype = ELEMENT_FORMATS[name], np.dtype(getattr(ml_dtypes, name))
    values = values[~np.isnan(values)] if not element.has_nan else values
    if not element.has_sign:
        # ml_dtypes rounds subnormal numbers wrongly, and its zero, overflow and saturation are not ours
        values = values[(values >= np.float32(2.0**-126)) & (values < np.float32(2.0**127))]
    with np.errstate(all="ignore"):
        plain = values.astype(dtype).view(np.uint8)
        saturated = plain
        if element.has_sign:
            limit = np.float32(element.max)
            saturated = np.clip(values, -limit, limit).astype(dtype).view(np.uint8)
    wrong = (encode(values, name, saturate=False) != plain) | (encode(values, name) != saturated)
    return values[wrong]


def torch_codes(name: str, values: np.ndarray) -> np.ndarray | None:
    """Codes of torch's cast, which saturates float8_e4m3fn alone; None without torch, or where it has none."""
    if find_spec("torch") is None:
        return None
    import torch

    dtype = getattr(torch, name, None)
    if dtype is None or not name.startswith("float8") or name == "float8_e8m0fnu":  # whose zero and sign are not ours
        return None
    return torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()


def differs_from_torch(name: str, values: np.ndarray) -> np.ndarray:
    """Which of the numbers have a code that torch does not give them; NaN is NaN, whatever its code."""
    theirs = torch_codes(name, values)
    if theirs is None:
        return values[:0]
    ours = encode(values, name, saturate=name == "float8_e4m3fn")
    nan = np.isnan(values) | (np.isnan(decode(ours, name)) & np.isnan(decode(theirs, name)))
    return values[(ours != theirs) & ~nan]


def main() -> int:
    """Check the casts that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(CASTS)} (default: all)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="look at every N-th stretch only")
    arguments = parser.parse_args()
    unknown = set(arguments.formats) - set(CASTS)
    if unknown or arguments.every < 1:
        parser.error(f"no cast to {', '.join(unknown)}" if unknown else "--every must be 1 or more")
    failed = False
    for name in arguments.formats or CASTS:
        start, wrong, checked = time.monotonic(), [], 0
        for stretch in range(0, STRETCHES, arguments.every):
            first = stretch * STRETCH
            values = np.arange(first, first + STRETCH, dtype=np.int64).astype(np.uint32).view(np.float32)
            wrong.extend(wrong_codes(name, values).tolist())
            wrong.extend(differs_from_torch(name, values).tolist())
            checked += STRETCH
            if stretch % 16 == 0:
                print(f"\r{name}: {stretch / STRETCHES:4.0%}", end="", file=sys.stderr, flush=True)
        print(f"\r{name}: {checked} numbers, {time.monotonic() - start:.0f} s", file=sys.stderr)
        beside = "ml_dtypes and torch" if torch_codes(name, np.zeros(1, np.float32)) is not None else "ml_dtypes"
        if ELEMENT_FORMATS[name].exponent_bits == 0:
            beside = "NumPy"
        print(f"{name}, beside {beside}: {len(wrong)} wrong of {checked}" + (f", such as {wrong[:5]}" if wrong else ""))
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
