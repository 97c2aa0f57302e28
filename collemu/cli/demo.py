"""``collemu demo``: the main job, end to end, on gradients of a real training run."""

import argparse
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collemu.cli.matmul import product_error
from collemu.cli.outputs import reason
from collemu.cli.table import lines_of

if TYPE_CHECKING:
    from collemu.catalogue import System
    from collemu.data import DigitsRun
    from collemu.emulator import Result

SYSTEM = "trainium4_nvl72"
ALGORITHMS = ("ring", "tree", "two_shot")
WIRES = ("none", "bfloat16", "mxfp8_e4m3", "mxfp4")
PRODUCTS = ("none", "bfloat16", "float8_e4m3fn", "mxfp8_e4m3", "mxfp4", "nvfp4")
DRAWN_WIRE = "mxfp8_e4m3"
DRAWN_COUNT = 4_000_000  # the gradients' messages are so small that a picture of them shows latency alone
TRACED = ("two_shot", DRAWN_WIRE)
PROCESSES = 4
PROCESSES_TIMEOUT_S = 120.0


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        description="Reduce the gradients of a real training run over 72 chips with three algorithms and four wire "
        "formats, multiply its activations and weights in low precision, let real MPI processes check the emulator, "
        "and write a picture and a Perfetto trace.",
    )
    parser.add_argument(
        "-o", "--output", default="demo-output", metavar="DIR", help="for the files (default demo-output)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the tables and write the files; 1 if replicas or processes disagree."""
    from collemu import load_system
    from collemu.data import load_digits_run

    start = time.monotonic()
    folder = Path(arguments.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make folder -o {folder}: {reason(error)}; give another path") from None
    system, digits = load_system(SYSTEM), load_digits_run()
    print(f"{system.name}: {system.title}")
    print(f"{len(system.estimates())} of its numbers are estimates: collemu systems {system.name} says which")

    results = _reduce_gradients(system, digits)
    identical = all(result.replicas_identical for result in results.values())
    _multiply(digits)
    agreed = _cross_check(str(digits.gradients[0].nbytes))
    for path, text in _write_files(system, results, folder):
        print(f"wrote {path}: {text}")
    print(f"done in {time.monotonic() - start:.1f} s")
    return 0 if identical and agreed else 1


def _reduce_gradients(system: "System", digits: "DigitsRun") -> "dict[tuple[str, str], Result]":
    import numpy as np

    from collemu import build_schedule, emulate
    from collemu.interop.nccl_tests import number, replicas
    from collemu.model.bandwidth import busbw
    from collemu.reference import difference

    ranks, count = digits.gradients.shape
    size = digits.gradients[0].nbytes
    print(f"\n(a) all_reduce of {ranks} gradients of a net that reads digits, {count} float32 each ({size} B)\n")
    results: dict[tuple[str, str], Result] = {}
    rows: list[tuple[object, ...]] = []
    for algorithm in ALGORITHMS:
        schedule = build_schedule("all_reduce", algorithm, ranks)
        for wire in WIRES:
            result = emulate(schedule, system, count=count, wire=wire, data=digits.gradients)
            relative, _ = difference("all_reduce", digits.gradients, np.asarray(result.outputs))
            results[algorithm, wire] = result
            rows.append(
                (
                    algorithm,
                    "float32" if wire == "none" else wire,
                    f"{result.time_s * 1e6:.3f}",
                    f"{busbw('all_reduce', ranks, size, result.time_s) / 1e9:.2f}",
                    result.wire_bytes,
                    f"{result.bounds.total_s * 1e6:.3f}",
                    number(relative),
                    replicas(result.replicas_identical),
                )
            )
    heading = ("algorithm", "wire", "time (us)", "busbw (GB/s)", "wire bytes", "bound (us)", "error", "replicas")
    print("\n".join(lines_of(heading, rows, "<<>>>>><")))
    print("\nerror: relative Frobenius norm against the float64 sum; bound: no schedule ends sooner")
    return results


def _multiply(digits: "DigitsRun") -> None:
    import numpy as np

    m, k = digits.activations.shape
    n = digits.weights.shape[1]
    print(f"\n(b) its {m} x {k} activations times {k} x {n} weights, quantised along k, added in float32\n")
    rows: list[tuple[object, ...]] = []
    for name in PRODUCTS:
        error, product = product_error(digits.activations, digits.weights, name, name, "float32")
        hidden = np.maximum(product + digits.bias, 0)
        guess = (hidden @ digits.head_weights + digits.head_bias).argmax(axis=1)
        accuracy = float((guess == digits.labels).mean())
        rows.append(
            (
                "float32" if name == "none" else name,
                f"{error.relative:.3g}",
                f"{error.largest:.3g}",
                f"{100 * accuracy:.1f} %",
            )
        )
    print("\n".join(lines_of(("format", "error", "max |error|", "digits read right"), rows, "<>>>")))
    print("\nerror: relative Frobenius norm against float64; the test images' digits, read with that product")


def _cross_check(size: str) -> bool:
    from collemu.ranks.launch import run_under_mpi

    print(f"\n(c) {PROCESSES} real MPI processes run the same schedules\n")
    words = ["all_reduce", "-b", size, "-d", "float32", "--algorithm", ",".join(ALGORITHMS), "--wire", ",".join(WIRES)]
    try:
        done = run_under_mpi(PROCESSES, ["-m", "collemu", "crosscheck", *words], timeout=PROCESSES_TIMEOUT_S)
    except ValueError as error:
        print(f"not run: {error}")
        return True
    except subprocess.TimeoutExpired:
        print(f"not identical: the processes did not end within {PROCESSES_TIMEOUT_S:.0f} s")
        return False
    print(done.stdout.rstrip() or done.stderr.rstrip())
    verdict = "identical" if done.returncode == 0 else "not identical"
    print(f"\nemulator and processes: {verdict} (mpirun -n {PROCESSES} collemu crosscheck {' '.join(words)})\n")
    return done.returncode == 0


def _write_files(system: "System", results: "dict[tuple[str, str], Result]", folder: Path) -> list[tuple[Path, str]]:
    """Write picture and trace; paths, and what stands in them."""
    from collemu import build_schedule, emulate
    from collemu.interop.perfetto import write_trace
    from collemu.interop.picture import draw_timelines

    written: list[tuple[Path, str]] = []
    trace = folder / "trace.json"
    timeline = results[TRACED].timeline
    assert timeline is not None
    with trace.open("w", encoding="utf-8") as file:
        events = write_trace(timeline, file)
    written.append((trace, f"{events} events of {TRACED[0]} over wire {TRACED[1]}; open it at https://ui.perfetto.dev"))
    picture = folder / "timeline.png"
    drawn = [
        emulate(
            build_schedule("all_reduce", algorithm, system.domain.chips), system, count=DRAWN_COUNT, wire=DRAWN_WIRE
        )
        for algorithm in ALGORITHMS
    ]
    titles = [f"{algorithm}: {result.time_s * 1e6:.1f} us" for algorithm, result in zip(ALGORITHMS, drawn, strict=True)]
    try:
        draw_timelines(drawn, titles, picture)
    except ValueError as error:
        print(f"no picture: {error}")
    else:
        text = f"what all ranks do when, in an all_reduce of {DRAWN_COUNT} elements over wire {DRAWN_WIRE}"
        written.append((picture, text))
    return written
