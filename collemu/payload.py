"""What a collective carries: the dtype that comes in, what memory holds, what travels, and how it is added."""

from dataclasses import dataclass
from fractions import Fraction

from collemu_kernels import kinds
from numpy.typing import DTypeLike

from collemu.dtypes import FLOATING, Dtype, find_dtype
from collemu.number_formats import ELEMENT_FORMATS, BlockFormat, ElementFormat, LaneFormat, find_wire_format
from collemu.quantization import SCALE_MODES
from collemu.recipe import DTYPE, Recipe

OPERATORS = {"sum": kinds.SUM, "prod": kinds.PROD, "min": kinds.MIN, "max": kinds.MAX, "avg": kinds.AVG}
BAD_VALUE_TEXT = (
    "data: a NaN has no code in this wire format (FP4, FP6 and integers have none); use another wire format"
)


@dataclass(frozen=True)
class Payload:
    """What a collective carries.

    Attributes
    ----------
    dtype : Dtype
        Of inputs and outputs.
    runs_in : Dtype
        Of the contributions as the collective takes them: the recipe's dtype, or that of inputs and outputs.
    recipe : Recipe
    operator : str
        sum, prod, min, max or avg.
    wire_format : ElementFormat, BlockFormat, LaneFormat or None
        What travels; None: what memory holds.
    """

    dtype: Dtype
    runs_in: Dtype
    recipe: Recipe
    operator: str
    wire_format: ElementFormat | BlockFormat | LaneFormat | None

    @property
    def wire(self) -> int | None:
        """Format id of what travels; None: what memory holds."""
        return None if self.wire_format is None else self.wire_format.format_id

    @property
    def quantised(self) -> bool:
        """Whether a wire format travels, and not what memory holds."""
        return self.wire_format is not None

    @property
    def rounds_input(self) -> bool:
        """Whether contributions are rounded to what travels; there is nothing to round where memory holds the same."""
        return self.recipe.round_input and self.quantised

    @property
    def held(self) -> Dtype:
        """What memory holds while the collective runs: float32 between quantised messages, else the dtype."""
        return find_dtype("float32") if self.quantised else self.runs_in

    @property
    def wire_bits(self) -> Fraction:
        """Bits of an element on the wire, the scales of full blocks included."""
        if self.wire_format is None:
            return Fraction(8 * self.held.item_bytes)
        return self.wire_format.bits_per_element

    @property
    def scale_mode(self) -> int:
        """The kernels' number of the rule of the scales."""
        if not isinstance(self.wire_format, BlockFormat):
            return 0
        return SCALE_MODES[self.recipe.scale_mode or self.wire_format.scale_modes[0]]

    @property
    def saturates(self) -> bool:
        """Whether what overflows on the wire becomes the largest number; the 16-bit dtypes themselves do not."""
        return self.recipe.wire != DTYPE or self.runs_in.item_bytes == 1

    @property
    def scales_first(self) -> bool:
        """Whether an average divides the contributions, as an unscaled sum could overflow, rather than the sum."""
        unscaled = isinstance(self.wire_format, ElementFormat) or self.recipe.accumulate != "float32"
        return self.operator == "avg" and (self.dtype.overflows_early or self.runs_in.overflows_early or unscaled)


def payload_of(collective: str, dtype: DTypeLike, recipe: Recipe, op: str) -> Payload:
    """Check that dtype, wire format and operator go together.

    Raises
    ------
    ValueError
        For an unknown name or a pair that does not go together; the text says what does.
    """
    given = find_dtype(dtype)
    if op not in tuple(OPERATORS):
        raise ValueError(f"no operation {op!r}; choose {', '.join(OPERATORS)}")
    runs_in = given
    if recipe.dtype is not None:
        runs_in = find_dtype(recipe.dtype)
        for each in (given, runs_in):
            if each.kind != FLOATING or each.name == "float64":
                raise ValueError(f"recipe: dtype={recipe.dtype!r} is for floats of at most 32 bits, not {each.name}")
    if recipe.accumulate != "float32" and (runs_in.kind != FLOATING or runs_in.name == "float64"):
        raise ValueError(
            f"accumulate={recipe.accumulate!r} is for floats of at most 32 bits; {runs_in.name} is added in itself"
        )
    wire = _wire_format(recipe, runs_in)
    if isinstance(wire, BlockFormat):
        if recipe.scale_mode not in (None, *wire.scale_modes):
            raise ValueError(
                f"recipe: scale_mode={recipe.scale_mode!r} is not one of wire {wire.name}; choose "
                f"{', '.join(wire.scale_modes)}"
            )
    elif recipe.scale_mode is not None:
        raise ValueError(f"recipe: scale_mode={recipe.scale_mode!r} is for block formats; wire is {recipe.wire}")
    return Payload(given, runs_in, recipe, op, wire)


def _wire_format(recipe: Recipe, dtype: Dtype) -> ElementFormat | BlockFormat | LaneFormat | None:
    if recipe.wire == "none":
        return None
    if recipe.wire == DTYPE:  # of types that are not narrow, memory holds the same as travels
        return ELEMENT_FORMATS[dtype.name] if dtype.overflows_early else None
    wire = find_wire_format(recipe.wire)
    if dtype.kind != FLOATING:
        raise ValueError(f"wire {recipe.wire} carries floats, not {dtype.name}; use a float dtype, or wire none")
    if dtype.name == "float64":
        raise ValueError(
            f"wire {recipe.wire} is rounded from float32; use dtype float32 for it, or wire none for float64"
        )
    if wire.name == "float8_e8m0fnu":
        raise ValueError("wire float8_e8m0fnu has neither zero nor sign: it is for scales; choose another wire format")
    return wire
