"""Run collemu; when rank 1 first waits, or begins a point, it stops, is killed, or sleeps, as the first word says."""

import os
import signal
import sys
import time

from collemu.cli import perf, sweep
from collemu.cli.main import console
from collemu.ranks.launch import launched_rank
from collemu.ranks.transport import MpiTransport

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}

how = sys.argv.pop(1)


def stalling(work, after):
    def stall(*words):
        if launched_rank() == 1:
            time.sleep(after)
            if how in SIGNALS:
                os.kill(os.getpid(), SIGNALS[how])
            else:
                time.sleep(1000)
        return work(*words)

    return stall


MpiTransport.wait = stalling(MpiTransport.wait, 0)
perf.measure = sweep.measure = stalling(perf.measure, 1)  # so that the others have seen what it is at
console()
