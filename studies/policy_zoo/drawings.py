"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import cells, winner
from .computation import CHOSEN
from .results import Row

LOOK = look("policy-zoo", grid=False)


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"policy-zoo.svg": draw_costs(rows)}


def draw_costs(rows: Sequence[Row]) -> Figure:
    """Cost over the winner's, by cell and policy."""
    found = cells(rows)
    names = list(found[0])
    ratio = np.array([[cell[name].cost / winner(cell).cost if cell[name].keeps else np.nan for name in names] for cell in found])
    drawing = Figure((8, 0.24 * len(found) + 1.4), layout="constrained")
    ax = drawing.subplots()
    ax.set_facecolor("0.7")
    mesh = ax.imshow(ratio, norm=LogNorm(1, 10), cmap="YlOrRd", aspect="auto", interpolation="none")
    ax.set_xticks(np.arange(len(names)), names, rotation=45, ha="right")
    labels = [cell[CHOSEN].where for cell in found]
    ax.set_yticks(np.arange(len(found)), labels)
    bar = drawing.colorbar(mesh, ax=ax, extend="max", ticks=[1, 2, 5, 10], format="%g")
    bar.set_label("times the winner's cost")
    return drawing
