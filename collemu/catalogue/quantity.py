"""A number of a system with its origin, and its exact form in integer time.

Time is counted in whole femtoseconds (int64), so the decimal text of a number, not the nearest binary float,
must decide it. A float tells all decimals of up to 15 significant digits apart, and ``repr`` gives the
decimal back: these helpers go through ``repr``, and ``150e-9`` s is exactly 150 000 000 fs.
"""

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

FEMTOSECONDS_PER_SECOND = 10**15

CONFIDENCES = ("vendor", "vendor_software", "measured", "fitted", "press", "derived", "estimate")
USER = "user"  # the confidence, and the source, of a number set by System.with_

MAX_LATENCY_S = 10.0  # int64 femtoseconds hold 2.5 hours in all
MIN_RATE, MAX_RATE = 1e6, 1e15  # 1e15 bytes/s is one femtosecond a byte
MAX_FLOP_RATE = 1e24
MAX_COUNT = 2**53
MAX_COUNTS = {  # what tables are made from
    "chips": 2**20,
    "planes": 2**12,
    "credits": 2**20,
    "fifo_slots": 2**20,
    "packet_payload_bytes": 2**20,
    "packet_header_bytes": 2**16,
    "packet_flit_bytes": 2**16,
    "packet_byte_enable_bytes": 2**16,
    "datagram_bytes": 2**24,
    "datagram_header_bytes": 2**16,
    "rails": 2**10,
    "window_datagrams": 2**20,
    "domains": 2**20,
    "links_per_plane": 2**12,
    "links_per_peer": 2**12,
    "links_per_direction": 2**12,
    "links_per_level": 2**12,
    "chips_per_level": 2**20,
    "hops_per_level": 2**10,
    "shape": 2**10,
    "data_bytes": 2**20,
    "line_bytes": 2**20,
    "cores": 2**12,
    "measured": 2**20,
}
MAX_RATIO_TERM = 2**31 - 1  # products of two terms, and of a packet's bytes and one, stay within int64
ZERO_ALLOWED = (
    *("launch_s", "step_latency_s", "message_overhead_s", "packet_byte_enable_bytes"),
    *("operation_s", "send_s", "notice_s", "wake_s", "eager_bytes", "copy_s", "reduce_s", "transfer_s"),
)
LISTS = ("shape", "links_per_direction", "chips_per_level", "links_per_level", "hops_per_level")  # one a dimension
LIST_ALLOWED = ("links_per_plane",)  # or one number for all
TABLES = ("sizes_bytes", "copy_s", "reduce_s", "transfer_s")  # one number a size

Number = int | float | bool | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Quantity:
    """A number of a system and where it comes from.

    Attributes
    ----------
    value : int, float, bool or a tuple of numbers
        In the SI base unit ``unit``.
    unit : str
        ``s``, ``bytes``, ``bytes/s``, ``flop/s``, or empty for counts, ratios and switches.
    source : str
        Key of ``System.sources``, or ``user`` for a number set by ``System.with_``.
    confidence : str
        One of ``CONFIDENCES``, or ``user``.
    note : str
        What a reader should know before trusting it; may be empty.
    """

    value: Number
    unit: str
    source: str
    confidence: str
    note: str = ""


def unit_of(key: str) -> str:
    """Unit that the end of a key names; empty for counts and switches."""
    for ending, unit in (
        ("bytes_per_s", "bytes/s"),
        ("flop_per_s", "flop/s"),
        ("_s", "s"),
        ("_bytes", "bytes"),
    ):
        if key.endswith(ending):
            return unit
    return ""


def exact(value: float) -> Fraction:
    """The decimal number that ``value`` was written as (up to 15 significant digits)."""
    return Fraction(repr(float(value)))


def femtoseconds(seconds: float) -> int:
    """Whole femtoseconds nearest to a time in seconds, ties to even."""
    return round(exact(seconds) * FEMTOSECONDS_PER_SECOND)


def femtoseconds_per_byte(bytes_per_s: float | Fraction) -> Fraction:
    """Time of a byte at a rate, a decimal or exact, as a ratio of two integers below 2**31.

    Serialising ``n`` bytes takes ``ceil(n * numerator / denominator)`` femtoseconds. The ratio is exact for
    rates of few digits (50e9 bytes/s: 20000/1). Where exactness would need a larger term it is rounded up, by
    less than one part in 2**29: a link is never faster than its rate.
    """
    rate = bytes_per_s if isinstance(bytes_per_s, Fraction) else exact(bytes_per_s)
    ratio = FEMTOSECONDS_PER_SECOND / rate
    if ratio.numerator <= MAX_RATIO_TERM and ratio.denominator <= MAX_RATIO_TERM:
        return ratio
    # The largest power of two that keeps the numerator, and therefore the denominator, below 2**31.
    scale = 1 << (30 - math.floor(ratio).bit_length())
    return Fraction(math.ceil(ratio * scale), scale)


def checked(key: str, kind: type, value: object) -> Number:
    """``value`` as the plain number of a key.

    Parameters
    ----------
    key : str
        Last part of the name; its ending names the unit.
    kind : type
        ``int``, ``float`` or ``bool``.
    value : object
        What the user gave. Whole floats are taken as counts: 80e9 bytes.

    Raises
    ------
    ValueError
        With the reason in words, without the name of the number.
    """
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, not {shown(value)}")
        return value
    if key in LISTS + TABLES and not isinstance(value, list | tuple):
        whole = "whole " if key in LISTS else ""
        raise ValueError(f"must be a list of {whole}numbers, not {shown(value)}")
    if isinstance(value, list | tuple) and key in LISTS + LIST_ALLOWED + TABLES:
        numbers = cast(Sequence[object], value)
        if not numbers:
            raise ValueError("must have at least one number")
        return cast(Number, tuple(_checked_number(key, kind if key in TABLES else int, each) for each in numbers))
    return _checked_number(key, kind, cast(object, value))


def _checked_number(key: str, kind: type, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {shown(value)}")
    if not abs(value) <= sys.float_info.max:  # NaN too; math.isfinite fails on huge integers
        raise ValueError(f"must be finite, not {shown(value)}")
    if value < 0 or (value == 0 and key not in ZERO_ALLOWED):
        raise ValueError(f"must be {'at least' if key in ZERO_ALLOWED else 'above'} zero, not {shown(value)}")
    if kind is int:
        if value != int(value):
            raise ValueError(f"must be a whole number, not {shown(value)}")
        if value > (most := MAX_COUNTS.get(key, MAX_COUNT)):
            raise ValueError(f"must be at most {most}, not {shown(value)}")
        return int(value)
    limits = {
        "": (0.0, 1.0),
        "s": (0.0, MAX_LATENCY_S),
        "bytes/s": (MIN_RATE, MAX_RATE),
        "flop/s": (0.0, MAX_FLOP_RATE),
    }
    low, high = limits[unit_of(key)]
    if not low <= value <= high:
        raise ValueError(f"must lie between {low:g} and {high:g} {unit_of(key)}, not {shown(value)}")
    return float(value)


def shown(value: object) -> str:
    """``value`` on one line, shortened."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge integer"
    return text if len(text) <= 60 else text[:57] + "..."


def hint(word: str, known: Iterable[str]) -> str:
    """``, did you mean X?`` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {near[0]}?" if near else ""
