"""Pending endpoint events: a binary heap of (time, code) in two parallel arrays, earliest first.

Packets never enter it; it holds what happens at chips (a few thousand keys), so a plain heap is the fast choice.
"""

from collemu_kernels._jit import jit_lean


@jit_lean
def push(times, codes, size, time, code):
    """Add an event and return the new size. The caller has made the arrays long enough."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] <= time:
            break
        times[hole] = times[parent]
        codes[hole] = codes[parent]
        hole = parent
    times[hole] = time
    codes[hole] = code
    return size + 1


@jit_lean
def pop(times, codes, size):
    """Remove the earliest event and return the new size; read ``times[0]``, ``codes[0]`` before."""
    size -= 1
    time = times[size]
    code = codes[size]
    hole = 0
    child = 1
    while child < size:
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[hole] = times[child]
        codes[hole] = codes[child]
        hole = child
        child = 2 * hole + 1
    times[hole] = time
    codes[hole] = code
    return size
