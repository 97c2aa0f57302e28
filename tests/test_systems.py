"""The catalogue says what is published, the loader names every fault, and time is exact."""

import pickle
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collemu.catalogue import (
    CONFIDENCES,
    SystemFileError,
    femtoseconds,
    femtoseconds_per_byte,
    load_system,
    systems,
)
from collemu.catalogue.load import CATALOGUE

SYSTEM = load_system("trainium4_nvl72")
TEXT = (CATALOGUE / "trainium4_nvl72.toml").read_text()


def load_text(tmp_path: Path, text: str) -> object:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_system(path)


def fault_of(tmp_path: Path, *edits: tuple[str, str]) -> str:
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(SystemFileError) as caught:
        load_text(tmp_path, text)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert message.isprintable()  # one line
    assert message.startswith(f"system file {tmp_path / 'mine.toml'}: ")
    return message.removeprefix(f"system file {tmp_path / 'mine.toml'}: ")


# The catalogue


@pytest.mark.parametrize("name", systems())
def test_every_number_has_an_origin(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    for quantity in system.provenance.values():
        assert quantity.confidence in CONFIDENCES
        assert system.sources[quantity.source].title


def test_plain_numbers() -> None:
    domain = SYSTEM.domain
    assert (domain.chips, domain.planes, domain.credits) == (72, 36, 96)
    assert (domain.packet_payload_bytes, domain.packet_header_bytes) == (256, 16)
    assert domain.in_switch_reduction is False
    assert type(domain.chips) is int
    assert type(domain.link_bytes_per_s) is float
    assert SYSTEM.endpoint.fifo_slots == 8
    assert SYSTEM.scaleout.bytes_per_s == 400e9 / 8
    assert SYSTEM.scaleout.datagram_bytes == 8192
    assert SYSTEM.default_protocol == "dma"
    lines = {name: (each.data_bytes, each.line_bytes) for name, each in SYSTEM.protocols.items()}
    assert lines == {"dma": (1, 1), "simple": (1, 1), "ll": (4, 8), "ll128": (120, 128)}


def test_integer_times() -> None:
    assert SYSTEM.domain.hop_latency_fs == 150_000_000
    assert SYSTEM.domain.link_fs_per_byte == 20_000
    assert SYSTEM.endpoint.launch_fs == 7_480_000_000
    assert SYSTEM.endpoint.copy_fs_per_byte == Fraction(4000, 7)
    assert SYSTEM.endpoint.reduce_fs_per_byte == Fraction(4000, 7)
    assert SYSTEM.scaleout.latency_fs == 15_000_000_000
    assert SYSTEM.scaleout.fs_per_byte == 20_000


@pytest.mark.parametrize(("name", "fitted_us"), [("dma", 1.27), ("ll", 1.27), ("ll128", 1.29), ("simple", 7.25)])
def test_a_step_and_two_hops_are_the_fitted_step(name: str, fitted_us: float) -> None:
    step = SYSTEM.protocols[name].step_latency_fs + 2 * SYSTEM.domain.hop_latency_fs
    assert step == femtoseconds(fitted_us / 1e6)


def test_headline_totals() -> None:
    assert SYSTEM.chip_bytes_per_s == 1.8e12
    assert SYSTEM.chip_bytes_per_s_both_directions == 3.6e12
    assert SYSTEM.domain_bytes_per_s_both_directions == 259.2e12
    assert SYSTEM.domain_fp4_dense_flop_per_s == pytest.approx(1.087e18, rel=1e-3)
    # More than 2 exaflop/s of FP4 and 2.8 PB/s of memory take two domains.
    assert 2 * SYSTEM.domain_fp4_dense_flop_per_s == pytest.approx(2.175e18, rel=1e-3)
    assert 2 * SYSTEM.domain_hbm_bytes_per_s == pytest.approx(2.8224e15)


def test_multiples_of_trainium3() -> None:
    assert SYSTEM.chip.fp8_dense_flop_per_s == 3 * 2.517e15
    assert SYSTEM.chip.fp4_dense_flop_per_s == pytest.approx(6 * 2.517e15)
    assert SYSTEM.chip.hbm_bytes_per_s == 4 * 4.9e12
    assert SYSTEM.chip.hbm_bytes == 288 * 2**30


def test_equals_the_shared_facts(shared_folder: Path) -> None:
    """Every number that the facts have for this system is the facts' number."""
    facts = (shared_folder / "facts" / "profiles.yaml").read_text()
    block = facts.split("\n  trainium4_nvl72:\n")[1].split("\n  h100_sxm:\n")[0]
    names = {
        "fp8_dense_flop_per_s": SYSTEM.chip.fp8_dense_flop_per_s,
        "fp4_dense_flop_per_s": SYSTEM.chip.fp4_dense_flop_per_s,
        "hbm_bytes": SYSTEM.chip.hbm_bytes,
        "hbm_bytes_per_s": SYSTEM.chip.hbm_bytes_per_s,
        "domain_chips": SYSTEM.domain.chips,
        "planes": SYSTEM.domain.planes,
        "links_per_chip": SYSTEM.domain.planes,
        "link_bytes_per_s_per_direction": SYSTEM.domain.link_bytes_per_s,
        "chip_scaleup_bytes_per_s_per_direction": SYSTEM.chip_bytes_per_s,
        "chip_scaleup_bytes_per_s_bidirectional": SYSTEM.chip_bytes_per_s_both_directions,
        "domain_aggregate_bytes_per_s_bidirectional": SYSTEM.domain_bytes_per_s_both_directions,
        "domain_hbm_bytes_per_s": SYSTEM.domain_hbm_bytes_per_s,
        "scaleout_latency_s": SYSTEM.scaleout.latency_s,
        "cluster_max_chips": SYSTEM.scaleout.cluster_max_chips,
    }
    for name, value in names.items():
        published = block.split(f"      {name}: {{value: ")[1].split(",")[0]
        assert float(published) == pytest.approx(value, rel=1e-12), name


# Provenance, changes, identity


def test_provenance() -> None:
    chips = SYSTEM.provenance["domain.chips"]
    assert (chips.value, chips.unit, chips.source, chips.confidence) == (72, "", "NVT4", "vendor")
    assert SYSTEM.provenance["domain.link_bytes_per_s"].unit == "bytes/s"
    assert SYSTEM.provenance["domain.hop_latency_s"].unit == "s"
    assert SYSTEM.provenance["chip.hbm_bytes"].unit == "bytes"
    assert SYSTEM.provenance["chip.fp8_dense_flop_per_s"].unit == "flop/s"
    assert {"domain.hop_latency_s", "domain.credits", "endpoint.launch_s"} <= set(SYSTEM.estimates())
    assert "domain.chips" not in SYSTEM.estimates()


def test_with_changes_a_copy() -> None:
    slow = SYSTEM.with_(**{"domain.hop_latency_s": 3e-7, "protocol.ll.data_bytes": np.int64(2)})
    assert (slow.domain.hop_latency_fs, SYSTEM.domain.hop_latency_fs) == (300_000_000, 150_000_000)
    assert type(slow.protocols["ll"].data_bytes) is int
    assert slow.changed() == ("domain.hop_latency_s", "protocol.ll.data_bytes")
    assert slow.provenance["domain.hop_latency_s"].confidence == "user"
    assert "domain.hop_latency_s" not in slow.estimates()
    assert slow.fingerprint != SYSTEM.fingerprint
    assert slow.with_(**{"domain.hop_latency_s": 1.5e-7, "protocol.ll.data_bytes": 4}).fingerprint == (
        SYSTEM.fingerprint
    )


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("domain.hop_latency", 3e-7, "no such number, did you mean domain.hop_latency_s?"),
        ("domain.chips", 2.5, "must be a whole number, not 2.5"),
        ("domain.chips", 0, "must be above zero, not 0"),
        ("domain.in_switch_reduction", 1, "must be true or false, not 1"),
        ("domain.link_bytes_per_s", float("nan"), "must be finite, not nan"),
        ("protocol.ll.data_bytes", 9, "protocol.ll: data_bytes 9 exceeds line_bytes 8"),
    ],
)
def test_with_names_faults(name: str, value: float, fault: str) -> None:
    with pytest.raises(SystemFileError) as caught:
        SYSTEM.with_(**{name: value})
    assert fault in str(caught.value)


def test_zero_where_zero_makes_sense() -> None:
    free = SYSTEM.with_(**{"endpoint.launch_s": 0, "protocol.dma.step_latency_s": 0})
    assert free.endpoint.launch_fs == free.protocols["dma"].step_latency_fs == 0
    with pytest.raises(SystemFileError, match="above zero"):  # a packet must take time, or time stands still
        SYSTEM.with_(**{"domain.packet_header_bytes": 0})


def test_pickles_hashes_and_compares() -> None:
    copy = pickle.loads(pickle.dumps(SYSTEM))
    assert copy == SYSTEM
    assert hash(copy) == hash(SYSTEM)
    assert copy.fingerprint == SYSTEM.fingerprint
    assert len(SYSTEM.fingerprint) == 12


# A user's file


def test_halving_all_rates_in_a_copy(tmp_path: Path) -> None:
    text = TEXT.replace("1.75e12", "875e9").replace("value = 50e9", "value = 25e9")
    text = text.replace('name = "trainium4_nvl72"', 'name = "half"')
    half = load_text(tmp_path, text)
    assert half.name == "half"
    assert half.domain.link_fs_per_byte == 2 * SYSTEM.domain.link_fs_per_byte
    assert half.endpoint.copy_fs_per_byte == 2 * SYSTEM.endpoint.copy_fs_per_byte
    assert half.scaleout == SYSTEM.scaleout  # the catalogue's network
    assert half.fingerprint != SYSTEM.fingerprint


def test_a_system_with_one_protocol(tmp_path: Path) -> None:
    start, end = TEXT.index("[protocol.simple]"), TEXT.index("[sources]")
    assert list(load_text(tmp_path, TEXT[:start] + TEXT[end:]).protocols) == ["dma"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("chips = {", "chip = {", "domain.chip: unknown, did you mean chips?; domain.chips: missing"),
        ("value = 72,", 'value = "72",', "domain.chips: must be a number, not '72'"),
        ("value = 72,", "value = true,", "domain.chips: must be a number, not True"),
        ("value = 72,", "value = 72.5,", "domain.chips: must be a whole number, not 72.5"),
        ("value = 72,", "value = 0,", "domain.chips: must be above zero, not 0"),
        ("value = 72,", "value = -72,", "domain.chips: must be above zero, not -72"),
        ("value = 72,", "value = nan,", "domain.chips: must be finite, not nan"),
        ("value = 72,", f"value = 1{'0' * 400},", "domain.chips: must be finite, not a huge integer"),
        ("value = 72,", "valu = 72,", "domain.chips.valu: unknown, did you mean value?; "),
        ("value = 50e9", "value = inf", "domain.link_bytes_per_s: must be finite, not inf"),
        ("value = 50e9", "value = 1e999", "domain.link_bytes_per_s: must be finite, not inf"),
        ("value = 50e9", "value = 50", "must lie between 1e+06 and 1e+15 bytes/s, not 50"),
        ("value = 150e-9", "value = 150", "domain.hop_latency_s: must lie between 0 and 10 s, not 150"),
        ("value = false", "value = 0", "domain.in_switch_reduction: must be true or false, not 0"),
        ('"vendor" }', '"vendr" }', "domain.chips.confidence: 'vendr' is none of"),
        ('"vendor" }', '"vendr" }', "did you mean vendor?"),
        ('source = "NVT4", ', "", "domain.chips.source: missing"),
        ('source = "NVT4"', 'source = "NVT5"', "'NVT5' is not in [sources], did you mean NVT4?"),
        (', confidence = "vendor" }', " }", "domain.chips.confidence: missing"),
        (', confidence = "vendor" }', ', confidence = 3 }', "confidence: must be one line of text, not 3"),
        ("[domain]", "[domains]", "domains: unknown, did you mean domain?; [domain]: missing"),
        ("[protocol.ll]", "[protocol.lll]", "protocol.lll: unknown, did you mean ll?"),
        ('default_protocol = "dma"', 'default_protocol = "dna"', "'dna' is not in [protocol]"),
        ('name = "trainium4_nvl72"', "", "name: missing"),
        ('title = "AWS T', 'title = "AWS\\nT', "title: must be one line of text"),
        ("value = 4,", "value = 9,", "protocol.ll: data_bytes 9 exceeds line_bytes 8"),
        ('DEFAULT = { title =', "DEFAULT = { titel =", "sources.DEFAULT.titel: unknown, did you mean title?"),
        ("[chip]", "[chip", "not valid TOML: "),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert fault in fault_of(tmp_path, (old, new))


def test_a_bare_number_is_explained(tmp_path: Path) -> None:
    line = next(each for each in TEXT.splitlines() if each.startswith("chips ="))
    fault = fault_of(tmp_path, (line, "chips = 72"))
    assert fault == 'domain.chips: must be { value = ..., source = "...", confidence = "..." }, not 72'


def test_all_faults_at_once(tmp_path: Path) -> None:
    fault = fault_of(
        tmp_path, ("value = 72,", "value = -1,"), ("value = 8,", "value = 0,"), ("value = 96", "value = nan")
    )
    assert len(fault.split("; ")) == 3


def test_keys_of_odd_characters_stay_on_one_line(tmp_path: Path) -> None:
    assert "unknown" in fault_of(tmp_path, ("[domain]", '[domain]\n"a\\nb" = 1'))


def test_no_such_name() -> None:
    with pytest.raises(
        SystemFileError, match=r"system 'trainium4_nvl27': no such system, did you mean trainium4_nvl72\?"
    ):
        load_system("trainium4_nvl27")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a = " + b"[" * 5000, b"a = " + b"9" * 5000])
def test_no_readable_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "other.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemFileError) as caught:
        load_system(str(path))
    assert str(caught.value).isprintable()
    with pytest.raises(SystemFileError):
        load_system(tmp_path)  # a folder


# Exact time


@given(st.integers(1, 10**15 - 1), st.integers(-24, -9))
def test_decimal_text_decides_a_latency(digits: int, exponent: int) -> None:
    text = f"{digits}e{exponent}"
    assert femtoseconds(float(text)) == round(Fraction(Decimal(text)) * 10**15)


@given(st.integers(10**6, 10**15))
def test_rates_are_never_faster_than_given_and_hardly_slower(rate: int) -> None:
    ratio, true = femtoseconds_per_byte(float(rate)), Fraction(10**15, rate)
    assert max(ratio.numerator, ratio.denominator) < 2**31
    assert 0 <= ratio / true - 1 < Fraction(1, 2**29)


@given(st.integers(1, 9999), st.integers(6, 9))
def test_rates_of_few_digits_are_exact(digits: int, exponent: int) -> None:
    assert femtoseconds_per_byte(float(digits * 10**exponent)) == Fraction(10**15, digits * 10**exponent)


# Several numbers together


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"domain.link_efficiency": 1e-6}, "domain.link_efficiency: 1e-06 leaves less than 1e+06 bytes/s of a link"),
        ({"scaleout.bytes_per_s": 1e6, "scaleout.rails": 1024}, "scaleout.rails: 1024 leave each less than 1e+06"),
        ({"scaleout.domains": 100, "scaleout.cluster_max_chips": 72}, "exceed cluster_max_chips 72"),
        ({"domain.packet_flit_bytes": 24}, "256 is not a multiple of packet_flit_bytes 24"),
    ],
)
def test_numbers_that_contradict_each_other(changes: dict, fault: str) -> None:
    with pytest.raises(SystemFileError, match=re.escape(fault)):
        SYSTEM.with_(**changes)


def test_derived_rates_are_exact() -> None:
    assert SYSTEM.with_(**{"scaleout.rails": 3}).scaleout.fs_per_byte == 60_000
    assert SYSTEM.with_(**{"domain.link_efficiency": 0.8}).domain.link_fs_per_byte == 25_000


def test_links_of_planes_are_one_number_or_one_a_plane() -> None:
    board = load_system("h100_hgx")
    assert board.with_(**{"domain.links_per_plane": 5}).domain.links == 20
    assert board.with_(**{"domain.links_per_plane": np.array([5, 4, 4, 4]).tolist()}).domain.links == 17
    assert SYSTEM.with_(**{"domain.planes": 2, "domain.links_per_plane": [np.int64(3), 4]}).domain.links == 7


def test_a_network_stands_for_the_scaleout_section_alone(tmp_path: Path) -> None:
    text = (CATALOGUE / "trainium4_2x72.toml").read_text().replace("[chip]", 'network = "efa_trn4"\n[chip]', 1)
    with pytest.raises(SystemFileError, match=r"network: stands for \[scaleout\], which is there too"):
        load_text(tmp_path, text)
    path = tmp_path / "my@x.toml"
    path.write_text(TEXT)
    assert load_system(str(path)).name == "trainium4_nvl72"


def test_one_network_at_a_time() -> None:
    assert load_system("h100_hgx@efa_p5en").name == "h100_hgx@efa_p5en"
    assert load_system("h100_hgx", "efa_p5en") == load_system("h100_hgx@efa_p5en")
    for name, network in (("h100_hgx@efa_p5", "efa_p4de"), ("h100_hgx@efa_p5@efa_p4de", None)):
        with pytest.raises(SystemFileError, match="one network, not two"):
            load_system(name, network)
