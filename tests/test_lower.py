"""Lowering: elements of chunks, bytes of messages, and who waits for whom."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from collemu_kernels import format_ids, kinds

from collemu.lower import lower
from collemu.schedule import OP, THREAD, Schedule, ScheduleError, build_schedule
from tests.built_in import BUILT_IN
from tests.oracles.quantised_interpreter import image_bytes

IN, OUT, SCRATCH = kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH
WIRES = {
    "float8_e4m3fn": format_ids.FLOAT8_E4M3FN,
    "mxfp8_e4m3": format_ids.MXFP8_E4M3,
    "mxfp4": format_ids.MXFP4,
    "nvfp4": format_ids.NVFP4,
}


def write_schedule(threads, *, collective="broadcast", chunks=2, scratch=2):
    """From (rank, id, send peer, recv peer, [(kind, src, dst, chunks, dep)]): src and dst are (buffer, chunk)."""
    rows, ops = [], []
    for rank, number, send_peer, recv_peer, program in threads:
        rows.append((rank, send_peer, recv_peer, len(program), len(ops), number, 0))
        ops += [(kind, 0, src[0], dst[0], src[1], dst[1], count, dep) for kind, src, dst, count, dep in program]
    return Schedule(
        collective=collective,
        algorithm="by_hand",
        ranks=1 + max(row[0] for row in rows),
        root=0,
        channels=1,
        threads=np.array(rows, THREAD),
        ops=np.array(ops, OP),
        input_chunks=chunks,
        output_chunks=chunks,
        scratch_chunks=scratch,
    )


def relay(first_chunk=0, expected=2):
    """Rank 0 sends both chunks; rank 1 parks them in scratch, copies them there, and sends one back."""
    none = (0, 0)
    return write_schedule(
        [
            (0, 0, 1, 1, [(kinds.SEND, (IN, 0), none, 2, -1), (kinds.RECV, none, (OUT, first_chunk), 1, -1)]),
            (
                1,
                0,
                0,
                0,
                [
                    (kinds.RECV, none, (SCRATCH, 0), expected, -1),
                    (kinds.COPY, (SCRATCH, 0), (SCRATCH, 2), 2, -1),
                    (kinds.SEND, (SCRATCH, 2 + first_chunk), none, 1, -1),
                ],
            ),
        ],
        scratch=4,
    )


def sizes_of(lowered):
    first = lowered.pieces.first
    return [lowered.pieces.elements[a:b].tolist() for a, b in pairwise(first)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("chunk", [0, 1])
def test_scratch_is_as_long_as_what_was_last_written_there(count, chunk):
    lowered = lower(relay(chunk), count, item_bytes=4)
    halves = [(count + 1) // 2, count // 2]
    assert sizes_of(lowered) == [halves, [halves[chunk]], halves, halves, [halves[chunk]]]
    assert lowered.messages.nbytes.tolist() == [4 * count, 4 * halves[chunk]]
    assert lowered.nbytes.tolist() == [4 * count, 4 * halves[chunk], 4 * count, 4 * count, 4 * halves[chunk]]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("count", [0, 1, 33, 100])
def test_a_message_of_several_chunks_has_an_image_for_each(wire, count):
    lowered = lower(relay(), count, item_bytes=4, wire=WIRES[wire])
    halves = [(count + 1) // 2, count // 2]
    images = [image_bytes(half, wire) for half in halves]
    assert lowered.messages.nbytes.tolist() == [sum(images), images[0]]
    assert lowered.pieces.image[:2].tolist() == [0, images[0]]
    assert lowered.nbytes[3] == 4 * count  # the copy in scratch moves memory, not images


def test_messages_of_unequal_length_are_refused_by_place():
    both_ends = r"rank 0 thread 0 step 0 \(send input\[0\]\) sends 4 elements.*rank 1 thread 0 step 0.*expects 3"
    with pytest.raises(ScheduleError, match=both_ends):
        lower(
            write_schedule(
                [
                    (0, 0, 1, -1, [(kinds.SEND, (IN, 0), (0, 0), 1, -1)]),
                    (1, 0, -1, 0, [(kinds.RECV, (0, 0), (OUT, 1), 1, -1)]),
                ]
            ),
            7,
            item_bytes=4,
        )


def test_a_message_that_nobody_takes_is_refused():
    with pytest.raises(ScheduleError, match="rank 0"):
        lower(
            write_schedule(
                [
                    (0, 0, 1, -1, [(kinds.SEND, (IN, 0), (0, 0), 1, -1)] * 2),
                    (1, 0, -1, 0, [(kinds.RECV, (0, 0), (OUT, 0), 1, -1)]),
                ]
            ),
            7,
            item_bytes=4,
        )


@pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
@pytest.mark.parametrize(("ranks", "count"), [(1, 5), (2, 0), (3, 7), (5, 100), (12, 3)])
def test_messages_follow_each_other_by_connection_and_their_ends_agree(collective, algorithm, ranks, count):
    schedule = build_schedule(collective, algorithm, ranks, channels=2)
    lowered = lower(schedule, count, item_bytes=4)
    messages = lowered.messages
    assert len(messages) == schedule.n_messages
    connections = zip(messages.source, messages.destination, messages.channel, strict=True)
    runs = [(connection, len(list(group))) for connection, group in groupby(connections)]
    assert len({connection for connection, _ in runs}) == len(runs)
    np.testing.assert_array_equal(messages.number, np.concatenate([[], *(range(size) for _, size in runs)]))
    np.testing.assert_array_equal(lowered.sent[messages.sender], np.arange(len(messages)))
    np.testing.assert_array_equal(lowered.received[messages.receiver], np.arange(len(messages)))
    np.testing.assert_array_equal(lowered.rank[messages.sender], messages.source)
    np.testing.assert_array_equal(lowered.rank[messages.receiver], messages.destination)
    np.testing.assert_array_equal(messages.nbytes, 4 * messages.elements)
    assert (lowered.pieces.elements >= 0).all()


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_slot_passes_to_the_message_that_many_later(slots):
    lowered = lower(build_schedule("all_reduce", "ring", 5, channels=2, chunks=2), 100, item_bytes=4)
    messages = lowered.messages
    keys = list(zip(messages.source, messages.destination, messages.channel, messages.number, strict=True))
    place = {key: index for index, key in enumerate(keys)}
    expected = [place.get((source, to, channel, k + slots), -1) for source, to, channel, k in keys]
    assert messages.slot_successor(slots).tolist() == expected


def test_eight_gibielements_do_not_overflow():
    """16 GiB a message."""
    lowered = lower(build_schedule("all_reduce", "ring", 4), 2**33, item_bytes=8)
    assert lowered.messages.nbytes.tolist() == [2**34] * 24
