"""The error of collectives over the number of ranks, as a plot."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from collemu.error_growth import Error
from collemu.interop.plotting import load_matplotlib


def draw_growth(errors: Mapping[str, Sequence[Error]], path: str | PathLike[str]) -> None:
    """Draw the relative error of every line over its numbers of ranks, both logarithmic.

    Parameters
    ----------
    errors : mapping of str to sequence of Error
        By what the legend calls it.
    path : path
        Its ending says the kind of picture: .png, .svg, .pdf.

    Raises
    ------
    ValueError
        If matplotlib is not installed.
    """
    mpl, figures = load_matplotlib("matplotlib", "matplotlib.figure")
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": ""}):
        figure = figures.Figure(figsize=(6.4, 4.2), layout="constrained", dpi=160)
        axes: Any = figure.subplots()
        most = 0
        for label, line in errors.items():
            ranks = [each.ranks for each in line]
            most = max(most, *ranks)
            axes.loglog(ranks, [each.relative for each in line], marker="o", markersize=3, label=label)
        axes.set(xlabel="ranks", ylabel="relative error")
        ticks = [2**k for k in range(1, most.bit_length()) if 2**k <= most]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
