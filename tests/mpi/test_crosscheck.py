"""Real MPI processes against the emulator, and what happens when something is wrong. One mpirun a rank count."""

import csv
import json
import re
import time

import pytest

from collemu import build_schedule, save_schedule
from collemu.ranks.launch import run_under_mpi
from tests.mpi.launching import DRIVERS, NEEDS_MPIRUN, refusal, said

pytestmark = NEEDS_MPIRUN

IN_SWITCH = ("--algorithm", "nvls", "--system", "gb200_nvl72")


def crosscheck(ranks: int, *arguments: str, program: tuple[str, ...] = ("-m", "collemu"), timeout: float = 200.0):
    return run_under_mpi(ranks, [*program, "crosscheck", *arguments], timeout)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_every_algorithm_has_the_emulators_bytes_and_messages(ranks, tmp_path):
    table, records = tmp_path / "table.csv", tmp_path / "table.json"
    flags = ("--algorithm", "all", "--wire", "none,mxfp8_e4m3", "-b", "1005", "--root", str(ranks - 1))
    process = crosscheck(ranks, "all", *flags, "--json", str(records), "--csv", str(table))
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == ""
    assert process.stdout.endswith("all identical\n")
    results = json.loads(records.read_text())["results"]
    assert {row["ranks"] for row in results} == {ranks}
    assert all(row["bytes_identical"] and row["messages_identical"] for row in results)
    # MPI's own collective was asked wherever nothing is quantised
    assert all((row["mpi_identical"] is True) == (row["wire"] == "none") for row in results)
    assert {row["dtype"] for row in results} == {"float32", "int32", "int64"}
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(results)


@pytest.mark.parametrize("wire", ["none", "mxfp4"])
def test_one_flipped_byte_is_named(wire):
    """Rank 1 flips byte 2 of what it sends to rank 2, whose output it is."""
    program = (str(DRIVERS / "flip_byte.py"),)
    flags = ("--algorithm", "direct", "-b", "4000", "-d", "float32", "--wire", wire)
    process = crosscheck(3, "sendrecv", *flags, program=program)
    assert process.returncode == 1, process.stdout + process.stderr
    mismatches = [line.strip() for line in process.stdout.splitlines() if line.startswith("    ")]
    pattern = (
        r"rank 2 output: first differing byte \d+ of 4000: expected 0x[0-9a-f]{2}, got 0x[0-9a-f]{2} \(\d+ differ\), "
        r"in output\[0\], written by rank 2 thread \d step \d \(recv to output\[0\]\) "
        r"from message 0 of rank 1 on channel 0"
    )
    assert re.fullmatch(pattern, mismatches[0])
    if wire == "none":
        assert "byte 2 of 4000" in mismatches[0]
        assert mismatches[1].startswith("rank 2 output against MPI's own collective: first differing byte 2 of 4000")
    assert process.stdout.endswith("1 points DIFFER\n")


def test_a_shorter_message_is_named():
    program = (str(DRIVERS / "short_message.py"),)
    process = crosscheck(2, "sendrecv", "--algorithm", "direct", "-b", "4000", "-d", "float32", program=program)
    assert process.returncode == 1, process.stdout + process.stderr
    expected = "rank 0 messages: connection order: expected message 0 from rank 1 on channel 0 with 4000 bytes"
    assert expected in process.stdout
    assert "with 3999 bytes" in process.stdout


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        (2, "0,5000\n1,0\n"),
        (3, "1,2,3\n0,0,0\n4000,0,7\n"),
        (4, "0,0,0,0\n0,3,9,0\n0,1,0,0\n0,2001,33,0\n"),
    ],
)
def test_processes_exchange_what_counts_say(ranks, counts, tmp_path):
    """MPI's own Alltoallv is asked, too; so is its Gather and its Scatter, with a root in the middle."""
    records, table = tmp_path / "table.json", tmp_path / "counts.csv"
    table.write_text(counts)
    flags = ("--algorithm", "all", "-d", "float32,int64,bfloat16", "-b", "1005", "--root", str(ranks // 2))
    more = ("--channels", "2", "--chunks", "2", "--counts", str(table), "--json", str(records))
    process = crosscheck(ranks, "alltoallv,gather,scatter", *flags, *more)
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    results = json.loads(records.read_text())["results"]
    assert len(results) == 3 * (2 + 3 + 3)
    assert all(row["bytes_identical"] and row["messages_identical"] and row["mpi_identical"] for row in results)
    rows = [list(map(int, line.split(","))) for line in counts.split()]
    sent = sum(min(n, 4) for i, row in enumerate(rows) for j, n in enumerate(row) if i != j)
    assert all(row["messages"] == sent for row in results if row["collective"] == "alltoallv")


def test_one_flipped_byte_of_an_alltoallv_is_named(tmp_path):
    """Rank 1 flips a byte of what it sends to rank 2, which gets that and nothing else."""
    (tmp_path / "counts.csv").write_text("0,0,0\n0,0,1000\n0,0,0\n")
    flags = ("--algorithm", "direct", "-d", "float32", "--counts", str(tmp_path / "counts.csv"))
    process = crosscheck(3, "alltoallv", *flags, program=(str(DRIVERS / "flip_byte.py"),))
    assert process.returncode == 1, process.stdout + process.stderr
    assert "rank 2 output: first differing byte 2 of 4000" in process.stdout
    assert "rank 2 output against MPI's own collective: first differing byte 2 of 4000" in process.stdout
    assert "rank 0 output" not in process.stdout


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_processes_do_what_switches_do(ranks, tmp_path):
    records = tmp_path / "table.json"
    flags = (*IN_SWITCH, "-d", "float32,float16,float8_e4m3fn,float8_e5m2", "-b", "1005", "-n", "2")
    more = ("--channels", "2", "--chunks", "2", "--root", str(ranks - 1))
    process = crosscheck(ranks, "all", *flags, *more, "--json", str(records))
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    results = json.loads(records.read_text())["results"]
    assert len(results) == 5 * 4
    assert all(row["bytes_identical"] and row["messages_identical"] for row in results)
    # an access is no message
    told = {"broadcast": ranks - 1, "reduce": ranks - 1}
    assert all(row["messages"] == 2 * told.get(row["collective"], ranks * (ranks - 1)) for row in results)


def test_a_lost_write_is_named():
    """The middle block of 1002 float32, rank 1's own, does not come to rank 0."""
    program = (str(DRIVERS / "skip_write.py"),)
    process = crosscheck(3, "all_reduce", *IN_SWITCH, "-b", "4008", "-d", "float32", program=program)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "rank 0 output: first differing byte 133" in process.stdout
    assert "rank 0 output against MPI's own collective" in process.stdout
    assert "rank 1 output" not in process.stdout


def test_another_order_of_addition_is_seen():
    """By everybody, as rank 1 writes its sums to all; small integers have the same sum in any order."""
    program = (str(DRIVERS / "other_order.py"),)
    process = crosscheck(3, "all_reduce", *IN_SWITCH, "-b", "4008", "-d", "float32", program=program)
    assert process.returncode == 1, process.stdout + process.stderr
    assert all(f"rank {rank} output: first differing byte" in process.stdout for rank in range(3))
    assert "against MPI's own collective" not in process.stdout


@pytest.mark.parametrize(
    ("ranks", "driver", "flags"), [(2, "fail.py", ()), (5, "fail.py", ()), (3, "fail_to_read.py", IN_SWITCH)]
)
def test_a_rank_that_fails_ends_all(ranks, driver, flags):
    begin = time.monotonic()
    process = crosscheck(ranks, "all_reduce", *flags, "-b", "4K", program=(str(DRIVERS / driver),), timeout=60)
    assert process.returncode not in (0, 2)
    assert time.monotonic() - begin < 45
    assert said(process).startswith(f"collemu crosscheck: rank 1 of {ranks}: OSError: the cable fell out")


def test_bad_input_is_one_line_whatever_the_number_of_processes():
    for flags, text in (
        (("all_reduce", "--algorithm", "bogus"), "no algorithm 'bogus'"),
        (("all_reduce", "--root", "2"), "root 2 is not one of the 2 ranks"),
        (("all_reduce", "--ranks", "5"), "--ranks 5, but mpirun started 2 processes"),
        (("all_reduce", "-b", "4Q"), "'4Q' is not a size"),
    ):
        process = crosscheck(2, *flags)
        assert text in refusal(process)


def test_one_process_is_refused_unless_it_is_meant():
    refused = crosscheck(1, "all_reduce")
    assert "mpirun -n 4 collemu crosscheck" in refusal(refused)
    meant = crosscheck(1, "all_reduce", "--ranks", "1", "-b", "4K")
    assert (meant.returncode, meant.stderr) == (0, "")


def test_a_schedule_from_a_file(tmp_path):
    path = tmp_path / "ring.xml"
    save_schedule(build_schedule("all_reduce", "ring", 3, channels=2), path)
    process = crosscheck(3, "all_reduce", "--algorithm", str(path), "--wire", "none,mxfp4", "-b", "4004")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.endswith("all identical\n")
    process = crosscheck(2, "all_reduce", "--algorithm", str(path))
    assert refusal(process) == f"collemu crosscheck: {path} is for 3 ranks, not 2"


def test_a_file_that_would_hang_is_refused(tmp_path):
    """Both ranks receive before they send."""
    schedule = build_schedule("all_reduce", "ring", 2)
    schedule.ops[:] = schedule.ops[[1, 0, 2, 4, 3, 5]]
    path = tmp_path / "ring.xml"
    save_schedule(schedule, path)
    process = crosscheck(2, "all_reduce", "--algorithm", str(path))
    assert "deadlock at any slot count: rank 0 thread 0 step 0" in refusal(process)


def test_recipes_give_the_same_bytes_in_real_processes():
    """Own kinds of scales and sums, rounded inputs, a dtype inside, and sums rounded after every addition."""
    words = ("-b", "4K", "-d", "bfloat16", "--algorithm", "ring,two_shot,direct", "--requantise", "hop")
    recipes = "quickreduce_int4,nccl_fp8,nccl_symmetric,zeropp_qgz"
    process = crosscheck(3, "all_reduce,reduce_scatter", "--recipe", recipes, "--wire", "mxfp4", *words)
    assert process.returncode == 0, process.stderr
    assert "all identical" in process.stdout
