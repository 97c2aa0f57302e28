"""A communicator of one process, without MPI."""

from collections.abc import Sequence
from typing import Any


class Alone:
    """What cross-checks and tests ask of a communicator, for a single rank."""

    rank = 0
    size = 1

    def Barrier(self) -> None:  # noqa: N802 - MPI's names
        """Nobody to wait for."""

    def Scatter(self, sent: Any, received: Any, root: int = 0) -> None:  # noqa: N802
        """The only part is one's own."""
        received[:] = sent[0]

    def scatter(self, parts: Sequence[Any] | None, root: int = 0) -> Any:
        """The only part is one's own."""
        return parts[0] if parts else None

    def bcast(self, given: Any, root: int = 0) -> Any:
        """What one gives."""
        return given

    def gather(self, part: Any, root: int = 0) -> list[Any]:
        """All parts: one."""
        return [part]

    def allreduce(self, part: Any, op: Any = None) -> Any:
        """The only part, whatever the operator."""
        return part

    def allgather(self, part: Any) -> list[Any]:
        """All parts: one."""
        return [part]
