"""Traces are well formed: slices of a track do not overlap, and every arrow has both ends on slices."""

import io
import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

import collemu as ce
from collemu.interop.in_flight import on_their_way
from collemu.interop.perfetto import write_trace


@pytest.fixture(scope="module", params=["ring", "tree", "one_shot", "two_shot"])
def run(request: pytest.FixtureRequest) -> ce.Result:
    schedule = ce.build_schedule("all_reduce", request.param, 6)
    return ce.emulate(schedule, ce.load_system("trainium4_nvl72"), count=10_000, wire="mxfp4")


@pytest.fixture(scope="module")
def events(run: ce.Result) -> list[dict[str, Any]]:
    file = io.StringIO()
    assert run.timeline is not None
    count = write_trace(run.timeline, file)
    document = json.loads(file.getvalue())
    assert document["displayTimeUnit"] == "ns"
    assert len(document["traceEvents"]) == count
    return document["traceEvents"]


def test_slices_are_the_operations(run: ce.Result, events: list[dict[str, Any]]) -> None:
    slices = [event for event in events if event["ph"] == "X"]
    assert run.timeline is not None
    assert len(slices) == len(run.timeline.operations)
    assert max(each["ts"] + each["dur"] for each in slices) == pytest.approx(run.time_s * 1e6, abs=1e-3)
    assert all(each["args"]["bytes"] >= 0 and each["args"]["kind"] == each["name"] for each in slices)
    sent = sum(each["args"]["bytes"] for each in slices if "to rank" in each["args"])
    assert sent == run.wire_bytes


def test_slices_of_a_track_follow_one_another(events: list[dict[str, Any]]) -> None:
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            start = round(each["ts"] * 1000)
            tracks[each["pid"], each["tid"]].append((start, start + round(each["dur"] * 1000)))
            assert each["dur"] >= 0
    for track in tracks.values():
        assert track == sorted(track)
        assert all(before[1] <= after[0] for before, after in pairwise(track))


def test_arrows_have_two_ends_on_slices_and_point_forward(run: ce.Result, events: list[dict[str, Any]]) -> None:
    starts = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert run.timeline is not None
    assert starts.keys() == ends.keys()
    assert len(starts) == len(run.timeline.messages)
    places = {(each["pid"], each["tid"], each["ts"]) for each in events if each["ph"] == "X"}
    for number, start in starts.items():
        end = ends[number]
        assert end["ts"] > start["ts"]
        assert end["bp"] == "e"
        for each in (start, end):
            assert (each["pid"], each["tid"], each["ts"]) in places


def test_tracks_are_named(events: list[dict[str, Any]]) -> None:
    names = {(each["pid"], each["args"]["name"]) for each in events if each["name"] == "process_name"}
    assert names == {*((rank, f"rank {rank}") for rank in range(6)), (6, "fabric")}


def test_the_counter_begins_and_ends_at_zero(events: list[dict[str, Any]]) -> None:
    values = [each["args"]["bytes"] for each in events if each["ph"] == "C"]
    times = [each["ts"] for each in events if each["ph"] == "C"]
    assert times == sorted(times)
    assert values[0] == values[-1] == 0
    assert max(values) > 0
    assert min(values) >= 0


def test_bytes_on_their_way_are_those_between_ready_and_visible(run: ce.Result) -> None:
    import numpy as np

    assert run.timeline is not None
    messages = run.timeline.messages
    times = np.linspace(0, run.time_fs, 97).astype(np.int64)
    expected = [
        sum(int(m["nbytes"]) for m in messages if m["ready_fs"] <= time < m["visible_fs"]) for time in times.tolist()
    ]
    assert on_their_way(run.timeline, times).tolist() == expected
