"""A command that all processes of an mpirun run together: what they start with, and how all of them end."""

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collemu.ranks.part import Communicator

INTERRUPTED = 130


def run_together(
    arguments: argparse.Namespace, work: "Callable[[Communicator], int]", *, start: str, alone: bool = False
) -> int:
    """Run a command in all processes.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the command's name and ``debug``.
    work : callable
        What each process does with a communicator of all; it returns the exit code, and all return the same.
    start : str
        How the command is started, for those who did not start it so.
    alone : bool
        Whether one process without MPI will do.

    Returns
    -------
    int
        The exit code; 2 for bad input that all processes know of. What goes wrong in one of them ends all.
    """
    from collemu.ranks.agreement import AgreedError
    from collemu.ranks.launch import abort, fault_text, launched_rank

    def refuse(error: Exception, rank: int) -> int:
        """Say once what is wrong; every process leaves with the same exit code."""
        if rank == 0:
            if arguments.debug:
                traceback.print_exception(error)
            print(f"collemu {arguments.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2

    try:
        comm = _communicator(start, alone)
    except ValueError as error:
        return refuse(error, launched_rank())
    try:
        return work(comm)
    except AgreedError as error:
        code = refuse(error, comm.rank)
        comm.Barrier()  # some launchers end all processes when the first leaves, before the line is out
        return code
    except BaseException as error:
        if arguments.debug:
            traceback.print_exc()
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        abort(comm, f"collemu {arguments.command}: rank {comm.rank} of {comm.size}: {fault_text(error)}", code)
        raise


def _communicator(start: str, alone: bool) -> "Communicator":
    """All processes of the launch, or this one alone where that will do."""
    from collemu.ranks.alone import Alone
    from collemu.ranks.launch import INSTALL, launched_size, mpirun_here, start_mpi, under_mpirun

    if not under_mpirun():
        if alone:
            return Alone()
        how = start if mpirun_here() else f"{INSTALL}, then {start}"
        raise ValueError(f"real processes are needed: {how}")
    try:
        return start_mpi()
    except ValueError:
        if alone and launched_size() == 1:
            return Alone()
        raise
