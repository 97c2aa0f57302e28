"""The elements of an XML file from a stranger, one after the other.

No document type, hence no entities, neither those that expand without end nor those that fetch files; no more bytes
than its kind can have; and never the whole file in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import NoReturn
from xml.parsers import expat

MOST_BYTES = 2**28
_AT_ONCE = 2**20


def read_elements(
    path: str | PathLike[str],
    begin: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None],
    *,
    what: str,
    most: int | None = None,
) -> None:
    """Call ``begin(name, attributes)`` and ``end(name)`` for every element of a file.

    Parameters
    ----------
    path : path of a file
    begin, end : callable
    what : str
        What the file is, for errors.
    most : int, optional
        Bytes that it may have, if fewer than `MOST_BYTES`.

    Raises
    ------
    ValueError
        If it is no XML, declares a document type, or is too large.
    OSError
        If it cannot be read.
    """

    def refuse_document_type(*_: object) -> NoReturn:
        raise ValueError(f"declares a document type, which {what} has not")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = refuse_document_type
    read, most = 0, most or MOST_BYTES
    with open(path, "rb") as file:
        try:
            while part := file.read(_AT_ONCE):
                read += len(part)
                if read > most:
                    raise ValueError(f"more than {most >> 20} MiB, which {what} has not")
                parser.Parse(part)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            text = expat.ErrorString(error.code) or error
            raise ValueError(f"no XML: line {error.lineno}: {text}") from None
