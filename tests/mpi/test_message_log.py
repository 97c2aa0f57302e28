"""Where two message logs part."""

import numpy as np
import pytest

from collemu import emulate, load_system
from collemu.ranks.message_log import READ, WRITE, emulated_log, first_difference
from collemu.schedule import build_schedule

SCHEDULE = build_schedule("all_reduce", "tree", 5)


@pytest.fixture(scope="module")
def log():
    result = emulate(SCHEDULE, load_system("trainium4_nvl72"), count=103)
    logs = [emulated_log(result.timeline, rank, SCHEDULE) for rank in range(5)]
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
    assert first_difference(log, log[:0], SCHEDULE).endswith("got nothing")


def test_two_messages_of_a_connection_that_change_places_are_seen(log):
    keys = [tuple(entry) for entry in log[["direction", "peer", "channel"]].tolist()]
    first = next(place for place, key in enumerate(keys) if keys.count(key) > 1)
    second = keys.index(keys[first], first + 1)
    seen = log.copy()
    seen[[first, second]] = seen[[second, first]]
    assert "connection order" in first_difference(log, seen, SCHEDULE)


IN_SWITCH = build_schedule("all_reduce", "nvls", 4, channels=2)


@pytest.fixture(scope="module")
def accesses():
    """Of rank 1, which reads and writes a block of 32 float32 on each of two channels."""
    result = emulate(IN_SWITCH, load_system("gb200_nvl72"), count=256)
    return emulated_log(result.timeline, 1, IN_SWITCH)


def test_a_log_has_what_switches_read_and_write_for_its_rank(accesses):
    for direction in (READ, WRITE):
        chosen = accesses[accesses["direction"] == direction]
        assert chosen["peer"].tolist() == [0, 1, 2, 3] * 2
        assert set(chosen["nbytes"].tolist()) == {128}
    assert len(accesses) == 2 * 2 * 4 + 4 * 3  # and two messages each way with every peer


def test_the_order_of_accesses_is_free_between_threads_alone(accesses):
    thread = IN_SWITCH.thread_of_op[accesses["operation"]]
    assert first_difference(accesses, accesses[np.argsort(-thread, kind="stable")], IN_SWITCH) is None
    first, second = np.flatnonzero(accesses["direction"] == READ)[:2]
    seen = accesses.copy()
    seen[[first, second]] = seen[[second, first]]
    text = first_difference(accesses, seen, IN_SWITCH)
    assert text == (
        "thread order: expected read of 128 bytes of rank 0 at rank 1 thread 3 step 0, "
        "got read of 128 bytes of rank 1 at rank 1 thread 3 step 0"
    )


@pytest.mark.parametrize(("direction", "deed"), [(READ, "read"), (WRITE, "write")])
def test_other_bytes_and_lost_accesses_are_named(accesses, direction, deed):
    place = np.flatnonzero((accesses["direction"] == direction) & (accesses["peer"] == 3))[-1]
    fewer = accesses.copy()
    fewer["nbytes"][place] = 127
    assert f"got {deed} of 127 bytes of rank 3 at rank 1" in first_difference(accesses, fewer, IN_SWITCH)
    lost = np.delete(accesses, place)
    assert f"expected {deed} of 128 bytes of rank 3" in first_difference(accesses, lost, IN_SWITCH)
    assert f"got {deed} of 128 bytes of rank 3" in first_difference(lost, accesses, IN_SWITCH)
