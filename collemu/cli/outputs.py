"""Files that a command writes at its end: tried before it runs, and in place of older ones only once they are whole."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STDOUT = "-"


def try_outputs(json: str | None, csv: str | None) -> None:
    """Find out whether ``--json`` and ``--csv`` can be written, without touching what is there.

    Raises
    ------
    ValueError
        If they cannot, or are the same file; the text names the path.
    """
    if json == csv == STDOUT:
        raise ValueError("--json - and --csv - both want stdout; give one of them a file")
    files = {flag: name for flag, name in (("--json", json), ("--csv", csv)) if name not in (None, STDOUT)}
    if len(files) == 2 and Path(str(json)).resolve() == Path(str(csv)).resolve():
        raise ValueError(f"--json and --csv are both {json}; give two files")
    for flag, name in files.items():
        try_output(flag, str(name))


def write_whole(name: str, write: Callable[[Any], None], *, binary: bool = False) -> None:
    """Write a file beside its place and move it there, so that a failure leaves the older one; ``-`` is stdout.

    ``write`` gets a file of text, or of bytes.

    Raises
    ------
    ValueError
        If it cannot be written; the text names the path.
    """
    if name == STDOUT:
        write(sys.stdout)
        return
    path = Path(name).resolve()
    # what is no plain file, such as /dev/null, cannot be replaced; nor can anything where no new file may be
    in_place = path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))
    written = path if in_place else path.with_name(f".collemu-{os.getpid()}.part")
    try:
        with written.open("wb") if binary else written.open("w", encoding="utf-8", newline="") as file:
            write(file)
        if not in_place:
            if path.exists():
                shutil.copymode(path, written)
            written.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {name}: {reason(error)}") from None
    finally:
        if not in_place:
            written.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """What the operating system says, without number and path."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def try_output(flag: str, name: str) -> None:
    """Find out whether a file can be written, without touching what is there.

    Raises
    ------
    ValueError
        If it cannot; the text names flag and path.
    """
    path = Path(name)
    try:
        if not name or path.is_dir():
            raise ValueError(f"{flag} {name!r} is no file; give the path of one, or - for stdout")
        is_new = not path.exists()
        if is_new or path.is_file():
            path.open("a").close()
        elif not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        if is_new:
            path.resolve().unlink()
    except OSError as error:
        raise ValueError(f"cannot write {flag} {name}: {reason(error)}; give another path") from None
