"""Plain tables for the terminal."""

from collections.abc import Sequence


def lines_of(heading: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> list[str]:
    """A heading, a rule and rows in aligned columns, two spaces apart.

    Parameters
    ----------
    heading : sequence of str
    rows : sequence of sequences
        Cells, turned to text.
    right : str
        One character a column, ``>`` for those that are aligned to the right; missing ones are left.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heading, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right[place : place + 1] == ">" else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(aligned).rstrip()

    return [line(heading), line(["-" * width for width in widths]), *map(line, texts)]


def quantity(value: float, unit: str) -> str:
    """A number in a unit of a size that reads well: ``150 ns``, ``1.8 TB/s``, ``288 GiB``; decimal except for bytes."""
    if unit == "s":
        return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))
    if unit == "bytes" and value >= 2**20 and value % 2**20 == 0:
        return _scaled(value, (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)))
    if unit == "bytes/s":
        return _scaled(value, (("PB/s", 1e15), ("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("B/s", 1.0)))
    if unit == "flop/s":
        return _scaled(value, (("Eflop/s", 1e18), ("Pflop/s", 1e15), ("Tflop/s", 1e12), ("flop/s", 1.0)))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value} {unit}".rstrip()


def _scaled(value: float, steps: Sequence[tuple[str, float]]) -> str:
    unit, size = next((step for step in steps if abs(value) >= step[1]), steps[-1])
    return f"{value / size:.6g} {unit}"
