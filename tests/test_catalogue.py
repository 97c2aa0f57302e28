"""The systems and networks that collemu brings: all are there, add up to what vendors print, and run."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

import collemu as ce
from collemu.catalogue import CONFIDENCES, SystemFileError, femtoseconds, load_system, systems
from collemu.catalogue.load import CATALOGUE, NETWORKS, networks
from collemu.fidelity.constants import load_constants
from collemu.fidelity.mesh import LINKS
from collemu.fidelity.nccl import ARCHITECTURES
from collemu.wiring import group_of, wiring_of

SWITCHED = {
    "trainium4_nvl72": 72,
    "trainium4_2x72": 72,
    "gb200_nvl72": 72,
    "gb300_nvl72": 72,
    "vera_rubin_nvl72": 72,
    "b200_hgx": 8,
    "b300_hgx": 8,
    "h100_hgx": 8,
    "h200_hgx": 8,
    "a100_hgx": 8,
    "ualink_1024": 1024,
}
MESHES = {"a100_quad": 4, "gh200_quad": 4}
TORI = {"trainium1": 32, "trainium2": 64}
NESTED = {"trainium3_ultraserver_gen1": 64, "trainium3_ultraserver_gen2": 144}
CHIPS = SWITCHED | MESHES | TORI | NESTED
GPUS = ("a100_hgx", "b200_hgx", "b300_hgx", "gb200_nvl72", "gb300_nvl72", "h100_hgx", "h200_hgx")

# What public tables of measured collectives need: the most ranks, in one domain or over a network
MEASURED = [
    ("a100_hgx", None, 8),
    ("a100_hgx", "ib_roce_100g_200g", 32),
    ("a100_quad", None, 4),
    ("a100_quad", "tcp_slingshot", 8),
    ("b200_hgx", "efa_p6b200", 16),
    ("b200_hgx", "ib_ndr_400g_per_gpu", 16),
    ("b200_hgx", "roce_8x400g", 16),
    ("b300_hgx", None, 8),
    ("gb200_nvl72", None, 4),
    ("gb200_nvl72", "ib_ndr_400g_per_gpu", 144),
    ("gb300_nvl72", None, 64),
    ("gb300_nvl72", "ib_ndr_400g_per_gpu", 128),
    ("gb300_nvl72", "roce_4x800g", 8),
    ("gh200_quad", None, 4),
    ("h100_hgx", "efa_p5", 256),
    ("h100_hgx", "ib_ndr_400g_per_gpu", 96),
    ("h100_hgx", "roce_8x400g", 32),
    ("h100_hgx", "tcpxo_8x200g", 16),
    ("h200_hgx", "efa_p5en", 128),
    ("h200_hgx", "roce_8x400g", 16),
    ("trainium1", None, 32),
    ("trainium1", "efa_trn1", 64),
]
NETWORK_BYTES_PER_S = {  # of one chip
    "efa_p4de": 6.25e9,
    "efa_p5": 50e9,
    "efa_p5en": 50e9,
    "efa_p6b200": 50e9,
    "efa_trn1": 3.125e9,
    "efa_trn2": 25e9,
    "efa_trn3": 25e9,
    "efa_trn4": 50e9,
    "ib_ndr_400g_per_gpu": 50e9,
    "ib_roce_100g_200g": 25e9,
    "roce_4x800g": 100e9,
    "roce_8x400g": 50e9,
    "tcp_slingshot": 8.33e9,
    "tcpxo_8x200g": 25e9,
}


def ring(name, ranks, network=None):
    system = load_system(name, network)
    return ce.emulate(ce.build_schedule("all_reduce", "ring", ranks), system, count=4 * ranks, timeline=False)


# What is there


def test_ids():
    assert set(systems()) == set(CHIPS)
    assert set(networks()) == set(NETWORK_BYTES_PER_S)
    assert {name for name, _, _ in MEASURED} <= set(systems())
    assert {network for _, network, _ in MEASURED if network} <= set(networks())


@pytest.mark.parametrize("name", sorted(CHIPS))
def test_system(name):
    system = load_system(name)
    kinds = {"mesh": MESHES, "torus": TORI, "nested": NESTED, "switched": SWITCHED}
    assert name in kinds[system.domain.topology]
    assert system.name == name
    assert system.domain.chips == CHIPS[name]
    assert system.status
    assert sum(wiring_of(system.domain).widths) == system.domain.links
    assert system.max_ranks >= 2 * system.domain.chips
    content = tomllib.loads((CATALOGUE / f"{name}.toml").read_text())
    assert ("network" in content) != ("scaleout" in content)


@pytest.mark.parametrize("name", sorted(NETWORK_BYTES_PER_S))
def test_network(name):
    scaleout = load_system("h100_hgx", name).scaleout
    assert scaleout.bytes_per_s == NETWORK_BYTES_PER_S[name]
    # A window lets a rail send all the time
    rail = scaleout.bytes_per_s / scaleout.rails
    assert scaleout.window_datagrams * scaleout.datagram_bytes >= rail * scaleout.latency_s


def test_every_network_has_a_user():
    defaults = {tomllib.loads((CATALOGUE / f"{name}.toml").read_text()).get("network") for name in systems()}
    assert networks() == tuple(sorted({network for _, network, _ in MEASURED if network} | defaults - {None}))


def test_a_source_is_the_same_in_every_file():
    sources: dict[str, dict[str, str]] = {}
    for path in [*CATALOGUE.glob("*.toml"), *NETWORKS.glob("*.toml")]:
        for key, source in tomllib.loads(path.read_text())["sources"].items():
            assert sources.setdefault(key, source) == source, (path.name, key)


@pytest.mark.parametrize("path", [*CATALOGUE.glob("*.toml"), *NETWORKS.glob("*.toml")], ids=lambda path: path.stem)
def test_numbers_say_where_they_are_from(path):
    content = tomllib.loads(path.read_text())
    sections = [content.get(key, {}) for key in ("chip", "domain", "endpoint", "scaleout")]
    sections += content.get("protocol", {}).values()
    for number in (number for section in sections for number in section.values()):
        assert number["source"] in content["sources"]
        assert number["confidence"] in CONFIDENCES
        if number["source"] == "DEFAULT":
            assert number["confidence"] == "estimate"
        if number["confidence"] in ("estimate", "derived"):
            assert number.get("note") or number["source"] == "NCCL", number
        if number["confidence"] == "fitted":
            assert number["source"].endswith("-FIT")


# What they add up to


@pytest.mark.parametrize(
    ("name", "chip", "domain"),
    [
        ("trainium4_nvl72", 3.6e12, 259.2e12),
        ("trainium4_2x72", 3.6e12, 259.2e12),
        ("vera_rubin_nvl72", 3.6e12, 259.2e12),
        ("gb200_nvl72", 1.8e12, 129.6e12),
        ("gb300_nvl72", 1.8e12, 129.6e12),
        ("b200_hgx", 1.8e12, 14.4e12),
        ("b300_hgx", 1.8e12, 14.4e12),
        ("h100_hgx", 900e9, 7.2e12),
        ("h200_hgx", 900e9, 7.2e12),
        ("a100_hgx", 600e9, 4.8e12),
        ("a100_quad", 600e9, 2.4e12),
        ("gh200_quad", 900e9, 3.6e12),
        ("trainium2", 1.28e12, 64 * 1.28e12),
    ],
)
def test_headlines(name, chip, domain):
    system = load_system(name)
    assert system.chip_bytes_per_s_both_directions == chip
    assert system.domain_bytes_per_s_both_directions == domain


@pytest.mark.parametrize(("name", "one_way"), [("a100_quad", 100e9), ("gh200_quad", 150e9)])
def test_rate_between_two_chips_of_a_quad(name, one_way):
    domain = load_system(name).domain
    wiring = wiring_of(domain)
    assert wiring.hops == 1
    assert [width * domain.link_bytes_per_s for width in wiring.widths] == [one_way] * 3


@pytest.mark.parametrize("name", ["h100_hgx", "h200_hgx"])
def test_planes_of_unequal_width(name):
    system = load_system(name)
    assert system.domain.links_per_plane == (5, 4, 4, 5)
    assert system.domain.links == 18
    broken = system.with_(**{"domain.planes": 3, "domain.links_per_plane": (4, 4, 5)})
    assert broken.chip_bytes_per_s == system.chip_bytes_per_s - 5 * 25e9 == pytest.approx(450e9 * (1 - 5 / 18))
    with pytest.raises(SystemFileError, match="4 numbers for 3 planes"):
        system.with_(**{"domain.planes": 3})


def test_a_broken_plane_costs_time():
    system = load_system("h100_hgx")
    broken = system.with_(**{"domain.planes": 3, "domain.links_per_plane": (4, 4, 5)})
    schedule = ce.build_schedule("all_gather", "ring", 8)
    whole, less = (ce.emulate(schedule, each, count=2**18, timeline=False) for each in (system, broken))
    assert less.time_fs > whole.time_fs
    assert less.links.up_bytes.shape == (8, 13)


def test_torus_of_trainium2():
    domain = load_system("trainium2").domain
    links = [width * domain.link_bytes_per_s for width in wiring_of(domain).widths]
    assert links == [64e9, 64e9, 128e9, 128e9, 128e9, 128e9]  # to two other instances, and to four chips of its own
    assert sum(links) == 640e9


def test_torus_of_trainium1():
    """Chips of two NeuronCores: 4 x 48e9 bytes/s to other chips, and a way between the cores."""
    system = load_system("trainium1")
    links = [width * system.domain.link_bytes_per_s for width in wiring_of(system.domain).widths]
    assert links == [48e9, 48e9, 48e9, 48e9, 96e9]
    assert 2 * sum(links[:4]) == 384e9  # both ways, as AWS prints for a chip
    assert system.domain_fp8_dense_flop_per_s == 16 * 190e12
    assert system.domain.chips * system.chip.hbm_bytes == 16 * 32 * 2**30
    assert system.domain.chips * load_system("trainium1", "efa_trn1").scaleout.bytes_per_s == 800e9 / 8


@pytest.mark.parametrize("name", sorted(TORI))
def test_neighbours_in_a_torus_ring(name):
    domain = load_system(name).domain
    rank = np.arange(domain.chips)
    for part in (domain.chips, 16):  # all, and the 16 that are an instance of Trainium2, or 8 chips of Trainium
        own = rank[:part]
        assert (group_of(domain, own, (own + 1) % part) >= 0).all()


@pytest.mark.parametrize(
    ("name", "server", "rack"),
    [(f"trainium3_ultraserver_gen{gen}", *sizes) for gen, sizes in ((1, (16, 32)), (2, (4, 72)))],
)
def test_levels_of_trainium3(name, server, rack):
    system = load_system(name)
    domain = system.domain
    assert domain.chips_per_level == (server, rack, domain.chips)
    rates = [links * domain.link_bytes_per_s for links in domain.links_per_level]
    assert rates == [256e9, 320e9, 128e9]
    assert system.chip_bytes_per_s == sum(rates) == 704e9
    assert domain.chips * system.scaleout.bytes_per_s * 8 == {64: 12.8e12, 144: 28.8e12}[domain.chips]


def test_two_domains_of_trainium4():
    one, two = load_system("trainium4_nvl72"), load_system("trainium4_2x72")
    assert (two.scaleout.domains, two.chips) == (2, 144)
    assert two.chips * two.chip.fp4_dense_flop_per_s > 2e18
    assert two.chips * two.chip.hbm_bytes_per_s == pytest.approx(2.8224e15)
    assert {name for name in one.provenance if one.provenance[name] != two.provenance[name]} == {"scaleout.domains"}
    assert one.sources == two.sources
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize(
    ("name", "protocol", "fitted_us"),
    [
        ("trainium1", "dma", 1.5),
        ("trainium2", "dma", 1.5),
        ("trainium3_ultraserver_gen1", "dma", 1.5),
        ("ualink_1024", "dma", 1.27),
        ("vera_rubin_nvl72", "ll128", 1.29),
    ],
)
def test_a_step_and_its_hops_are_the_published_step(name, protocol, fitted_us):
    system = load_system(name)
    hops = wiring_of(system.domain).hops * system.domain.hop_latency_fs
    assert system.protocols[protocol].step_latency_fs + hops == femtoseconds(fitted_us / 1e6)


FITS = {**{name: ("nccl", group) for name, group in ARCHITECTURES.items()}, **{name: ("mesh", name) for name in LINKS}}


@pytest.mark.parametrize("name", FITS)
def test_fitted_numbers_are_those_of_the_fits(name):
    """What scripts/make_catalogue.py writes; steps have the hops of a way in them, rates of links no headers."""
    form, group = FITS[name]
    fitted = load_constants()[form][group]
    system = load_system(name)
    domain, endpoint = system.domain, system.endpoint
    launch = fitted.get(("launch_us", name), fitted.get(("launch_us", "")))
    assert endpoint.launch_s == pytest.approx(launch * 1e-6, rel=1e-3)
    assert endpoint.copy_bytes_per_s == pytest.approx(fitted["copy_GBps", ""] * 1e9, rel=1e-3)
    share = domain.packet_payload_bytes / (domain.packet_payload_bytes + domain.packet_header_bytes)
    lines = domain.links_per_peer if form == "mesh" else domain.links
    rate = lines * domain.link_bytes_per_s * domain.link_efficiency * share
    assert rate == pytest.approx(fitted["link_GBps", ""] * 1e9, rel=1e-3)
    hops = wiring_of(domain).hops * domain.hop_latency_s
    for protocol in ("ll", "ll128", "simple"):
        step = system.protocols[protocol].step_latency_s + hops
        assert step == pytest.approx(fitted[f"{protocol}_step_us", ""] * 1e-6, rel=1e-3)


def test_switches_that_add():
    adding = {name for name in systems() if load_system(name).domain.in_switch_reduction}
    assert adding == {*GPUS, "vera_rubin_nvl72"} - {"a100_hgx"}


# That they run


@pytest.mark.parametrize("name", sorted(set(CHIPS) - {"ualink_1024"}))
def test_ring_over_one_domain_and_more(name):
    chips = CHIPS[name]
    alone = ring(name, chips)
    assert alone.time_fs >= alone.bounds.total_fs > 0
    latency_fs = load_system(name).scaleout.latency_fs
    for ranks in (chips + 1, 2 * chips) if chips <= 8 else (chips + 1,):
        more = ring(name, ranks)
        assert more.time_fs >= more.bounds.total_fs
        assert more.time_fs > alone.time_fs + latency_fs  # the ring waits for the network


@pytest.mark.slow
def test_ring_over_ualink():
    result = ring("ualink_1024", 1024)
    assert result.time_fs >= result.bounds.total_fs


def test_ring_over_a_part_of_ualink():
    result = ring("ualink_1024", 64)
    assert result.time_fs >= result.bounds.total_fs


@pytest.mark.parametrize(("name", "network", "ranks"), MEASURED)
def test_measured_cases_run(name, network, ranks):
    result = ring(name, ranks, network)
    assert result.time_fs >= result.bounds.total_fs


@pytest.mark.parametrize("network", sorted(NETWORK_BYTES_PER_S))
def test_two_small_nodes_on_every_network(network):
    assert ring("h100_hgx", 9, network).time_fs > ring("h100_hgx", 8, network).time_fs


# What a file of one's own is told


def load_text(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_system(path)


def edited(name: str, *edits: tuple[str, str]) -> str:
    text = (CATALOGUE / f"{name}.toml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("h100_hgx", ('status = "shipping"', 'topology = "swiched"'), ("topology: 'swiched' is none of", "switched?")),
        ("h100_hgx", ('"efa_p5"', '"efa_p6"'), ("network: 'efa_p6': no such network", "efa_p5?", "tcp_slingshot")),
        ("h100_hgx", ("[5, 4, 4, 5]", "[5, 4, 9]"), ("domain.links_per_plane: 3 numbers for 4 planes",)),
        ("h100_hgx", ("[5, 4, 4, 5]", "[]"), ("domain.links_per_plane: must have at least one number",)),
        ("h100_hgx", ("[5, 4, 4, 5]", "[5, 4, 4, 0]"), ("domain.links_per_plane: must be above zero",)),
        ("trainium2", ("[4, 4, 4]", "[4, 4, 5]"), ("domain.shape: 4 x 4 x 5 is 80 chips, not 64",)),
        ("trainium2", ("[4, 4, 4]", "64"), ("domain.shape: must be a list of whole numbers, not 64",)),
        ("trainium2", ("[1, 2, 2]", "[2, 2]"), ("domain.links_per_direction: 2 numbers for 3 dimensions",)),
        ("trainium3_ultraserver_gen2", ("[4, 72, 144]", "[4, 70, 144]"), ("chips_per_level: [4, 70, 144] must grow",)),
        ("trainium3_ultraserver_gen2", ("[4, 5, 2]", "[4, 5]"), ("need as many numbers as each other",)),
        (
            "gh200_quad",
            ("links_per_peer", "links_per_pear"),
            ("links_per_pear: unknown, did you mean links_per_peer?",),
        ),
        ("gh200_quad", ('topology = "mesh"', ""), ("domain.links_per_peer: unknown", "domain.planes: missing")),
    ],
)
def test_a_faulty_file_is_told_in_one_line(tmp_path: Path, name, edit, told):
    with pytest.raises(SystemFileError) as caught:
        load_text(tmp_path, edited(name, edit))
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(f"system file {tmp_path / 'mine.toml'}: ")
    for part in told:
        assert part in message


def test_a_file_of_ones_own_may_name_a_network(tmp_path: Path):
    mine = load_text(tmp_path, edited("h100_hgx", ('"efa_p5"', '"roce_8x400g"')))
    other = load_system("h100_hgx", "roce_8x400g")
    assert (mine.name, other.name) == ("h100_hgx", "h100_hgx@roce_8x400g")
    assert (mine.provenance, mine.sources) == (other.provenance, other.sources)


def test_an_unknown_network_is_told_in_one_line():
    with pytest.raises(SystemFileError, match="no such network, did you mean efa_trn1") as caught:
        load_system("trainium1", "efa_tnr1")
    assert str(caught.value).isprintable()
