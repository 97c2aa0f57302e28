"""Which statement must come before which: what reads and writes the same chunk, and what meets on a connection.

A statement has two parts: its send (number 2j, none where it stays on a rank), which reads the source, and its end
(number 2j + 1), which reads what it adds to and writes the result; on one rank the end does it all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

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
        As `collemu.program.recording.COLUMNS` names them.
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


def rounds(order: Accesses, connection: Ints) -> tuple[Ints, Ints]:
    """In which round each statement ends, and which one comes after which, if a connection carries one message a round.

    What could go by a connection in a round goes in the order in which it was written. So some connection is at work
    in every round, and data that is under way goes on before more of it sets out.

    Parameters
    ----------
    order : Accesses
    connection : int64 [statements]
        By which a statement sends, -1 where it stays on its rank.

    Returns
    -------
    round, turn : int64 [statements]
        Turns grow with rounds, and within a round with the order that chunks want.
    """
    total = len(connection)
    pairs = np.unique((order.before >> 1) * (2 * total) + order.after)
    source, part = np.divmod(pairs, 2 * total)
    waits: list[int] = np.bincount(part >> 1, minlength=total).tolist()
    begin = np.searchsorted(source, np.arange(total + 1)).tolist()
    targets: list[int] = (part >> 1).tolist()
    travels: list[bool] = (part % 2 == 0).tolist()
    lane: list[int] = connection.tolist()
    earliest = [1 if each >= 0 else 0 for each in lane]
    found, turn = [0] * total, [0] * total
    coming: dict[int, list[int]] = {}  # by round, what can go from then on
    for statement in range(total):
        if not waits[statement]:
            coming.setdefault(earliest[statement], []).append(statement)
    queues: dict[int, list[int]] = {}  # of what can go now, by connection
    now = done = 0
    while done < total:
        for statement in coming.get(now, ()):
            if lane[statement] >= 0:
                heappush(queues.setdefault(lane[statement], []), statement)
        ready = [statement for statement in coming.pop(now, ()) if lane[statement] < 0]
        ready += [queue[0] for queue in queues.values()]
        heapify(ready)
        used: set[int] = set()
        while ready:
            statement = heappop(ready)
            here = lane[statement]
            if here >= 0:
                if here in used:
                    continue
                used.add(here)
                heappop(queues[here])
                if not queues[here]:
                    del queues[here]
            found[statement], turn[statement] = now, done
            done += 1
            for at in range(begin[statement], begin[statement + 1]):
                target = targets[at]
                if (soonest := now + travels[at]) > earliest[target]:
                    earliest[target] = soonest
                waits[target] -= 1
                if waits[target]:
                    continue
                if earliest[target] > now:
                    coming.setdefault(earliest[target], []).append(target)
                    continue
                if lane[target] >= 0:
                    heappush(queues.setdefault(lane[target], []), target)
                heappush(ready, target)
        now += 1
    return np.array(found, dtype=np.int64), np.array(turn, dtype=np.int64)
