"""The explicit way: threads of a rank and their operations, written down one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from collemu_kernels import kinds

from collemu.arguments import shown

if TYPE_CHECKING:
    from collemu.program.recording import Chunk, Program

_HERE = 3  # calls from `Program.place_of` out to the user's


class Operation(NamedTuple):
    """An operation of a thread; others of its rank can wait for it with ``after=``."""

    thread: Thread
    step: int


class Step(NamedTuple):
    """What an operation does."""

    kind: int
    publish: int
    source: Chunk | None
    target: Chunk | None
    after: tuple[Operation, ...]
    line: int
    file: int


After = Operation | Iterable[Operation] | None
Publish = bool | str | None


class Thread:
    """Operations of a rank that run in order, with one peer to send to, one to receive from, and one channel.

    Every operation takes ``after``: an operation of another thread of the rank that must have finished, or several.
    Those that write a place take ``publish``, as `Chunk.copy_to` does. Nothing else is found out: what the order of
    the threads does not say must be said with ``after``, and `collemu.verify` finds what is missing.
    """

    def __init__(self, program: Program, rank: int, send_peer: int, recv_peer: int, channel: int) -> None:
        self.rank, self.send_peer, self.recv_peer, self.channel = rank, send_peer, recv_peer, channel
        self.steps: list[Step] = []
        self.program = program
        self._line = program.place_of(_HERE)[0]

    def __repr__(self) -> str:
        return f"the thread of rank {self.rank} in line {self._line}"

    def send(self, source: Chunk, *, after: After = None) -> Operation:
        """Send a chunk."""
        return self._add("send", kinds.SEND, source, None, after, None)

    def recv(self, place: Chunk, *, after: After = None, publish: Publish = None) -> Operation:
        """Receive to a place."""
        return self._add("recv", kinds.RECV, None, place, after, publish)

    def copy(self, source: Chunk, place: Chunk, *, after: After = None, publish: Publish = None) -> Operation:
        """Copy to a place."""
        return self._add("copy", kinds.COPY, source, place, after, publish)

    def reduce(self, source: Chunk, place: Chunk, *, after: After = None, publish: Publish = None) -> Operation:
        """Add a chunk to a place."""
        return self._add("reduce", kinds.REDUCE, source, place, after, publish)

    def recv_copy_send(self, place: Chunk, *, after: After = None, publish: Publish = None) -> Operation:
        """Receive to a place, and send it on."""
        return self._add("recv_copy_send", kinds.RECV_COPY_SEND, None, place, after, publish)

    def recv_reduce(self, place: Chunk, *, after: After = None, publish: Publish = None) -> Operation:
        """Receive, and add to a place."""
        return self._add("recv_reduce", kinds.RECV_REDUCE, None, place, after, publish)

    def recv_reduce_send(self, source: Chunk, *, after: After = None) -> Operation:
        """Receive, add a chunk, and send the sum on without keeping it."""
        return self._add("recv_reduce_send", kinds.RECV_REDUCE_SEND, source, None, after, None)

    def recv_reduce_copy(
        self, source: Chunk, place: Chunk, *, after: After = None, publish: Publish = None
    ) -> Operation:
        """Receive, add a chunk, and put the sum to a place."""
        return self._add("recv_reduce_copy", kinds.RECV_REDUCE_COPY, source, place, after, publish)

    def recv_reduce_copy_send(
        self, source: Chunk, place: Chunk, *, after: After = None, publish: Publish = None
    ) -> Operation:
        """Receive, add a chunk, put the sum to a place, and send it on."""
        return self._add("recv_reduce_copy_send", kinds.RECV_REDUCE_COPY_SEND, source, place, after, publish)

    def nop(self, *, after: After = None) -> Operation:
        """Do nothing, but wait."""
        return self._add("nop", kinds.NOP, None, None, after, None)

    def take_lanes(self, taken: dict[tuple[str, int, int, int], Thread]) -> None:
        """Note which peers on which channel are this thread's; raise if another thread of the rank has one."""
        for verb, peer in (("sends to", self.send_peer), ("receives from", self.recv_peer)):
            other = taken.setdefault((verb, self.rank, peer, self.channel), self)
            if other is not self and peer >= 0:
                raise ValueError(
                    f"thread: {other} {verb} rank {peer} on channel {self.channel} already; give another channel"
                )

    def _add(
        self, verb: str, kind: int, source: Chunk | None, target: Chunk | None, after: After, publish: Publish
    ) -> Operation:
        from collemu.program.recording import PUBLISH
        from collemu.schedule import RECEIVES, SENDS

        if SENDS[kind] and self.send_peer < 0:
            raise ValueError(f"{verb}: {self} has no send_peer; give it one")
        if RECEIVES[kind] and self.recv_peer < 0:
            raise ValueError(f"{verb}: {self} has no recv_peer; give it one")
        self._check(verb, source, target)
        if publish not in PUBLISH:
            raise ValueError(f'{verb}: publish is {shown(publish)}; give True, False, "own" or nothing')
        awaited = (after,) if isinstance(after, Operation) else tuple(after or ())
        for each in awaited:
            if not isinstance(each, Operation):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{verb}: after is {shown(each)}; give what an operation of a thread returned")
            if each.thread.program is not self.program:
                raise ValueError(f"{verb}: after is an operation of another program; give one of this")
            if each.thread.rank != self.rank:
                raise ValueError(
                    f"{verb}: after is an operation of rank {each.thread.rank}, and this is rank {self.rank}; "
                    "ranks wait for each other's messages alone"
                )
        line, file = self.program.place_of(_HERE)
        self.steps.append(Step(kind, PUBLISH[publish], source, target, awaited, line, file))
        return Operation(self, len(self.steps) - 1)

    def _check(self, verb: str, source: Chunk | None, target: Chunk | None) -> None:
        from collemu.program.recording import Chunk

        for chunk in (source, target):
            if chunk is None:
                continue
            if not isinstance(chunk, Chunk):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"{verb}: {shown(chunk)} is no chunk; p.input, p.output and p.scratch name them")
            if chunk.program is not self.program:
                raise ValueError(f"{verb}: {chunk} belongs to another program; name it with the p of this one")
            if chunk.rank != self.rank:
                raise ValueError(f"{verb}: {chunk} is not on rank {self.rank}, whose thread this is")
        if source is not None and target is not None and source.count != target.count:
            raise ValueError(
                f"{verb}: {source} is {source.count} chunks and {target} is {target.count}; they must be as many"
            )
