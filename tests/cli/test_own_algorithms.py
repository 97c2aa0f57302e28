"""Python files where commands take the name of an algorithm: what they do, and how mistakes in them are told."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import collemu as package
from collemu.ranks.launch import run_under_mpi
from tests.cli.conftest import Outcome
from tests.mpi import launching

Collemu = Callable[..., Outcome]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "my_ring.py"

HEAD = "from collemu.program import algorithm\n\n"
TWO = (
    HEAD
    + """
@algorithm("all_reduce")
def star(p, channels, chunks=1):
    p.chunks(channels * chunks)
    for piece in range(channels * chunks):
        middle = p.input(0, piece).copy_to(p.output(0, piece))
        for rank in range(1, p.ranks):
            p.input(rank, piece).reduce_to(middle, channel=piece // chunks)
        for rank in range(1, p.ranks):
            middle.copy_to(p.output(rank, piece), channel=piece // chunks)


@algorithm("broadcast", name="flat")
def from_root(p, root):
    for rank in range(p.ranks):
        p.input(root).copy_to(p.output(rank))
"""
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_ring.py").write_text(EXAMPLE.read_text())
    (tmp_path / "two.py").write_text(TWO)
    return tmp_path


def refusal(outcome: Outcome) -> str:
    """The one line of a command that has refused its input."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    return line


def test_verify_of_many_rank_counts(collemu: Collemu) -> None:
    outcome = collemu("verify", "my_ring.py", "--ranks", "1-16")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == (
        "ok all_reduce my_ring.py: 16 rank counts, 2856 operations, 2720 messages, runs with 2 FIFO slots\n"
    )


def test_perf_is_that_of_the_built_in_ring(collemu: Collemu) -> None:
    flags = ("--ranks", "3,8", "-b", "64K", "-e", "64K", "--wire", "none,mxfp4")
    outcome = collemu("perf", "all_reduce", "--algorithm", "ring,my_ring.py", *flags)
    assert (outcome.code, outcome.err) == (0, "")
    rows = outcome.rows()
    assert [row[9] for row in rows] == ["ring"] * 4 + ["my_ring.py"] * 4
    for built_in, own in zip(rows[:4], rows[4:], strict=True):
        assert built_in[:9] + built_in[10:] == own[:9] + own[10:]


def test_what_a_file_has_runs_where_it_fits(collemu: Collemu) -> None:
    outcome = collemu("perf", "all", "--algorithm", "two.py", "--ranks", "4", "-b", "4K", "-e", "4K", "-r", "2")
    assert outcome.code == 0
    assert [(row[3], row[4], row[8]) for row in outcome.rows()] == [("sum", "-1", "0"), ("none", "2", "0")]
    assert collemu("verify", "two.py:flat", "-r", "1").out.startswith("ok broadcast two.py:flat: 9 rank counts")
    assert collemu("verify", "./two.py:star", "--channels", "3", "--chunks", "2", "--ranks", "2-5").code == 0


def test_export(collemu: Collemu) -> None:
    outcome = collemu("export", "my_ring.py", "--ranks", "4", "ring.xml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "ring.xml: all_reduce my_ring.py, 4 ranks, 4 thread blocks, 28 steps\n"
    assert collemu("verify", "ring.xml").code == 0
    assert 'name="my_ring"' in Path("ring.xml").read_text()
    assert collemu("export", "two.py", "--collective", "all_reduce", "--ranks", "3", "--in-place", "-").out.count(
        'inplace="1" outofplace="0"'
    )


@pytest.mark.mpi
@launching.SKIP_WITHOUT_MPIRUN
@pytest.mark.parametrize("ranks", [2, 3])
def test_crosscheck(ranks: int) -> None:
    words = ("crosscheck", "all", "--algorithm", "my_ring.py,two.py", "--wire", "none,mxfp4", "-b", "1005")
    done = run_under_mpi(ranks, ["-m", "collemu", *words])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.endswith("all identical\n")
    Path("two.py").write_text(TWO.replace("range(1, p.ranks)", "range(2, p.ranks)"))
    done = run_under_mpi(ranks, ["-m", "collemu", *words])
    assert re.match(r"collemu crosscheck: two\.py:\d+: rank 0 output\[0\] lacks", launching.refusal(done))


def test_load_schedule() -> None:
    schedule = package.load_schedule("my_ring.py", ranks=5)
    assert (schedule.collective, schedule.algorithm, schedule.ranks) == ("all_reduce", "my_ring", 5)
    assert package.verify(schedule).messages == 40
    assert package.load_schedule("two.py:flat", ranks=3, root=2).root == 2
    assert package.load_schedule("two.py", ranks=3, collective="all_reduce", channels=2).channels == 2
    package.save_schedule(schedule, "ring.xml")
    assert package.load_schedule("ring.xml", ranks=5).ranks == 5
    for words, flags, text in (
        ("my_ring.py", {}, "my_ring.py: for how many ranks? Give ranks="),
        ("two.py", {"ranks": 2}, "two.py: 2 algorithms; choose two.py:star, two.py:flat"),
        ("ring.xml", {"ranks": 4}, "ring.xml is for 5 ranks, not 4"),
        ("ring.xml", {"chunks": 2}, "are for Python files"),
        ("my_ring.py", {"ranks": 2, "root": 2}, "root 2 is not one of the 2 ranks"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            package.load_schedule(words, **flags)


def test_a_file_runs_once_and_beside_its_helpers(collemu: Collemu, here: Path) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "hops.py").write_text("def onward(chunk, place):\n    return chunk.copy_to(place)\n")
    (here / "deep" / "own.py").write_text(
        HEAD
        + "print('this is no result')\n"
        + "with open('runs', 'a') as file: file.write('x')\n"
        + '@algorithm("sendrecv")\ndef shift(p):\n    from hops import onward\n    for rank in range(p.ranks):\n'
        + "        onward(p.input(rank), p.output((rank + 1) % p.ranks))\n"
    )
    outcome = collemu("perf", "sendrecv", "--algorithm", "deep/own.py", "--ranks", "2-4", "-b", "4K", "-e", "4K")
    assert outcome.code == 0
    assert "no result" not in outcome.out
    assert "this is no result" in outcome.err
    assert (here / "runs").read_text() == "x"
    assert not list(here.rglob("own*.pyc"))


MISTAKES = {  # name -> lines from the decorator on, and what is said behind the command
    "chunk": ("p.input(0, 1).copy_to(p.output(0))", "input: no chunk 1 of rank 0; choose 0 to 0"),
    "rank": ("p.output(p.ranks)", "output: rank is 4; give a whole number, 0 to 3"),
    "no number": ("p.output('all')", "output: rank is 'all'; give a whole number, 0 to 3"),
    "unwritten": (
        "p.output(2).copy_to(p.output(1))",
        "rank 2 output[0] is read, and nothing has written it; write it before",
    ),
    "nothing to add to": (
        "p.input(2).reduce_to(p.output(1))",
        "rank 1 output[0] is read, and nothing has written it; copy there first, or give into=",
    ),
    "chunks late": ("p.input(0); p.chunks(3)", "chunks: say how many before the first chunk is named"),
    "as many": (
        "p.chunks(3); p.input(0, 0, 2).copy_to(p.output(0))",
        "copy_to: rank 0 input[0:2] is 2 chunks and rank 0 output[0] is 1; they must be as many",
    ),
    "no chunk": ("p.input(0).copy_to(3)", "copy_to: 3 is no chunk; p.input, p.output and p.scratch name them"),
    "into": (
        "p.input(0).reduce_to(p.input(1), into=p.output(2))",
        "reduce_to: into is rank 2 output[0], and the sum is made on rank 1; copy it there after",
    ),
    "overlap": (
        "p.chunks(3); p.input(0, 0, 2).copy_to(p.input(0, 1, 2))",
        "copy_to: rank 0 input[0:2] and rank 0 input[1:3] overlap; go by scratch, or chunk by chunk",
    ),
    "channel": (
        "p.input(0).copy_to(p.output(1), channel=-1)",
        "copy_to: channel is -1; give a whole number, 0 to 1023",
    ),
    "publish": (
        "p.input(0).copy_to(p.output(1), publish='yes')",
        "copy_to: publish is 'yes'; give True, False, \"own\" or nothing",
    ),
    "styles": (
        "p.input(0).copy_to(p.output(0)); p.thread(0)",
        "thread: an algorithm is copies and reductions, or threads; this one has copies already",
    ),
    "peer": ("p.thread(0, send_peer=4)", "thread: send_peer is 4; give a whole number, 0 to 3"),
    "own peer": (
        "p.thread(0, recv_peer=0)",
        "thread: rank 0 is its own peer; what stays on a rank is copied or reduced",
    ),
    "shared lane": (
        "p.thread(0, send_peer=1); p.thread(0, send_peer=1)",
        "thread: the thread of rank 0 in line 5 sends to rank 1 on channel 0 already; give another channel",
    ),
    "no peer": ("p.thread(0).send(p.input(0))", "send: the thread of rank 0 in line 5 has no send_peer; give it one"),
    "elsewhere": (
        "p.thread(0, send_peer=1).send(p.input(1))",
        "send: rank 1 input[0] is not on rank 0, whose thread this is",
    ),
    "after": (
        "p.thread(1).nop(after=p.thread(0).nop())",
        "nop: after is an operation of rank 0, and this is rank 1; ranks wait for each other's messages alone",
    ),
    "exception": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exit": ("raise SystemExit(0)", "the file ends the program; leave out exit()"),
    "own words": ("raise ValueError('not for 4')", "ValueError: not for 4"),
}


@pytest.mark.parametrize("code, text", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_by_their_line(collemu: Collemu, code: str, text: str) -> None:
    Path("bad.py").write_text(f'{HEAD}@algorithm("all_reduce")\ndef bad(p):\n    {code}\n')
    for command in (("verify",), ("perf", "all_reduce", "--algorithm")):
        line = refusal(collemu(*command, "bad.py", "--ranks", "4"))
        assert line == f"collemu {command[0]}: bad.py:5: {text} (4 ranks)"


FILES = {  # the whole file, and what is said
    "syntax": (HEAD + "def bad(p:\n    pass\n", "bad.py:3: SyntaxError: "),
    "import": (HEAD + "import no_such_thing\n", "bad.py:3: ModuleNotFoundError: No module named 'no_such_thing'"),
    "collective": (
        HEAD + '@algorithm("allreduce")\ndef bad(p):\n    pass\n',
        "bad.py:3: algorithm: collective='allreduce' is not supported; choose all_reduce, reduce_scatter, all_gather",
    ),
    "no argument": (
        HEAD + '@algorithm("all_reduce")\ndef bad():\n    pass\n',
        "bad.py:3: algorithm: bad must take the pro",
    ),
    "argument": (
        HEAD + '@algorithm("all_reduce")\ndef bad(p, groups):\n    pass\n',
        "bad.py:3: algorithm: bad takes 'groups'; there are p, root, channels and chunks, and others need a default",
    ),
    "none": ("x = 3\n", 'bad.py: no algorithm; put @algorithm("all_reduce") of collemu.program above a function'),
    "twins": (
        HEAD + 'for i in "ab":\n    @algorithm("reduce", name="x")\n    def bad(p): pass\n    globals()[i] = bad\n',
        "bad.py:4: there is an algorithm x already; give another name=",
    ),
    "empty": (
        HEAD + '@algorithm("all_reduce")\ndef bad(p):\n    pass\n',
        "bad.py:3: bad does nothing for 2 ranks; copy chunks, or make threads (2 ranks)",
    ),
}


@pytest.mark.parametrize("source, text", FILES.values(), ids=FILES)
def test_files_that_are_wrong(collemu: Collemu, source: str, text: str) -> None:
    Path("bad.py").write_text(source)
    assert refusal(collemu("verify", "bad.py")).startswith(f"collemu verify: {text}")


REFUSED = {  # lines from 5 on, and what verify says of it
    "lacks": (
        "for rank in range(p.ranks):\n        p.input(rank).copy_to(p.output(rank))",
        r"bad\.py:6: rank 0 output\[0\] lacks rank 1 input\[0\] \(written last by .* step 0 at bad\.py:6 .*",
    ),
    "never": ("p.input(0).copy_to(p.output(0), channel=0)", r"bad\.py:5: rank 0 output\[0\] lacks .*"),
    "race": (
        "t, u, o = p.thread(0), p.thread(0), p.output(0)\n    t.copy(p.input(0), o)\n    u.reduce(p.input(0), o)",
        r"bad\.py:6: race on rank 0 output\[0\]: nothing orders .* at bad\.py:6 \(.*\) and .* at bad\.py:7 \(.*",
    ),
    "deadlock": (
        "for r in 0, 1:\n        o = 1 - r\n        p.thread(r, send_peer=o, recv_peer=o).recv_copy_send(p.input(r))",
        r"bad\.py:7: deadlock at any slot count: .* step 0 at bad\.py:7 \(recv_copy_send .*\) waits for .*",
    ),
    "unmatched": (
        "p.thread(0, send_peer=1).send(p.input(0))",
        r"bad\.py:5: rank 0 thread 0 step 0 at bad\.py:5 \(send input\[0\]\) is message 1 to rank 1 .*",
    ),
}


@pytest.mark.parametrize("code, pattern", REFUSED.values(), ids=REFUSED)
def test_what_verify_refuses_is_told_by_its_line(collemu: Collemu, code: str, pattern: str) -> None:
    Path("bad.py").write_text(f'{HEAD}@algorithm("all_reduce")\ndef bad(p):\n    {code}\n')
    outcome = collemu("verify", "bad.py", "--ranks", "2")
    assert (outcome.code, outcome.err) == (1, "")
    assert re.fullmatch(rf"FAILED all_reduce bad\.py 2 ranks: {pattern}\n", outcome.out), outcome.out
    line = refusal(collemu("perf", "all_reduce", "--algorithm", "bad.py", "--ranks", "2"))
    assert re.fullmatch(rf"collemu perf: {pattern} \(2 ranks\)", line), line
    line = refusal(collemu("export", "bad.py", "--ranks", "2", "-"))
    assert re.match(rf"collemu export: {pattern}", line), line


@pytest.mark.parametrize(
    "words, text",
    [
        (("verify", "none.py"), "none.py is not there; give the path"),
        (("verify", "two.py:three"), "two.py: no algorithm 'three'; choose two.py:star, two.py:flat"),
        (("perf", "all_gather", "--algorithm", "two.py"), "two.py: it does all_reduce, broadcast, not all_gather"),
        (("export", "two.py", "--ranks", "2", "a.xml"), "two.py does all_reduce, broadcast; choose one"),
        (
            ("verify", "my_ring.py", "--channels", "2"),
            "my_ring.py:6: my_ring takes no channels, and channels is 2; write def my_ring(p, channels=1), or",
        ),
        (
            ("perf", "all_reduce", "--algorithm", "my_ring.py", "--ranks", "4", "--chunks", "2"),
            "my_ring takes no chunks",
        ),
    ],
)
def test_what_does_not_go_together_with_a_python_file(collemu: Collemu, words: tuple[str, ...], text: str) -> None:
    assert text in refusal(collemu(*words))


def test_several_for_a_collective_are_listed(collemu: Collemu) -> None:
    Path("more.py").write_text(TWO.replace('"broadcast"', '"all_reduce"'))
    text = "more.py: 2 algorithms for all_reduce; choose more.py:star, more.py:flat"
    assert text in refusal(collemu("verify", "more.py"))


def test_mistakes_in_helpers_are_told_by_theirs(collemu: Collemu, here: Path) -> None:
    (here / "helper_of_bad.py").write_text("\ndef reach(p):\n    return p.input(99)\n")
    Path("bad.py").write_text(
        f'{HEAD}from helper_of_bad import reach\n@algorithm("all_reduce")\ndef bad(p):\n    reach(p)\n'
    )
    assert "helper_of_bad.py:3: input: rank is 99" in refusal(collemu("verify", "bad.py"))
