"""The figures of the page."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import by_load, by_ratio
from .computation import ENERGIES
from .results import Study, drawn

LOOK = look("smdp-classes")


def draw(study: Study) -> Figures:
    """The figures by file name."""
    return {"smdp-classes-table.svg": draw_table(study), "smdp-classes-saved.svg": draw_saved(study)}


def draw_table(study: Study) -> Figure:
    """How many leave, by how many of each class wait."""
    grid = np.array(drawn(study.cells))
    figure = Figure(figsize=(5.4, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(grid, origin="lower", cmap="Blues", vmin=0, vmax=grid.max() * 1.6)
    for (q1, q2), taken in np.ndenumerate(grid):
        axes.text(q2, q1, str(taken) if taken else "·", ha="center", va="center", fontsize=7)
    axes.set_xlabel("patient requests waiting")
    axes.set_ylabel("urgent requests waiting")
    return figure


def draw_saved(study: Study) -> Figure:
    """What is saved by load, and by the ratio of weights."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for colour, energy in enumerate(ENERGIES):
        named = "latency and energy" if energy else "latency alone"
        for axes, rows, x in ((left, by_load(study.rows, energy), "load"), (right, by_ratio(study.rows, energy), "ratio")):
            at = [getattr(row, x) for row in rows]
            axes.plot(at, [100 * row.saved for row in rows], f"C{colour}o-", markersize=3, label=f"{named}: in order of arrival")
            first = [100 * row.saved_of_first for row in rows]
            axes.plot(at, first, f"C{colour}s--", markersize=3, label=f"{named}: the urgent first")
    right.set_xscale("log")
    left.set_xlabel("load")
    right.set_xlabel("weight of the urgent over that of the patient")
    left.set_ylabel("saved of the cost, %")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=7)
    return figure
