"""collemu, whose rank 1 takes 30 ms more for each operation."""

import time

from collemu.cli.main import console
from collemu.ranks.execute import Execution
from collemu.ranks.launch import launched_rank

run_next = Execution.run_next


def slow_run_next(self, transport):
    time.sleep(0.03)
    run_next(self, transport)


if launched_rank() == 1:
    Execution.run_next = slow_run_next
console()
