"""Which send goes to which receive: first in, first out on (source, destination, channel)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.schedule import RECEIVES, SENDS, Schedule, ScheduleError

Int32s = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Matching:
    """All messages of a schedule, numbered in the order of their sends in the table of operations.

    Messages of a connection are consecutive, because one thread sends all of them.

    Attributes
    ----------
    sender, receiver : int32 [messages]
        The operations that send and receive each message.
    ordinal : int32 [messages]
        Place of a message on its connection, 0 for the first.
    sent, received : int32 [operations]
        The message that each operation sends and receives, -1 for none.
    """

    sender: Int32s
    receiver: Int32s
    ordinal: Int32s
    sent: Int32s
    received: Int32s

    def arrival(self) -> Int32s:
        """The operation that sends what each operation receives, -1 for none, shape (operations,)."""
        found = np.full(len(self.received), -1, dtype=np.int32)
        found[self.receiver] = self.sender
        return found

    def room(self, slots: int) -> Int32s:
        """The operation whose receive frees the slot that each operation sends into, -1 for none needed."""
        freed_by = np.full(len(self.sent), -1, dtype=np.int32)
        late = np.flatnonzero(self.ordinal >= slots)
        freed_by[self.sender[late]] = self.receiver[late - slots]
        return freed_by


def match_messages(schedule: Schedule) -> Matching:
    """Match sends and receives.

    Raises
    ------
    ScheduleError
        When two threads of a rank share a connection, a send has no receive or a receive no send, or the two
        differ in their number of chunks. Peers must be in range.
    """
    kind, threads = schedule.ops["kind"], schedule.threads
    sender = np.flatnonzero(SENDS[kind]).astype(np.int32)
    receives = np.flatnonzero(RECEIVES[kind]).astype(np.int32)
    thread_of_send = schedule.thread_of_op[sender]
    thread_of_receive = schedule.thread_of_op[receives]
    sends_of = np.bincount(thread_of_send, minlength=len(threads))
    receives_of = np.bincount(thread_of_receive, minlength=len(threads))

    source_thread, target_thread = _connect(schedule, sends_of, receives_of)
    first_message = np.cumsum(sends_of) - sends_of
    first_receive = np.cumsum(receives_of) - receives_of

    there = np.append(receives_of, 0)[target_thread]
    if (unmatched := np.flatnonzero(sends_of > there)).size:
        thread = unmatched[0]
        op = int(sender[first_message[thread] + there[thread]])
        peer = threads["send_peer"][thread]
        raise ScheduleError(
            f"{schedule.describe(op)} is message {there[thread] + 1} to rank {peer} on channel "
            f"{threads['channel'][thread]}, but rank {peer} receives only {there[thread]} there"
        )
    there = np.append(sends_of, 0)[source_thread]
    if (unmatched := np.flatnonzero(receives_of > there)).size:
        thread = unmatched[0]
        op = int(receives[first_receive[thread] + there[thread]])
        peer = threads["recv_peer"][thread]
        raise ScheduleError(
            f"{schedule.describe(op)} expects message {there[thread] + 1} from rank {peer} on channel "
            f"{threads['channel'][thread]}, but rank {peer} sends only {there[thread]} there"
        )

    ordinal_of_receive = np.arange(len(receives)) - first_receive[thread_of_receive]
    message_of_receive = first_message[source_thread[thread_of_receive]] + ordinal_of_receive
    receiver = np.empty_like(receives)
    receiver[message_of_receive] = receives
    sent = np.full(len(kind), -1, dtype=np.int32)
    received = np.full(len(kind), -1, dtype=np.int32)
    sent[sender] = np.arange(len(sender))
    received[receives] = message_of_receive
    ordinal = (np.arange(len(sender)) - first_message[thread_of_send]).astype(np.int32)

    count = schedule.ops["count"]
    if (unequal := np.flatnonzero(count[sender] != count[receiver])).size:
        one, other = int(sender[unequal[0]]), int(receiver[unequal[0]])
        raise ScheduleError(
            f"{schedule.describe(one)} sends {count[one]} chunks, but its receiver "
            f"{schedule.describe(other)} takes {count[other]}"
        )
    return Matching(sender, receiver, ordinal, sent, received)


def _connect(
    schedule: Schedule, sends_of: NDArray[Any], receives_of: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each thread the index of the one it receives from and the one it sends to, -1 for none."""
    threads = schedule.threads
    ends: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for verb, peer, used in (("send to", "send_peer", sends_of), ("receive from", "recv_peer", receives_of)):
        thread = np.flatnonzero(used)
        here = threads[thread]
        there = here[peer].astype(np.int64)
        pair = (here["rank"], there) if peer == "send_peer" else (there, here["rank"])
        key = (here["channel"].astype(np.int64) * schedule.ranks + pair[0]) * schedule.ranks + pair[1]
        order = np.argsort(key, kind="stable")
        key, thread = key[order], thread[order]
        if (shared := np.flatnonzero(key[1:] == key[:-1])).size:
            one, other = threads[thread[shared[0]]], threads[thread[shared[0] + 1]]
            raise ScheduleError(
                f"rank {one['rank']} threads {one['id']} and {other['id']} both {verb} rank {one[peer]} on "
                f"channel {one['channel']}; give them different channels"
            )
        ends[peer] = key, thread
    key_out, senders = ends["send_peer"]
    key_in, receivers = ends["recv_peer"]
    source = np.full(len(threads), -1, dtype=np.int64)
    target = np.full(len(threads), -1, dtype=np.int64)
    _, at_out, at_in = np.intersect1d(key_out, key_in, assume_unique=True, return_indices=True)
    source[receivers[at_in]] = senders[at_out]
    target[senders[at_out]] = receivers[at_in]
    return source, target
