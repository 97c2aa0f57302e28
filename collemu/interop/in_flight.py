"""How much was on its way when: what traces and pictures show below the operations."""

import numpy as np
from numpy.typing import NDArray

from collemu.timeline import Timeline


def on_their_way(timeline: Timeline, times_fs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Wire bytes of the messages that may leave their chip and are not there yet, at some times (femtoseconds)."""
    messages = timeline.messages
    nbytes = np.zeros(len(times_fs), np.int64)
    for column, sign in (("ready_fs", 1), ("visible_fs", -1)):
        order = np.argsort(messages[column])
        before = np.concatenate(([0], np.cumsum(messages["nbytes"][order])))
        nbytes += sign * before[np.searchsorted(messages[column][order], times_fs, side="right")]
    return nbytes
