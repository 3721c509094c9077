"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import cells
from .functions import BILLS
from .results import ALONE, BATCH, MERGED, SLUICE, STRICT, Found, Row
from .sets import sets

LOOK = look("harmonybatch")
MARKS = {MERGED: "o", BATCH: "x", ALONE: "+", STRICT: "^"}


def draw(found: Found) -> Figures:
    """The figures by file name."""
    return {"harmonybatch.svg": draw_ratios(found.rows)}


def draw_ratios(rows: Sequence[Row]) -> Figure:
    """Cost over that of the shared queues, by the requests of a set in a second, a panel for each bill."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, bill in zip(figure.subplots(1, len(BILLS), sharey=True), BILLS, strict=True):
        found = cells(rows, bill)
        rates = [sum(of.rate for of in sets()[cell[SLUICE].applications]) for cell in found]
        for way, mark in MARKS.items():
            ratios = [cell[way].cost / cell[SLUICE].cost for cell in found]
            axes.plot(rates, ratios, mark, markersize=4, fillstyle="none", label=way)
        axes.axhline(1, color="0.5")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_yticks([1, 1.5, 2, 3, 4], ["1", "1.5", "2", "3", "4"])
        axes.set_yticks([], minor=True)
        axes.set_title(f"GPU seconds billed {'whole' if bill == BILLS[0] else 'exactly'}")
        axes.set_xlabel("requests/s of all applications")
    figure.axes[0].set_ylabel("cost over that of Sluice's shared queues")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
    return figure
