"""Times that a hand can write down from docs/timing-rules.md, on every kind of fabric, to the femtosecond."""

from dataclasses import replace

import pytest

import collemu as ce
from collemu.schedule import build_schedule
from tests.oracles.hand_messages import Message, Way, femtoseconds, links_of, rails_of, run, visible

MANY = {"domain.credits": 4096, "scaleout.window_datagrams": 4096, "domain.link_efficiency": 1.0}


def plain(name: str, **changes: object) -> ce.System:
    """A system of the catalogue whose links have rates of few digits, and never run out of credits."""
    return ce.load_system(name).with_(**MANY | changes)


TRAINIUM4 = plain("trainium4_nvl72")
TRAINIUM2 = plain("trainium2")
FLAT_TORUS = plain("trainium2", **{"domain.shape": (4, 16), "domain.links_per_direction": (1, 2)})
TRAINIUM3 = plain("trainium3_ultraserver_gen2")
H100 = plain("h100_hgx")
QUAD = plain("gh200_quad")
ODD = plain(
    "trainium4_nvl72",
    **{
        "domain.planes": 5,
        "domain.hop_latency_s": 1.23456789e-7,
        "domain.link_bytes_per_s": 7e9,  # 10**15 / 7e9 is no whole number
        "domain.packet_payload_bytes": 96,
        "domain.packet_flit_bytes": 32,
        "domain.packet_byte_enable_bytes": 40,  # the last packet may be the longest
        "endpoint.copy_bytes_per_s": 3e9,  # slower than the links
    },
)
RAILS = TRAINIUM4.with_(
    **{
        "scaleout.rails": 3,
        "scaleout.bytes_per_s": 21e9,
        "scaleout.latency_s": 1.000000001e-6,  # an odd number of femtoseconds
        "scaleout.message_overhead_s": 2.5e-7,
        "scaleout.datagram_bytes": 1000,
        "scaleout.datagram_header_bytes": 33,
    }
)

# Name, the way, and chips that it joins. Coordinates of trainium2, whose path turns back at every end: chip 3 is
# (0, 0, 3), 7 is (0, 1, 0), 15 is (0, 3, 0), 31 is (1, 0, 0) and 63 is (3, 0, 0); of 4 x 16, 31 is (1, 0).
WAYS = {
    "switched": (links_of(TRAINIUM4, 36), 0, 5),
    "planes_of_unequal_width": (links_of(H100, 5 + 4 + 4 + 5), 7, 2),
    "lines": (links_of(H100, 18, protocol="ll128"), 0, 1),
    "odd_numbers": (links_of(ODD, 5), 3, 1),
    "mesh": (links_of(QUAD, 6, hops=1), 0, 2),
    "torus_last_dimension": (links_of(TRAINIUM2, 2, hops=1), 0, 1),
    "torus_around": (links_of(TRAINIUM2, 2, hops=1), 3, 0),
    "torus_middle_dimension": (links_of(TRAINIUM2, 2, hops=1), 0, 7),
    "torus_first_dimension": (links_of(FLAT_TORUS, 1, hops=1), 0, 31),
    "torus_first_dimension_around": (links_of(FLAT_TORUS, 1, hops=1), 63, 0),
    "nested_in_the_server": (links_of(TRAINIUM3, 4), 5, 7),
    "nested_in_the_rack": (links_of(TRAINIUM3, 5, switches=2), 5, 8),
    "nested_between_racks": (links_of(TRAINIUM3, 2, switches=4), 5, 77),
    "network": (rails_of(TRAINIUM4), 71, 72),
    "network_of_slow_messages": (rails_of(QUAD), 2, 4),
    "rails": (rails_of(RAILS), 80, 3),
    "network_beside_nested": (rails_of(TRAINIUM3), 0, 144),
}
SIZES = {
    "nothing": lambda way: 0,
    "one_byte": lambda way: 1,
    "a_packet": lambda way: way.payload,
    "a_packet_and_a_byte": lambda way: way.payload + 1,
    "a_packet_a_lane": lambda way: way.width * way.payload,
    "a_lane_has_two": lambda way: (way.width + 1) * way.payload,
    "a_short_second": lambda way: way.width * way.payload + 1,
    "all_but_one_lane": lambda way: 3 * way.width * way.payload - way.payload,
    "many": lambda way: 100 * way.width * way.payload,
    "many_and_a_rest": lambda way: 100 * way.width * way.payload + way.payload // 2 + 3,
}
each_way = pytest.mark.parametrize("way", WAYS)


def launch_of(system: ce.System) -> int:
    """What comes before everything."""
    return femtoseconds(system.endpoint.launch_s)


@each_way
@pytest.mark.parametrize("size", SIZES)
def test_one_message_alone(way, size):
    """Section 4 to 6 for one message: lanes, both hops, the pacing of its sender, and the receiver's work."""
    way, source, destination = WAYS[way]
    nbytes = SIZES[size](way)
    result = run(way.system, [Message(source, destination, nbytes)], protocol=way.protocol or "auto")
    assert visible(result, way.system) == [way.message(nbytes)]
    assert result.time_fs == launch_of(way.system) + way.message(nbytes) + way.store(nbytes)
    assert result.links.total_bytes == sum(way.packets(nbytes))


@each_way
def test_a_slow_sender_is_not_overtaken(way):
    """At 1e9 bytes/s of copying the links wait: the message ends with the work and its largest packet's path."""
    way, source, destination = WAYS[way]
    slow = way.system.with_(**{"endpoint.copy_bytes_per_s": 1e9})
    nbytes = 10 * way.width * way.payload + 7
    result = run(slow, [Message(source, destination, nbytes)], protocol=way.protocol or "auto")
    assert visible(result, slow) == [way.begin + nbytes * 10**6 + way.tail(nbytes)]


# Credits: links that move a byte in their own time, and senders that are never the slow part

FAST = {"endpoint.copy_bytes_per_s": 1e14, "chip.hbm_bytes_per_s": 1e15}


def with_credits(way: Way, number: int) -> Way:
    system = way.system.with_(**FAST | {"domain.credits": number, "scaleout.window_datagrams": number})
    return replace(way, system=system, protocol="")


def round_trip(way: Way) -> int:
    """Of a credit: the packet's way to the end of its last link, and one latency back."""
    return way.hops * way.full + 2 * way.latency


def last_arrival(way: Way, each_lane: int, number: int) -> int:
    """Of so many full packets a lane: B of them in every round trip, one after the other within it."""
    trips, within = divmod(each_lane - 1, number)
    last = trips * max(round_trip(way), number * way.full) + within * way.full
    return last + way.hops * (way.full + way.latency)


@each_way
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_few_credits_are_the_rate(way, number):
    way, source, destination = WAYS[way]
    way = with_credits(way, number)
    for each_lane in (1, 2, number, number + 1, 3 * number, 20):
        nbytes = each_lane * way.width * way.payload
        result = run(way.system, [Message(source, destination, nbytes)])
        assert visible(result, way.system) == [way.message(nbytes, last_arrival(way, each_lane, number))]


@each_way
def test_credits_of_a_round_trip_are_enough(way):
    """As many as fill the round trip never let a lane wait; one fewer makes it wait in every trip."""
    way, source, destination = WAYS[way]
    enough = -(-round_trip(way) // way.full)
    each_lane = 2 * enough
    nbytes = each_lane * way.width * way.payload
    expected = []
    for number in (4096, enough, enough - 1):
        way = with_credits(way, number)
        result = run(way.system, [Message(source, destination, nbytes)])
        expected.append(way.message(nbytes, last_arrival(way, each_lane, number)))
        assert visible(result, way.system) == expected[-1:]
    assert expected[0] == expected[1] < expected[2]


# All chips at once, no two messages at one output: each is as if alone


def torus_width(source: int) -> int:
    """Links from a chip of trainium2, or of 4 x 16, to the next on the path: 16 chips share the first coordinate."""
    return 1 if source % 16 == 15 else 2


def nested_way(source: int, destination: int) -> Way:
    """The lowest level of 4, 72 and 144 chips that has both."""
    if source // 4 == destination // 4:
        return links_of(TRAINIUM3, 4)
    return (
        links_of(TRAINIUM3, 5, switches=2) if source // 72 == destination // 72 else links_of(TRAINIUM3, 2, switches=4)
    )


def hgx_way(source: int, destination: int) -> Way:
    return links_of(H100, 18) if source // 8 == destination // 8 else rails_of(H100)


RINGS = {
    "switched": (TRAINIUM4, 72, lambda s, d: links_of(TRAINIUM4, 36)),
    "part_of_a_domain": (TRAINIUM4, 7, lambda s, d: links_of(TRAINIUM4, 36)),
    "mesh": (QUAD, 4, lambda s, d: links_of(QUAD, 6, hops=1)),
    "part_of_a_torus": (TRAINIUM2, 16, lambda s, d: links_of(TRAINIUM2, 2, hops=1)),
    "flat_torus": (FLAT_TORUS, 64, lambda s, d: links_of(FLAT_TORUS, torus_width(s), hops=1)),
    "torus": (TRAINIUM2, 64, lambda s, d: links_of(TRAINIUM2, torus_width(s), hops=1)),
    "nested": (TRAINIUM3, 144, nested_way),
    "domains": (H100, 20, hgx_way),
}


@pytest.mark.parametrize("ring", sorted(RINGS))
@pytest.mark.parametrize("nbytes", [0, 300, 100_001])
def test_a_step_of_a_ring(ring, nbytes):
    """Every rank sends to the next at once."""
    system, ranks, way = RINGS[ring]
    result = ce.emulate(build_schedule("sendrecv", "direct", ranks), system, count=nbytes, dtype="uint8")
    assert result.header["fidelity"] == "packet"
    messages, launch = result.timeline.messages, launch_of(system)
    expected = [way(int(each["source"]), int(each["destination"])) for each in messages]
    assert messages["visible_fs"].tolist() == [launch + each.message(nbytes) for each in expected]
    assert result.time_fs == max(launch + each.message(nbytes) + each.store(nbytes) for each in expected)


@pytest.mark.parametrize(("name", "chip"), [("trainium1", 7), ("trainium2", 15), ("trainium2", 63)])
def test_consecutive_ranks_of_a_torus_are_neighbours(name, chip):
    """The page's path goes from neighbour to neighbour, and one packet takes one link."""
    system = plain(name)
    way = links_of(system, 1, hops=1)
    result = run(system, [Message(chip, (chip + 1) % system.domain.chips, 100)])
    assert visible(result, system) == [way.message(100)]


@pytest.mark.parametrize("shift", [1, 2, 5, 7])
@pytest.mark.parametrize("nbytes", [1, 36 * 256, 36 * 256 + 1, 50_000])
def test_a_step_of_alltoall_is_a_message(shift, nbytes):
    """Every rank sends to the one that is `shift` further on: one message at every output."""
    result = run(TRAINIUM4, [Message(rank, (rank + shift) % 8, nbytes) for rank in range(8)])
    assert visible(result, TRAINIUM4) == [links_of(TRAINIUM4, 36).message(nbytes)] * 8


@pytest.mark.parametrize(
    ("way", "ranks"), [(links_of(TRAINIUM4, 36), 9), (links_of(H100, 18), 8), (links_of(QUAD, 6, hops=1), 4)]
)
@pytest.mark.parametrize("nbytes", [0, 1, 257, 40_000, 1_000_001])
def test_pairwise_alltoall_is_its_steps(way, ranks, nbytes):
    """A step begins when the message of the one before has been stored."""
    result = ce.emulate(build_schedule("alltoall", "pairwise", ranks), way.system, count=nbytes, dtype="uint8")
    assert result.time_fs == launch_of(way.system) + (ranks - 1) * (way.message(nbytes) + way.store(nbytes))


@pytest.mark.parametrize("packets", [1, 5, 36, 50, 1000])
@pytest.mark.parametrize("ranks", [3, 8])
def test_direct_alltoall_fills_the_links(packets, ranks):
    """Message j of every rank goes to the j-th next one, so outputs take as they are given: ports are never idle."""
    way = links_of(TRAINIUM4, 36)
    schedule = build_schedule("alltoall", "direct", ranks)
    nbytes = packets * way.payload
    result = ce.emulate(schedule, TRAINIUM4, count=nbytes, dtype="uint8")
    busiest = -(-(ranks - 1) * packets // 36)
    last = way.message(nbytes, (busiest + 1) * way.full + 2 * way.latency)
    assert result.time_fs == launch_of(TRAINIUM4) + last


@pytest.mark.parametrize("nbytes", [0, 1, 6 * 256 + 1, 100_000])
def test_an_alltoall_in_a_mesh_shares_no_link(nbytes):
    way = links_of(QUAD, 6, hops=1)
    result = ce.emulate(build_schedule("alltoall", "direct", 4), QUAD, count=nbytes, dtype="uint8")
    assert result.time_fs == launch_of(QUAD) + way.message(nbytes) + way.store(nbytes)
    assert set(result.links.up_bytes.sum(axis=1)) == {3 * sum(way.packets(nbytes))}


# One output for many


INCASTS = {
    "switched": (links_of(TRAINIUM4, 36), 0, [1, 2, 3, 4, 5, 6, 7]),
    "in_the_middle": (links_of(TRAINIUM4, 36), 5, [7, 11, 71, 0, 2, 3]),  # as its output takes turns
    "nested": (links_of(TRAINIUM3, 5, switches=2), 9, [20, 40, 60, 0, 4]),
    "network": (rails_of(H100), 3, [9, 17, 25, 33]),
    "rails": (rails_of(RAILS), 144, [220, 0, 73]),
}


@pytest.mark.parametrize("incast", INCASTS)
@pytest.mark.parametrize("each_lane", [1, 2, 30])
def test_an_incast_takes_turns(incast, each_lane):
    """The output is never idle from the first packet on: in every turn each sender has one, next chip first."""
    way, destination, sources = INCASTS[incast]
    way = replace(way, system=way.system.with_(**FAST))
    nbytes = each_lane * way.width * way.payload
    result = run(way.system, [Message(source, destination, nbytes) for source in sources])
    before = way.full + way.latency + (each_lane - 1) * len(sources) * way.full
    turns = [before + (i + 1) * way.full + way.latency for i in range(len(sources))]
    assert visible(result, way.system) == [way.message(nbytes, each) for each in turns]


@pytest.mark.parametrize("incast", INCASTS)
def test_an_incast_of_sizes_that_do_not_divide(incast):
    """The last arrival: the first packet at the switch, all of its lane's bytes, and one latency."""
    way, destination, sources = INCASTS[incast]
    way = replace(way, system=way.system.with_(**FAST))
    nbytes = 7 * way.width * way.payload + 2 * way.payload + 5
    result = run(way.system, [Message(source, destination, nbytes) for source in sources])
    sizes = [way.ser(each) for each in way.packets(nbytes)]
    lanes = [sizes[lane :: way.width] for lane in range(way.width)]
    last = max(lane[0] + way.latency + len(sources) * sum(lane) + way.latency for lane in lanes)
    assert max(visible(result, way.system)) == way.message(nbytes, last)


# Trees


@pytest.mark.parametrize("children", [1, 2, 5])
@pytest.mark.parametrize("packets", [1, 7, 36, 100])
def test_a_flat_broadcast_is_one_line_of_packets(children, packets):
    """A port counts packets through, from message to message: child j has its last when j + 1 messages are out."""
    way = replace(links_of(TRAINIUM4, 36), system=TRAINIUM4.with_(**FAST))
    nbytes = packets * way.payload
    result = run(way.system, [Message(0, child + 1, nbytes) for child in range(children)])
    rounds = [-(-(packets * (child + 1)) // 36) for child in range(children)]
    arrivals = [(each + 1) * way.full + 2 * way.latency for each in rounds]
    assert visible(result, way.system) == [way.message(nbytes, each) for each in arrivals]


@pytest.mark.parametrize("nbytes", [1, 256 * 36, 77_777])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_binary_broadcast_is_its_depth(nbytes, depth):
    """Chip c gives what it has received to 2c + 1 and 2c + 2; both messages are ready at once, in this order."""
    way = replace(links_of(TRAINIUM4, 36), system=TRAINIUM4.with_(**FAST))
    messages = [
        Message((c - 1) // 2, c, nbytes, (c - 1) // 2 - 1 if c > 2 else None) for c in range(1, 2 ** (depth + 1) - 1)
    ]
    pair = visible(run(way.system, messages[:2]), way.system)
    assert pair[0] == way.message(nbytes) < pair[1] or len(way.packets(nbytes)) == 1
    result = visible(run(way.system, messages), way.system)
    for chip, each in enumerate(result, start=1):
        before = result[(chip - 1) // 2 - 1] if chip > 2 else 0
        assert each - before == pair[1 - chip % 2]


@pytest.mark.parametrize("nbytes", [2, 8, 500])
def test_the_built_in_tree_of_four_ranks(nbytes):
    """Root, inner rank, and the inner rank's second child: three sends, one after the other, of half the data.

    The second child's message starts with the end of the first one's sending, and meets no other on its lane.
    """
    way = links_of(TRAINIUM4, 36)
    half = nbytes // 2
    result = ce.emulate(build_schedule("broadcast", "tree", 4, chunks=1), TRAINIUM4, count=nbytes, dtype="uint8")
    sending = way.begin + way.copy(half)
    assert result.time_fs == launch_of(TRAINIUM4) + way.copy(half) + 3 * sending + 2 * way.tail(half)


# Two domains and more


@pytest.mark.parametrize("chips", [2, 8])
@pytest.mark.parametrize("block", [1, 64, 500])
def test_a_ring_over_two_domains(chips, block):
    """The longest chain of 2 (n - 1) messages crosses the network at its first hop and again every D hops.

    Slots for all of them, and no overhead of a message, lest ranks that send over the network are what all wait for.
    """
    system = H100.with_(**{"domain.chips": chips, "endpoint.fifo_slots": 64, "scaleout.message_overhead_s": 0.0})
    ranks = 2 * chips
    result = ce.emulate(build_schedule("all_reduce", "ring", ranks), system, count=ranks * block)
    near, far = links_of(system, 18), rails_of(system)
    assert far.message(4 * block) > near.message(4 * block)
    hops = 2 * (ranks - 1)
    crossing = -(-hops // chips)
    expected = (hops - crossing) * near.message(4 * block) + crossing * far.message(4 * block) + near.store(4 * block)
    assert result.time_fs == launch_of(system) + expected


def test_a_ring_over_the_network_alone():
    """Domains of one chip: every message is one of the network."""
    system = RAILS.with_(**{"domain.chips": 1})
    far, block = rails_of(system), 4001
    result = ce.emulate(build_schedule("all_gather", "ring", 5), system, count=block, dtype="uint8")
    assert result.time_fs == launch_of(system) + far.copy(block) + 4 * far.message(block)
