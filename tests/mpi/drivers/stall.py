"""Run collemu; in the middle of a schedule rank 1 stops, is killed, or sleeps, as the first argument says."""

import os
import signal
import sys
import time
from itertools import count

from collemu.cli.main import console
from collemu.ranks.launch import launched_rank
from collemu.ranks.transport import MpiTransport

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}

how = sys.argv.pop(1)
waits = count(1)
wait = MpiTransport.wait


def stall(self):
    if launched_rank() == 1 and next(waits) == 2:
        if how in SIGNALS:
            os.kill(os.getpid(), SIGNALS[how])
        else:
            time.sleep(1000)
    return wait(self)


MpiTransport.wait = stall
console()
