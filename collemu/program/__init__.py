"""Algorithms of your own: a Python function says what goes where, and becomes a schedule like any other.

`docs/own-algorithms.md` is the guide.
"""

from collemu.program.algorithm import Algorithm, algorithm
from collemu.program.recording import Chunk, Program, ProgramError
from collemu.program.threads import Operation, Thread

__all__ = ["Algorithm", "Chunk", "Operation", "Program", "ProgramError", "Thread", "algorithm"]
