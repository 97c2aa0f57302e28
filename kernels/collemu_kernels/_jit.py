"""The one place that knows Numba: one decorator, one cache rule, one switch.

``COLLEMU_PLAIN_PYTHON=1`` (or Numba's own ``NUMBA_DISABLE_JIT=1``) runs every kernel as plain Python;
the bits are the same, only slower.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., object])

PLAIN_PYTHON = os.environ.get("COLLEMU_PLAIN_PYTHON", os.environ.get("NUMBA_DISABLE_JIT", "0")) not in ("", "0")


def source_fingerprint() -> str:
    """Hash of every kernel source, the Python version and the bounds-check switch."""
    digest = hashlib.sha256(repr((sys.version_info[:3], os.environ.get("NUMBA_BOUNDSCHECK"))).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """A writable folder of compiled kernels that is new whenever any kernel source changes.

    Numba's own rule looks at the file of the caller alone, so an edited callee in another file would run stale.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for base in (Path(home), Path(tempfile.gettempdir())):
        folder = base / "collemu" / source_fingerprint()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="collemu-"))


if PLAIN_PYTHON:

    def jit(kernel: Kernel) -> Kernel:
        """Leave the kernel as plain Python."""
        return kernel

else:
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_directory()))
    import numba

    def jit(kernel: Kernel) -> Kernel:
        """Compile the kernel on its first call, cached on disk, without the GIL."""
        return numba.njit(cache=True, nogil=True, error_model="numpy")(kernel)
