"""Where two message logs part."""

import numpy as np
import pytest

from collemu import emulate, load_system
from collemu.ranks.message_log import emulated_log, first_difference
from collemu.schedule import build_schedule

SCHEDULE = build_schedule("all_reduce", "tree", 5)


@pytest.fixture(scope="module")
def log():
    result = emulate(SCHEDULE, load_system("trainium4_nvl72"), count=103)
    logs = [emulated_log(result.timeline, rank) for rank in range(5)]
    return max(logs, key=len)


def test_a_log_is_like_itself(log):
    assert first_difference(log, log.copy(), SCHEDULE) is None


def test_the_order_between_threads_is_free(log):
    by_thread = log[np.argsort(SCHEDULE.thread_of_op[log["operation"]], kind="stable")]
    assert not np.array_equal(log, by_thread)
    assert first_difference(log, by_thread, SCHEDULE) is None


@pytest.mark.parametrize("column", ["peer", "channel", "number", "nbytes"])
def test_another_peer_channel_number_or_size_is_seen(log, column):
    seen = log.copy()
    seen[column][3] += 1
    text = first_difference(log, seen, SCHEDULE)
    assert text is not None
    assert "expected message" in text
    assert "got message" in text


def test_another_size_is_named(log):
    seen = log.copy()
    seen["nbytes"][0] += 7
    text = first_difference(log, seen, SCHEDULE)
    assert f"with {log['nbytes'][0]} bytes" in text
    assert f"with {log['nbytes'][0] + 7} bytes" in text


def test_a_lost_message_is_seen(log):
    assert first_difference(log, log[:-1], SCHEDULE) is not None
    assert first_difference(log[:-1], log, SCHEDULE) is not None
    assert first_difference(log, log[:0], SCHEDULE).endswith("got no message")


def test_two_messages_of_a_connection_that_change_places_are_seen(log):
    keys = [tuple(entry) for entry in log[["direction", "peer", "channel"]].tolist()]
    first = next(place for place, key in enumerate(keys) if keys.count(key) > 1)
    second = keys.index(keys[first], first + 1)
    seen = log.copy()
    seen[[first, second]] = seen[[second, first]]
    assert "connection order" in first_difference(log, seen, SCHEDULE)
