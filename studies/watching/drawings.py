"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.change_tests import Cell

from ..publishing import Figures, look
from .claims import median, rows_of

LOOK = look("watching")


def draw(cells: Sequence[Cell]) -> Figures:
    """The figures by file name."""
    return {"watching.svg": draw_delays(cells)}


def draw_delays(cells: Sequence[Cell]) -> Figure:
    """Batches until a service time half as long again is noticed, and the fewest that any test needs."""
    figure = Figure(figsize=(4.5, 3), layout="constrained")
    axes = figure.subplots()
    rows = rows_of(cells, "service")
    scvs = [float(row) for row in rows]
    axes.loglog(scvs, [median(row["× 1.5"]) for row in rows.values()], "o-", label="median of what was measured")
    axes.loglog(scvs, [max(1.0, float(row["least for × 1.5"])) for row in rows.values()], "--", label="least, in the mean (Lorden)")
    axes.set_xlabel("squared coefficient of variation of a batch's time")
    axes.set_ylabel("batches until × 1.5 is noticed")
    axes.legend()
    return figure
