"""A sweep of some 2,000 points in one process and in two: ``python -m benchmarks.sweeps``.

The tables must be the same bytes. Both runs include the start of the command and what is loaded and built once.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collemu.ranks.launch import mpirun_here

SWEEP = """\
name = "benchmark"

[defaults]
minbytes = "16K"
maxbytes = "4M"
stepfactor = 2

[[sweep]]
collective = ["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
algorithm = "all"
ranks = [8, 16, 32]
wire = ["none", "mxfp8_e4m3", "mxfp4"]
"""
POINTS = 2000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        file.write_text(SWEEP)
        alone, shared = Path(folder) / "alone.csv", Path(folder) / "shared.csv"
        took_alone = _took("sweep", str(file), "-o", str(alone))
        took_shared = _took("sweep", str(file), "-o", str(shared), processes=2)
        points = len(alone.read_text().splitlines()) - 1
        same = alone.read_bytes() == shared.read_bytes()
    print(f"{points} points: {took_alone:.1f} s in one process, {took_shared:.1f} s in two, ", end="")
    print(f"ratio {took_shared / took_alone:.2f}; tables {'identical' if same else 'DIFFER'}")
    return int(not same or points < POINTS)


def _took(*words: str, processes: int = 1) -> float:
    """Seconds of a command."""
    command = [sys.executable, "-m", "collemu", *words]
    if processes > 1:
        command = [str(mpirun_here()), "-n", str(processes), *command]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
