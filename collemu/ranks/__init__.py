"""Chips as processes: the same schedule on real MPI processes, compared with the emulator byte by byte."""
