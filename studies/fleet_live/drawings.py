"""The figure of the page."""

from __future__ import annotations

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .computation import WINDOW
from .results import LIVE, REPLAYED, SIMULATED, SLOWER, Study

LOOK = look("fleet-live")
STYLES = {LIVE: "k-", REPLAYED: "C2-.", SIMULATED: "C0--", SLOWER: "C1:"}


def draw(study: Study) -> Figures:
    """The figure by its file name."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for run, style in STYLES.items():
        windows = study.of(run)
        times = [window.begin + WINDOW / 2 for window in windows]
        for ax, values in zip(
            axes,
            (
                [window.in_time / WINDOW for window in windows],
                [window.accuracy for window in windows],
                [window.late for window in windows],
            ),
            strict=True,
        ):
            ax.plot(times, values, style, label=run, marker="o", markersize=2.5)
    for ax, words in zip(axes, ("in time, 1/s", "accuracy, %", "late, %"), strict=True):
        ax.set_ylabel(words)
        ax.set_ylim(bottom=0 if words != "accuracy, %" else None)
    axes[-1].set_xlabel("s; 12 are an hour of the day")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return {"fleet-live.svg": figure}
