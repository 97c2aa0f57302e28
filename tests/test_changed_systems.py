"""A change of a system moves results by what theory says; queues that meet delay by what they must."""

import numpy as np
import pytest

import collemu as ce
from collemu.schedule import build_schedule
from tests.oracles.hand_messages import Message, femtoseconds, links_of, rails_of, run, visible

TRAINIUM4 = ce.load_system("trainium4_nvl72")
MIB = 2**20
WITHIN = 0.01


def time_of(system, collective, algorithm, ranks, nbytes, **how):
    """Femtoseconds of a run of bytes."""
    schedule = build_schedule(collective, algorithm, ranks)
    return ce.emulate(schedule, system, count=nbytes, dtype="uint8", timeline=False, **how).time_fs


def bandwidth_part(system, collective, algorithm, ranks, nbytes):
    """What a run takes longer than one of nothing."""
    return time_of(system, collective, algorithm, ranks, nbytes) - time_of(system, collective, algorithm, ranks, 0)


# Bandwidth


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "nbytes"),
    [
        ("trainium4_nvl72", "all_reduce", 8, 256 * MIB),
        ("trainium4_nvl72", "all_gather", 4, 16 * MIB),
        ("h100_hgx", "all_reduce", 8, 128 * MIB),
        ("gh200_quad", "reduce_scatter", 4, 16 * MIB),
        ("trainium2", "all_reduce", 16, 64 * MIB),
        ("trainium3_ultraserver_gen2", "all_reduce", 4, 64 * MIB),
    ],
)
def test_half_the_link_bandwidth_doubles_the_bandwidth_part_of_a_ring(name, collective, ranks, nbytes):
    system = ce.load_system(name)
    system = system.with_(
        **{"endpoint.copy_bytes_per_s": 1e14, "chip.hbm_bytes_per_s": 1e15, "endpoint.reduce_bytes_per_s": 1e14}
    )
    half = system.with_(**{"domain.link_bytes_per_s": system.domain.link_bytes_per_s / 2})
    whole, slow = (bandwidth_part(each, collective, "ring", ranks, nbytes) for each in (system, half))
    assert slow / whole == pytest.approx(2, rel=WITHIN)


@pytest.mark.parametrize(
    ("name", "less", "ratio"),
    [
        ("trainium4_nvl72", {"domain.planes": 35}, 36 / 35),
        ("trainium4_nvl72", {"domain.planes": 18}, 2),
        ("h100_hgx", {"domain.planes": 3, "domain.links_per_plane": (4, 4, 5)}, 18 / 13),
        ("h200_hgx", {"domain.planes": 3, "domain.links_per_plane": (5, 4, 5)}, 18 / 14),
        ("a100_hgx", {"domain.planes": 5}, 6 / 5),
        ("b200_hgx", {"domain.planes": 1}, 2),
        ("gh200_quad", {"domain.links_per_peer": 5}, 6 / 5),
        ("trainium2", {"domain.links_per_direction": (1, 1, 1)}, 2),
        ("trainium3_ultraserver_gen1", {"domain.links_per_level": (3, 5, 2)}, 4 / 3),
    ],
)
def test_a_failed_plane_costs_its_share(name, less, ratio):
    """A large message between two chips, before and after links fail; without the copy that a receiver may make."""
    system = ce.load_system(name).with_(**{"endpoint.copy_bytes_per_s": 1e14, "chip.hbm_bytes_per_s": 1e15})
    whole, broken = (bandwidth_part(each, "sendrecv", "direct", 2, 64 * MIB) for each in (system, system.with_(**less)))
    assert broken / whole == pytest.approx(ratio, rel=WITHIN)


# Latency


@pytest.mark.parametrize(
    ("name", "collective", "algorithm", "ranks", "steps", "hops"),
    [
        ("trainium4_nvl72", "all_reduce", "ring", 8, 14, 2),
        ("trainium4_nvl72", "alltoall", "pairwise", 7, 6, 2),
        ("trainium4_nvl72", "alltoall", "direct", 7, 1, 2),
        ("trainium4_nvl72", "broadcast", "ring", 5, 4, 2),
        ("trainium4_nvl72", "broadcast", "tree", 4, 2, 2),
        ("trainium4_nvl72", "all_reduce", "two_shot", 5, 2, 2),
        ("gh200_quad", "all_reduce", "ring", 4, 6, 1),
        ("trainium2", "all_gather", "ring", 16, 15, 1),
        ("trainium3_ultraserver_gen2", "all_gather", "ring", 4, 3, 2),  # one switch of one hop
    ],
)
@pytest.mark.parametrize("nbytes", [1, 20_000])
def test_twice_the_hop_latency_adds_steps_times_hops(name, collective, algorithm, ranks, steps, hops, nbytes):
    """To the femtosecond; credits enough that nothing waits for one."""
    system = ce.load_system(name).with_(**{"domain.credits": 4096})
    latency = system.domain.hop_latency_s
    doubled = system.with_(**{"domain.hop_latency_s": 2 * latency})
    schedule = build_schedule(collective, algorithm, ranks, chunks=1)
    before, after = (ce.emulate(schedule, each, count=nbytes, dtype="uint8").time_fs for each in (system, doubled))
    assert after - before == steps * hops * femtoseconds(latency)


@pytest.mark.parametrize(("chips", "hops"), [((0, 1), 2), ((0, 4), 4), ((0, 72), 8)])
def test_levels_have_their_own_hops(chips, hops):
    """1, 2 and 4 hops of 250 ns to a switch of the level, and as many from it."""
    system = ce.load_system("trainium3_ultraserver_gen2")
    doubled = system.with_(**{"domain.hop_latency_s": 500e-9})
    before, after = (run(each, [Message(*chips, 1000)]).time_fs for each in (system, doubled))
    assert after - before == hops * 250_000_000


# Sharing


def test_two_flows_to_one_output_take_twice_as_long():
    """They share the receiver's links; flows to two receivers share nothing."""
    system = TRAINIUM4.with_(**{"endpoint.copy_bytes_per_s": 1e14, "chip.hbm_bytes_per_s": 1e15})
    nbytes = 32 * MIB
    alone, together, apart = (
        run(system, messages, timeline=False).time_fs - run(system, [Message(0, 1, 0)]).time_fs
        for messages in (
            [Message(1, 0, nbytes)],
            [Message(1, 0, nbytes), Message(2, 0, nbytes)],
            [Message(1, 0, nbytes), Message(2, 3, nbytes)],
        )
    )
    assert together / alone == pytest.approx(2, rel=WITHIN)
    assert apart == alone


def test_two_flows_from_one_chip_share_its_links():
    system = TRAINIUM4.with_(**{"endpoint.copy_bytes_per_s": 1e14, "chip.hbm_bytes_per_s": 1e15})
    nbytes = 32 * MIB
    one, two = (run(system, [Message(0, peer, nbytes) for peer in peers]).time_fs for peers in ([1], [1, 2]))
    nothing = run(system, [Message(0, 1, 0)]).time_fs
    assert (two - nothing) / (one - nothing) == pytest.approx(2, rel=WITHIN)


def test_flows_in_both_directions_share_nothing():
    """Links are full duplex."""
    nbytes = 8 * MIB
    one = run(TRAINIUM4, [Message(0, 1, nbytes)]).time_fs
    assert run(TRAINIUM4, [Message(0, 1, nbytes), Message(1, 0, nbytes)]).time_fs == one


def test_levels_domains_and_groups_share_nothing():
    """Messages of a chip on different groups of lanes do not know of each other."""
    for name, peers in (
        ("gh200_quad", [1, 2, 3]),
        ("gh200_quad", [1, 5]),
        ("trainium2", [1, 3, 7]),
        ("trainium3_ultraserver_gen2", [1, 9, 100]),
        ("trainium3_ultraserver_gen2", [1, 9, 100, 150]),
        ("trainium4_nvl72", [1, 80]),
    ):
        system = ce.load_system(name)
        alone = [visible(run(system, [Message(0, peer, MIB)]), system)[0] for peer in peers]
        assert visible(run(system, [Message(0, peer, MIB) for peer in peers]), system) == alone


@pytest.mark.parametrize("number", [2, 3, 4, 96])
@pytest.mark.parametrize("rivals", [0, 1, 3])
def test_head_of_line_blocking(number, rivals):
    """Chip 1 sends two packets to chip 2, where rivals' packets queue, then one to chip 0, where nobody's do.

    With three credits the third packet follows at once. With two it needs the credit of the first, which comes back
    two latencies and two packets after that left, and a packet later for every rival whose turn is first.
    """
    system = TRAINIUM4.with_(
        **{
            "domain.planes": 1,
            "domain.credits": number,
            "domain.chips": 8,
            "endpoint.copy_bytes_per_s": 1e14,
            "chip.hbm_bytes_per_s": 1e15,
        }
    )
    way = links_of(system, 1)
    own = [Message(1, 2, 2 * 256), Message(1, 0, 256)]
    result = run(system, [*own, *(Message(3 + rival, 2, 10 * 256) for rival in range(rivals))], ranks=8)
    leaves = 2 * way.full if number > 2 else (2 + rivals) * way.full + 2 * way.latency
    assert visible(result, system)[1] == way.message(256, leaves + 2 * way.full + 2 * way.latency)


def test_a_long_message_holds_back_the_next_on_its_links():
    """Many packets for a busy output take all credits, so what is for an idle chip waits as long as they do."""
    messages = [Message(1, 2, MIB), Message(1, 0, 256), *(Message(rival, 2, MIB) for rival in range(3, 10))]
    few, enough = (
        visible(run(each, messages), each)
        for each in (TRAINIUM4, TRAINIUM4.with_(**{"domain.credits": MIB // 256 // 36 + 2}))
    )
    free = visible(run(TRAINIUM4, messages[:2]), TRAINIUM4)[1]
    assert enough[1] == free
    assert few[1] - free > 0.1 * (few[0] - free)


# Hot spots


@pytest.mark.parametrize("system", [TRAINIUM4, ce.load_system("h100_hgx")], ids=lambda system: system.name)
def test_an_incast_fills_the_links_of_its_receiver(system):
    """7 chips send 32 MiB each to chip 0: its links are never idle, and each sender's a seventh of that."""
    links = run(system, [Message(chip, 0, 32 * MIB) for chip in range(1, 8)]).links
    assert links.max_utilisation > 0.9
    assert links.down_busy_s[0].min() / links.time_s > 0.9
    assert not links.down_busy_s[1:].any() and not links.up_busy_s[0].any()
    np.testing.assert_allclose(7 * links.up_busy_s[1:8], np.tile(links.down_busy_s[0], (7, 1)), rtol=0.01)


def test_a_shift_fills_no_link_more_than_another():
    links = run(TRAINIUM4, [Message(chip, (chip + 3) % 8, 64 * MIB) for chip in range(8)]).links
    assert links.max_utilisation > 0.8
    assert links.up_busy_s[:8].min() > 0.99 * links.up_busy_s.max()
    assert links.down_busy_s[:8].min() > 0.99 * links.up_busy_s.max()


# Bug cases


@pytest.mark.parametrize(("ranks", "fidelity"), [((64, 144), "packet"), ((64, 144), "flow")])
def test_e1_two_domains_are_clearly_slower(ranks, fidelity):
    """aliyun/SimAI#136, #208; astra-sim#207; simgrid#338: the result must move with ranks and topology."""
    inside, across = (
        ce.emulate(
            build_schedule("all_reduce", "ring", each), TRAINIUM4, count=4 * MIB, timeline=False, fidelity=fidelity
        )
        for each in ranks
    )
    assert across.time_fs > 3 * inside.time_fs
    assert across.bounds.total_fs > inside.bounds.total_fs
    for each in (inside, across):
        assert each.time_fs >= each.bounds.total_fs


def test_e1_the_same_ranks_in_more_domains_are_slower():
    """aliyun/SimAI#136: only the topology differs, one domain of 16 chips, two of 8 or four of 4."""
    times = [
        time_of(TRAINIUM4.with_(**{"domain.chips": chips}), "all_reduce", "ring", 16, 4 * MIB) for chips in (16, 8, 4)
    ]
    assert 1.5 * times[0] < times[1] < times[2]


def test_e3_latency_over_domains_is_counted_once():
    """astra-sim#317: sendrecv of an element over 73 ranks, so from 71 to 72 and from 72 to 0; at least 15 us."""
    result = ce.emulate(build_schedule("sendrecv", "direct", 73), TRAINIUM4, count=1)
    assert 15e-6 <= result.time_s < 100e-6
    far = rails_of(TRAINIUM4).message(4)
    near = links_of(TRAINIUM4, 36).message(4)
    assert visible(result, TRAINIUM4) == [near] * 71 + [far] * 2
    assert result.time_fs == femtoseconds(TRAINIUM4.endpoint.launch_s) + far
    assert 15_000_000_000 <= far < 2 * 15_000_000_000


def test_e3_twice_the_latency_moves_all_three():
    """astra-sim#317: a hop inside is 150 ns, one of the network's two half of 15 us; a message has two of either."""
    doubled = TRAINIUM4.with_(**{"domain.hop_latency_s": 300e-9, "scaleout.latency_s": 30e-6})
    for collective, ranks, count, added in (
        ("sendrecv", 2, 1, 2 * 150_000_000),
        ("sendrecv", 73, 1, 2 * 7_500_000_000),
        ("all_reduce", 8, 8, 14 * 2 * 150_000_000),
    ):
        algorithm = "ring" if collective == "all_reduce" else "direct"
        schedule = build_schedule(collective, algorithm, ranks)
        before, after = (ce.emulate(schedule, each, count=count).time_fs for each in (TRAINIUM4, doubled))
        assert after - before == added


def test_e3_hops_inside_are_no_part_of_the_way_between_domains():
    """The page's network has a latency of its own: twice `domain.hop_latency_s` moves what stays inside, only that."""
    doubled = TRAINIUM4.with_(**{"domain.hop_latency_s": 300e-9})
    schedule = build_schedule("sendrecv", "direct", 73)
    before, after = (np.array(visible(ce.emulate(schedule, each, count=1), each)) for each in (TRAINIUM4, doubled))
    assert (after - before).tolist() == [300_000_000] * 71 + [0, 0]
