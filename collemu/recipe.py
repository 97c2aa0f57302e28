"""How a collective quantises: what travels on the wire and where values are rounded to it."""

from dataclasses import dataclass, replace

from collemu_kernels import format_ids as ids
from collemu_kernels import kinds

from collemu.arguments import flag, instance_of, one_of
from collemu.schedule import IN_SWITCH, REDUCES, WRITES_DST, Schedule

ACCUMULATE = {
    "float32": ids.FLOAT32,
    "float16": ids.FLOAT16,
    "bfloat16": ids.BFLOAT16,
    "float16_saturating": ids.SATURATING_FLOAT16,
}
REQUANTISE = ("shot", "hop")
DTYPE = "dtype"


@dataclass(frozen=True)
class Recipe:
    """The numbers side of a collective.

    A rank's own contributions stay in the dtype. Received bytes are decoded to float32, added in schedule order, and
    encoded again when they are sent on. A final chunk that will be distributed is encoded once and its owner keeps the
    decoded copy, so all replicas hold the same bits; forwarded bytes are copied, never encoded again.

    Attributes
    ----------
    wire : str
        The name of a format; ``none``: memory holds the dtype, whose bytes travel, and to which every sum is rounded;
        or ``dtype``: the same bytes travel, but memory holds float32, and sums are rounded to the dtype when they are
        sent.
    accumulate : str
        Type in which values are added: ``float32``, ``float16``, ``bfloat16`` or ``float16_saturating``. Both terms of
        every addition are rounded to it, and their sum; what overflows float16 becomes infinity, which an element
        format on the wire saturates, and which spoils a block, or the largest number if it saturates. Switches add in
        types of their own.
    round_own : bool
        Whether algorithms that send the same term to everybody (one_shot) add their own term as the others see it.
    scale_mode : str, optional
        Rule of the scales of a block format on the wire, one of those that `collemu.quantize` takes; None: its default.
    requantise : str
        ``shot``: a sum is rounded to the wire format when it is sent, however many terms it has by then. ``hop``: after
        every addition, so that what a rank holds is always a number of the wire format.
    round_input : bool
        Whether contributions are rounded to the wire format before anything else, so that a rank adds its own as the
        others would see them.
    dtype : str, optional
        Floating type to which contributions are rounded first, and in which the collective runs; results are given in
        that of the call. None: that of the call.
    name : str
        Of a published recipe; no more than a label.
    """

    wire: str = "none"
    accumulate: str = "float32"
    round_own: bool = True
    scale_mode: str | None = None
    requantise: str = "shot"
    round_input: bool = False
    dtype: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        instance_of(self.wire, str, "recipe: wire", "give the name of a format, dtype or none")
        flag(self.round_own, "recipe: round_own")
        flag(self.round_input, "recipe: round_input")
        instance_of(self.accumulate, str, "recipe: accumulate", "give the name of a type")
        if self.accumulate not in ACCUMULATE:
            raise ValueError(
                f"recipe: accumulate={self.accumulate!r} is not an accumulate type; choose {', '.join(ACCUMULATE)}"
            )
        one_of(self.requantise, REQUANTISE, "recipe: requantise")
        if self.wire == "none":
            for field, needless in (
                ("scale_mode", self.scale_mode is not None),
                ("requantise", self.requantise != "shot"),
                ("round_input", self.round_input),
            ):
                if needless:
                    raise ValueError(f"recipe: {field}={getattr(self, field)!r} needs a wire format; wire is none")

    def __str__(self) -> str:
        """Name, wire format and accumulate type, and whatever else is not as usual."""
        usual = Recipe()
        shown = ("wire", "accumulate")
        rest = [name for name in vars(self) if name not in (*shown, "name")]
        told = [*shown, *(name for name in rest if getattr(self, name) != getattr(usual, name))]
        text = ", ".join(f"{name} {getattr(self, name)}" for name in told)
        return f"{self.name}: {text}" if self.name else text


def requantised(schedule: Schedule, recipe: Recipe) -> Schedule:
    """The schedule that a recipe runs: per hop, whoever adds something publishes the sum."""
    if recipe.requantise == "shot":
        return schedule
    ops = schedule.ops.copy()
    adds = WRITES_DST[ops["kind"]] & REDUCES[ops["kind"]] & ~IN_SWITCH[ops["kind"]]
    ops["publish"][adds & (ops["publish"] == kinds.KEEP)] = kinds.PUBLISH_FINAL
    return replace(schedule, ops=ops)
