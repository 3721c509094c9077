"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import of
from .computation import LATENCIES, RATES
from .results import EVERY_LOAD, Row

LOOK = look("every-load")


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"every-load.svg": draw_ratios(rows)}


def draw_ratios(rows: Sequence[Row]) -> Figure:
    """Cost over the least by rate, a panel for each SLO, a line for each plan."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, latency in zip(figure.subplots(1, len(LATENCIES), sharey=True), LATENCIES, strict=True):
        for made_for in [*(f"{rate:g}" for rate in RATES), EVERY_LOAD]:
            along, one = of(rows, latency, made_for), made_for == EVERY_LOAD
            label = "one plan for every load" if one else f"table made for {made_for}/s"
            style = "k-" if one else "--"
            axes.semilogx([row.rate for row in along], [row.ratio for row in along], style, marker="o", markersize=3, label=label)
        axes.set_title(f"95 % within {1e3 * latency:g} ms")
        axes.set_xlabel("requests/s")
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axes.set_xticks([], minor=True)
    figure.axes[0].set_ylabel("cost over that of the cheapest table of the rate")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    return figure
