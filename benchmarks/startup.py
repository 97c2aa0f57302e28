"""How long a command takes before it does anything: whole processes."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.rows import Row, best_seconds

TITLE = "Start-up, whole processes"


def run() -> Iterator[Row]:
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "collemu --help": [sys.executable, "-m", "collemu", "--help"],
        "collemu systems": [sys.executable, "-m", "collemu", "systems"],
        "collemu perf all_reduce -b 1M -e 1M (kernels cached)": [
            *(sys.executable, "-m", "collemu", "perf", "all_reduce", "--algorithm", "ring", "-b", "1M", "-e", "1M"),
        ],
    }
    for name, command in commands.items():
        seconds = best_seconds(lambda command=command: subprocess.run(command, check=True, capture_output=True), 3)
        yield Row(name, f"{seconds:.3f} s")
