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
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., object])

PLAIN_PYTHON = os.environ.get("COLLEMU_PLAIN_PYTHON", os.environ.get("NUMBA_DISABLE_JIT", "0")) not in (
    "",
    "0",
)


def source_fingerprint() -> str:
    """Hash of every kernel source, the Python version and the bounds-check switch."""
    digest = hashlib.sha256(repr((sys.version_info[:3], os.environ.get("NUMBA_BOUNDSCHECK"))).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """A writable folder of compiled kernels, the user's own, that is new whenever any kernel source changes.

    Numba's own rule looks at the file of the caller alone: an edited callee in another file would run stale. What lies
    in the folder is executed, so one that belongs to somebody else is left alone.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    user = os.getuid() if hasattr(os, "getuid") else 0  # Windows has no owners, and a temporary folder a user
    for base in (home / "collemu", Path(tempfile.gettempdir()) / f"collemu-{user}"):
        folder = base / source_fingerprint()
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            owner = base.lstat().st_uid
        except OSError:
            continue
        if owner == user and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="collemu-"))


if not PLAIN_PYTHON:
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_directory()))
    import numba


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel on its first call, cached on disk, without the GIL; or leave it as plain Python."""
    return _compiled(kernel)


def jit_lean(kernel: Kernel) -> Kernel:
    """As `jit`, for kernels that make no arrays: they do without Numba's counting of references to arrays.

    Every array passed to an ordinary kernel costs two atomic additions a call, more than the whole body of the little
    functions that move a packet.
    """
    return _compiled(kernel, _nrt=False)


def _compiled(kernel: Kernel, **options: Any) -> Kernel:
    if PLAIN_PYTHON:
        return kernel
    return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(kernel)  # pyright: ignore
