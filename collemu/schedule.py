"""The schedule: the one table of operations that every engine runs.

A schedule is an algorithm written out for a number of ranks. Its threads and operations are two structured
arrays (`THREAD`, `OP`), so that half a million operations are a few megabytes and a few vectorised passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.arguments import whole
from collemu.collectives import INPUT_PER_RANK, OUTPUT_PER_RANK, ROOTED
from collemu.counts import counts_matrix, uneven_starts

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.origins import Origins

#: One operation: ``src`` and ``dst`` are first chunks, ``count`` is in chunks, ``dep`` is an operation of the
#: same rank that must have finished, or -1.
OP = np.dtype(
    [
        ("kind", "u1"),
        ("publish", "u1"),
        ("src_buffer", "u1"),
        ("dst_buffer", "u1"),
        ("src", "<i4"),
        ("dst", "<i4"),
        ("count", "<i4"),
        ("dep", "<i4"),
    ]
)

#: One thread: its peers (-1: none), its channel, and where its operations lie in the table of operations.
THREAD = np.dtype(
    [
        ("rank", "<i4"),
        ("send_peer", "<i4"),
        ("recv_peer", "<i4"),
        ("length", "<i4"),
        ("first", "<i4"),
        ("id", "<i2"),
        ("channel", "<i2"),
    ]
)

#: Names of the operation kinds, in the order of their numbers in `collemu_kernels.kinds`.
KIND_NAMES = (
    "nop",
    "send",
    "recv",
    "copy",
    "reduce",
    "recv_copy_send",
    "recv_reduce",
    "recv_reduce_send",
    "recv_reduce_copy",
    "recv_reduce_copy_send",
    "multimem_reduce",
    "multimem_store",
)
BUFFER_NAMES = ("input", "output", "scratch")


def _kind_table(*members: int) -> NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[list(members)] = True
    table.setflags(write=False)
    return table


# What a kind does. Every kind adds up the operands it has (source, destination, message) and puts the sum
# into its destination, its outgoing message, or both. Indexed by kind, with room for any byte.
READS_SRC = _kind_table(
    kinds.SEND,
    kinds.COPY,
    kinds.REDUCE,
    kinds.RECV_REDUCE_SEND,
    kinds.RECV_REDUCE_COPY,
    kinds.RECV_REDUCE_COPY_SEND,
    kinds.MULTIMEM_REDUCE,
    kinds.MULTIMEM_STORE,
)
READS_DST = _kind_table(kinds.REDUCE, kinds.RECV_REDUCE)
WRITES_DST = _kind_table(
    kinds.RECV,
    kinds.COPY,
    kinds.REDUCE,
    kinds.RECV_COPY_SEND,
    kinds.RECV_REDUCE,
    kinds.RECV_REDUCE_COPY,
    kinds.RECV_REDUCE_COPY_SEND,
    kinds.MULTIMEM_REDUCE,
    kinds.MULTIMEM_STORE,
)
RECEIVES = _kind_table(
    kinds.RECV,
    kinds.RECV_COPY_SEND,
    kinds.RECV_REDUCE,
    kinds.RECV_REDUCE_SEND,
    kinds.RECV_REDUCE_COPY,
    kinds.RECV_REDUCE_COPY_SEND,
)
SENDS = _kind_table(kinds.SEND, kinds.RECV_COPY_SEND, kinds.RECV_REDUCE_SEND, kinds.RECV_REDUCE_COPY_SEND)
#: Kinds that a switch carries out on the memory of a whole group: `multimem_reduce` adds up the source chunks of all
#: members, `multimem_store` writes to the destination chunks of all.
IN_SWITCH = _kind_table(kinds.MULTIMEM_REDUCE, kinds.MULTIMEM_STORE)

#: Kinds that add.
REDUCES = _kind_table(*(number for number, name in enumerate(KIND_NAMES) if "reduce" in name))

#: Operations that a built schedule may have. Writing one out takes nearly 200 bytes each for a moment: 12 GB in all.
MOST_OPERATIONS = 2**26


class ScheduleError(ValueError):
    """A schedule does not do what it must, or cannot run; the text names rank, thread, step and chunk."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """An algorithm for a number of ranks: the operations of every rank and thread, with their dependencies.

    Attributes
    ----------
    collective, algorithm
        What must hold before and after, and how it is done.
    ranks
        Number of ranks.
    root
        Root of a broadcast, reduce, gather or scatter; 0 for collectives that have none.
    channels
        Number of independent lanes; a thread uses one.
    threads : ndarray of THREAD
        Sorted by (rank, id).
    ops : ndarray of OP
        Operations of a thread in order at ``[first, first + length)``; threads follow each other in thread
        order, so the index of an operation grows with (rank, thread, step).
    input_chunks, output_chunks, scratch_chunks
        Chunks in each buffer of a rank. In place, both input and output have their full number.
    in_place
        Input and output share memory: one buffer, except that the input of an all_gather or gather is the rank's own
        region of the output, and the output of a reduce_scatter or scatter the rank's own region of the input.
    group_ranks
        Ranks of a switch group, whose memory the in-switch operations of a member read or write: rank r is in group
        ``r // group_ranks``. 0: all ranks are one group.
    origin
        Lines of a user's file in which the operations were written; None for algorithms that come from elsewhere.
    protocol
        What it was written for: a name of a system's protocols, or ``auto`` for any. Runs whose protocol is ``auto``
        use it if the system has it.
    counts : int64 array (ranks, ranks) or None
        Elements from each rank to each, of alltoallv alone, whose regions they are in place of ``count`` elements.
    """

    collective: str
    algorithm: str
    ranks: int
    root: int
    channels: int
    threads: NDArray[Any] = field(repr=False)
    ops: NDArray[Any] = field(repr=False)
    input_chunks: int
    output_chunks: int
    scratch_chunks: int = 0
    in_place: bool = False
    group_ranks: int = 0
    origin: Origins | None = field(default=None, repr=False)
    protocol: str = "auto"
    counts: NDArray[np.int64] | None = field(default=None, repr=False)

    def group_of(self, rank: int) -> range:
        """The ranks of a rank's switch group."""
        size = self.group_ranks or self.ranks
        first = rank // size * size
        return range(first, min(first + size, self.ranks))

    @property
    def input_regions(self) -> int:
        """Regions of ``count`` elements in a rank's input."""
        return self.ranks if self.collective in INPUT_PER_RANK else 1

    @property
    def output_regions(self) -> int:
        """Regions of ``count`` elements in a rank's output."""
        return self.ranks if self.collective in OUTPUT_PER_RANK else 1

    @property
    def region_chunks(self) -> int:
        """Chunks in one region of ``count`` elements, in the input and in the output alike."""
        return self.input_chunks // self.input_regions

    @cached_property
    def n_messages(self) -> int:
        """Number of messages that all ranks send."""
        return int(np.count_nonzero(SENDS[self.ops["kind"]]))

    @cached_property
    def thread_of_op(self) -> NDArray[np.int32]:
        """Index into ``threads`` of every operation, shape (operations,)."""
        return np.repeat(np.arange(len(self.threads), dtype=np.int32), self.threads["length"])

    def buffer_chunks(self, buffer: int) -> int:
        """Chunks in buffer ``kinds.INPUT``, ``OUTPUT`` or ``SCRATCH`` of a rank."""
        return (self.input_chunks, self.output_chunks, self.scratch_chunks)[buffer]

    def chunk_starts(self, buffer: int, count: int) -> NDArray[np.int64]:
        """Element offsets at which the chunks of a buffer begin, and the buffer's end.

        A region of ``count`` elements in k chunks gives chunk i ``ceil(count / k)`` elements when
        ``i < count mod k``, else ``floor(count / k)``. A scratch chunk has room for the largest chunk.

        Parameters
        ----------
        buffer : int
            ``kinds.INPUT``, ``OUTPUT`` or ``SCRATCH``.
        count : int
            Elements of one region, as nccl-tests counts them per rank; not used where there are ``counts``.

        Returns
        -------
        ndarray of int64, shape (chunks + 1,), or (ranks, chunks + 1) where ranks differ: where there are ``counts``
        """
        k = max(self.region_chunks, 1)
        if self.counts is not None:
            return uneven_starts(self.counts, buffer, k, self.buffer_chunks(buffer))
        short, longer = divmod(count, k)
        if buffer == kinds.SCRATCH:
            return np.arange(self.scratch_chunks + 1, dtype=np.int64) * (short + (longer > 0))
        chunk = np.arange(self.buffer_chunks(buffer) + 1, dtype=np.int64)
        region, within = chunk // k, chunk % k
        return region * count + within * short + np.minimum(within, longer)

    def chunk_starts_of_ranks(self, buffer: int, count: int) -> NDArray[np.int64]:
        """`chunk_starts` of every rank, shape (ranks, chunks + 1)."""
        starts = self.chunk_starts(buffer, count)
        return np.broadcast_to(starts, (self.ranks, starts.shape[-1]))

    def chunks_are_equal(self, count: int) -> bool:
        """Whether all chunks of a region of ``count`` elements have the same length."""
        return self.counts is None and count % max(self.region_chunks, 1) == 0

    def cell_bases(self) -> tuple[NDArray[np.int64], int]:
        """Number every chunk of every rank, so that chunks which share memory share a number.

        Returns
        -------
        bases : ndarray of int64, shape (ranks, 3)
            Chunk c of a buffer of a rank is cell ``bases[rank, buffer] + c``.
        cells : int
            Number of cells; in place, input and output overlap in them.
        """
        rank = np.arange(self.ranks, dtype=np.int64)
        if not self.in_place:
            input_at, output_at, shared = 0 * rank, 0 * rank + self.input_chunks, 0
        elif self.input_regions < self.output_regions:
            input_at, output_at, shared = rank * self.input_chunks, 0 * rank, self.input_chunks
        elif self.input_regions > self.output_regions:
            input_at, output_at, shared = 0 * rank, rank * self.output_chunks, self.output_chunks
        else:
            input_at, output_at, shared = 0 * rank, 0 * rank, self.output_chunks
        own = self.input_chunks + self.output_chunks - shared
        per_rank = own + self.scratch_chunks
        bases = np.stack([input_at, output_at, 0 * rank + own], axis=1) + (rank * per_rank)[:, None]
        return bases, self.ranks * per_rank

    def where(self, op: int) -> str:
        """Name an operation by its place, as in ``rank 3 thread 0 step 2``, and where it was written."""
        thread = self.threads[self.thread_of_op[op]]
        written = f" at {self.origin.of(op)}" if self.origin else ""
        return f"rank {thread['rank']} thread {thread['id']} step {op - thread['first']}{written}"

    def describe(self, op: int) -> str:
        """Name an operation by its place and deed, as in ``rank 3 thread 0 step 2 (send input[4])``."""
        row = self.ops[op]
        kind = int(row["kind"])
        name = KIND_NAMES[kind] if kind < len(KIND_NAMES) else f"kind {kind}"
        parts = [name]
        if row["count"] == 0 and kind != kinds.NOP:
            parts.append("nothing")
        else:
            if READS_SRC[kind]:
                parts.append(chunk_name(int(row["src_buffer"]), int(row["src"]), int(row["count"])))
            if WRITES_DST[kind]:
                parts.append("to " + chunk_name(int(row["dst_buffer"]), int(row["dst"]), int(row["count"])))
        return f"{self.where(op)} ({' '.join(parts)})"


def chunk_name(buffer: int, chunk: int, count: int = 1) -> str:
    """Name a run of chunks, as in ``input[4]`` or ``output[4:6]``."""
    name = BUFFER_NAMES[buffer] if buffer < len(BUFFER_NAMES) else f"buffer {buffer}"
    return f"{name}[{chunk}]" if count == 1 else f"{name}[{chunk}:{chunk + count}]"


def algorithms(collective: str | None = None, system: System | None = None) -> tuple[str, ...]:
    """Names of the algorithms that `build_schedule` knows.

    Parameters
    ----------
    collective : str, optional
        Only those of this collective; all names, each once, when left out.
    system : System, optional
        Only those that it can run, whose switches may add and copy or not.

    Raises
    ------
    ValueError
        For an unknown collective; the text lists the known ones.
    """
    from collemu.builders import BUILDERS, IN_SWITCH

    without = IN_SWITCH if system is not None and not system.domain.in_switch_reduction else ()
    if collective is None:
        names = dict.fromkeys(name for table in BUILDERS.values() for name in table)
    else:
        _refuse_unknown_collective(collective)
        names = BUILDERS[collective]
    return tuple(name for name in names if name not in without)


def build_schedule(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    root: int = 0,
    channels: int = 1,
    chunks: int | None = None,
    counts: Sequence[Sequence[int]] | NDArray[Any] | None = None,
    group: int | None = None,
) -> Schedule:
    """Write out an algorithm for a number of ranks.

    Parameters
    ----------
    collective, algorithm : str
        A pair of names from `algorithms`.
    ranks : int
        Number of ranks, 1 or more. With one rank every algorithm copies input to output.
    root : int
        Root of a broadcast, reduce, gather or scatter; must name a rank, and is ignored elsewhere.
    channels : int
        Independent lanes, each with its own threads and its own share of the chunks. A lane of ``tree`` and
        ``nvls_tree`` is a pair of trees on two channels, of ``bidirectional_ring`` two, of ``torus_2d`` four.
    chunks : int, optional
        Pieces into which a lane cuts what it would send as one message, worked on one after the other, and
        pipelined where messages are forwarded. Default: one a hop of the longest path for ``tree``,
        ``nvls_tree`` and ``chain`` (as which ``ring`` does broadcast and reduce); 1 elsewhere.
    counts : n x n elements, optional
        Elements from each rank (row) to each (column), of alltoallv alone, which needs them. No message goes where
        there is nothing to send.
    group : int, optional
        Ranks of a domain, for algorithms that know domains (``hierarchical``, ``nvls_tree``); ignored elsewhere. The
        last domain may have fewer. Default: the largest divisor of the ranks that is not above its square root.

    Returns
    -------
    Schedule
        Out of place; the input buffer is never written.

    Raises
    ------
    ValueError
        For an unknown name, a number that is out of range, or more than `MOST_OPERATIONS`; the text says what is
        possible.
    """
    from collemu.builders import BUILDERS, GROUPED
    from collemu.builders.counted import with_counts

    _refuse_unknown_collective(collective)
    if algorithm not in tuple(BUILDERS[collective]):
        choices = ", ".join(BUILDERS[collective])
        raise ValueError(f"no algorithm {algorithm!r} for {collective}; choose {choices}")
    ranks = whole(ranks, "ranks", least=1)
    root = whole(root, "root")
    if root >= ranks:
        raise ValueError(f"root {root} is not one of the {ranks} ranks; choose 0 to {ranks - 1}")
    channels = whole(channels, "channels", least=1)
    if chunks is not None:
        chunks = whole(chunks, "chunks", least=1)
    matrix = counts_matrix(collective, ranks, counts)
    group = None if group is None else whole(group, "group", least=1)
    operations = operations_at_most(collective, algorithm, ranks, channels, chunks, group)
    if operations > MOST_OPERATIONS:
        raise ValueError(
            f"{algorithm} {collective} of {ranks} ranks (channels={channels}, chunks={chunks}) has about "
            f"{operations:,} operations, over the limit of {MOST_OPERATIONS:,}; choose fewer ranks, channels or chunks"
        )
    root = root if collective in ROOTED else 0
    if algorithm in GROUPED.get(collective, ()):
        return GROUPED[collective][algorithm](ranks, root=root, channels=channels, chunks=chunks, group=group)
    schedule = BUILDERS[collective][algorithm](ranks, root=root, channels=channels, chunks=chunks)
    return schedule if matrix is None else with_counts(schedule, matrix)


def _refuse_unknown_collective(collective: str) -> None:
    from collemu.builders import BUILDERS

    if collective not in tuple(BUILDERS):
        raise ValueError(f"no collective {collective!r}; choose {', '.join(BUILDERS)}")


def operations_at_most(
    collective: str, algorithm: str, ranks: int, channels: int, chunks: int | None, group: int | None = None
) -> int:
    """A bound on the operations of a built-in schedule, at most twice their number from 4 ranks on."""
    if ranks == 1:
        return 1
    if algorithm == "nvls":
        told, working = (1, 1) if collective in ROOTED else (ranks, ranks)
        return ranks * told * 4 + working * channels * (2 * (chunks or 1) + 1)
    pieces, each = 1, 2 * ranks  # pieces a lane, and a rank's operations a piece: a message to every rank, and from it
    match algorithm:
        case "tree":
            up_and_down = 2 if collective == "all_reduce" else 1
            pieces, each = up_and_down * ranks.bit_length(), 3 * up_and_down
        case "two_shot" | "bidirectional_ring":
            each = 4 * ranks
        case "halving_doubling":
            each = 4 * ranks.bit_length()
        case "recursive_doubling" | "recursive_halving":
            whole_runs = collective == "all_reduce" or channels * (chunks or 1) == 1
            each = 2 * ranks.bit_length() + 2 if whole_runs else 3 * ranks
        case "bruck" if collective == "alltoall":
            steps = (ranks - 1).bit_length()
            each = ranks * (steps + 2) // 2 + 2 * steps
        case "bruck" | "pat":
            each = ranks + 1 + 2 * (ranks - 1).bit_length()
        case "binomial":
            each = 4 if collective in ("gather", "scatter") else 2
        case "chain" if collective in ("gather", "scatter"):
            each = ranks // 2 + 2
        case "direct" if collective in ("gather", "scatter"):
            each = 2
        case "torus_2d":
            ranks, each = 4 * ranks, 2 * sum(_sides(ranks, None))
        case "hierarchical" | "nvls_tree":
            side, domains = _sides(ranks, group)
            ranks = side * domains  # that of the last domain carries as much
            if algorithm == "nvls_tree":
                pieces, channels = max(2 * (domains.bit_length() - 1), 1), 2 * channels
                each = 2 + (3 if domains > 1 else 0)
                return ranks * (4 * side + channels * ((chunks or pieces) * each + 1))
            each = 4 * side - 3 + 2 * domains if collective == "all_reduce" else 2 * ranks + domains
            if collective == "alltoall" and channels * (chunks or 1) > 1:
                each += 2 * (domains - 1) * (side - 1)
        case "ring" | "chain" if collective in ROOTED:
            pieces, each = ranks - 1, 2
        case _ if collective == "sendrecv":
            each = 2
        case _:
            pass
    return ranks * channels * (chunks or pieces) * each


def _sides(ranks: int, group: int | None) -> tuple[int, int]:
    """Ranks of a domain, and domains; where too many to be factorised in time, as of one rank each."""
    from collemu.builders.domains import nearly_square

    side = min(group or (nearly_square(ranks) if ranks <= MOST_OPERATIONS else 1), ranks)
    return side, -(-ranks // side)
