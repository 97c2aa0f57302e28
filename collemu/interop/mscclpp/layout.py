"""Where the chunks of a plan lie in the buffers of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from collemu_kernels import kinds

from collemu.collectives import INPUT_PER_RANK, OUTPUT_PER_RANK
from collemu.interop.msccl.words import BUFFERS
from collemu.interop.mscclpp.plan import Chunks

MOST_CHUNKS = 2**22  # in all buffers of all ranks, and in all operations: a small file can ask for much memory
MOST_PARTS = 2**10


class Layout:
    """The buffers of a plan: every chunk of the file is ``parts`` chunks of the schedule.

    In place, a rank's own region of the larger buffer has two names; here it has one.
    """

    def __init__(
        self,
        collective: str,
        in_place: bool,
        chunks: Sequence[tuple[int, int, int]],
        names: tuple[str, str],
        parts: int,
    ) -> None:
        self.ranks, self.parts, self.group_ranks = len(chunks), parts, 0
        self._in_place = in_place
        self._moved = 0
        given = tuple(max(each[side] for each in chunks) for side in (0, 1))
        regions = tuple(self.ranks if collective in many else 1 for many in (INPUT_PER_RANK, OUTPUT_PER_RANK))
        whole = max(given)
        if whole < 1 or whole % max(regions):
            raise ValueError(
                f"plan: {names[0]} {given[0]} and {names[1]} {given[1]}: {collective} of {self.ranks} ranks has a "
                f"multiple of {max(regions)} in its larger buffer"
            )
        self._region = whole // max(regions)
        own = tuple(each * self._region for each in regions)
        self._small = next((side for side in (0, 1) if own[side] < whole), None)
        for side in (0, 1):
            if given[side] not in (0, own[side]) and not (in_place and given[side] == whole):
                raise ValueError(
                    f"plan: {names[side]} is {given[side]}; {collective} of {self.ranks} ranks with {whole} chunks in "
                    f"its larger buffer has {own[side]}"
                )
        self._spread = self._small is not None and given[self._small] == whole  # as long as the larger one
        self._limits = tuple(whole if self._spread and side == self._small else own[side] for side in (0, 1))
        self._scratch = [each[2] for each in chunks]
        self.sizes = (own[0] * parts, own[1] * parts, max(self._scratch) * parts)
        total = self.ranks * sum(self.sizes)
        if total > MOST_CHUNKS:
            raise ValueError(f"plan: {total:,} chunks in all, over the limit of {MOST_CHUNKS:,}")

    def chunks(
        self, place: str, rank: int, buffer: int, first: int, count: int, part: tuple[int, int] = (0, 1)
    ) -> Chunks:
        """A run of chunks of the file, or one of some equal parts of it, as a run of the schedule's."""
        limit = self._scratch[rank] if buffer == kinds.SCRATCH else self._limits[buffer]
        if not 0 <= first <= limit - count or count < 1:
            letter = next(letter for letter, number in BUFFERS.items() if number == buffer)
            raise ValueError(
                f"{place}: {count} chunks from {first} on of buffer {letter!r} of gpu {rank}, which has {limit}"
            )
        length = count * self.parts // part[1]
        self._moved += length
        if self._moved > MOST_CHUNKS:
            raise ValueError(f"{place}: more than {MOST_CHUNKS:,} chunks in all operations together")
        if self._in_place and buffer != kinds.SCRATCH:
            if self._small is None:
                buffer = kinds.OUTPUT
            elif buffer == self._small:
                buffer = 1 - self._small
                first += 0 if self._spread else rank * self._region
        return Chunks(rank, buffer, first * self.parts + part[0] * length, length)

    def refuse_other_groups(self, place: str, rank: int, ranks: Sequence[int], buffer: int) -> None:
        """Raise if a switch group is none that schedules know: equal numbers of ranks that follow each other."""
        size = len(ranks)
        first = ranks[0] if size else 0
        if rank not in ranks or list(ranks) != list(range(first, first + size)) or first % size or self.ranks % size:
            raise ValueError(
                f"{place}: its switch group is {list(ranks)[:16]}; collemu knows groups of as many ranks each, one "
                f"after the other, such as 0 to {self.ranks - 1}"
            )
        if self.group_ranks not in (0, size):
            raise ValueError(f"{place}: its switch group has {size} ranks, and others have {self.group_ranks}")
        if self._in_place and self._small is not None and buffer == self._small and not self._spread:
            raise ValueError(f"{place}: in place, that buffer lies elsewhere on every rank; name the larger one")
        self.group_ranks = size
