"""What a result depends on beside its input: versions, and the sources themselves."""

import platform
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import numpy as np
from collemu_kernels._jit import source_fingerprint

import collemu


def versions() -> dict[str, str]:
    """Of collemu, Python, NumPy and Numba."""
    return {
        "collemu": collemu.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": version("numba"),
    }


def sources_fingerprint() -> str:
    """Twelve hexadecimal digits of the package's sources, the catalogue and the kernels."""
    package = Path(collemu.__file__).parent
    digest = sha256(source_fingerprint().encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".toml")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
