"""Where operations come from: lines of a user's file, for the errors of a schedule that was written there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Origins:
    """Lines of the operations of a schedule.

    Attributes
    ----------
    files : tuple of str
    file, line : ndarray of int [operations]
        Index of the file, and the line in it.
    definition : str
        File and line of the whole algorithm.
    """

    files: tuple[str, ...]
    file: NDArray[Any]
    line: NDArray[Any]
    definition: str

    def of(self, op: int) -> str:
        """File and line of an operation, as in ``mine.py:14``."""
        return f"{self.files[self.file[op]]}:{self.line[op]}"

    def blame(self, text: str) -> str:
        """What is wrong, behind the first line that it names; behind the whole algorithm's if it names none."""
        found = re.search(rf"(?:{'|'.join(map(re.escape, self.files))}):\d+", text) if self.files else None
        return f"{found[0] if found else self.definition}: {text}"
