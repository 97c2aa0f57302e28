"""How well a calibrated machine predicts itself: ``python -m benchmarks.host [RANKS]``.

Calibrates the machine, then has as many processes run collectives that the calibration did not look at, and prints the
error of each predicted time beside the noise floor: how far the quartiles of the measured times lie apart. Let nothing
else run meanwhile; what cannot be helped shows as noise.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from collemu.ranks.launch import mpirun_here

REPEATS = 25
WARMUPS = 3
CASES = (("all_reduce", "ring,two_shot"), ("all_gather", "ring,direct"), ("alltoall", "direct,pairwise"))
SIZES = ("-b", "1K", "-e", "64M", "-f", "4")


def main(ranks: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        system = Path(folder) / "host.toml"
        print(_run(ranks, "calibrate", "host", "-o", str(system)))
        results: list[dict[str, Any]] = []
        for collective, algorithms in CASES:
            out = Path(folder) / f"{collective}.json"
            _run(
                *(ranks, "crosscheck", collective, "--algorithm", algorithms, *SIZES, "-d", "float32"),
                *("-n", str(REPEATS), "-w", str(WARMUPS), "--system", str(system), "--json", str(out)),
                *("--against", "mpi"),
            )
            results += json.loads(out.read_text())["results"]
    print("collective  algorithm   size (B) predicted (us) measured (us) error (%) noise (%)   MPI (us)")
    for row in results:
        print(
            f"{row['collective']:<12}{row['algorithm']:<10}{row['size']:>10} {row['model_us']:>14.1f} "
            f"{row['real_us']:>13.1f} {100 * row['error']:>+9.1f} {100 * row['noise']:>9.1f} {row['mpi_us']:>10.1f}"
        )
    errors = [abs(row["error"]) for row in results]
    print(f"median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %; ", end="")
    print(f"median noise {100 * statistics.median(row['noise'] for row in results):.1f} %")
    return 0


def _run(ranks: int, *words: str) -> str:
    command = [str(mpirun_here()), "-n", str(ranks), sys.executable, "-m", "collemu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
