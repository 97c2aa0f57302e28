"""Emulated times against formulas that a hand can write, and how they answer to a changed system."""

import numpy as np
import pytest

import collemu as ce
from collemu.schedule import build_schedule
from tests.built_in import anywhere

RATES = ("domain.link_bytes_per_s", "endpoint.copy_bytes_per_s", "endpoint.reduce_bytes_per_s")
MIB = 2**20


@pytest.fixture(scope="module")
def system():
    return ce.load_system("trainium4_nvl72")


class ByHand:
    """The rules of docs/timing-rules.md for a message that meets no other and never runs out of credits."""

    def __init__(self, system, protocol="dma"):
        self.system, self.protocol = system, system.protocols[protocol]
        self.hop = round(system.domain.hop_latency_s * 1e15)
        self.step = round(self.protocol.step_latency_s * 1e15)
        self.launch = round(system.endpoint.launch_s * 1e15)

    @staticmethod
    def ceil_time(nbytes, bytes_per_s):
        return -(-nbytes * 10**15 // int(bytes_per_s))

    def serialisation(self, nbytes):
        return self.ceil_time(nbytes, self.system.domain.link_bytes_per_s)

    def copy(self, nbytes):
        return self.ceil_time(nbytes, self.system.endpoint.copy_bytes_per_s)

    def reduce(self, nbytes):
        return self.ceil_time(nbytes, self.system.endpoint.reduce_bytes_per_s)

    def convert(self, nbytes):
        """Encoding and decoding are equally fast."""
        assert self.system.endpoint.quantize_bytes_per_s == self.system.endpoint.dequantize_bytes_per_s
        return self.ceil_time(nbytes, self.system.endpoint.quantize_bytes_per_s)

    def packets(self, nbytes):
        """Bytes of each packet on a link, header included."""
        domain = self.system.domain
        on_wire = -(-nbytes // self.protocol.data_bytes) * self.protocol.line_bytes
        full, rest = divmod(on_wire, domain.packet_payload_bytes)
        payloads = [domain.packet_payload_bytes] * full + [rest] * (rest > 0 or not full)
        flits = [-(-payload // domain.packet_flit_bytes) for payload in payloads]
        return [each * domain.packet_flit_bytes + domain.packet_header_bytes for each in flits]

    def passage(self, nbytes):
        """From ready to the last packet's arrival: each plane forwards its packets one by one, whole."""
        packets = self.packets(nbytes)
        arrival = 0
        for plane in range(min(self.system.domain.planes, len(packets))):
            up = down = 0
            for packet in packets[plane :: self.system.domain.planes]:
                up += self.serialisation(packet)
                down = max(up + self.hop, down) + self.serialisation(packet)
            arrival = max(arrival, down + self.hop)
        return arrival

    def store(self, nbytes):
        """A receiver's work when it only stores what came."""
        return 0 if self.protocol.writes_destination else self.copy(nbytes)

    def message(self, nbytes, work):
        """From the sending operation's start until its receiver can read."""
        tail = 2 * (self.serialisation(self.packets(nbytes)[0]) + self.hop)
        return self.step + max(self.passage(nbytes), work + tail)


@pytest.mark.parametrize("protocol", ["dma", "simple", "ll", "ll128"])
@pytest.mark.parametrize("nbytes", [0, 1, 4, 255, 256, 257, 9216, 9217, 100_000, MIB, 16 * MIB])
@pytest.mark.parametrize("ranks", [2, 3, 72])
def test_one_message_alone(system, ranks, nbytes, protocol):
    if ranks == 72 and nbytes > MIB:
        nbytes = MIB + 3
    schedule = build_schedule("sendrecv", "direct", ranks)
    hand = ByHand(system, protocol)
    result = ce.emulate(schedule, system, count=nbytes, dtype="uint8", protocol=protocol)
    assert result.time_fs == hand.launch + hand.message(nbytes, hand.copy(nbytes)) + hand.store(nbytes)


@pytest.mark.parametrize("wire", ["none", "mxfp8_e4m3", "mxfp4", "nvfp4", "bfloat16"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
@pytest.mark.parametrize("block", [1, 33, 1000, 65536])
def test_a_ring_is_its_messages_one_after_the_other(system, ranks, block, wire):
    """n - 1 steps that send or add, then n - 1 that send or forward, then the last copy; equal chunks."""
    schedule = build_schedule("all_reduce", "ring", ranks)
    result = ce.emulate(schedule, system, count=ranks * block, wire=wire)
    blocks, halves = -(-block // 32), -(-block // 2)
    nbytes = {
        "none": 4 * block,
        "mxfp8_e4m3": block + blocks,
        "mxfp4": halves + blocks,
        "nvfp4": halves + -(-block // 16) + 4,
        "bfloat16": 2 * block,
    }[wire]
    hand = ByHand(system)
    # the first send encodes, forwards and the last receive decode; what adds does both
    convert = hand.convert(4 * block) if wire != "none" else 0
    copying = hand.message(nbytes, hand.copy(nbytes) + convert)
    adding = hand.message(nbytes, hand.reduce(nbytes) + 2 * convert)
    expected = hand.launch + (ranks - 1) * (copying + adding) + hand.store(nbytes) + convert
    assert result.time_fs == expected
    assert result.wire_bytes == 2 * (ranks - 1) * ranks * nbytes


def test_one_rank_copies(system):
    hand = ByHand(system)
    for collective in ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reduce", "alltoall"):
        for algorithm in anywhere(collective):
            result = ce.emulate(build_schedule(collective, algorithm, 1), system, count=1000)
            assert result.time_fs == hand.launch + hand.copy(4000)
            assert result.wire_bytes == 0 and result.links.total_bytes == 0


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks"),
    [
        ("all_reduce", "ring", 8),
        ("all_reduce", "tree", 4),
        ("all_reduce", "two_shot", 4),
        ("all_gather", "direct", 4),
        ("reduce_scatter", "ring", 4),
        ("broadcast", "ring", 3),
        ("alltoall", "pairwise", 4),
        ("sendrecv", "direct", 2),
    ],
)
def test_half_the_rates_or_twice_the_bytes_take_twice_as_long(system, collective, algorithm, ranks):
    half = system.with_(**{name: system.provenance[name].value / 2 for name in RATES})
    schedule = build_schedule(collective, algorithm, ranks)
    count = 64 * MIB // schedule.input_regions
    whole, slower, larger = (
        ce.emulate(schedule, where, count=size, timeline=False)
        for where, size in ((system, count), (half, count), (system, 2 * count))
    )
    assert 1.9 <= slower.time_fs / whole.time_fs <= 2.1
    assert 1.9 <= larger.time_fs / whole.time_fs <= 2.1


@pytest.mark.parametrize("name", ["domain.hop_latency_s", "protocol.dma.step_latency_s", "endpoint.launch_s"])
@pytest.mark.parametrize("algorithm", anywhere("all_reduce"))
def test_every_latency_counts(system, name, algorithm):
    schedule = build_schedule("all_reduce", algorithm, 8)
    slow = system.with_(**{name: 2 * system.provenance[name].value})
    assert ce.emulate(schedule, slow, count=8).time_fs >= ce.emulate(schedule, system, count=8).time_fs + 150_000_000


def test_narrow_wires_are_faster_where_bandwidth_counts(system):
    schedule = build_schedule("all_reduce", "ring", 8)
    for_nothing = system.with_(**{"endpoint.quantize_bytes_per_s": 1e15, "endpoint.dequantize_bytes_per_s": 1e15})
    gains = []
    for each in (system, for_nothing):
        times = [
            ce.emulate(schedule, each, count=16 * MIB, wire=wire).time_fs
            for wire in ("none", "bfloat16", "mxfp8_e4m3", "nvfp4", "mxfp4")
        ]
        assert times == sorted(times, reverse=True)
        gains.append(times[0] / times[-1])
    assert gains[1] > 2.5
    assert 1 < gains[0] < gains[1]  # conversions cost something


def test_headers_name_what_a_run_depends_on(system):
    schedule = build_schedule("all_reduce", "ring", 4)
    header = ce.emulate(schedule, system, count=4, wire="nvfp4", protocol="ll").header
    expected = {
        "system": "trainium4_nvl72",
        "protocol": "ll",
        "wire": "nvfp4",
        "dtype": "float32",
        "ranks": 4,
    }
    assert {name: header[name] for name in expected} == expected
    assert any("hop_latency" in name for name in header["estimates"])
    changed = system.with_(**{"domain.hop_latency_s": 3e-7})
    assert ce.emulate(schedule, changed, count=4).header["system_fingerprint"] != header["system_fingerprint"]


def test_a_run_beyond_the_clock_is_refused(system):
    """568 steps of 10 s; the clock has a little over an hour."""
    crawling = system.with_(**{"protocol.dma.step_latency_s": 10.0})
    with pytest.raises(ValueError, match="clock"):
        ce.emulate(build_schedule("all_reduce", "ring", 72, chunks=4), crawling, count=4)


def test_planes_share_a_large_message_evenly(system):
    schedule = build_schedule("sendrecv", "direct", 2)
    links = ce.emulate(schedule, system, count=36 * 64 * 10).links  # 10 full packets a plane
    assert np.unique(links.up_bytes).tolist() == [10 * 272]
    assert np.unique(links.down_bytes).tolist() == [10 * 272]
