"""A run as a picture: what every rank did when, and how many bytes were on their way."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.emulator import Result
from collemu.interop.in_flight import on_their_way
from collemu.interop.plotting import load_matplotlib
from collemu.schedule import KIND_NAMES, RECEIVES, SENDS
from collemu.timeline import Timeline

FS_PER_US = 10**9
POINTS = 1000
MANY_RANKS = 24  # from so many on, lines have no gap between them
LAUNCH = "#eceff3"
#: What an operation does, in the order of the legend, and its colour.
DEEDS = {
    "send": "#2a6fbb",
    "receive": "#e0902a",
    "receive and send": "#2f9c6d",
    "add": "#b5384c",
    "copy": "#9aa3ad",
}


def draw_timelines(results: Sequence[Result], titles: Sequence[str], path: str | PathLike[str]) -> None:
    """Draw runs side by side: above the operations, one line a rank; below the wire bytes on their way.

    Parameters
    ----------
    results : sequence of Result
        With timelines.
    titles : sequence of str
        One a run.
    path : path
        Its ending says the kind of picture: .png, .svg, .pdf.

    Raises
    ------
    ValueError
        If matplotlib is not installed, or a run has no timeline.
    """
    timelines = [result.timeline for result in results if result.timeline is not None]
    if not results or len(timelines) < len(results):
        raise ValueError("a picture needs runs with a timeline; emulate with timeline=True")
    mpl, collections, patches, figures = load_matplotlib(
        "matplotlib", "matplotlib.collections", "matplotlib.patches", "matplotlib.figure"
    )
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = figures.Figure(figsize=(max(5.5, 4.4 * len(results)), 5.6), layout="constrained", dpi=160)
        axes: Any = figure.subplots(
            2, len(results), sharex="col", squeeze=False, height_ratios=(4, 1), gridspec_kw={"hspace": 0.04}
        )
        for column, (result, timeline, title) in enumerate(zip(results, timelines, titles, strict=True)):
            upper, lower = axes[0][column], axes[1][column]
            for deed, boxes in _boxes(timeline).items():
                upper.add_collection(
                    collections.PolyCollection(boxes, facecolor=DEEDS[deed], linewidth=0, alpha=0.8, rasterized=True)
                )
            launch = float(timeline.operations["start_fs"].min(initial=result.time_fs)) / FS_PER_US
            upper.axvspan(0, launch, color=LAUNCH, linewidth=0)
            ranks = int(timeline.operations["rank"].max(initial=0)) + 1
            upper.set(xlim=(0, result.time_s * 1e6), ylim=(ranks, 0), title=title)
            times = np.linspace(0, result.time_fs, POINTS).astype(np.int64)
            way = on_their_way(timeline, times) / ranks / 1000
            lower.fill_between(times / FS_PER_US, way, color="#5b6b7b", linewidth=0)
            lower.set(xlabel="time (us)", ylim=(0, None))
        axes[0][0].set_ylabel("rank")
        axes[1][0].set_ylabel("on their way\n(kB a rank)")
        handles = [patches.Patch(color=colour, label=deed) for deed, colour in (("launch", LAUNCH), *DEEDS.items())]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        figure.savefig(path)


def _boxes(timeline: Timeline) -> dict[str, NDArray[np.float64]]:
    """Corners of every operation's box, (operations, 4, 2), by what it does; all threads of a rank are on its line."""
    operations = timeline.operations
    top = operations["rank"].astype(np.float64)
    bottom = top + (1.0 if top.max(initial=0) >= MANY_RANKS else 0.9)
    left, right = operations["start_fs"] / FS_PER_US, operations["finish_fs"] / FS_PER_US
    corners = np.stack(
        [
            np.stack([left, right, right, left], axis=1),
            np.stack([top, top, bottom, bottom], axis=1),
        ],
        axis=2,
    )
    kind = operations["kind"]
    receives, sends = RECEIVES[kind], SENDS[kind]
    adds = np.array(["reduce" in name for name in KIND_NAMES])[kind]
    chosen = {
        "send": sends & ~receives,
        "receive": receives & ~sends & ~adds,
        "receive and send": receives & sends,
        "add": adds & ~sends,
        "copy": ~receives & ~sends & ~adds,
    }
    return {deed: corners[which] for deed, which in chosen.items()}
