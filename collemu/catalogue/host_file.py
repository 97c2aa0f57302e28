"""A system file of the machine one stands on: what was measured of its processes, and what a file must have beside."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collemu.ranks.calibrate import Measurements, Spread

SHORTEST_S = 1e-9  # where no time was left to measure
MOST_PROCESSES = 1024
FIFO_SLOTS = 8

HEADER = """\
# Processes of one machine that stand for chips, as `collemu calibrate host` measured them.
#
# [processes], [conversion] and [reduction] decide the time of ranks here. The other tables serve bounds, and those who
# ask for another fidelity.
"""


def host_text(found: "Measurements", *, name: str, library: str, machine: str) -> str:
    """The TOML of a measured machine.

    Parameters
    ----------
    found : Measurements
    name : str
        Of the system.
    library : str
        The MPI that carried the messages.
    machine : str
        What the machine is, in words.
    """
    lines = [
        HEADER,
        f"name = {json.dumps(name)}",
        f"title = {json.dumps(f'{machine}, {found.cores} cores, {library}')}",
        'default_protocol = "simple"',
    ]
    for section, numbers in _sections(found):
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {_quantity(*number)}" for key, number in numbers]
    lines += [
        "",
        "[sources]",
        'HOST = { title = "collemu calibrate host" }',
        'DEFAULT = { title = "not measured: no time here depends on it" }',
        "",
    ]
    return "\n".join(lines)


_Number = tuple[Any, str, str]  # value, confidence, note


def _sections(found: "Measurements") -> Iterator[tuple[str, list[tuple[str, _Number]]]]:
    sizes = found.sizes_bytes
    copy_rate, reduce_rate, transfer_rate = (
        max(size / max(_round(spread.value), SHORTEST_S) for size, spread in zip(sizes, spreads, strict=True))
        for spreads in (found.copy_s, found.reduce_s, found.transfer_s)
    )
    fastest = "the fastest of the sizes"
    # a scatter is sent by one process, and taken by many at once
    sending_rate = max([copy_rate, *(_round(spread.value) for spread in found.encode_bytes_per_s.values())])
    yield (
        "chip",
        [
            ("fp8_dense_flop_per_s", _not_measured(1e9)),
            ("fp4_dense_flop_per_s", _not_measured(1e9)),
            ("hbm_bytes", _not_measured(2**30)),
            ("hbm_bytes_per_s", (2 * copy_rate, "derived", "a copy reads and writes; " + fastest)),
        ],
    )
    yield (
        "domain",
        [
            ("chips", (MOST_PROCESSES, "estimate", "as many processes as one may wish to start")),
            ("planes", _not_measured(1)),
            ("links_per_plane", _not_measured(1)),
            (
                "link_bytes_per_s",
                (max(transfer_rate, sending_rate), "derived", f"a message taken or sent; {fastest}: bounds hold"),
            ),
            ("link_efficiency", _not_measured(1.0)),
            ("hop_latency_s", _not_measured(1e-9)),
            ("credits", _not_measured(64)),
            ("packet_payload_bytes", _not_measured(4096)),
            ("packet_header_bytes", _not_measured(1)),
            ("packet_flit_bytes", _not_measured(1)),
            ("packet_byte_enable_bytes", _not_measured(0)),
            ("in_switch_reduction", _not_measured(False)),
            ("in_switch_float8", _not_measured(False)),
        ],
    )
    slowest = {
        key: min(spread.value for spread in rates.values())
        for key, rates in (("quantize", found.encode_bytes_per_s), ("dequantize", found.decode_bytes_per_s))
    }
    yield (
        "endpoint",
        [
            ("launch_s", _measured(found.launch_s)),
            ("copy_bytes_per_s", (copy_rate, "derived", fastest)),
            ("reduce_bytes_per_s", (reduce_rate, "derived", fastest)),
            ("quantize_bytes_per_s", (slowest["quantize"], "derived", "the slowest of the wire formats")),
            ("dequantize_bytes_per_s", (slowest["dequantize"], "derived", "the slowest of the wire formats")),
            ("fifo_slots", (FIFO_SLOTS, "estimate", "as many as one likes: collemu's own")),
        ],
    )
    step = found.operation_s.value + found.send_s.value
    yield (
        "protocol.simple",
        [
            ("step_latency_s", (step, "derived", "an operation that sends")),
            ("data_bytes", _not_measured(1)),
            ("line_bytes", _not_measured(1)),
            ("writes_destination", _not_measured(False)),
        ],
    )
    yield (
        "scaleout",
        [
            ("bytes_per_s", _not_measured(1e9)),
            ("rails", _not_measured(1)),
            ("latency_s", _not_measured(1e-5)),
            ("message_overhead_s", _not_measured(0.0)),
            ("datagram_bytes", _not_measured(4096)),
            ("datagram_header_bytes", _not_measured(1)),
            ("window_datagrams", _not_measured(64)),
            ("domains", _not_measured(1)),
            ("cluster_max_chips", _not_measured(MOST_PROCESSES)),
        ],
    )
    yield (
        "processes",
        [
            ("cores", (found.cores, "measured", "")),
            ("measured", (found.processes, "measured", "processes at once")),
            *((key, _measured(getattr(found, key))) for key in ("operation_s", "send_s", "notice_s", "wake_s")),
            ("eager_bytes", (found.eager_bytes, "measured", "to the next power of two")),
            ("sizes_bytes", (list(sizes), "measured", "")),
            *((key, _table(getattr(found, key))) for key in ("copy_s", "reduce_s", "transfer_s")),
        ],
    )
    for name, encode in found.encode_bytes_per_s.items():
        rates = (("encode_bytes_per_s", encode), ("decode_bytes_per_s", found.decode_bytes_per_s[name]))
        yield f"conversion.{name}", [(key, _measured(rate)) for key, rate in rates]
    for name, rate in found.reduce_bytes_per_s.items():
        if name != "float32":  # has a time for each size
            yield f"reduction.{name}", [("reduce_bytes_per_s", _measured(rate))]


def _not_measured(value: object) -> _Number:
    return value, "estimate", ""


def _measured(spread: "Spread") -> _Number:
    return _round(spread.value), "measured", f"half of the runs: {spread.low:.3g} to {spread.high:.3g}"


def _table(spreads: "Sequence[Spread]") -> _Number:
    halves = ", ".join(f"{spread.low:.3g} to {spread.high:.3g}" for spread in spreads)
    return [_round(spread.value) for spread in spreads], "measured", f"half of the runs: {halves}"


def _round(value: float) -> float:
    return float(f"{max(value, 0.0):.4g}")


def _quantity(value: object, confidence: str, note: str) -> str:
    source = "DEFAULT" if confidence == "estimate" else "HOST"
    behind = f", note = {json.dumps(note)}" if note else ""
    shown = json.dumps(float(f"{value:.6g}") if isinstance(value, float) else value)
    return f'{{ value = {shown}, source = "{source}", confidence = "{confidence}"{behind} }}'
