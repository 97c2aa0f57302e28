"""Schedules in files, where commands take the name of an algorithm; and the command that writes them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import collemu as package
from collemu.cli.files import load_layouts
from tests.cli.conftest import Outcome
from tests.plans import packets
from tests.test_nccl_topology import machine

Collemu = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    load_layouts.cache_clear()  # files of the same name in other folders
    return tmp_path


@pytest.fixture
def ring(collemu: Collemu) -> str:
    """A file: all_reduce of 4 ranks."""
    assert collemu("export", "ring", "--collective", "all_reduce", "--ranks", "4", "ring.xml").code == 0
    return "ring.xml"


def refusal(outcome: Outcome) -> str:
    """The one line of a command that has refused its input."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    return line


def test_export_says_what_it_wrote(collemu: Collemu) -> None:
    words = (
        "tree",
        "--collective",
        "broadcast",
        "--ranks",
        "5",
        "-r",
        "3",
        "--channels",
        "2",
        "--proto",
        "LL",
        "t.xml",
    )
    outcome = collemu("export", *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.fullmatch(r"t\.xml: broadcast tree, 5 ranks, \d+ thread blocks, \d+ steps\n", outcome.out)
    schedule = package.load_schedule("t.xml")
    assert (schedule.collective, schedule.ranks, schedule.root) == ("broadcast", 5, 3)
    assert 'proto="LL"' in Path("t.xml").read_text()


def test_export_to_stdout(collemu: Collemu) -> None:
    outcome = collemu("export", "two_shot", "--ranks", "3", "--in-place", "-")
    assert outcome.code == 2  # its input is written before it is sent
    outcome = collemu("export", "ring", "--collective", "all_gather", "--ranks", "3", "--in-place", "-")
    assert outcome.code == 0
    assert outcome.out.startswith('<algo name="ring" ')
    assert ' inplace="1" outofplace="0" ' in outcome.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("ring", "--ranks", "4", "a.xml"),
            "ring does all_reduce, reduce_scatter, all_gather, broadcast, reduce; choose",
        ),
        (("rings", "--ranks", "4", "a.xml"), "no algorithm 'rings'"),
        (("two_shot", "--ranks", "4", "a.json"), "a.json does not end in .xml"),
        (("two_shot", "--ranks", "0", "a.xml"), "--ranks is 0; give 1 or more"),
        (
            ("two_shot", "--ranks", "4", "--proto", "ll", "a.xml"),
            "proto='ll' is not supported; choose Simple, LL, LL128",
        ),
        (("two_shot", "--ranks", "40", "a.xml"), "39 threads of rank 0 send on channel 0; MSCCL takes 32"),
        (
            ("one_shot", "--ranks", "4", "--in-place", "a.xml"),
            "one_shot does not work in place: race on rank 0 output[0]",
        ),
        (("nvls", "--collective", "all_reduce", "--ranks", "4", "a.xml"), "is work of a switch"),
        (("two_shot", "--ranks", "4", "nowhere/a.xml"), "cannot write nowhere/a.xml: no such file or directory"),
        (("two_shot", "a.xml"), "the following arguments are required: --ranks"),
    ],
)
def test_what_export_refuses(collemu: Collemu, here: Path, words: tuple[str, ...], text: str) -> None:
    assert text in refusal(collemu("export", *words))
    assert not list(here.iterdir())


def test_verify_of_a_file(collemu: Collemu, ring: str) -> None:
    outcome = collemu("verify", ring)
    assert outcome.code == 0
    assert re.fullmatch(
        r"ok all_reduce ring\.xml: 4 ranks out of place, 28 operations, 24 messages, runs with 2 FIFO slots\n",
        outcome.out,
    )


def test_verify_proves_both_layouts(collemu: Collemu, ring: str) -> None:
    text = Path(ring).read_text().replace('inplace="0"', 'inplace="1"')
    Path("both.xml").write_text(text)
    outcome = collemu("verify", "both.xml", "--collective", "all_reduce,reduce", "--ranks", "2-8")
    assert outcome.code == 0
    assert "4 ranks out of place and 4 ranks in place, 56 operations" in outcome.out
    Path("one.xml").write_text(re.sub(r'<step s="6".*\n', "", text))
    outcome = collemu("verify", "one.xml")
    assert outcome.code == 1
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == [
        "FAILED all_reduce one.xml 4 ranks out of place",
        "FAILED all_reduce one.xml 4 ranks in place",
    ]


def test_verify_of_a_file_that_waits_for_ever(collemu: Collemu) -> None:
    assert collemu("export", "two_shot", "--ranks", "3", "a.xml").code == 0
    Path("a.xml").write_text(Path("a.xml").read_text().replace('hasdep="1"', 'hasdep="0"'))
    outcome = collemu("verify", "a.xml")
    assert (outcome.code, outcome.err) == (1, "")
    assert re.match(r"FAILED a\.xml: gpu 0 tb \d step \d would wait for ever", outcome.out)


def test_perf_of_files_and_names(collemu: Collemu, ring: str) -> None:
    outcome = collemu("perf", "all_reduce", "--algorithm", f"ring,{ring}", "--ranks", "4", "-b", "64K", "-e", "64K")
    assert outcome.code == 0
    by_name, by_file = outcome.rows()
    assert by_file[9] == ring
    assert by_name[:9] + by_name[10:] == by_file[:9] + by_file[10:]


def test_a_file_brings_its_ranks_and_root(collemu: Collemu) -> None:
    assert collemu("export", "tree", "--collective", "reduce", "--ranks", "5", "-r", "2", "t.xml").code == 0
    outcome = collemu("perf", "all", "--algorithm", "./t.xml", "-b", "4K", "-e", "4K", "--wire", "none,mxfp4")
    assert outcome.code == 0
    for row in outcome.rows():
        assert (row[4], row[8], row[9], row[13]) == ("2", "0", "./t.xml", "5")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("perf", "all_gather"), "ring.xml: it does all_reduce, not all_gather"),
        (("perf", "all_gather,alltoall"), "ring.xml: it does all_reduce, not all_gather, alltoall"),
        (("perf", "all_reduce", "--ranks", "8"), "ring.xml is for 4 ranks, not 8"),
        (("perf", "all_reduce", "--ranks", "2,8"), "ring.xml is for 4 ranks, not 2, 8"),
        (("perf", "all_reduce", "--channels", "2"), "--channels and --chunks are for algorithms by name"),
        (("perf", "all_reduce", "-r", "1"), "-r is 1, and the root of ring.xml is 0"),
        (("crosscheck", "all_reduce", "--ranks", "1"), "ring.xml is for 4 ranks, not 1"),
    ],
)
def test_what_does_not_go_together_with_a_file(collemu: Collemu, ring: str, words: tuple[str, ...], text: str) -> None:
    assert text in refusal(collemu(*words, "--algorithm", ring))


@pytest.mark.parametrize("command", [("verify",), ("perf", "all_reduce", "--algorithm")])
def test_files_that_are_none(collemu: Collemu, here: Path, command: tuple[str, ...]) -> None:
    (here / "empty.xml").write_text("")
    (here / "topology.xml").write_text('<system version="1"><cpu numaid="0"/></system>')
    (here / "plan.json").write_text('{"name": "plan"}')
    (here / "folder.xml").mkdir()
    for name, text in {
        "nowhere.xml": "nowhere.xml is not there; give the path of a schedule, or a name that collemu algorithms lists",
        "empty.xml": "empty.xml: no XML: line 1: no element found",
        "topology.xml": "topology.xml: no MSCCL XML: the root element is 'system', not 'algo'",
        "plan.json": "plan.json: plan: gpus is missing",
        "folder.xml": "cannot read folder.xml: is a directory",
    }.items():
        assert refusal(collemu(*command, name)) == f"collemu {command[0]}: {text}"


def test_plans_of_mscclpp(collemu: Collemu, here: Path) -> None:
    packets(4).save(here)
    outcome = collemu("verify", "plan.json")
    assert outcome.code == 0
    assert re.match(r"ok all_reduce plan\.json: 4 ranks in place, \d+ operations, 24 messages, ", outcome.out)
    perf = ("perf", "all_reduce", "--algorithm", "plan.json", "-b", "64K", "-e", "64K")
    outcome = collemu(*perf, "--system", "h100_hgx")
    assert (outcome.code, outcome.rows()[0][8], outcome.rows()[0][10]) == (0, "0", "ll")
    assert "written for" not in outcome.out
    outcome = collemu(*perf, "--system", "trainium2", "--ranks", "4")
    assert (outcome.code, outcome.rows()[0][10]) == (0, "dma")
    assert (
        "# note: allreduce_by_hand was written for protocol ll, which trainium2 has not: it runs with dma"
        in outcome.out
    )
    assert collemu(*perf, "--system", "h100_hgx", "--protocol", "simple").rows()[0][10] == "simple"
    assert "plan.json is for 4 ranks, not 8" in refusal(collemu(*perf, "--ranks", "8"))


def test_files_run_with_their_own_protocol(collemu: Collemu, ring: str) -> None:
    perf = ("perf", "all_reduce", "-b", "64K", "-e", "64K", "--system", "h100_hgx", "--ranks", "4", "--algorithm")
    assert (
        collemu("export", "ring", "--ranks", "4", "--collective", "all_reduce", "--proto", "LL128", "l.xml").code == 0
    )
    assert collemu(*perf, "l.xml").rows()[0][10] == "ll128"
    assert collemu(*perf, ring).rows()[0][10] == "simple"  # its author asked for none, and h100_hgx has this by default
    trainium = ("perf", "all_reduce", "-b", "64K", "-e", "64K", "--ranks", "4", "--algorithm")
    assert collemu(*trainium, ring).rows()[0][10] == "dma"


def test_machines_that_nccl_wrote_down(collemu: Collemu, here: Path) -> None:
    machine(here)
    outcome = collemu("perf", "all_reduce", "--system", "topo.xml", "--algorithm", "ring", "-b", "64K", "-e", "64K")
    assert outcome.code == 0
    assert "# system topo.xml fingerprint " in outcome.out
    assert re.search(r"# estimates: \d\d constants, see collemu systems topo\.xml", outcome.out)
    assert "numbers of h100_hgx and its network are estimates here" in collemu("systems", "topo.xml").out
    (here / "algorithm.xml").write_text("<algo/>")
    assert refusal(collemu("perf", "all_reduce", "--system", "algorithm.xml")).endswith(
        "system file algorithm.xml: no topology of NCCL: the root element is 'algo', not 'system'"
    )


def test_a_custom_file_does_what_is_asked(collemu: Collemu) -> None:
    assert collemu("export", "direct", "--collective", "sendrecv", "--ranks", "3", "s.xml").code == 0
    assert "promises nothing" in refusal(collemu("verify", "s.xml"))
    assert collemu("verify", "s.xml", "--collective", "sendrecv").code == 0
    assert collemu("verify", "s.xml", "--collective", "broadcast").code == 1
    assert collemu("perf", "sendrecv", "--algorithm", "s.xml", "-b", "4K", "-e", "4K").code == 0
