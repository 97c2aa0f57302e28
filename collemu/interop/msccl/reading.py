"""Reads MSCCL XML as its runtimes do, and names what is missing or wrong by its place.

Thread blocks and GPUs may stand in any order. Steps run in the order in which they stand; ``deps`` counts in that
order too, and a runtime that waits for a step waits for the first from there on that reports its end (``hasdep="1"``).
Unknown elements and attributes are passed over.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.arguments import one_of
from collemu.catalogue.sections import PROTOCOLS
from collemu.collectives import INPUT_PER_RANK, OUTPUT_PER_RANK
from collemu.interop.elements import read_elements
from collemu.interop.msccl import words
from collemu.interop.publishing import publish_what_is_final
from collemu.interop.root import find_root
from collemu.schedule import OP, READS_SRC, RECEIVES, SENDS, THREAD, WRITES_DST, Schedule, ScheduleError
from collemu.verification.structure import check_structure

_MOST = 2**31 - 1
_MOST_BYTES = 2**63 - 1
_MOST_CHUNKS = 2**24  # in all buffers of all ranks, and in all operations: a small file can ask for much memory
_MOST_ID = int(np.iinfo(THREAD["id"]).max)
_BUFFER_NAMES = tuple(words.BUFFERS)
_LEVELS = ("algo", "gpu", "tb", "step")

Attributes = dict[str, str]


def read_msccl(path: str | PathLike[str], *, collective: str | None = None, in_place: bool | None = None) -> Schedule:
    """Read a schedule.

    MSCCL has no wire formats, so its files do not say which chunks are final and get published. Where a file lacks
    the marks that `write_msccl` adds, operations publish what they leave for good in the output of an all_reduce,
    all_gather or broadcast, and what other ranks get from there. Values that an algorithm sends from a buffer and
    never writes, such as a rank's own part of an in-place all_gather, stay exact where they are; so replicas may
    differ with a wire format.

    Parameters
    ----------
    path : path of a file
    collective : str, optional
        What it does, for files with ``coll="custom"``; others must agree.
    in_place : bool, optional
        Which layout, where the file allows both; out of place when left out.

    Returns
    -------
    Schedule
        Of sound structure; `verify` proves the rest. The root of a broadcast or reduce, which MSCCL does not write
        down, is the one rank that receives, or sends, nothing; else rank 0.

    Raises
    ------
    ValueError
        For what is no MSCCL XML; the text names file, GPU, thread block, step and attribute.
    OSError
        If the file cannot be read.
    """
    layouts = read_layouts(path, collective=collective)
    if in_place is None:
        return layouts[0]
    for schedule in layouts:
        if schedule.in_place == in_place:
            return schedule
    raise ValueError(f"{fspath(path)}: {'inplace' if in_place else 'outofplace'} is 0")


def read_layouts(path: str | PathLike[str], *, collective: str | None = None) -> list[Schedule]:
    """Read a schedule in every layout that the file allows: out of place first, then in place."""
    reader = _Reader(collective)
    try:
        read_elements(path, reader.begin, reader.end, what="MSCCL XML")
        return reader.schedules()
    except ScheduleError as error:
        raise ScheduleError(f"{fspath(path)}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{fspath(path)}: {error}") from None


class _Step(NamedTuple):
    fields: tuple[int, ...]  # of OP, without the last
    awaited: tuple[int, int] | None  # thread block and step


@dataclass
class _Block:
    place: str
    send_peer: int
    recv_peer: int
    channel: int
    steps: list[_Step] = field(default_factory=list[_Step])
    counted: int = 0  # steps that `deps` of others count
    reports: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # such a number, and the step


@dataclass
class _Gpu:
    rank: int
    chunks: tuple[int, ...]  # of each buffer
    blocks: dict[int, _Block] = field(default_factory=dict[int, _Block])


class _Reader:
    """Takes elements as they come, and makes schedules of them at the end."""

    def __init__(self, collective: str | None) -> None:
        if collective is not None:
            one_of(collective, words.PROMISES, "collective")
        self._asked = collective
        self._depth = self._foreign = self._moved = 0
        self._gpus: dict[int, _Gpu] = {}
        self._open = (self._algorithm, self._gpu, self._block, self._step)  # by level

    def begin(self, name: str, attributes: Attributes) -> None:
        """An element begins."""
        depth, self._depth = self._depth, self._depth + 1
        if self._foreign or depth == len(_LEVELS) or name != _LEVELS[depth]:
            if depth == 0:
                raise ValueError(f"no MSCCL XML: the root element is {name[:60]!r}, not 'algo'")
            self._foreign += 1
        else:
            self._open[depth](attributes)

    def end(self, _: str) -> None:
        """An element ends."""
        self._depth -= 1
        self._foreign -= self._foreign > 0

    def _algorithm(self, given: Attributes) -> None:
        place = "algo"
        self._name = _text(given, "name", place)
        self._ranks = _whole(given, "ngpus", place, least=1)
        self._channels = _whole(given, "nchannels", place, least=1, most=_MOST_ID)
        self._chunks = _whole(given, "nchunksperloop", place, least=1)
        self._protocol = words.PROTOCOLS[_choice(given, "proto", place, words.PROTOCOLS)]
        if words.WRITTEN_FOR in given:
            self._protocol = _choice(given, words.WRITTEN_FOR, place, ("auto", *PROTOCOLS))
        self._collective = self._find_collective(_text(given, "coll", place))
        smallest = _whole(given, "minBytes", place, most=_MOST_BYTES, default=0)
        largest = _whole(given, "maxBytes", place, most=_MOST_BYTES, default=_MOST_BYTES)
        if smallest > largest:
            raise ValueError(f"{place}: minBytes is {smallest}, more than maxBytes, {largest}")
        in_place = bool(_whole(given, "inplace", place))
        out_of_place = bool(_whole(given, "outofplace", place, default=int(not in_place)))
        self._layouts = [False] * out_of_place + [True] * in_place
        if not self._layouts:
            raise ValueError(f"{place}: inplace and outofplace are both 0, so it is never used")
        self._marked = given.get(words.PUBLISH) == words.MARKED
        regions = words.regions(self._collective, self._ranks)
        if self._chunks % regions:
            raise ValueError(
                f"{place}: nchunksperloop is {self._chunks}, no multiple of the {regions} ranks' parts of "
                f"{self._collective}"
            )
        k = self._chunks // regions
        self._input = k * (self._ranks if self._collective in INPUT_PER_RANK else 1)
        self._output = k * (self._ranks if self._collective in OUTPUT_PER_RANK else 1)

    def _find_collective(self, coll: str) -> str:
        asked = self._asked
        if coll == words.CUSTOM:
            if asked is None:
                raise ValueError("algo: coll is 'custom', which promises nothing: say which collective it is")
            return asked
        found = words.COLLECTIVES.get(coll)
        if found is None:
            raise ValueError(f"algo: coll is {coll[:60]!r}; choose {', '.join((*words.COLLECTIVES, words.CUSTOM))}")
        if asked not in (None, found):
            raise ValueError(f"it does {found}, not {asked}")
        return found

    def _gpu(self, given: Attributes) -> None:
        rank = _whole(given, "id", f"gpu number {len(self._gpus)}", most=self._ranks - 1)
        if rank in self._gpus:
            raise ValueError(f"gpu {rank}: there are two")
        limits = {"i_chunks": self._input, "o_chunks": self._output, "s_chunks": _MOST_CHUNKS}
        chunks = tuple(_whole(given, name, f"gpu {rank}", most=most) for name, most in limits.items())
        self._gpus[rank] = self._here = _Gpu(rank, chunks)

    def _block(self, given: Attributes) -> None:
        gpu = self._here
        number = _whole(given, "id", f"gpu {gpu.rank} tb number {len(gpu.blocks)}", most=_MOST_ID)
        place = f"gpu {gpu.rank} tb {number}"
        if number in gpu.blocks:
            raise ValueError(f"{place}: there are two")
        send, recv = (_whole(given, name, place, least=-1, most=self._ranks - 1) for name in ("send", "recv"))
        if gpu.rank in (send, recv):
            raise ValueError(f"{place}: {'send' if send == gpu.rank else 'recv'} is {gpu.rank}, the gpu itself")
        alone = send == recv == -1
        channel = _whole(given, "chan", place, least=-1 if alone else 0, most=self._channels - 1)
        gpu.blocks[number] = self._tb = _Block(place, send, recv, max(channel, 0))

    def _step(self, given: Attributes) -> None:
        block = self._tb
        place = f"{block.place} step {len(block.steps)}"
        _whole(given, "s", place)  # runtimes want it, and go by the order of the steps
        word = _text(given, "type", place)
        if word in words.RESIDUAL_ADDS:
            raise ValueError(f"{place}: type {word!r} adds a tensor from outside, which no collective has")
        kind = words.KINDS[_choice(given, "type", place, words.KINDS)]
        idle = kind == kinds.NOP
        for side, has in (("send", SENDS[kind]), ("recv", RECEIVES[kind])):
            if has and (block.send_peer if side == "send" else block.recv_peer) < 0:
                raise ValueError(f"{place}: type {word!r} needs a peer, and {side} of its tb is -1")
        source, target = _chunk(given, "src", place), _chunk(given, "dst", place)
        count = _whole(given, "cnt", place, least=0 if idle else 1)
        thread = _whole(given, "depid", place, least=-_MOST)
        deps = _whole(given, "deps", place, least=-_MOST if thread < 0 else 0)
        reports = _whole(given, "hasdep", place, most=1)
        if kind == kinds.RECV_REDUCE_COPY and source == target:
            kind = kinds.RECV_REDUCE
        # What a side says that is not used is left out: the other end of the message, or -1.
        source = self._within(place, "src", source, count) if READS_SRC[kind] else (kinds.INPUT, 0)
        target = self._within(place, "dst", target, count) if WRITES_DST[kind] else (kinds.INPUT, 0)
        publish = words.PUBLISHED.get(given.get(words.PUBLISH, ""), kinds.KEEP)
        awaited = (thread, deps) if thread >= 0 else None
        if reports and not idle:
            block.reports.append((block.counted, len(block.steps)))
        count = 0 if idle else count
        block.steps.append(_Step((kind, publish, source[0], target[0], source[1], target[1], count), awaited))
        block.counted += not idle or awaited is not None  # a nop is counted by its dependency
        self._moved += count
        if self._moved > _MOST_CHUNKS:
            raise ValueError(f"{place}: more than {_MOST_CHUNKS:,} chunks in all steps together")

    def _within(self, place: str, side: str, chunk: tuple[int, int], count: int) -> tuple[int, int]:
        buffer, first = chunk
        limit = self._here.chunks[buffer]
        if not 0 <= first <= limit - count:
            raise ValueError(
                f"{place}: {side}off is {first} and cnt {count}, and {side}buf {_BUFFER_NAMES[buffer]} has {limit} "
                f"chunk{'s' * (limit != 1)}"
            )
        return chunk

    def schedules(self) -> list[Schedule]:
        """The schedule in every layout."""
        missing = next((rank for rank in range(self._ranks) if rank not in self._gpus), None)
        if missing is not None:
            raise ValueError(f"gpu {missing} is missing; ngpus is {self._ranks}")
        scratch = max(gpu.chunks[2] for gpu in self._gpus.values())
        total = self._ranks * (self._input + self._output + scratch)
        if total > _MOST_CHUNKS:
            raise ValueError(f"{total:,} chunks in all, over the limit of {_MOST_CHUNKS:,}")
        threads, ops = self._tables()
        return [self._schedule(threads, ops, scratch, in_place) for in_place in self._layouts]

    def _schedule(self, threads: NDArray[Any], ops: NDArray[Any], scratch: int, in_place: bool) -> Schedule:
        schedule = Schedule(
            self._collective,
            self._name,
            self._ranks,
            find_root(self._collective, threads, ops),
            self._channels,
            threads,
            ops,
            self._input,
            self._output,
            scratch,
            in_place,
            protocol=self._protocol,
        )
        check_structure(schedule)
        return schedule if self._marked else publish_what_is_final(schedule)

    def _tables(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Threads and operations, by rank and thread block."""
        threads: list[tuple[int, ...]] = []
        ops: list[tuple[int, ...]] = []
        for rank in range(self._ranks):
            found = self._gpus[rank].blocks
            blocks = [found[number] for number in range(len(found)) if number in found]
            if len(blocks) < len(found):
                gap = next(number for number in range(len(found)) if number not in found)
                raise ValueError(f"gpu {rank}: tb {gap} is missing; ids count from 0 without a gap")
            first = np.cumsum([len(ops), *(len(block.steps) for block in blocks)]).tolist()
            for number, block in enumerate(blocks):
                threads.append(
                    (rank, block.send_peer, block.recv_peer, len(block.steps), first[number], number, block.channel)
                )
                for place, (fields, awaited) in enumerate(block.steps):
                    dep = -1
                    if awaited is not None:
                        dep = first[awaited[0]] if awaited[0] < len(blocks) else 0
                        dep += _reporting(f"{block.place} step {place}", awaited, blocks)
                    ops.append((*fields, dep))
        return np.array(threads, dtype=THREAD), np.array(ops, dtype=OP)


def _reporting(place: str, awaited: tuple[int, int], blocks: list[_Block]) -> int:
    """The step whose end a runtime waits for: the first from the awaited one on that reports it."""
    number, step = awaited
    if number >= len(blocks):
        raise ValueError(f"{place}: depid is {number}, and its gpu has {len(blocks)} tb")
    reports = blocks[number].reports
    at = bisect_left(reports, (step,))
    if at == len(reports):
        raise ScheduleError(
            f"{place} would wait for ever: neither step {step} of tb {number} nor a later one has hasdep 1"
        )
    return reports[at][1]


def _chunk(given: Attributes, side: str, place: str) -> tuple[int, int]:
    buffer = words.BUFFERS[_choice(given, f"{side}buf", place, words.BUFFERS)]
    return buffer, _whole(given, f"{side}off", place, least=-_MOST)


def _text(given: Attributes, name: str, place: str) -> str:
    if name not in given:
        raise ValueError(f"{place}: attribute {name} is missing")
    return given[name]


def _choice(given: Attributes, name: str, place: str, choices: Collection[str]) -> str:
    value = _text(given, name, place)
    if value not in choices:
        raise ValueError(f"{place}: {name} is {value[:60]!r}; choose {', '.join(choices)}")
    return value


def _whole(
    given: Attributes, name: str, place: str, *, least: int = 0, most: int = _MOST, default: int | None = None
) -> int:
    if default is not None and name not in given:
        return default
    value = _text(given, name, place)
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value, re.ASCII):
        raise ValueError(f"{place}: {name} is {value[:60]!r}, no whole number")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{place}: {name} is {number}; it must be {least} to {most}")
    return number
