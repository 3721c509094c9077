"""The figure of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ..publishing import Figures, look
from .claims import loads, of
from .results import POLICIES, Row

LOOK = look("control")


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"control.svg": draw_costs(rows)}


def draw_costs(rows: Sequence[Row]) -> Figure:
    """Cost over the clairvoyant's, and windows that were not kept, by load and policy."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    cost, broken = figure.subplots(1, 2)
    names, width = loads(rows), 0.8 / len(POLICIES)
    for k, policy in enumerate(POLICIES):
        mine = [next(row for row in of(rows, load) if row.policy == policy) for load in names]
        at = np.arange(len(names)) + (k - (len(POLICIES) - 1) / 2) * width
        cost.bar(at, [row.ratio for row in mine], width, label=policy)
        broken.bar(at, [100 * (1 - row.kept / row.feasible) for row in mine], width)
    cost.set_ylabel("cost over the clairvoyant's")
    cost.set_ylim(bottom=0.9)
    broken.set_ylabel("% of the windows broken that could be kept")
    for axes in (cost, broken):
        axes.set_xticks(np.arange(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=7)
    figure.legend(*cost.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=7)
    return figure
