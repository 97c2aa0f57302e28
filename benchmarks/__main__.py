"""Run every benchmark, or those named: ``python -m benchmarks [packets numbers matmul startup]``."""

import sys
from importlib import import_module

from benchmarks.one_thread import ensure_one_thread
from benchmarks.peers import inventory
from benchmarks.rows import show

ALL = ("startup", "packets", "numbers", "matmul")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"benchmarks: no benchmark {unknown[0]!r}; choose {', '.join(ALL)}", file=sys.stderr)
        return 2
    ensure_one_thread()
    print("One thread, best of several after warm-up. Ratio: how many times the peer's speed, measured in this run")
    print("unless it says published. The share before it is of the limit that the table's first row measures.")
    print(inventory(), flush=True)
    for name in names or ALL:
        module = import_module(f"benchmarks.{name}")
        show(module.TITLE, module.run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
