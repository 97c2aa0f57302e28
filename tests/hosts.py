"""A machine of processes, as if it had been measured."""

from typing import Any

from collemu.dtypes import DTYPES
from collemu.number_formats import wire_formats
from collemu.ranks.calibrate import Measurements, Spread

SIZES = (1024, 2**16, 2**20)


def spread(value: float) -> Spread:
    """A number, give or take a tenth."""
    return Spread(value, 0.9 * value, 1.1 * value)


def measurements(**changes: Any) -> Measurements:
    """Numbers of a small machine."""
    numbers: dict[str, Any] = {
        "processes": 2,
        "cores": 2,
        "launch_s": spread(9e-6),
        "operation_s": spread(6e-6),
        "send_s": spread(1e-6),
        "notice_s": spread(4e-6),
        "wake_s": spread(5e-7),
        "eager_bytes": 4096,
        "sizes_bytes": SIZES,
        "copy_s": tuple(map(spread, (6e-7, 3e-6, 3e-5))),
        "reduce_s": tuple(map(spread, (7e-7, 3e-6, 4e-5))),
        "transfer_s": tuple(map(spread, (1e-6, 1.5e-5, 1e-4))),
        "encode_bytes_per_s": {name: spread(1e9) for name in wire_formats()},
        "decode_bytes_per_s": {name: spread(2e9) for name in wire_formats()},
        "reduce_bytes_per_s": {name: spread(3e9) for name in DTYPES},
    }
    return Measurements(**(numbers | changes))
