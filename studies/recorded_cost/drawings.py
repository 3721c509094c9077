"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import NEAR, Pair, fit, half_fit, half_record, off, record
from .results import Row

LOOK = look("recorded-cost")


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"recorded-cost.svg": draw_errors(rows)}


def draw_errors(rows: Sequence[Row]) -> Figure:
    """What is said over what is billed, cell by cell: on the whole trace, and of the first half on the second."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    panels: list[tuple[str, Pair, Pair]] = [
        ("the whole trace", fit, record),
        ("from the first half, on the second", half_fit, half_record),
    ]
    for axes, (title, before, after) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
        axes.axhspan(-100 * NEAR, 100 * NEAR, color="0.85", label=f"within {100 * NEAR:g} %")
        for of, style, label in ((before, "x", "said by the fit"), (after, "o", "said on the record")):
            axes.plot([100 * off(of(row)) for row in rows], style, markersize=4, label=label)
        axes.set_title(title)
        starts = [k for k, row in enumerate(rows) if k == 0 or rows[k - 1].trace != row.trace]
        axes.set_xticks(starts, [rows[k].trace for k in starts], rotation=20, ha="left", fontsize=6)
    figure.axes[0].set_ylabel("what is said beyond what is billed, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    return figure
