"""Pictures of measured against predicted times."""

from importlib import import_module
from pathlib import Path
from typing import Any

from collemu.fidelity.measured import Measured
from collemu.fidelity.predict import Predictions


def draw(rows: Measured, found: Predictions, folder: Path) -> list[Path]:
    """A picture a group: each case's times over size, measured as dots, predicted as lines.

    Raises
    ------
    ValueError
        If matplotlib is missing, or the folder cannot be written.
    """
    try:
        matplotlib: Any = import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError:
        raise ValueError('pictures need matplotlib; install it with: pip install "collemu[plot]"') from None
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for family in sorted(set(found.family.tolist()) - {""}):
            figure, axes = pyplot.subplots(figsize=(9, 6))
            for case in dict.fromkeys(rows.case[found.family == family].tolist()):
                mask = (found.family == family) & (rows.case == case)
                (line,) = axes.loglog(rows.size[mask], found.time_us[mask], linewidth=0.8)
                axes.loglog(rows.size[mask], rows.time_us[mask], ".", color=line.get_color())
            axes.set(xlabel="size (bytes)", ylabel="time (us)", title=f"{family}: measured (dots), predicted (lines)")
            path = folder / f"{'_'.join(''.join(c if c.isalnum() else ' ' for c in family).split())}.png"
            figure.savefig(path, dpi=120)
            pyplot.close(figure)
            written.append(path)
    except OSError as error:
        raise ValueError(f"cannot write --plot {folder}: {(error.strerror or str(error)).lower()}") from None
    return written
