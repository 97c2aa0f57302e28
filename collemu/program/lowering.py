"""A program as a schedule: in which thread, in which order, fused with what, and waiting for what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.matching import match_messages
from collemu.origins import Origins
from collemu.program.dependencies import Accesses, Bools, Ints, accesses, rounds
from collemu.program.fusing import find_connections, fuse, pair_connections, running_max
from collemu.program.recording import COLUMNS, Program
from collemu.program.threads import Operation, Step
from collemu.schedule import OP, THREAD, Schedule
from collemu.verification.waits import Waits

SLOTS = 2  # FIFO slots with which fusing must not bring a deadlock
_TRIES = 6
_MOST_THREADS = int(np.iinfo(THREAD["id"]).max)


def lower_statements(program: Program, definition: str) -> Schedule:
    """The schedule of a program of copies and reductions; nothing is published yet but what says so."""
    table = np.frombuffer(program.statements, dtype=np.int64).reshape(-1, len(COLUMNS))
    columns = {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(COLUMNS)}
    geometry = program.geometry()
    geometry = replace(geometry, scratch_chunks=program.scratch_chunks)
    draft = _Draft(geometry, columns, tuple(program.files), definition)
    pairs = draft.pairs()
    for _ in range(_TRIES):
        pairs = draft.fitting(pairs)
        schedule = draft.schedule(pairs[0], pairs[1])
        waits = Waits(schedule, match_messages(schedule))
        if waits.runs(SLOTS):
            return schedule
        stuck = draft.statement_of[[op for op, _, _ in waits.cycle(SLOTS)]]
        pairs = pairs[:, ~np.isin(pairs[0], stuck)]  # take apart what is in the way
    nothing = pairs[:, :0]  # in the end everything: one message at a time always gets through
    return draft.schedule(nothing[0], nothing[1])


class _Draft:
    """Statements, and the parts of them: sends (2j) and ends (2j + 1)."""

    def __init__(self, geometry: Schedule, columns: dict[str, Ints], files: tuple[str, ...], definition: str) -> None:
        self._geometry, self._columns = geometry, columns
        self._files, self._definition = files, definition
        self._lines = find_connections(columns, geometry.ranks)
        bases, cells = geometry.cell_bases()
        output = np.zeros(cells, dtype=np.bool_)
        output[(bases[:, kinds.OUTPUT, None] + np.arange(geometry.output_chunks)).ravel()] = True
        at = {
            "source": bases[columns["source_rank"], columns["source_buffer"]] + columns["source"],
            "target": bases[columns["rank"], columns["buffer"]] + columns["chunk"],
            "term": bases[columns["rank"], columns["term_buffer"]] + columns["term"],
        }
        self._in_place = at["term"] == at["target"]
        self._order: Accesses = accesses(columns, at, output)
        now, turn = rounds(self._order, self._lines.of)
        # Sends of a round come before what ends in it.
        when = np.stack([2 * now - 1, 2 * now], axis=1).ravel()
        self._key = np.empty(len(when), dtype=np.int64)
        self._key[np.lexsort((np.repeat(turn, 2), when))] = np.arange(len(when))
        self.statement_of = np.empty(0, dtype=np.int64)  # of each operation of the last schedule

    def pairs(self) -> Ints:
        """Receives and sends that could be one, shape (2, pairs); shares the connections among threads for them."""
        incoming, outgoing = self._candidates()
        lines = self._lines
        self._onward = pair_connections(lines, lines.of[incoming], lines.of[outgoing])
        together = np.flatnonzero(self._onward[lines.of[incoming]] == lines.of[outgoing])
        # Of several sends of a chunk by the same connection the first.
        together = together[np.lexsort((self._key[2 * outgoing[together]], incoming[together]))]
        _, lead = np.unique(incoming[together], return_index=True)
        return np.stack([incoming, outgoing])[:, together[lead]]

    def fitting(self, pairs: Ints) -> Ints:
        """Those of the pairs that leave the messages of each connection in order."""
        return pairs[:, fuse(pairs[0], pairs[1], self._key, self._lines)]

    def _candidates(self) -> tuple[Ints, Ints]:
        """Pairs of statements: the second sends on just what the first has brought, on the same channel."""
        order, columns, lines = self._order, self._columns, self._lines
        first, second = order.writer >> 1, order.reader >> 1
        good = (order.reader % 2 == 0) & (lines.of[first] >= 0)
        first, second = first[good], second[good]
        same = columns["channel"][first] == columns["channel"][second]
        for mine, theirs in (("buffer", "source_buffer"), ("chunk", "source"), ("count", "count")):
            same &= columns[mine][first] == columns[theirs][second]
        total = max(len(columns["rank"]), 1)
        keys, times = np.unique(first[same] * total + second[same], return_counts=True)
        first, second = np.divmod(keys, total)
        whole = times == columns["count"][first]  # nothing has overwritten part of it meanwhile
        return first[whole], second[whole]

    def schedule(self, incoming: Ints, outgoing: Ints) -> Schedule:
        """The schedule in which these pairs are fused."""
        columns, lines = self._columns, self._lines
        total = len(columns["rank"])
        remote = lines.of >= 0
        there = np.stack([remote, np.ones(total, dtype=np.bool_)], axis=1).ravel()
        stands_for = np.arange(2 * total)
        there[2 * outgoing] = False
        stands_for[2 * outgoing] = 2 * incoming + 1

        threads, thread_of = self._threads()
        parts = np.flatnonzero(there)
        parts = parts[np.lexsort((self._key[parts], thread_of[parts]))]
        place = np.full(2 * total, -1, dtype=np.int64)
        place[parts] = np.arange(len(parts))
        before, after = (place[stands_for[each]] for each in (self._order.before, self._order.after))
        op, dep = _needed(before, after, thread_of[parts])
        ops = self._operations(parts, incoming, outgoing)
        ops, origin, statement = _with_dependencies(ops, op, dep, parts >> 1)
        self.statement_of = statement
        lengths = np.bincount(thread_of[parts][origin], minlength=len(threads))
        threads["length"] = lengths
        threads["first"] = np.cumsum(lengths) - lengths
        return replace(
            self._geometry,
            threads=threads,
            ops=ops,
            channels=int(threads["channel"].max(initial=0)) + 1,
            origin=Origins(self._files, columns["file"][statement], columns["line"][statement], self._definition),
        )

    def _threads(self) -> tuple[NDArray[Any], Ints]:
        """Threads of all ranks, without operations; and the thread of every part."""
        columns, lines = self._columns, self._lines
        onward = self._onward
        goes = np.setdiff1d(np.arange(len(onward)), onward)  # connections whose senders do not receive
        here = lines.of < 0
        homes, home = np.unique(
            columns["channel"][here] * self._geometry.ranks + columns["rank"][here], return_inverse=True
        )
        channel, rank = np.divmod(homes, self._geometry.ranks)
        none = np.full(len(homes), -1, dtype=np.int64)
        table = np.zeros(len(onward) + len(goes) + len(homes), dtype=THREAD)
        after = np.where(onward >= 0, np.append(lines.receiver, -1)[onward], -1)
        table["rank"] = np.concatenate([lines.receiver, lines.sender[goes], rank])
        table["recv_peer"] = np.concatenate([lines.sender, np.full(len(goes), -1), none])
        table["send_peer"] = np.concatenate([after, lines.receiver[goes], none])
        table["channel"] = np.concatenate([lines.channel, lines.channel[goes], channel])
        order = np.lexsort((table["recv_peer"], table["send_peer"], table["channel"], table["rank"]))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        table = table[order]
        ids = np.arange(len(table)) - np.searchsorted(table["rank"], table["rank"])
        if ids.max(initial=0) > _MOST_THREADS:
            raise ValueError(f"a rank needs {int(ids.max()) + 1} threads; it may have {_MOST_THREADS + 1}")
        table["id"] = ids

        sending = np.empty(len(onward), dtype=np.int64)
        sending[onward[onward >= 0]] = np.flatnonzero(onward >= 0)
        sending[goes] = len(onward) + np.arange(len(goes))
        thread_of = np.zeros((len(here), 2), dtype=np.int64)
        thread_of[~here, 0] = place[sending[lines.of[~here]]]
        thread_of[~here, 1] = place[lines.of[~here]]
        thread_of[here, 1] = place[len(onward) + len(goes) + home]
        return table, thread_of.ravel()

    def _operations(self, parts: Ints, incoming: Ints, outgoing: Ints) -> NDArray[Any]:
        """What the parts do, each in an operation without dependencies."""
        columns, lines = self._columns, self._lines
        statement = parts >> 1
        sends, remote = parts % 2 == 0, lines.of[statement] >= 0
        adds = columns["reduces"][statement] > 0
        onto = self._in_place[statement]
        goes_on = np.zeros(len(columns["rank"]), dtype=np.bool_)
        goes_on[incoming] = True
        fused = goes_on[statement] & ~sends
        silent = fused & adds & ~self._is_read(incoming, outgoing)[statement]
        kind = np.select(
            [
                sends,
                ~remote & adds,
                ~remote,
                fused & ~adds,
                silent,
                fused,
                adds & onto,
                adds,
            ],
            [
                kinds.SEND,
                kinds.REDUCE,
                kinds.COPY,
                kinds.RECV_COPY_SEND,
                kinds.RECV_REDUCE_SEND,
                kinds.RECV_REDUCE_COPY_SEND,
                kinds.RECV_REDUCE,
                kinds.RECV_REDUCE_COPY,
            ],
            kinds.RECV,
        )
        term = adds & remote & ~sends  # the source is what the message is added to
        ops = np.zeros(len(parts), dtype=OP)
        ops["kind"], ops["count"], ops["dep"] = kind, columns["count"][statement], -1
        ops["src_buffer"] = np.where(term, columns["term_buffer"][statement], columns["source_buffer"][statement])
        ops["src"] = np.where(term, columns["term"][statement], columns["source"][statement])
        ops["dst_buffer"], ops["dst"] = columns["buffer"][statement], columns["chunk"][statement]
        ops["publish"] = np.where(sends | silent, -1, columns["publish"][statement]).astype(np.uint8)
        return ops

    def _is_read(self, incoming: Ints, outgoing: Ints) -> Bools:
        """Whether the result of a statement is needed where it stands, not only by the send fused with it."""
        order = self._order
        follower = np.full(len(self._columns["rank"]), -1, dtype=np.int64)
        follower[incoming] = 2 * outgoing
        needed = order.kept.copy()
        writer = order.writer >> 1
        needed[writer[(order.reader != follower[writer]) & (order.reader != order.writer)]] = True
        return needed


def _needed(before: Ints, after: Ints, thread: Ints) -> tuple[Ints, Ints]:
    """Which operations wait, and for which, by the first; without what the order of threads gives already."""
    other = thread[before] != thread[after]
    before, after = before[other], after[other]
    group = thread[after] * (int(thread.max(initial=0)) + 1) + thread[before]
    _, group = np.unique(group, return_inverse=True)
    order = np.lexsort((-before, after, group))
    before, after, group = before[order], after[order], group[order]
    highest = running_max(before, group)
    fresh = np.ones(len(before), dtype=np.bool_)
    fresh[1:] = (group[1:] != group[:-1]) | (before[1:] > highest[:-1])
    before, after = before[fresh], after[fresh]
    order = np.argsort(after, kind="stable")
    return after[order], before[order]


def _with_dependencies(ops: NDArray[Any], op: Ints, dep: Ints, statement: Ints) -> tuple[NDArray[Any], Ints, Ints]:
    """Operations that wait, after nops for all but one of what they wait for.

    Returns
    -------
    ops : ndarray of OP
    origin : int64 [operations]
        Which of the given operations each is, or stands before.
    statement : int64 [operations]
    """
    waits = np.bincount(op, minlength=len(ops))
    rows = np.maximum(waits, 1)
    last = np.cumsum(rows) - 1  # where each goes
    origin = np.repeat(np.arange(len(ops)), rows)
    table = np.zeros(len(origin), dtype=OP)
    table["dep"] = -1
    table[last] = ops
    nth = np.arange(len(op)) - np.searchsorted(op, op)
    table["dep"][last[op] - waits[op] + 1 + nth] = last[dep]
    return table, origin, statement[origin]


def lower_threads(program: Program, definition: str) -> Schedule:
    """The schedule of a program of threads; nothing is published yet but what says so."""
    made = sorted(program.threads, key=lambda thread: thread.rank)
    threads = np.zeros(len(made), dtype=THREAD)
    rows: list[tuple[int, ...]] = []
    first: list[int] = []
    waits: list[Operation | None] = []
    origins: list[tuple[int, int]] = []
    place: dict[int, list[int]] = {}
    for number, thread in enumerate(made):
        first.append(len(rows))
        mine = place[id(thread)] = []
        for step in thread.steps:
            for nth in range(max(1, len(step.after))):
                waits.append(step.after[nth] if step.after else None)
                origins.append((step.file, step.line))
                ends = nth >= len(step.after) - 1
                rows.append(_row(step) if ends else (kinds.NOP, 255, 0, 0, 0, 0, 0, -1))
            mine.append(len(rows) - 1)
        threads[number] = (
            thread.rank,
            thread.send_peer,
            thread.recv_peer,
            len(rows) - first[-1],
            first[-1],
            0,
            thread.channel,
        )
    ids = np.arange(len(made)) - np.searchsorted(threads["rank"], threads["rank"])
    if ids.max(initial=0) > _MOST_THREADS:
        raise ValueError(f"a rank has {int(ids.max()) + 1} threads; it may have {_MOST_THREADS + 1}")
    threads["id"] = ids
    ops = np.array(rows, dtype=OP)
    ops["dep"] = [place[id(each.thread)][each.step] if each else -1 for each in waits]
    file, line = np.array(origins, dtype=np.int64).reshape(-1, 2).T
    return replace(
        program.geometry(),
        threads=threads,
        ops=ops,
        scratch_chunks=program.scratch_chunks,
        channels=int(threads["channel"].max(initial=0)) + 1,
        origin=Origins(tuple(program.files), file, line, definition),
    )


def _row(step: Step) -> tuple[int, ...]:
    source, target = step.source, step.target
    one = source or target
    return (
        step.kind,
        step.publish & 255,
        source.buffer if source else 0,
        target.buffer if target else 0,
        source.first if source else 0,
        target.first if target else 0,
        one.count if one else 0,
        -1,
    )
