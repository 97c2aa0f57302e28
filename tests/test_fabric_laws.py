"""Laws that hold for every fabric and schedule, and how far a change moves a result, whatever the engine's inside."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import collemu as ce
from collemu.builders import BUILDERS
from collemu.schedule import build_schedule
from tests.built_in import BUILT_IN
from tests.oracles.hand_messages import Message, femtoseconds, links_of, run

# one rank like the other: nothing is done in the order of ranks
ROUND = [
    ("all_reduce", "ring"),
    ("reduce_scatter", "ring"),
    ("all_gather", "ring"),
    ("all_gather", "direct"),
    ("alltoall", "direct"),
    ("alltoall", "pairwise"),
    ("sendrecv", "direct"),
]
ONE_AN_OUTPUT = [each for each in ROUND if each[1] != "direct" or each[0] == "sendrecv"]
TRAINIUM4 = ce.load_system("trainium4_nvl72")
FEW = TRAINIUM4.with_(**{"domain.planes": 3, "domain.credits": 3, "domain.chips": 6})

SMALL = {  # fabrics of which an example takes milliseconds; all can have more ranks than a domain
    "switched": FEW,
    "unequal_planes": ce.load_system("h100_hgx").with_(**{"domain.chips": 6, "domain.credits": 4}),
    "mesh": ce.load_system("gh200_quad").with_(**{"domain.links_per_peer": 2, "domain.credits": 2}),
    "torus": ce.load_system("trainium2").with_(
        **{
            "domain.chips": 6,
            "domain.shape": (2, 3),
            "domain.links_per_direction": (1, 2),
            "domain.credits": 2,
        }
    ),
    "nested": ce.load_system("trainium3_ultraserver_gen1").with_(
        **{"domain.chips": 8, "domain.chips_per_level": (2, 4, 8), "domain.credits": 3}
    ),
}
CLOSE = {"domain.hop_latency_s": 4e-9, "protocol.dma.step_latency_s": 0, "endpoint.launch_s": 0}  # so that all meet


@st.composite
def traffic(draw, kind="", most_chips=9):
    """A small system and messages among some of its chips, some of which wait for others."""
    kind = kind or draw(st.sampled_from(sorted(SMALL)))
    system = SMALL[kind]
    if kind == "switched" and draw(st.booleans()):
        system = system.with_(**CLOSE)
    chips = range(draw(st.integers(2, most_chips)))
    messages: list[Message] = []
    for _ in range(draw(st.integers(1, 10))):
        source, destination = draw(st.lists(st.sampled_from(chips), min_size=2, max_size=2, unique=True))
        if kind == "torus" and source // 6 == destination // 6:  # neighbours in the path
            destination = source + 1 if source % 6 < 5 and source + 1 in chips else source - 1
        before = [None, *(number for number, each in enumerate(messages) if each.destination == source)]
        messages.append(Message(source, destination, draw(st.integers(0, 3000)), draw(st.sampled_from(before))))
    return system, messages


def carried(system, each):
    """Bytes of a message on a link."""
    far = each.source // system.domain.chips != each.destination // system.domain.chips
    size, header = system.domain.packet_payload_bytes, system.domain.packet_header_bytes
    flit = 1 if far else system.domain.packet_flit_bytes
    if far:
        size, header = system.scaleout.datagram_bytes, system.scaleout.datagram_header_bytes
    return far, -(-each.nbytes // flit) * flit + max(1, -(-each.nbytes // size)) * header


@given(case=traffic())
def test_every_byte_that_is_sent_arrives_once(case):
    """By chip and stage it is the messages' bytes; and what goes up on a lane comes down on the same lane."""
    system, messages = case
    links = run(system, messages).links
    inside = system.domain.links
    sent, received = np.zeros((2, 2, len(links.up_bytes)), np.int64)
    for each in messages:
        far, nbytes = carried(system, each)
        sent[int(far), each.source] += nbytes
        received[int(far), each.destination] += nbytes
    for far, lanes in enumerate((slice(inside), slice(inside, None))):
        np.testing.assert_array_equal(links.up_bytes[:, lanes].sum(axis=1), sent[far])
        np.testing.assert_array_equal(links.down_bytes[:, lanes].sum(axis=1), received[far])
    np.testing.assert_array_equal(links.up_bytes.sum(axis=0), links.down_bytes.sum(axis=0))
    np.testing.assert_allclose(links.up_busy_s.sum(axis=0), links.down_busy_s.sum(axis=0), rtol=1e-12, atol=0)
    assert max(links.up_busy_s.max(), links.down_busy_s.max()) <= links.time_s


@given(case=traffic())
def test_the_same_messages_take_the_same_femtoseconds(case):
    system, messages = case
    one, other = run(system, messages), run(system, messages)
    np.testing.assert_array_equal(one.timeline.operations, other.timeline.operations)
    np.testing.assert_array_equal(one.timeline.messages, other.timeline.messages)
    for name in ("up_bytes", "down_bytes", "up_busy_s", "down_busy_s"):
        np.testing.assert_array_equal(getattr(one.links, name), getattr(other.links, name))


@given(case=traffic(), later=st.integers(1, 10**6))
def test_a_later_launch_moves_all_by_itself(case, later):
    """The fabric has no clock of its own."""
    system, messages = case
    launch = later * 10**-9
    first, second = (run(system.with_(**{"endpoint.launch_s": each}), messages) for each in (0, launch))
    for table, columns in (("operations", ("start_fs", "finish_fs")), ("messages", ("ready_fs", "visible_fs"))):
        for column in columns:
            early, late = (getattr(each.timeline, table)[column] for each in (first, second))
            assert set((late - early).tolist()) == {femtoseconds(launch)}


@given(case=traffic(kind="switched"), scale=st.sampled_from([2, 5, 10]))
def test_a_fabric_that_is_slower_in_all_is_as_much_slower(case, scale):
    """Every latency times k and every rate over k: every time times k, whoever met whom. Rates of whole numbers."""
    system, messages = case
    system = system.with_(
        **{
            "endpoint.copy_bytes_per_s": 1e12,
            "scaleout.bytes_per_s": 5e10,
            "domain.link_bytes_per_s": 5e10,
        }
    )
    values = {name: each.value for name, each in system.provenance.items()}
    rates = [name for name in values if name.endswith("bytes_per_s") and not name.startswith("chip")]
    latencies = [name for name in values if name.endswith("_s") and not name.endswith("per_s")]
    slow = system.with_(
        **{name: values[name] / scale for name in rates},
        **{name: round(values[name] * scale, 15) for name in latencies},
    )
    fast, slower = run(system, messages), run(slow, messages)
    np.testing.assert_array_equal(
        slower.timeline.operations["finish_fs"], scale * fast.timeline.operations["finish_fs"]
    )
    assert slower.time_fs == scale * fast.time_fs


def adding(kind: str, **changes: object) -> ce.System:
    return SMALL[kind].with_(**{"domain.in_switch_reduction": True, "domain.chips": 8} | changes)


nvls = pytest.mark.parametrize("collective", [collective for collective, table in BUILDERS.items() if "nvls" in table])
each_fidelity = pytest.mark.parametrize("fidelity", ["packet", "flow"])


@nvls
@each_fidelity
def test_nvls_knows_no_clock_and_no_unit_of_time(collective, fidelity):
    """A later launch moves all of it, and a fabric that is slower in all is as much slower."""
    system = adding("switched", **CLOSE | {"endpoint.copy_bytes_per_s": 1e12, "domain.link_bytes_per_s": 5e10})
    schedule = build_schedule(collective, "nvls", 5, chunks=2)
    how = {"count": 1003, "fidelity": fidelity}
    before = ce.emulate(schedule, system, **how)
    later = ce.emulate(schedule, system.with_(**{"endpoint.launch_s": 7e-9}), **how)
    for column in ("start_fs", "finish_fs"):
        moved = later.timeline.operations[column] - before.timeline.operations[column]
        assert set(moved.tolist()) == {7_000_000}
    scaled = {"copy": "endpoint.copy_bytes_per_s", "link": "domain.link_bytes_per_s", "hop": "domain.hop_latency_s"}
    value = {name: system.provenance[key].value for name, key in scaled.items()}
    slow = {scaled["copy"]: value["copy"] / 5, scaled["link"]: value["link"] / 5, scaled["hop"]: 5 * value["hop"]}
    slower = ce.emulate(schedule, system.with_(**slow), **how)
    differ = slower.timeline.operations["finish_fs"] - 5 * before.timeline.operations["finish_fs"]
    assert abs(differ).max() <= (0 if fidelity == "packet" else 50)  # a port's share of a lane is rounded up


# Faster is never slower


def better(system, factor):
    """Every number that could make a run faster, by itself."""
    step = f"protocol.{system.default_protocol}.step_latency_s"
    faster = ("domain.link_bytes_per_s", "endpoint.copy_bytes_per_s", "endpoint.reduce_bytes_per_s")
    value = {name: each.value for name, each in system.provenance.items()}
    for name in (*faster, "scaleout.bytes_per_s"):
        yield {name: value[name] * factor}
    for name in ("domain.hop_latency_s", "scaleout.latency_s", step, "endpoint.launch_s"):
        yield {name: value[name] / factor}
    for name in ("domain.credits", "scaleout.window_datagrams", "endpoint.fifo_slots"):
        yield {name: int(value[name] * factor) + 1}


@given(
    builtin=st.sampled_from(ONE_AN_OUTPUT),
    kind=st.sampled_from(sorted(SMALL)),
    ranks=st.integers(2, 9),
    count=st.integers(0, 3000),
    factor=st.floats(1.0, 4.0),
    data=st.data(),
)
def test_where_no_two_meet_faster_is_slower_for_nobody(builtin, kind, ranks, count, factor, data):
    """Rings and pairs of equal parts: not one operation ends later."""
    system = SMALL[kind]
    if builtin[1] == "pairwise":
        ranks = min(ranks, 4 if kind == "mesh" else 6)
        system = SMALL["switched"] if kind in ("torus", "nested") else system
    if kind == "torus":
        ranks = 6  # the whole path: then the last chip is a neighbour of the first
    change = data.draw(st.sampled_from(list(better(system, factor))))
    schedule = build_schedule(*builtin, ranks)
    how = {"count": count, "dtype": "uint8", "fidelity": "packet"}
    before, after = (ce.emulate(schedule, each, **how).timeline for each in (system, system.with_(**change)))
    assert (after.operations["finish_fs"] <= before.operations["finish_fs"]).all(), change


# Messages meet, at a host those of its guest and of its partner, or those of two rings: by so much an anomaly may be
# slower on the grid below.
MEETING = {("all_reduce", "recursive_doubling"): 1.001, ("all_reduce", "bidirectional_ring"): 1.0001}


@pytest.mark.parametrize("kind", ["switched", "unequal_planes", "nested"])
@pytest.mark.parametrize(("collective", "algorithm"), BUILT_IN)
def test_no_built_in_is_slower_on_a_faster_system(kind, collective, algorithm):
    """On this grid: where messages meet, the anomalies below show that it need not be so."""
    system = SMALL[kind]
    for ranks in (3, 5, 8):
        schedule = build_schedule(collective, algorithm, ranks)
        for count in (1, 300, 3001):
            before = ce.emulate(schedule, system, count=count, timeline=False).time_fs
            for change in better(system, 1.5):
                after = ce.emulate(schedule, system.with_(**change), count=count, timeline=False).time_fs
                assert after <= before * MEETING.get((collective, algorithm), 1), (ranks, count, change)


@nvls
@each_fidelity
@pytest.mark.parametrize("kind", ["switched", "unequal_planes"])
def test_nvls_is_not_slower_on_a_faster_system(kind, fidelity, collective):
    """On this grid."""
    system = adding(kind)
    for ranks, lanes in ((3, {}), (8, {"channels": 2, "chunks": 2})):
        schedule = build_schedule(collective, "nvls", ranks, **lanes)
        for count in (300, 3001):
            how = {"count": count, "fidelity": fidelity, "timeline": False}
            before = ce.emulate(schedule, system, **how).time_fs
            for change in better(system, 1.5):
                after = ce.emulate(schedule, system.with_(**change), **how).time_fs
                assert after <= before, (lanes, ranks, count, change)


def test_anomaly_more_credits_may_be_slower():
    """A chain 4 - 0 - 1 - 2 - 4 - 5 - 0 of single packets decides; chip 3 has four for chip 1, where they meet.

    With a credit chip 3's packets are a round trip apart, and the chain's finds the output idle. With four they follow
    each other, and the chain's waits for the end of the second of them. All by the page.
    """
    system = TRAINIUM4.with_(
        **CLOSE
        | {"domain.planes": 1, "domain.chips": 6, "endpoint.copy_bytes_per_s": 1e15, "chip.hbm_bytes_per_s": 1e15}
    )
    chips = [4, 0, 1, 2, 4, 5, 0]
    chain = [Message(chips[i], chips[i + 1], 256 if i else 0, i - 1 if i else None) for i in range(6)]
    way = links_of(system, 1)
    empty, full, latency, work = way.ser(16), way.full, way.latency, way.copy(256)
    alone = 2 * (empty + latency) + 5 * (2 * full + 2 * latency + work)
    waits = 2 * full - 2 * (empty + latency) - work
    times = [
        run(system.with_(**{"domain.credits": number}), [*chain, Message(3, 1, 4 * 256)]).time_fs for number in (1, 4)
    ]
    assert 0 < waits < full
    assert times == [alone, alone + waits]


@pytest.mark.parametrize(
    ("collective", "ranks", "count", "change", "slower"),
    [
        ("reduce", 5, 3001, {"endpoint.fifo_slots": 4}, 1.12),
        ("reduce", 7, 3001, {"endpoint.fifo_slots": 4}, 1.09),
        ("broadcast", 5, 300, {"domain.credits": 4}, 1.04),
        ("broadcast", 8, 3001, {"protocol.dma.step_latency_s": 5e-10}, 1.03),
    ],
)
def test_anomaly_trees_may_be_slower_on_a_better_system(collective, ranks, count, change, slower):
    """Only found in trees, where messages of both trees meet at an output: on one link of 3 credits and 4 ns.

    More slots or credits, or less latency, let a message come before one that more depends on.
    """
    system = TRAINIUM4.with_(
        **CLOSE
        | {
            "domain.planes": 1,
            "domain.credits": 3,
            "endpoint.fifo_slots": 2,
            "protocol.dma.step_latency_s": 1e-9,
            "endpoint.copy_bytes_per_s": 1e13,
            "endpoint.reduce_bytes_per_s": 1e13,
        }
    )
    schedule = build_schedule(collective, "tree", ranks)
    before, after = (ce.emulate(schedule, each, count=count).time_fs for each in (system, system.with_(**change)))
    assert slower < after / before < slower + 0.02


# Symmetry


def table_of(result):
    """Times of every operation, by rank and then by (thread, step)."""
    table = defaultdict(list)
    for each in result.timeline.operations:
        table[int(each["rank"])].append((int(each["start_fs"]), int(each["finish_fs"])))
    return table


ROUND_FABRICS = {  # ranks are all chips, so that turns go round as ranks do
    "switched": lambda ranks: FEW.with_(**{"domain.chips": ranks}),
    "meeting": lambda ranks: FEW.with_(**CLOSE | {"domain.chips": ranks, "domain.planes": 1}),
    "unequal_planes": lambda ranks: SMALL["unequal_planes"].with_(**{"domain.chips": ranks}),
    "mesh": lambda ranks: SMALL["mesh"].with_(**{"domain.chips": ranks}),
    "network": lambda ranks: FEW.with_(**{"domain.chips": 1, "scaleout.window_datagrams": 2}),
}


@given(
    builtin=st.sampled_from(ROUND),
    kind=st.sampled_from(sorted(ROUND_FABRICS)),
    ranks=st.integers(2, 9),
    part=st.integers(0, 2000),
    lanes=st.sampled_from([{}, {"channels": 2}, {"chunks": 3}, {"channels": 2, "chunks": 2}]),
)
def test_all_ranks_of_a_round_schedule_do_the_same_at_the_same_time(builtin, kind, ranks, part, lanes):
    """Equal parts: turning the ranks by one changes nothing, so no rank is before another."""
    schedule = build_schedule(*builtin, ranks, **lanes)
    count = part * schedule.region_chunks
    result = ce.emulate(schedule, ROUND_FABRICS[kind](ranks), count=count, dtype="uint8")
    table = table_of(result)
    assert len(table) == ranks
    assert all(table[rank] == table[0] for rank in range(ranks))
    for links in (result.links.up_bytes, result.links.down_bytes):
        assert (links == links[0]).all() or kind == "mesh"
    assert len(set(result.links.up_bytes.sum(axis=1).tolist())) == 1


def relabelled(schedule, new):
    """The schedule in which rank ``new[r]`` does what rank r did."""
    threads = schedule.threads.copy()
    threads["rank"] = new[threads["rank"]]
    for peer in ("send_peer", "recv_peer"):
        threads[peer] = np.where(threads[peer] < 0, -1, new[threads[peer]])
    order = np.lexsort((threads["id"], threads["rank"]))
    moved = np.concatenate([np.arange(each["first"], each["first"] + each["length"]) for each in threads[order]])
    ops = schedule.ops[moved]
    place = np.empty(len(moved), np.int32)
    place[moved] = np.arange(len(moved))
    ops["dep"] = np.where(ops["dep"] < 0, -1, place[ops["dep"]])
    threads = threads[order]
    threads["first"] = np.cumsum(threads["length"]) - threads["length"]
    return replace(schedule, threads=threads, ops=ops)


@given(
    builtin=st.sampled_from([*ONE_AN_OUTPUT, ("broadcast", "ring"), ("reduce", "ring")]),
    system=st.sampled_from([FEW, TRAINIUM4, FEW.with_(**CLOSE | {"domain.planes": 1})]),
    new=st.integers(2, 6).flatmap(lambda ranks: st.permutations(range(ranks))),
    part=st.integers(0, 3000),
)
def test_without_meetings_chips_are_interchangeable(builtin, system, new, part):
    """Behind switches any renaming of ranks renames the timeline, and nothing more."""
    schedule = build_schedule(*builtin, len(new))
    how = {"count": part * schedule.region_chunks, "dtype": "uint8"}
    before = ce.emulate(schedule, system, **how)
    after = ce.emulate(relabelled(schedule, np.array(new)), system, **how)
    one, other = table_of(before), table_of(after)
    for rank, moved in enumerate(new):
        assert other[moved] == one[rank]
        np.testing.assert_array_equal(after.links.up_bytes[moved], before.links.up_bytes[rank])
        np.testing.assert_array_equal(after.links.down_bytes[moved], before.links.down_bytes[rank])


# Bounds


@pytest.mark.parametrize("name", ce.systems())
def test_nothing_is_below_its_bound(name):
    """All built-ins on all systems, in a domain, filling it, and beyond it."""
    system = ce.load_system(name)
    chips = system.domain.chips
    beyond = {chips + 1} if chips <= 72 else set()
    for ranks in sorted({2, 5, min(chips, 8)} | beyond):
        for collective, algorithm in BUILT_IN:
            schedule = build_schedule(collective, algorithm, ranks)
            for count in (1, 1000, 50_000)[: 3 if ranks <= 8 else 2]:
                result = ce.emulate(schedule, system, count=count, timeline=False)
                assert result.time_fs >= result.bounds.total_fs, (collective, algorithm, ranks, count)
