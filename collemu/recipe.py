"""How a collective quantises: what travels on the wire and where values are rounded to it."""

from dataclasses import dataclass

from collemu_kernels import format_ids as ids

from collemu.arguments import flag, instance_of

ACCUMULATE = {"float32": ids.FLOAT32, "float16": ids.FLOAT16, "bfloat16": ids.BFLOAT16}


@dataclass(frozen=True)
class Recipe:
    """The numbers side of a collective.

    A rank's own contributions stay in the dtype. Received bytes are decoded to float32, added in schedule order, and
    encoded again when they are sent on. A final chunk that will be distributed is encoded once and its owner keeps the
    decoded copy, so all replicas hold the same bits; forwarded bytes are copied, never encoded again.

    Attributes
    ----------
    wire : str
        ``none`` (the dtype itself travels) or the name of an element or block format.
    accumulate : str
        Type in which values are added: ``float32``, ``float16`` or ``bfloat16``. Both terms of every addition are
        rounded to it, and their sum; what overflows float16 becomes infinity, which an element format on the wire
        saturates, and which spoils a block. Switches add in types of their own.
    round_own : bool
        Whether algorithms that send the same term to everybody (one_shot) add their own term as the others see it.
    """

    wire: str = "none"
    accumulate: str = "float32"
    round_own: bool = True

    def __post_init__(self) -> None:
        instance_of(self.wire, str, "recipe: wire", "give the name of a format, or none")
        flag(self.round_own, "recipe: round_own")
        instance_of(self.accumulate, str, "recipe: accumulate", "give the name of a type")
        if self.accumulate not in ACCUMULATE:
            raise ValueError(
                f"recipe: accumulate={self.accumulate!r} is not an accumulate type; choose {', '.join(ACCUMULATE)}"
            )
