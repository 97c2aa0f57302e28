"""Whether dtypes and wire formats can hold what a command's data holds, and switches can do what algorithms ask."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.cli.options import Point
    from collemu.tensors import Tensor


class Fit:
    """Refuses pairs of dtype and wire format that cannot hold the data, and remembers why; algorithms too.

    Parameters
    ----------
    tensor : Tensor, optional
        The user's data.
    not_finite : bool
        Whether made-up data has NaN and infinities.
    """

    def __init__(self, tensor: "Tensor | None" = None, *, not_finite: bool = False) -> None:
        self._tensor = tensor
        self._not_finite = not_finite or (tensor is not None and count_not_finite(tensor) > 0)
        self._faults: dict[str, str] = {}
        self._refusals: dict[str, None] = {}

    def __call__(self, dtype: str, wire: str) -> None:
        """Raise ValueError, with the reason, if they do not fit."""
        for name, fault in ((dtype, self._of_dtype(dtype)), (wire, self._of_format(wire))):
            if fault:
                self._faults[name] = fault
                raise ValueError(fault)

    def refusal(self, point: "Point", system: "System") -> str | None:
        """Why the switches of a system cannot do what the algorithm of a point asks of them, or None."""
        from collemu.builders import IN_SWITCH
        from collemu.in_switch import refuse_in_switch
        from collemu.memory import payload_of
        from collemu.recipe import Recipe

        if point.algorithm not in IN_SWITCH:
            return None
        schedule = point.schedule()
        try:
            refuse_in_switch(
                schedule, system, payload_of(point.collective, point.dtype, Recipe(wire=point.wire), point.op)
            )
        except ValueError as error:
            self._refusals[str(error)] = None
            return str(error)
        return None

    @property
    def left_out(self) -> list[str]:
        """A sentence for each that was refused."""
        faults = [
            f"{name} is left out: {fault.replace(f'{name} has', 'it has')}" for name, fault in self._faults.items()
        ]
        return faults + [f"left out: {refusal}" for refusal in self._refusals]

    def _of_dtype(self, name: str) -> str | None:
        from collemu.dtypes import INTEGER, find_dtype, to_storage

        if name not in self._faults and self._tensor is not None:
            dtype, array = find_dtype(name), self._tensor.array
            try:
                to_storage(
                    array if dtype.kind == INTEGER else array.reshape(-1)[:1], dtype, f"data {self._tensor.origin}"
                )
            except ValueError as error:
                return str(error)
        return self._faults.get(name) or self._of_format(name)

    def _of_format(self, name: str) -> str | None:
        from collemu.number_formats import ELEMENT_FORMATS

        if self._not_finite and name in ELEMENT_FORMATS and not ELEMENT_FORMATS[name].has_nan:
            return f"{name} has no NaN, and the data has NaN or infinities"
        return None


@lru_cache
def count_not_finite(tensor: "Tensor") -> int:
    """NaN and infinities in a tensor."""
    import numpy as np

    if tensor.array.dtype.kind in "iu":
        return 0
    return int(np.count_nonzero(~np.isfinite(tensor.array)))


@lru_cache
def beyond(tensor: "Tensor", name: str) -> str | None:
    """A sentence on the values that a floating dtype is too narrow for, or None."""
    import numpy as np

    from collemu.dtypes import INTEGER, find_dtype
    from collemu.number_formats import ELEMENT_FORMATS

    dtype, given = find_dtype(name), tensor.array.dtype
    if dtype.kind == INTEGER or (dtype.is_codes and dtype.storage == given):
        return None
    largest = ELEMENT_FORMATS[name].max if name in ELEMENT_FORMATS else float(np.finfo(dtype.storage).max)
    values = tensor.array.astype(np.float64)
    over = int(np.count_nonzero(np.isfinite(values) & (np.abs(values) > largest)))
    return f"data {tensor.origin}: {over} values are beyond {name}, whose largest is {largest:g}" if over else None
