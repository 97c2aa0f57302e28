"""Processes share pieces of work of different lengths; then the first cannot keep what comes out."""

import time

from collemu.ranks.launch import start_mpi
from collemu.ranks.sharing import share

PIECES = (0, 1, 2, 7, 100)

comm = start_mpi()


def work(piece: int) -> tuple[int, int]:
    time.sleep(piece % 3 / 1000)
    return piece, comm.rank


for pieces in PIECES:
    kept: list[int] = []

    def keep(piece: int, outcome: tuple[int, int], kept: list[int] = kept) -> None:
        assert outcome[0] == piece and 0 <= outcome[1] < comm.size
        kept.append(piece)

    share(comm, pieces, work, keep)
    comm.Barrier()
    assert sorted(kept) == (list(range(pieces)) if comm.rank == 0 else []), kept
if comm.rank == 0:
    print(*PIECES, "pieces, each once", flush=True)


def fail(piece: int, outcome: object) -> None:
    raise OSError("the disk is full")


if comm.rank == 0:
    try:
        share(comm, 1, work, fail)
    except OSError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
