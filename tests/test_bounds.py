"""Lower bounds: their values, and small cases checked by a search over all schedules."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import given
from hypothesis import strategies as st

from collemu import emulate
from collemu.builders.assembly import Assembler, interleave, steps
from collemu.catalogue import load_system
from collemu.model.bounds import lower_bound, port_elements
from collemu.schedule import build_schedule

SYSTEM = load_system("trainium4_nvl72")
LAUNCH_FS, HOP_FS = 7_480_000_000, 150_000_000
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
)


def test_all_reduce_of_the_whole_domain() -> None:
    bounds = lower_bound("all_reduce", 72, 8 << 20, 32, SYSTEM)
    port_bytes = Fraction(2 * 71, 72) * (32 << 20)
    assert bounds.name == "2S(n-1)/n"
    assert bounds.port_bytes == float(port_bytes)
    assert bounds.total_fs == LAUNCH_FS + 2 * HOP_FS + port_bytes * 10**15 // (18 * 10**11)
    assert bounds.bandwidth_s == pytest.approx(float(port_bytes) / 1.8e12, rel=1e-15)
    assert bounds.latency_s == 7.78e-6
    assert bounds.total_s == pytest.approx(bounds.latency_s + bounds.bandwidth_s, rel=1e-15)


@pytest.mark.parametrize(
    ("collective", "elements"),
    [
        ("all_reduce", Fraction(2 * 3 * 100, 4)),
        ("reduce_scatter", 300),
        ("all_gather", 300),
        ("alltoall", 300),
        ("gather", 300),
        ("scatter", 300),
        ("broadcast", 100),
        ("reduce", 100),
        ("sendrecv", 100),
    ],
)
def test_port_elements(collective: str, elements: Fraction) -> None:
    assert port_elements(collective, 4, 100)[0] == elements


def test_a_switch_that_adds_halves_all_reduce_only() -> None:
    assert port_elements("all_reduce", 72, 100, in_switch_reduction=True) == (100, "S")
    for collective in COLLECTIVES[1:]:
        assert port_elements(collective, 72, 100, in_switch_reduction=True) == port_elements(collective, 72, 100)
    adds = SYSTEM.with_(**{"domain.in_switch_reduction": True})
    assert lower_bound("all_reduce", 72, 100, 32, adds).port_bytes == 400


def test_scales_count_as_wire_bytes() -> None:
    mxfp4 = lower_bound("all_gather", 2, 64, Fraction(17, 4), SYSTEM)
    assert mxfp4.port_bytes == 34


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_to_move_is_the_launch(collective: str) -> None:
    assert lower_bound(collective, 1, 1000, 32, SYSTEM).total_fs == LAUNCH_FS
    assert lower_bound(collective, 8, 0, 32, SYSTEM).total_fs == LAUNCH_FS


def test_alltoallv_takes_the_largest_row_or_column() -> None:
    counts = [[9, 1, 2], [3, 9, 4], [5, 6, 9]]
    assert port_elements("alltoallv", 3, 0, counts=counts)[0] == 11  # row 2 gives out 5 + 6
    assert port_elements("alltoallv", 3, 0, counts=[[0, 0, 7], [0, 0, 8], [0, 0, 0]])[0] == 15  # column 2 takes in
    assert port_elements("alltoallv", 1, 0, counts=[[5]])[0] == 0
    for wrong in (None, [[1, 2]], [[0, 1], [2]], [[0, -1], [0, 0]]):
        with pytest.raises(ValueError, match="bound of alltoallv: counts"):
            port_elements("alltoallv", 2, 0, counts=wrong)


@pytest.mark.parametrize(
    ("collective", "ranks", "elements"),
    [
        ("all_reduce", 73, 7200),  # a sum enters the second domain, which has one chip, and one rail
        ("reduce_scatter", 145, 144 * 7200),
        ("all_gather", 74, Fraction(72 * 7200, 2)),
        ("alltoall", 144, 72 * 7200),
    ],
)
def test_what_crosses_domains_is_carried_by_rails(collective: str, ranks: int, elements: Fraction) -> None:
    bounds = lower_bound(collective, ranks, 7200, 32, SYSTEM)
    rails_fs = Fraction(elements) * 4 * 10**15 // (50 * 10**9)
    latency_fs = LAUNCH_FS + 15 * 10**9
    assert bounds.name == "crossing domains"
    assert bounds.total_fs == latency_fs + rails_fs
    assert bounds.total_fs >= lower_bound(collective, 72, 7200, 32, SYSTEM).total_fs


def test_links_may_still_decide_between_domains() -> None:
    """72 rails let a large sum into a domain more quickly than links bring it to every chip."""
    bounds = lower_bound("all_reduce", 144, 72_000_000, 32, SYSTEM)
    assert bounds.name == "2S(n-1)/n"
    bandwidth_fs = Fraction(2 * 143 * 72_000_000 * 4, 144) * 10**15 / (1850 * 10**9)
    assert bounds.total_fs == LAUNCH_FS + 2 * HOP_FS + int(bandwidth_fs)


def test_faults_are_named() -> None:
    with pytest.raises(ValueError, match="'allreduce': no such collective"):
        lower_bound("allreduce", 2, 1, 32, SYSTEM)
    with pytest.raises(ValueError, match="0 ranks"):
        lower_bound("all_reduce", 0, 1, 32, SYSTEM)
    with pytest.raises(ValueError, match="itemsize_bits"):
        lower_bound("all_reduce", 2, 1, 0, SYSTEM)


@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(1, 72),
    count=st.integers(0, 10**9),
    bits=st.fractions(1, 64, max_denominator=64),
)
def test_bound_grows_with_bytes_and_shrinks_with_rate(collective: str, ranks: int, count: int, bits: Fraction) -> None:
    here = lower_bound(collective, ranks, count, bits, SYSTEM)
    assert lower_bound(collective, ranks, count + 1, bits, SYSTEM).total_fs >= here.total_fs
    slow = SYSTEM.with_(**{"domain.link_bytes_per_s": 25e9})
    assert lower_bound(collective, ranks, count, bits, slow).bandwidth_s == pytest.approx(2 * here.bandwidth_s)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_reduce_of_one_element_needs_that_many_messages(ranks: int) -> None:
    """Try every sequence of messages: fewer than 2(n-1) never tell all ranks the sum."""
    pairs = list(itertools.permutations(range(ranks), 2))
    needed = port_elements("all_reduce", ranks, 1)[0] * ranks

    def completes(messages: tuple[tuple[int, int], ...]) -> bool:
        known = [{rank} for rank in range(ranks)]
        for source, destination in messages:
            known[destination] = known[destination] | known[source]
        return all(len(each) == ranks for each in known)

    for length in range(int(needed) + 1):
        possible = any(completes(messages) for messages in itertools.product(pairs, repeat=length))
        assert possible == (length == needed)


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_what_stays_inside_a_domain_moves_while_the_rest_crosses(fidelity: str) -> None:
    """An exchange with partners that differ in one bit: links are busy while the network is still on its way."""
    system = load_system("trainium4_2x72").with_(
        **{
            "domain.chips": 2,
            "domain.planes": 1,
            "domain.packet_payload_bytes": 2**12,
            "domain.credits": 2**10,
            "scaleout.latency_s": 1e-3,
            "scaleout.bytes_per_s": 200e9,
            "scaleout.datagram_bytes": 2**14,
            "endpoint.copy_bytes_per_s": 1e15,
            "protocol.dma.step_latency_s": 0.0,
        }
    )
    ranks = 4
    rank, place = np.divmod(np.arange(ranks * (ranks - 1)), ranks - 1)
    peer = rank ^ (place + 1)
    assembler = Assembler()
    lone = np.arange(ranks)[:, None]
    assembler.add(lone[:, 0], 0, steps(kinds.COPY, src=(kinds.INPUT, lone), dst=(kinds.OUTPUT, lone)))
    send = steps(kinds.SEND, src=(kinds.INPUT, peer[:, None]))
    receive = steps(kinds.RECV, dst=(kinds.OUTPUT, peer[:, None]))
    assembler.add(rank, place + 1, interleave(send, receive), send_peer=peer, recv_peer=peer)
    schedule = assembler.schedule("alltoall", "xor", ranks, input_chunks=ranks, output_chunks=ranks)
    result = emulate(schedule, system, count=11_250_000, fidelity=fidelity, timeline=False)
    assert result.time_fs >= result.bounds.total_fs


@pytest.mark.parametrize(
    ("collective", "ranks", "most"),
    [
        ("broadcast", 8, 1),
        ("reduce", 8, 1),
        ("all_gather", 8, Fraction(8, 7)),  # a rank's own share comes back to it
        ("all_gather", 2, 2),
        ("reduce_scatter", 8, Fraction(8, 7)),  # its own terms have to be added in the switch too
        ("reduce_scatter", 2, 2),
        ("all_reduce", 8, 1 + Fraction(1, 8)),
        ("all_reduce", 2, 1 + Fraction(1, 2)),
    ],
)
def test_switches_that_add_come_as_near_as_their_bytes(collective: str, ranks: int, most: Fraction) -> None:
    """Where only links take time, nvls takes its bytes' time: the bound, but for what ranks send to themselves."""
    bare = {
        "domain.in_switch_reduction": True,
        "domain.hop_latency_s": 1e-9,
        "domain.packet_payload_bytes": 2**12,
        "domain.packet_header_bytes": 1,
        "domain.credits": 2**12,
        "endpoint.launch_s": 0.0,
        "endpoint.copy_bytes_per_s": 1e15,
        "protocol.dma.step_latency_s": 0.0,
    }
    system = SYSTEM.with_(**bare)
    pieces, slack = (16, 0.15) if collective == "all_reduce" else (1, 0.02)  # no terms hide the last piece's stores
    schedule = build_schedule(collective, "nvls", ranks, chunks=pieces)
    for fidelity in ("packet", "flow"):
        result = emulate(schedule, system, count=2**23, fidelity=fidelity, timeline=False)
        assert result.time_fs >= result.bounds.total_fs
        assert most * 0.999 < result.time_fs / result.bounds.total_fs < most * (1 + slack)
