"""`collemu.testing` in real processes: all fail alike, with the same smallest example, and nobody waits for ever."""

import re
import time
from pathlib import Path

import pytest

from collemu.ranks.launch import mpirun_here, run_under_mpi

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(mpirun_here() is None, reason="no mpirun: pip install 'collemu[mpich]'"),
]

DRIVER = Path(__file__).parent / "drivers" / "share_examples.py"


def said(ranks, how):
    """What each rank has raised, or passed."""
    process = run_under_mpi(ranks, [str(DRIVER), how], timeout=150)
    texts = re.findall(r"<<(.*?)>>", process.stdout, re.DOTALL)
    assert len(texts) == ranks, process.stdout + process.stderr
    assert process.returncode == 0
    return [re.sub(r"comm=<.*?>", "", text.strip()) for text in texts]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_right_passes_everywhere(ranks):
    assert said(ranks, "right") == ["passed"] * ranks


def test_whatever_is_drawn_has_the_same_bytes_in_real_processes():
    assert said(3, "runs") == ["passed"] * 3


def test_a_wrong_chunk_is_found_and_shrunk():
    texts = said(3, "schedule")
    examples = [text[text.index("Failing test case") :] for text in texts]
    assert examples[0] == examples[1] == examples[2]
    assert re.search(r"'all_reduce',\s+'ring',\s+3,\s+root=0,\s+channels=1,\s+chunks=None", examples[0])
    assert "count=5," in examples[0]
    assert "wire='none'" in examples[0]
    for text in texts:
        assert re.search(r"all_reduce ring of 3 ranks: .*rank 2 ", text)


def test_a_corrupt_byte_is_named():
    for text in said(3, "byte"):
        assert "all_reduce ring of 3 ranks, count 1, float32, wire none" in text
        assert "processes and emulator differ" in text
        assert re.search(r"rank 2 output: first differing byte 2 of 4: expected 0x.., got 0x.. \(1 differ\)", text)
        assert re.search(r"in output\[0\], written by rank 2 thread 0 step \d \(.*\) from message \d of rank 1", text)


@pytest.mark.parametrize(
    ("how", "text", "example"),
    [
        ("local", r"rank 1, 2 of 3: \S+share_examples.py:\d+: AssertionError", "x=1000"),
        ("other", r"rank 2 of 3: \S+share_examples.py:\d+: OSError: the cable fell out", "count=16"),
    ],
)
def test_what_fails_on_some_fails_on_all(how, text, example):
    texts = said(3, how)
    assert texts[0].partition(": ")[2] == texts[1].partition(": ")[2] == texts[2].partition(": ")[2]
    assert re.search(text, texts[0])
    assert example in texts[0]


def test_a_strategy_that_cannot_be_made_fails_on_all():
    for text in said(2, "strategy"):
        assert "ValueError: nothing to draw" in text


def test_other_arguments_are_refused():
    for text in said(3, "arguments"):
        assert "assert_same_bytes: rank 2 has another count than rank 0; use given_on_all_ranks" in text


def test_who_fails_while_others_wait_ends_all():
    begin = time.monotonic()
    process = run_under_mpi(3, [str(DRIVER), "early"], timeout=100)
    assert process.returncode != 0
    assert time.monotonic() - begin < 60
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("collemu")]
    assert re.match(
        r"collemu.testing: no progress for 20 s: rank 1 failed in check \(.*AssertionError\), and the", line
    )
    assert line.endswith("communicate first and assert afterwards")
