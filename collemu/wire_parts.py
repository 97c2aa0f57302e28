"""What the bytes on the wire are: codes, scales, and the bits that fill up bytes."""

from dataclasses import dataclass

import numpy as np

from collemu.lower import Lowered
from collemu.number_formats import BlockFormat, ElementFormat, LaneFormat
from collemu.payload import Payload


@dataclass(frozen=True)
class WireParts:
    """Bytes of all messages of a run; what switches read and copy is not among them.

    Attributes
    ----------
    codes, scales : int
        Scales include those of whole chunks, where a format has them.
    padding : float
        Unused bits of the last byte of a chunk's codes, in bytes.
    """

    codes: float
    scales: int
    padding: float

    @property
    def total(self) -> float:
        """All of them: the bytes of the wire images."""
        return self.codes + self.scales + self.padding


def wire_parts_of(lowered: Lowered, payload: Payload) -> WireParts:
    """Take the messages of a run apart.

    Parameters
    ----------
    lowered : Lowered
    payload : Payload
    """
    messages, pieces = lowered.messages, lowered.pieces
    total = int(messages.nbytes.sum())
    sends = np.isin(pieces.operation, messages.sender)
    elements = pieces.elements[sends]
    code_bits = 8 * lowered.item_bytes if payload.wire_format is None else _code_bits(payload.wire_format)
    codes = int(elements.sum()) * code_bits / 8
    code_bytes = int(((elements * code_bits + 7) // 8).sum())
    return WireParts(codes=codes, scales=total - code_bytes, padding=code_bytes - codes)


def _code_bits(wire: ElementFormat | BlockFormat | LaneFormat) -> int:
    if isinstance(wire, LaneFormat):
        return wire.bits
    element = wire.element if isinstance(wire, BlockFormat) else wire
    return int(element.bits_per_element)
