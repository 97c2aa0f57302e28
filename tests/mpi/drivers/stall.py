"""Run collemu; rank 1 stops in the middle of a schedule, or sleeps where it says so, and never goes on."""

import os
import signal
import sys
import time
from itertools import count

from collemu.cli.main import console
from collemu.ranks.launch import launched_rank
from collemu.ranks.transport import MpiTransport

how = sys.argv.pop(1)
waits = count(1)
wait = MpiTransport.wait


def stall(self):
    if launched_rank() == 1 and next(waits) == 2:
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            time.sleep(1000)
    return wait(self)


MpiTransport.wait = stall
console()
