"""Which statement must come before which: what reads and writes the same chunk, and what meets on a connection.

A statement has two parts: its send (number 2j, none where it stays on a rank), which reads the source, and its end
(number 2j + 1), which reads what it adds to and writes the result; on one rank the end does it all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Accesses(NamedTuple):
    """Order among the parts of statements, as the chunks that they touch want it.

    Attributes
    ----------
    before, after : int64 [pairs]
        Parts; the first must be finished when the second begins.
    writer, reader : int64 [reads]
        A part that writes a chunk, and one that reads just that value.
    kept : bool [statements]
        Whether some of the result is still there at the end, in an output.
    """

    before: Ints
    after: Ints
    writer: Ints
    reader: Ints
    kept: Bools


def accesses(columns: dict[str, Ints], cells: dict[str, Ints], output: Bools) -> Accesses:
    """Order that chunks want.

    Parameters
    ----------
    columns : dict of int64 [statements]
        Of `collemu.program.recording.Statement`.
    cells : dict of int64 [statements]
        Cells of the first chunk of ``source``, ``term`` and ``target``.
    output : bool [cells]
        Which cells are of an output.
    """
    count = columns["count"]
    statement = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(statement)) - np.repeat(np.cumsum(count) - count, count)
    remote = (columns["source_rank"] != columns["rank"])[statement]
    adds = columns["reduces"][statement] > 0
    end = 2 * statement + 1
    part = np.concatenate([np.where(remote, 2 * statement, end), end[adds], end])
    cell = np.concatenate(
        [
            cells["source"][statement] + within,
            (cells["term"][statement] + within)[adds],
            cells["target"][statement] + within,
        ]
    )
    writes = np.zeros(len(part), dtype=np.bool_)
    writes[len(part) - len(end) :] = True

    order = np.lexsort((writes, part, cell))
    part, cell, writes = part[order], cell[order], writes[order]
    place = np.arange(len(part))
    first = np.empty(len(part), dtype=np.bool_)  # of a cell
    first[:1], first[1:] = True, cell[1:] != cell[:-1]
    start = np.maximum.accumulate(np.where(first, place, 0))
    # The last write before each access, and the first after it, in the same cell; -1 for none.
    seen = np.maximum.accumulate(np.where(writes, place, -1))
    earlier = np.concatenate([[-1], seen[:-1]])
    earlier = np.where(earlier >= start, earlier, -1)
    coming = np.minimum.accumulate(np.where(writes, place, len(part))[::-1])[::-1]
    coming = np.where(coming < len(part), coming, 0)
    coming = np.where((cell[coming] == cell) & (coming > place), coming, -1)

    reads = ~writes
    true = reads & (earlier >= 0)
    anti = reads & (coming >= 0)
    again = writes & (earlier >= 0) & (earlier == place - 1)  # nothing has read what it overwrites
    before = np.concatenate([part[earlier[true]], part[anti], part[earlier[again]]])
    after = np.concatenate([part[true], part[coming[anti]], part[again]])
    differ = before != after
    last = np.empty(len(part), dtype=np.bool_)
    last[-1:], last[:-1] = True, first[1:]
    ends = np.flatnonzero(last)
    final = writes & (np.repeat(seen[ends], np.diff(ends, prepend=-1)) == place)  # the last write of all to its cell
    kept = np.zeros(len(count), dtype=np.bool_)
    kept[part[final & output[cell]] >> 1] = True
    return Accesses(before[differ], after[differ], part[earlier[true]], part[true], kept)


def rounds(columns: dict[str, Any], cells: dict[str, Ints], order: Ints, connection: Ints) -> Ints:
    """In which round each statement ends, if a connection carries one message a round.

    Parameters
    ----------
    columns, cells
        As in `accesses`.
    order : int64 [statements]
        The statements in an order that respects all chunks.
    connection : int64 [statements]
        Number of the connection, -1 for none.
    """
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    busy: dict[int, int] = {}
    found = np.empty(len(order), dtype=np.int64)
    rows = zip(
        order.tolist(),
        *(values[order].tolist() for values in (cells["source"], cells["term"], cells["target"])),
        *(columns[name][order].tolist() for name in ("reduces", "count")),
        connection[order].tolist(),
        strict=True,
    )
    for statement, source, term, target, adds, count, lane in rows:
        now = busy.get(lane, 0) + 1 if lane >= 0 else 0
        travels = int(lane >= 0)
        for at in range(count):
            now = max(
                now, written.get(source + at, 0) + travels, written.get(target + at, 0), read.pop(target + at, 0)
            )
            if adds:
                now = max(now, written.get(term + at, 0))
        for at in range(count):
            read[source + at] = max(now, read.get(source + at, 0))
            if adds:
                read[term + at] = max(now, read.get(term + at, 0))
            written[target + at] = now
        if lane >= 0:
            busy[lane] = now
        found[statement] = now
    return found
