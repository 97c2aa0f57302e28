"""What users do wrong gives one clear line on stderr, nothing on stdout, and exit code 2."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

PERF = ("perf", "all_reduce", "--ranks", "4", "-b", "4", "-e", "4")

BAD_INPUT = {
    "no command": ((), "required: COMMAND"),
    "command": (("pref",), "invalid choice"),
    "flag": ((*PERF, "--wires", "mxfp4"), "--wires"),
    "flag without value": (("perf", "all_reduce", "-b"), "expected one argument"),
    "no collective": (("perf",), "required: COLLECTIVE"),
    "collective": (("perf", "allreduce"), "did you mean all_reduce"),
    "empty entry": (("perf", "all_reduce,"), "empty entry"),
    "algorithm": ((*PERF, "--algorithm", "rign"), "choose ring"),
    "algorithm of another collective": (("perf", "alltoall", "--algorithm", "ring"), "no algorithm 'ring'"),
    "system": ((*PERF, "--system", "trainium5"), "no such system"),
    "system file": ((*PERF, "--system", "none.toml"), "none.toml"),
    "wire": ((*PERF, "--wire", "mxfp5"), "mxfp5"),
    "wire for integers": ((*PERF, "-d", "int32", "--wire", "mxfp4"), "int32"),
    "dtype": ((*PERF, "-d", "float17"), "float17"),
    "operation": ((*PERF, "-o", "summ"), "did you mean sum"),
    "size": ((*PERF, "-b", "1Q"), "is not a size"),
    "sizes backwards": ((*PERF, "-b", "8"), "must not exceed"),
    "step": ((*PERF, "-b", "1", "-e", "8", "-i", "0"), "never reach"),
    "factor": ((*PERF, "-f", "two"), "not a whole number"),
    "zero ranks": (("perf", "all_reduce", "--ranks", "0"), "is 0; give 1"),
    "more ranks than chips": (("perf", "all_reduce", "--ranks", "1000001"), "at most 1000000"),
    "root": (("perf", "broadcast", "-r", "6", "--ranks", "6"), "choose 0 to 5"),
    "negative root": (("perf", "broadcast", "-r", "-1", "--ranks", "6"), "-r"),
    "protocol": ((*PERF, "--protocol", "ll256"), "no protocol"),
    "fidelity": ((*PERF, "--fidelity", "exact"), "no fidelity"),
    "processes": ((*PERF, "--fidelity", "processes"), "has no [processes]: choose another fidelity"),
    "channels": ((*PERF, "--channels", "0"), "--channels is 0"),
    "too many channels": ((*PERF, "--channels", "65"), "at most 64"),
    "too many chunks": ((*PERF, "--chunks", "5000"), "at most 4096"),
    "no such check": ((*PERF, "-c", "3"), "at most 2"),
    "too large a size": (
        ("perf", "all_reduce", "-b", "1K", "-e", "64G", "-f", "67108864", "--fidelity", "packet"),
        "72 ranks float32",
    ),
    "no data": ((*PERF, "--data", ""), "give a .npy"),
    "one file for two outputs": ((*PERF, "--json", "o", "--csv", "./o"), "give two files"),
    "a folder as output": ((*PERF, "--json", "/"), "'/' is no file"),
    "a file as folder": (("demo", "-o", "/dev/null/x"), "/dev/null/x"),
    "flag after command": (("perf", "all_reduce", "--wires", "mxfp4"), "collemu perf: unrecognized"),
    "too many ranks to list": (("algorithms", "--ranks", "20000"), "at most 1024"),
    "check": ((*PERF, "-c", "yes"), "not a whole number"),
    "data": ((*PERF, "--data", "none.npy"), "no such file"),
    "data of another kind": ((*PERF, "--data", "data.txt"), ".npy, .npz or .safetensors"),
    "output": ((*PERF, "--json", "no/such/folder/o.json"), "no/such/folder"),
    "two outputs on stdout": ((*PERF, "--json", "-", "--csv", "-"), "both want stdout"),
    "verify algorithm": (("verify", "rign"), "rign"),
    "verify collective": (("verify", "ring", "--collective", "gossip"), "gossip"),
    "verify ranks": (("verify", "ring", "--ranks", "0"), "is 0; give 1"),
    "systems": (("systems", "trainium5"), "no such system"),
    "formats": (("formats", "mxfp5"), "mxfp5"),
    "algorithms": (("algorithms", "--ranks", "0"), "--ranks is 0"),
    "matmul size": (("matmul", "-m", "0"), "-m is 0"),
    "matmul format": (("matmul", "--a", "mxfp5"), "mxfp5"),
    "matmul model": (("matmul", "--accumulate", "magic"), "magic"),
}


@pytest.mark.parametrize("words, reason", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_line_and_exit_2(collemu: Callable[..., Outcome], words: tuple[str, ...], reason: str) -> None:
    outcome = collemu(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("collemu")
    assert reason in outcome.err


def test_a_faulty_system_file_is_one_line(collemu: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n[domain]\nchips = 3\n')
    outcome = collemu("systems", tmp_path / "mine.toml")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "domain.chips" in outcome.err


def test_a_traceback_is_shown_on_request_only(collemu: Callable[..., Outcome]) -> None:
    with pytest.raises(ValueError, match="no such system"):
        collemu("systems", "trainium5", "--debug")


def test_help_and_version_exit_0(collemu: Callable[..., Outcome]) -> None:
    for words in (("--help",), ("--version",), ("perf", "--help"), ("verify", "-h")):
        outcome = collemu(*words)
        assert outcome.code == 0
        assert outcome.out


def test_help_names_every_command(collemu: Callable[..., Outcome]) -> None:
    text = collemu("--help").out
    for command in (
        "demo",
        "perf",
        "crosscheck",
        "verify",
        "systems",
        "formats",
        "algorithms",
        "export",
        "matmul",
        "warm",
    ):
        assert command in text


def test_the_list_of_commands_imports_no_numpy_and_no_numba() -> None:
    code = "import sys, collemu.cli.main as m; m.build_parser(); print({'numpy', 'numba', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "collemu", "formats", "float8_e4m3fn"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=120) == 141


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell's way to close stdout")
def test_no_stdout_is_no_traceback() -> None:
    words = ["sh", "-c", '"$0" -m collemu formats >&-', sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_one_of_mpiruns_processes_speaks(collemu: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    for words in (("formats",), ("algorithms", "--ranks", "0"), ("--version",), ("perf", "--help")):
        assert collemu(*words)[1:] == ("", "")


def test_the_script_exits_with_the_code_of_the_command() -> None:
    words = [sys.executable, "-m", "collemu", "systems", "trainium5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
