"""The same bits whether kernels are compiled, plain Python, or run by two threads at once.

``COLLEMU_TWIN_SEEDS`` sets how many seeds are tried. A failure lists the seed and part of every case that differs;
``python -m tests.properties.twin_digests SEED`` runs it again.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.properties.twin_digests import PARTS, digest

SEEDS = range(int(os.environ.get("COLLEMU_TWIN_SEEDS") or 150))
CASES = [(part, seed) for part in PARTS for seed in SEEDS]
LARGE = 12  # times the size: calls then last long enough to overlap

pytestmark = pytest.mark.timeout(900)  # without a cache of compiled kernels, nearly all of them are compiled here


def compiled(scale=1):
    return [digest(part, seed, scale) for part, seed in CASES]


def differences(first, second):
    """What two runs of all cases do not agree on, a line each."""
    return [
        f"seed {seed}, {part}: {one} but {two.rpartition(' ')[2]}"
        for (part, seed), one, two in zip(CASES, first, second, strict=True)
        if one != two
    ]


def test_plain_python_gives_the_same_bits():
    """And no warning."""
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(root / "kernels")])
    environment = os.environ | {"COLLEMU_PLAIN_PYTHON": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-W", "error", "-m", "tests.properties.twin_digests", *map(str, SEEDS)]
    run = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True)
    assert differences(compiled(), json.loads(run.stdout)) == []


@pytest.mark.parametrize("scale", [1, LARGE])
def test_two_threads_at_once_give_the_same_bits(scale):
    """Kernels run without the GIL: nothing that they write may be shared between calls."""
    barrier = Barrier(2)

    def run(order):
        """Cases in an order, each at the moment at which the other thread begins one of the same part."""
        found = {}
        try:
            for part in PARTS:
                for seed in SEEDS[::order]:
                    barrier.wait()
                    found[part, seed] = digest(part, seed, scale)
        except BaseException:
            barrier.abort()  # or the other thread would wait for ever
            raise
        return [found[case] for case in CASES]

    alone = compiled(scale)
    with ThreadPoolExecutor(2) as pool:
        for together in pool.map(run, (1, -1)):
            assert differences(alone, together) == []
