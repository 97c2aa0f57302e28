"""What a user's function is given: it names chunks, and every copy and reduction of them is written down.

Statements take effect in the order in which they are made, on whichever ranks they are. What may run at the same
time, and in which threads, is found out afterwards (`collemu.program.lowering`).
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

from collemu_kernels import kinds

from collemu.arguments import shown, whole
from collemu.collectives import INPUT_PER_RANK, OUTPUT_PER_RANK
from collemu.program.threads import Thread
from collemu.schedule import Schedule, chunk_name

MOST_STATEMENTS = 2**23
MOST_CHUNKS = 2**24  # in all buffers of all ranks: a small program can ask for much memory
MOST_SCRATCH = 2**20  # chunks of a rank
MOST_CHANNEL = 1023

#: Values of ``publish``, and what an operation then does; None leaves it to the schedule.
PUBLISH: dict[Any, int] = {None: -1, False: kinds.KEEP, True: kinds.PUBLISH_FINAL, "own": kinds.PUBLISH_OWN}


class ProgramError(ValueError):
    """A mistake in a user's algorithm; the text begins with the file and line where it was made."""


#: A copy or a reduction, as it is written down: numbers, one column each. The result stands at (rank, buffer, chunk);
#: a reduction adds the source to the term, which is on that rank too.
COLUMNS = (
    "reduces",
    "source_rank",
    "source_buffer",
    "source",
    "rank",
    "buffer",
    "chunk",
    "term_buffer",
    "term",
    "count",
    "channel",
    "publish",
    "line",
    "file",
)


class Chunk:
    """A place: one chunk, or a run of chunks, in a buffer of a rank.

    It stands for what is there when a statement is made, so one name can be used again and again.

    Attributes
    ----------
    program : Program
    rank, buffer, first, count : int
        ``count`` chunks from the first on.
    cell : int
        Number of the first among all chunks of the program; chunks that share memory share it.
    """

    __slots__ = ("buffer", "cell", "count", "first", "program", "rank")

    def __init__(self, program: Program, rank: int, buffer: int, first: int, count: int, cell: int) -> None:
        self.program = program
        self.rank, self.buffer, self.first, self.count = rank, buffer, first, count
        self.cell = cell

    def copy_to(self, place: Chunk, *, channel: int | None = None, publish: bool | str | None = None) -> Chunk:
        """Copy to another place, of the same rank or another.

        Parameters
        ----------
        place : Chunk
            As many chunks.
        channel : int, optional
            By which it is sent; when left out, that by which it came, 0 for what nobody sent.
        publish : bool or "own", optional
            Whether it is final and the place keeps what the wire format makes of it; found out when left out.

        Returns
        -------
        Chunk
            The place.
        """
        return self.program.move(self, place, None, channel, publish)

    def reduce_to(
        self,
        place: Chunk,
        *,
        into: Chunk | None = None,
        channel: int | None = None,
        publish: bool | str | None = None,
    ) -> Chunk:
        """Add to what stands at another place, of the same rank or another.

        Parameters
        ----------
        place : Chunk
            As many chunks; it is overwritten with the sum, unless ``into`` is given.
        into : Chunk, optional
            Where the sum goes, on the rank of ``place``.
        channel, publish
            As in `copy_to`.

        Returns
        -------
        Chunk
            Where the sum is.
        """
        return self.program.move(self, place if into is None else into, place, channel, publish)

    def __repr__(self) -> str:
        return f"rank {self.rank} {chunk_name(self.buffer, self.first, self.count)}"


class Program:
    """An algorithm for a number of ranks, while a user's function writes it down.

    Attributes
    ----------
    collective : str
    ranks : int
    root : int
        Root of a broadcast, reduce, gather or scatter, else 0.
    in_place : bool
        Whether input and output share memory.
    """

    def __init__(self, collective: str, ranks: int, root: int, in_place: bool) -> None:
        self.collective, self.ranks, self.root, self.in_place = collective, ranks, root, in_place
        self.region_chunks = 1
        self.scratch_chunks = 0
        self.statements = array("q")
        self.files: dict[str, int] = {}
        self.threads: list[Thread] = []
        self._lanes: dict[tuple[str, int, int, int], Thread] = {}
        self._sizes: tuple[int, int, int] | None = None
        self._bases: list[list[int]] = []
        self._written: set[int] = set()  # cells that hold something
        self._came_on: dict[int, int] = {}  # the channel on which it came, where that may not be 0

    def chunks(self, number: int) -> None:
        """Say into how many chunks a region of ``count`` elements is cut: 1 if nobody says.

        Where a rank has a region for, or from, each rank, chunk c of region r is number ``r * number + c``.
        """
        if self._sizes is not None:
            raise ValueError("chunks: say how many before the first chunk is named")
        self.region_chunks = whole(number, "chunks", least=1, most=MOST_CHUNKS)

    def input(self, rank: int, chunk: int = 0, count: int = 1) -> Chunk:
        """A chunk, or ``count`` of them, of what a rank has at the beginning."""
        return self._place(kinds.INPUT, rank, chunk, count)

    def output(self, rank: int, chunk: int = 0, count: int = 1) -> Chunk:
        """A chunk, or ``count`` of them, of what a rank must have at the end."""
        return self._place(kinds.OUTPUT, rank, chunk, count)

    def scratch(self, rank: int, chunk: int = 0, count: int = 1) -> Chunk:
        """A chunk, or ``count`` of them, of memory for values in between; a rank has as many as are named."""
        return self._place(kinds.SCRATCH, rank, chunk, count)

    def thread(
        self, rank: int, *, send_peer: int | None = None, recv_peer: int | None = None, channel: int = 0
    ) -> Thread:
        """A new thread of a rank, whose operations run in order; an algorithm of threads has no other statements.

        Parameters
        ----------
        rank : int
        send_peer, recv_peer : int, optional
            The one rank that it sends to, and receives from.
        channel : int
            No other thread of the rank may send to, or receive from, the same peer on it.
        """
        if self.statements:
            raise ValueError("thread: an algorithm is copies and reductions, or threads; this one has copies already")
        most = self.ranks - 1
        rank = whole(rank, "thread: rank", most=most)
        peers = [
            -1 if peer is None else whole(peer, f"thread: {name}", most=most)
            for peer, name in ((send_peer, "send_peer"), (recv_peer, "recv_peer"))
        ]
        made = Thread(self, rank, peers[0], peers[1], whole(channel, "thread: channel", most=MOST_CHANNEL))
        if rank in peers:
            raise ValueError(f"thread: rank {rank} is its own peer; what stays on a rank is copied or reduced")
        if self._sizes is None:
            self._open()
        made.take_lanes(self._lanes)
        self.threads.append(made)
        return made

    def geometry(self) -> Schedule:
        """A schedule that does nothing, with the program's ranks and buffers."""
        chunks = (
            self.region_chunks * (self.ranks if self.collective in INPUT_PER_RANK else 1),
            self.region_chunks * (self.ranks if self.collective in OUTPUT_PER_RANK else 1),
        )
        if (total := self.ranks * sum(chunks)) > MOST_CHUNKS:
            raise ValueError(f"chunks: {total:,} in all buffers of {self.ranks} ranks; at most {MOST_CHUNKS:,} can be")
        return empty_schedule(self, *chunks, MOST_SCRATCH)

    def place_of(self, depth: int) -> tuple[int, int]:
        """Line and number of the file that called, so many calls further out."""
        frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        return frame.f_lineno, self.files.setdefault(frame.f_code.co_filename, len(self.files))

    def move(
        self, source: Chunk, place: Chunk, term: Chunk | None, channel: int | None, publish: bool | str | None
    ) -> Chunk:
        """Write a statement down, on behalf of the function that called a method of a chunk."""
        verb = "copy_to" if term is None else "reduce_to"
        self._check(verb, source, place, term)
        if channel is None:
            channel = self._came_on.get(source.cell, 0) if self._came_on else 0
        else:
            channel = whole(channel, f"{verb}: channel", most=MOST_CHANNEL)
        if publish not in PUBLISH:
            raise ValueError(f'{verb}: publish is {shown(publish)}; give True, False, "own" or nothing')
        if term is None:
            if source.cell == place.cell:
                return place
        elif source.rank == place.rank and term.cell != place.cell:
            if source.cell == place.cell:  # a sum does not mind which of the two terms it replaces
                source, term = term, source
            else:
                self._record(term, place, None, channel, PUBLISH[None])
                term = place
        self._record(source, place, term, channel, PUBLISH[publish])
        return place

    def _record(
        self,
        source: Chunk,
        place: Chunk,
        term: Chunk | None,
        channel: int,
        publish: int,
    ) -> None:
        written, count = self._written, source.count
        for read in (source, term):
            if read is not None and (count > 1 or read.cell not in written):
                self._refuse_unwritten(read, place)
        if count == 1:
            written.add(place.cell)
        else:
            written.update(range(place.cell, place.cell + count))
        if channel or self._came_on:
            self._came_on |= dict.fromkeys(range(place.cell, place.cell + count), channel)
        line, file = self.place_of(4)
        added = place if term is None else term
        self.statements.extend(
            (
                term is not None,
                source.rank,
                source.buffer,
                source.first,
                place.rank,
                place.buffer,
                place.first,
                added.buffer,
                added.first,
                count,
                channel,
                publish,
                line,
                file,
            )
        )
        if len(self.statements) > MOST_STATEMENTS * len(COLUMNS):
            raise ValueError(f"more than {MOST_STATEMENTS:,} copies and reductions; give fewer ranks or chunks")

    def _refuse_unwritten(self, chunk: Chunk, place: Chunk) -> None:
        for at in range(chunk.count):
            if chunk.cell + at not in self._written:
                cure = "copy there first, or give into=" if chunk is place else "write it before"
                raise ValueError(f"{_chunk_at(chunk, at)} is read, and nothing has written it; {cure}")

    def _check(self, verb: str, source: Chunk, place: Chunk, term: Chunk | None) -> None:
        for chunk in (place, term):
            if chunk is None:
                continue
            if not isinstance(chunk, Chunk):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{verb}: {shown(chunk)} is no chunk; p.input, p.output and p.scratch name them")
            if chunk.program is not self:
                raise ValueError(f"{verb}: {chunk} belongs to another program; name it with the p of this one")
            if chunk.count != source.count:
                raise ValueError(
                    f"{verb}: {source} is {source.count} chunks and {chunk} is {chunk.count}; they must be as many"
                )
        if term is not None and term.rank != place.rank:
            raise ValueError(f"{verb}: into is {place}, and the sum is made on rank {term.rank}; copy it there after")
        if self.threads:
            raise ValueError(f"{verb}: an algorithm is copies and reductions, or threads; this one has threads already")
        if source.count > 1:
            self._refuse_overlap(verb, source, place, term)

    def _refuse_overlap(self, verb: str, source: Chunk, place: Chunk, term: Chunk | None) -> None:
        for chunk in (source, term):
            if chunk is not None and 0 < abs(chunk.cell - place.cell) < chunk.count:
                raise ValueError(f"{verb}: {chunk} and {place} overlap; go by scratch, or chunk by chunk")

    def _place(self, buffer: int, rank: int, chunk: int, count: int) -> Chunk:
        if self._sizes is None:
            self._open()
        sizes = self._sizes or (0, 0, 0)
        name = ("input", "output", "scratch")[buffer]
        if type(rank) is not int or not 0 <= rank < self.ranks:
            rank = whole(rank, f"{name}: rank", most=self.ranks - 1)
        if type(count) is not int or count < 1:
            count = whole(count, f"{name}: count", least=1)
        if type(chunk) is not int or not 0 <= chunk <= sizes[buffer] - count:
            chunk = whole(chunk, f"{name}: chunk")
            if chunk + count > sizes[buffer]:
                what = f"chunk {chunk}" if count == 1 else f"chunks {chunk} to {chunk + count - 1}"
                raise ValueError(f"{name}: no {what} of rank {rank}; choose 0 to {sizes[buffer] - 1}")
        if buffer == kinds.SCRATCH:
            self.scratch_chunks = max(self.scratch_chunks, chunk + count)
            if self.scratch_chunks * self.ranks > MOST_CHUNKS:
                raise ValueError(
                    f"scratch: chunk {chunk + count - 1} of {self.ranks} ranks; all together may have {MOST_CHUNKS:,}"
                )
        return Chunk(self, rank, buffer, chunk, count, self._bases[rank][buffer] + chunk)

    def _open(self) -> None:
        """Number the cells, and fill those of the inputs."""
        geometry = self.geometry()
        self._sizes = (geometry.input_chunks, geometry.output_chunks, geometry.scratch_chunks)
        self._bases = geometry.cell_bases()[0].tolist()
        for base in self._bases:
            self._written.update(range(base[0], base[0] + geometry.input_chunks))


def empty_schedule(program: Program, input_chunks: int, output_chunks: int, scratch_chunks: int) -> Schedule:
    """A schedule without threads, of a program's collective and layout."""
    import numpy as np

    from collemu.schedule import OP, THREAD

    return Schedule(
        program.collective,
        "",
        program.ranks,
        program.root,
        1,
        np.empty(0, THREAD),
        np.empty(0, OP),
        input_chunks,
        output_chunks,
        scratch_chunks,
        program.in_place,
    )


def _chunk_at(chunk: Chunk, at: int) -> str:
    return f"rank {chunk.rank} {chunk_name(chunk.buffer, chunk.first + at)}"
