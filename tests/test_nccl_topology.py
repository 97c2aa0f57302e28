"""Machines as NCCL writes them down: what a file says is in the system, what it does not is marked as an estimate."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import collemu as ce
from collemu.catalogue.system import SystemFileError

HGX = {"0000:07:00.0": 5, "0000:06:00.0": 5, "0000:05:00.0": 4, "0000:08:00.0": 4}  # Hopper's four switches
HIDDEN = {"fffffff:ff:ff.0": 18}


def bus(gpu: int) -> str:
    return f"0000:{64 + gpu:02x}:00.0"


def machine(
    folder: Path,
    gpus: int = 8,
    sm: int = 90,
    device: str = "0x2330",
    links: Callable[[int], dict[str, int]] = lambda _: HGX,
    *,
    tclass: str = "0x068000",
    adapters: int = 1,
    adapter: str = "mlx5_",
    speed: int = 400000,
    arch: str = "x86_64",
) -> Path:
    """A file with two sockets; every GPU shares a PCI switch with its adapters."""
    lines = ['<system version="1">']
    for gpu in range(gpus):
        if gpu in (0, gpus // 2):
            lines += ["</cpu>"] * (gpu > 0) + [f'<cpu host_hash="0x1" numaid="{gpu}" affinity="ff" arch="{arch}">']
        which = f' vendor="0x10de" device="{device}"' if device else ""
        lines.append(f'<pci busid="0000:{16 + gpu:02x}:00.0" class="0x060400" link_speed="32.0 GT/s PCIe">')
        lines.append(f'<pci busid="{bus(gpu)}" class="0x030200"{which} link_width="16">')
        lines.append(f'<gpu dev="{gpu}" sm="{sm}" rank="{gpu}" gdr="1">')
        lines += [f'<nvlink target="{to}" count="{n}" tclass="{tclass}"/>' for to, n in links(gpu).items()]
        lines.append("</gpu></pci>")
        for number in range(gpu * adapters, (gpu + 1) * adapters):
            lines.append(f'<pci busid="0000:{128 + number:02x}:00.0" class="0x020000"><nic>')
            lines.append(f'<net name="{adapter}{number}" dev="{number}" speed="{speed}" port="1" gdr="1"/></nic></pci>')
        lines.append("</pci>")
    path = folder / "topo.xml"
    path.write_text("\n".join([*lines, "</cpu>", "</system>"]))
    return path


def to_all(count: int, gpus: int) -> Callable[[int], dict[str, int]]:
    return lambda gpu: {bus(other): count for other in range(gpus) if other != gpu}


@pytest.mark.parametrize(
    ("like", "given"),
    [
        ("h100_hgx", {"adapters": 4, "adapter": "rdmap", "speed": 100000}),
        ("h200_hgx", {"device": "0x2335"}),
        ("h200_hgx", {"device": "0x2335", "links": lambda _: HIDDEN}),
        ("a100_hgx", {"sm": 80, "device": "0x20b0", "links": lambda _: {f"0000:c{k}:00.0": 2 for k in range(4, 10)}}),
        ("a100_quad", {"gpus": 4, "sm": 80, "device": "0x20b0", "links": to_all(4, 4), "tclass": "0x030200"}),
        ("b200_hgx", {"sm": 100, "device": "0x2901", "links": lambda _: HIDDEN}),
        ("h100_hgx", {"device": "", "links": lambda _: {}}),  # made by hand for a cloud: NVLinks are left to NCCL
    ],
)
def test_a_machine_of_the_catalogue_takes_as_long_as_there(tmp_path, like, given):
    system, own = ce.load_system(machine(tmp_path, **given)), ce.load_system(like)
    assert (system.domain.topology, system.domain.chips) == (own.domain.topology, own.domain.chips)
    assert system.domain.links == own.domain.links
    schedule = ce.build_schedule("all_reduce", "two_shot", own.domain.chips)
    for count in (1024, 2**20):
        took, wanted = (ce.emulate(schedule, each, count=count, fidelity="flow") for each in (system, own))
        assert took.time_fs == wanted.time_fs
        said = {"domain.planes", "domain.links_per_plane", "domain.links_per_peer"}
        assert set(wanted.header["estimates"]) - said < set(took.header["estimates"])


def test_every_number_says_where_it_comes_from(tmp_path):
    system = ce.load_system(machine(tmp_path, adapters=2, speed=200000))
    assert system.name == "topo.xml"
    assert system.status == "from a topology of NCCL; numbers of h100_hgx and its network are estimates here"
    from_file = {name for name, quantity in system.provenance.items() if quantity.source == "TOPOLOGY"}
    assert from_file == {
        "domain.chips",
        "domain.planes",
        "domain.links_per_plane",
        "scaleout.bytes_per_s",
        "scaleout.rails",
    }
    for name, quantity in system.provenance.items():
        assert quantity.confidence == ("derived" if name in from_file else "estimate")
        assert quantity.source in system.sources
    assert system.domain.links_per_plane == (4, 5, 5, 4)  # by the switches' places
    assert system.provenance["domain.link_efficiency"].note == "as h100_hgx, where it is fitted"
    assert (system.scaleout.bytes_per_s, system.scaleout.rails) == (50e9, 2)
    assert system.scaleout.latency_s == ce.load_system("h100_hgx@ib_ndr_400g_per_gpu").scaleout.latency_s


@pytest.mark.parametrize(
    ("sm", "links", "planned"), [(80, 12, 20e9), (90, 18, 20.6e9), (100, 18, 40.1e9), (103, 18, 40.1e9)]
)
def test_links_carry_what_nccl_plans_with(tmp_path, sm, links, planned):
    """NCCL, src/graph/topo.h: bytes/s of a link and direction, by architecture."""
    domain = ce.load_system(machine(tmp_path, sm=sm, links=lambda _: {"fffffff:ff:ff.0": links})).domain
    payload = domain.packet_payload_bytes / (domain.packet_payload_bytes + domain.packet_header_bytes)
    assert domain.links == links
    assert domain.link_bytes_per_s * domain.link_efficiency * payload == pytest.approx(planned, rel=0.04)


def test_a_network_of_the_catalogue_can_take_the_place_of_the_machines_own(tmp_path):
    system = ce.load_system(f"{machine(tmp_path)}@efa_p5en")
    assert system.scaleout == ce.load_system("h200_hgx").scaleout
    assert system.name == "topo.xml@efa_p5en"


def test_links_that_the_catalogue_does_not_have(tmp_path):
    hidden = ce.load_system(machine(tmp_path, links=lambda _: {"fffffff:ff:ff.0": 12}))
    assert (hidden.domain.planes, hidden.domain.links) == (1, 12)
    assert hidden.provenance["domain.planes"].confidence == "estimate"
    uneven = ce.load_system(
        machine(tmp_path, links=lambda gpu: dict(zip(HGX, [*[5, 5, 4, 4][gpu % 2 :], 5], strict=False)))
    )
    assert sorted(uneven.domain.links_per_plane) == [4, 4, 5, 5]  # the same numbers, to other switches
    pair = ce.load_system(machine(tmp_path, 2, 80, "0x20b5", to_all(12, 2), tclass="0x030200", adapters=0))
    assert (pair.domain.topology, pair.domain.links_per_peer) == ("mesh", 12)
    assert pair.scaleout == ce.load_system("a100_quad").scaleout
    few = ce.load_system(machine(tmp_path, 4, 103, "0x31c2", lambda _: HIDDEN, arch="arm64"))
    assert (few.domain.chips, few.domain.planes) == (4, ce.load_system("gb300_nvl72").domain.planes)
    rubin = ce.load_system(machine(tmp_path, 4, 107, "0x307f", lambda _: {"fffffff:ff:ff.0": 36}, arch="arm64"))
    assert rubin.chip == ce.load_system("vera_rubin_nvl72").chip


def test_a_network_without_speed_is_slow_and_one_of_all_sockets_counts_once(tmp_path):
    path = machine(tmp_path, adapters=0)
    net = '<nic><net name="eth0" dev="0" speed="-1" port="0" gdr="0"/></nic></cpu>'
    path.write_text(path.read_text().replace("</cpu>", net))
    system = ce.load_system(path)
    assert (system.scaleout.bytes_per_s, system.scaleout.rails) == (10e9 / 8 / 8, 1)


FAULTS = [
    ({"links": lambda _: {}}, "its GPUs have no NVLinks; collemu knows no machines of PCIe alone"),
    (
        {"sm": 70},
        "gpu 0 is of sm 70, joined by switches; the catalogue has none to take latencies from (sm 80, sm 90, ",
    ),
    (
        {"gpus": 4, "sm": 80, "links": lambda gpu: {bus(gpu ^ 1): 12}, "tclass": "0x030200"},
        "gpu 0 has 0 NVLinks to gpu 2, and another pair has 12; collemu knows GPUs that switches join, or th",
    ),
    ({"gpus": 2, "links": lambda _: {"0000:ff:00.0": 6}, "tclass": "0x068001"}, "gpu 0 has 0 NVLinks to gpu 1"),
    ({"links": lambda gpu: HGX if gpu else {}}, "gpu 0 has no NVLinks, and others have"),
    ({"links": lambda gpu: HGX if gpu else HIDDEN}, "gpu 1 has [4, 4, 5, 5] NVLinks to its switches, and gpu 0 [18]"),
    (
        {"gpus": 3, "device": "", "links": lambda _: {}},
        "its 3 GPUs have no NVLinks, and h100_hgx has another number of",
    ),
    ({"links": lambda _: {"a": 0}}, "gpu 0 nvlink 'a': count is 0; it must be 1 to 2147483647"),
    ({"links": lambda _: {"a": 10**9}}, "domain.links_per_plane: must be at most 4096"),
    ({"speed": "fast"}, "net 'mlx5_0': speed is 'fast', no whole number"),
]


@pytest.mark.parametrize(("given", "text"), FAULTS)
def test_what_no_system_can_be_is_named_in_one_line(tmp_path, given, text):
    path = machine(tmp_path, **given)
    with pytest.raises(SystemFileError) as caught:
        ce.load_system(path)
    assert str(caught.value).startswith(f"system file {path}: ")
    assert text in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no XML: line 1: no element found"),
        ('<algo name="ring"/>', "no topology of NCCL: the root element is 'algo', not 'system'"),
        (
            '<!DOCTYPE s [<!ENTITY a "b">]><system>&a;</system>',
            "declares a document type, which NCCL's topology has not",
        ),
        (
            '<system version="1"><cpu><pci class="0x030200"/></cpu></system>',
            "it names no GPU, and leaves them to NCCL as",
        ),
        ("<system><pci><gpu/></pci></system>", "gpu number 0: sm is '', no whole number"),
        (
            '<system><pci><gpu sm="90"/><gpu sm="90"/></pci></system>',
            "gpu number 1 is at the PCI bus '', where another",
        ),
        (
            '<system><pci><gpu dev="0" sm="107" mlopart="1"/></pci></system>',
            "gpu 0 is one part of a GPU; collemu knows",
        ),
    ],
)
def test_what_is_no_topology(tmp_path, text, error):
    (tmp_path / "topo.xml").write_text(text)
    with pytest.raises(SystemFileError, match=error):
        ce.load_system(tmp_path / "topo.xml")


def test_any_change_of_a_file_is_read_or_refused(tmp_path):
    text = machine(tmp_path).read_text()
    chance = random.Random(1)
    path = tmp_path / "changed.xml"
    loaded = 0
    for _ in range(600):
        lines = text.splitlines()
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(lines))
            match chance.randrange(3):
                case 0:
                    del lines[at]
                case 1:
                    lines.insert(at, chance.choice(lines))
                case _:
                    place = chance.randrange(len(lines[at]))
                    lines[at] = lines[at][:place] + chance.choice('<>"/&0189az ') + lines[at][place + 1 :]
        path.write_text("\n".join(lines))
        try:
            ce.load_system(path)
            loaded += 1
        except SystemFileError as error:
            assert str(error).isprintable()  # one line
    assert loaded > 20
