"""Sends meet receives first in, first out on (source, destination, channel)."""

import numpy as np

from collemu.matching import match_messages
from collemu.schedule import build_schedule


def test_messages_of_a_connection_are_consecutive_and_in_order():
    schedule = build_schedule("all_reduce", "two_shot", 3, channels=2, chunks=2)
    messages = match_messages(schedule)
    threads, of = schedule.threads, schedule.thread_of_op
    sender, receiver = threads[of[messages.sender]], threads[of[messages.receiver]]
    assert (sender["send_peer"] == receiver["rank"]).all()
    assert (receiver["recv_peer"] == sender["rank"]).all()
    assert (sender["channel"] == receiver["channel"]).all()
    assert (np.diff(messages.sender) > 0).all()
    same = of[messages.sender[1:]] == of[messages.sender[:-1]]
    assert (np.diff(messages.ordinal)[same] == 1).all()
    assert (np.diff(messages.receiver)[same] > 0).all()
    assert (messages.ordinal[1:][~same] == 0).all()


def test_operations_know_their_messages():
    schedule = build_schedule("all_gather", "ring", 3)  # copy, send, recv_copy_send, recv on each rank
    messages = match_messages(schedule)
    assert messages.sent.tolist() == [-1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1]
    assert messages.received.tolist() == [-1, -1, 4, 5, -1, -1, 0, 1, -1, -1, 2, 3]
    assert messages.arrival().tolist() == [-1, -1, 9, 10, -1, -1, 1, 2, -1, -1, 5, 6]
    assert messages.room(1).tolist() == [-1, -1, 6, -1, -1, -1, 10, -1, -1, -1, 2, -1]
    assert messages.room(2).tolist() == [-1] * 12
