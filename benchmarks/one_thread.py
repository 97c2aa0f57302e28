"""A process in which every library runs on one thread, and BLAS with the kernel that it chooses itself."""

import os
import sys

from threadpoolctl import threadpool_info

ONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SLOWS_BLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def ensure_one_thread() -> None:
    """Start this process again where its environment says otherwise: libraries read it when they are loaded."""
    wanted = {name: value for name, value in os.environ.items() if name not in SLOWS_BLAS} | ONE
    if wanted != dict(os.environ):
        os.execve(sys.executable, sys.orig_argv, wanted)


def blas_kernel() -> str:
    """Name, version and kernel of the BLAS that NumPy has loaded."""
    libraries = [
        f"{library['internal_api']} {library['version']}, kernel {library.get('architecture', 'unknown')}"
        for library in threadpool_info()
        if library["user_api"] == "blas" and "numpy" in library["filepath"]
    ]
    return "; ".join(libraries) or "unknown"
