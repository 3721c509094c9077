"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..publishing import Figures, look
from .results import Row

LOOK = look("smdp-day")


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"smdp-day.svg": draw_energy(rows)}


def draw_energy(rows: Sequence[Row]) -> Figure:
    """Energy and windows that were broken, by policy."""
    figure = Figure(figsize=(8, 2.5), layout="constrained")
    energy, broken = figure.subplots(1, 2, sharey=True)
    names = [row.policy for row in rows][::-1]
    energy.barh(names, [row.joules for row in rows][::-1])
    energy.set_xlabel("J a request")
    energy.set_xlim(left=0.9 * min(row.joules for row in rows))
    broken.barh(names, [row.feasible - row.kept for row in rows][::-1])
    broken.set_xlabel("windows broken that could be kept")
    return figure
