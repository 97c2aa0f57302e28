"""Writes MSCCL XML, or names what MSCCL cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from collemu_kernels import kinds
from numpy.typing import NDArray

from collemu.arguments import instance_of, one_of
from collemu.interop.msccl import words
from collemu.schedule import IN_SWITCH, READS_SRC, RECEIVES, SENDS, WRITES_DST, Schedule, ScheduleError
from collemu.verification.structure import check_structure

MAX_BYTES = 2**40  # sizes for which a runtime may choose the algorithm: all

_BUFFERS = {number: word for word, number in words.BUFFERS.items()}
_TYPES = {number: word for word, number in words.KINDS.items()} | {kinds.RECV_REDUCE: "rrc"}
_PUBLISHED = {number: f' {words.PUBLISH}="{word}"' for word, number in words.PUBLISHED.items()} | {kinds.KEEP: ""}
_PROTO = {protocol: word for word, protocol in words.PROTOCOLS.items()}
_COLL = {collective: word for word, collective in reversed(words.COLLECTIVES.items())}


def write_msccl(schedule: Schedule, path: str | PathLike[str], proto: str | None = None) -> None:
    """Write a schedule as MSCCL XML.

    Parameters
    ----------
    schedule : Schedule
        A gather, scatter or sendrecv, which MSCCL has not, gets ``coll="custom"``; ids of threads lose their gaps.
    path : path of a file
    proto : str, optional
        Simple, LL or LL128; that of the schedule's protocol when left out, or Simple.

    Raises
    ------
    ScheduleError
        For what MSCCL cannot say or its runtimes would refuse; the text names rank, thread and step.
    """
    text = msccl_text(schedule, proto)
    Path(fspath(path)).write_text(text, encoding="utf-8", newline="\n")


def msccl_text(schedule: Schedule, proto: str | None = None) -> str:
    """The text that `write_msccl` writes."""
    instance_of(schedule, Schedule, "MSCCL XML: schedule", "build_schedule makes one")
    if proto is not None:
        one_of(proto, tuple(words.PROTOCOLS), "proto")
    check_structure(schedule)
    _refuse_what_cannot_be_said(schedule)
    return "".join(_lines(schedule, proto))  # no XML declaration: runtimes cannot read one


def _lines(schedule: Schedule, proto: str | None) -> Iterator[str]:
    known = _PROTO.get(schedule.protocol)
    written_for = f' {words.WRITTEN_FOR}="{schedule.protocol}"' if proto is None and known is None else ""
    proto = proto or known or "Simple"
    name = escape(schedule.algorithm, {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})
    yield (
        f'<algo name="{name}" proto="{proto}" nchannels="{schedule.channels}" '
        f'nchunksperloop="{max(schedule.input_chunks, schedule.output_chunks)}" ngpus="{schedule.ranks}" '
        f'coll="{_COLL.get(schedule.collective, words.CUSTOM)}" inplace="{int(schedule.in_place)}" '
        f'outofplace="{int(not schedule.in_place)}" minBytes="0" maxBytes="{MAX_BYTES}" '
        f'{words.PUBLISH}="{words.MARKED}"{written_for}>\n'
    )
    chunks = (
        f'i_chunks="{schedule.input_chunks}" o_chunks="{schedule.output_chunks}" s_chunks="{schedule.scratch_chunks}"'
    )
    awaited = np.zeros(len(schedule.ops), dtype=np.bool_)
    awaited[schedule.ops["dep"][schedule.ops["dep"] >= 0]] = True
    begin, numbers = np.searchsorted(schedule.threads["rank"], np.arange(schedule.ranks + 1)), _numbers(schedule)
    for rank in range(schedule.ranks):
        yield f'  <gpu id="{rank}" {chunks}>\n'
        for number, thread in enumerate(schedule.threads[begin[rank] : begin[rank + 1]]):
            yield (
                f'    <tb id="{number}" send="{thread["send_peer"]}" recv="{thread["recv_peer"]}" '
                f'chan="{thread["channel"]}">\n'
            )
            yield from _steps(schedule, thread, numbers, awaited)
            yield "    </tb>\n"
        yield "  </gpu>\n"
    yield "</algo>\n"


def _steps(schedule: Schedule, thread: Any, numbers: NDArray[np.int64], awaited: NDArray[np.bool_]) -> Iterator[str]:
    first, length = int(thread["first"]), int(thread["length"])
    rows, firsts = schedule.ops[first : first + length].tolist(), schedule.threads["first"]
    for step, (kind, publish, src_buffer, dst_buffer, src, dst, count, dep) in enumerate(rows):
        # A side that is not used says what the other does, as MSCCL's own tools write it.
        source, target = (_BUFFERS[src_buffer], src), (_BUFFERS[dst_buffer], dst)
        if kind == kinds.NOP:
            source, target, count = ("i", -1), ("o", -1), 0  # noqa: PLW2901
        elif not READS_SRC[kind]:
            source = target
        elif not WRITES_DST[kind]:
            target = source
        of = schedule.thread_of_op[dep]
        depends = f'depid="{numbers[of]}" deps="{dep - firsts[of]}"' if dep >= 0 else 'depid="-1" deps="-1"'
        yield (
            f'      <step s="{step}" type="{_TYPES[kind]}" srcbuf="{source[0]}" srcoff="{source[1]}" '
            f'dstbuf="{target[0]}" dstoff="{target[1]}" cnt="{count}" {depends} '
            f'hasdep="{int(awaited[first + step])}"{_PUBLISHED[publish]}/>\n'
        )


def _numbers(schedule: Schedule) -> NDArray[np.int64]:
    """Threads of each rank, counted from 0: MSCCL takes no gaps."""
    rank = schedule.threads["rank"]
    return np.arange(len(rank)) - np.searchsorted(rank, rank)


def _refuse_what_cannot_be_said(schedule: Schedule) -> None:
    if len(schedule.algorithm) > words.MOST_NAME:
        raise ScheduleError(f"MSCCL takes names of at most {words.MOST_NAME} characters")
    if schedule.counts is not None:
        raise ScheduleError("MSCCL has no counts for pairs of ranks, which an alltoallv needs; write an alltoall")
    threads, ops = schedule.threads, schedule.ops
    kind, of = ops["kind"], schedule.thread_of_op
    nop = kind == kinds.NOP
    dep = ops["dep"]
    # The operation after each in its thread; of the last, itself.
    follower = np.minimum(np.arange(len(ops)) + 1, (threads["first"] + threads["length"])[of] - 1)
    for bad, problem in (
        (IN_SWITCH[kind], "is work of a switch, which MSCCL does not know"),
        (~nop & (ops["count"] == 0), "is a signal without chunks, which MSCCL does not send"),
        (~nop & (ops["count"] > words.MOST_COUNT), f"moves more than the {words.MOST_COUNT} chunks that MSCCL takes"),
        ((dep >= 0) & nop[dep], "waits for a nop, whose end MSCCL does not report"),
        (nop & ((dep < 0) | (dep[follower] < 0)), "and what follows it must wait for something, for MSCCL joins them"),
        (ops["publish"] > max(words.PUBLISHED.values()), "publishes in a way that there is not"),
    ):
        if (at := np.flatnonzero(bad)).size:
            raise ScheduleError(f"{schedule.describe(int(at[0]))} {problem}")

    number = _numbers(schedule)
    for bad, problem in (
        (threads["length"] > words.MOST_STEPS, f"has more than the {words.MOST_STEPS} steps that MSCCL takes"),
        (number >= words.MOST_BLOCKS, f"is beyond the {words.MOST_BLOCKS} thread blocks of a GPU that MSCCL takes"),
        (threads["channel"] >= words.MOST_CHANNELS, f"is beyond the {words.MOST_CHANNELS} channels that MSCCL takes"),
        (threads["channel"] >= schedule.channels, "is on a channel that the schedule does not count"),
    ):
        if (at := np.flatnonzero(bad)).size:
            thread = threads[at[0]]
            raise ScheduleError(f"rank {thread['rank']} thread {thread['id']} {problem}")
    for peer, verb, used in (("send_peer", "send", SENDS), ("recv_peer", "receive", RECEIVES)):
        busy = np.zeros(len(threads), dtype=np.bool_)
        busy[of[used[kind]]] = True
        lanes, many = np.unique(threads[["rank", "channel"]][busy & (threads[peer] >= 0)], return_counts=True)
        if (at := np.flatnonzero(many > words.MOST_PEERS)).size:
            rank, channel = lanes[at[0]]
            raise ScheduleError(
                f"{many[at[0]]} threads of rank {rank} {verb} on channel {channel}; MSCCL takes {words.MOST_PEERS}"
            )
