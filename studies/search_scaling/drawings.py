"""The figure of the page."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..publishing import Figures, look
from .computation import LABELS, SWEEPS, TASKS
from .results import Study

LOOK = look("search-scaling")


def draw(study: Study) -> Figures:
    """The figures by file name."""
    return {"search-scaling.svg": draw_growth(study)}


def draw_growth(study: Study) -> Figure:
    """Time and memory, log-log, a column for each parameter."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(2, len(SWEEPS), sharex="col", sharey="row")
    for column, parameter in enumerate(SWEEPS):
        draw_column(panels[0, column], panels[1, column], study, parameter)
    panels[0, 0].set_ylabel("CPU seconds")
    panels[1, 0].set_ylabel("MB")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(TASKS), fontsize=7)
    return figure


def draw_column(above: Axes, below: Axes, study: Study, parameter: str) -> None:
    """Time above and memory below along one parameter."""
    for colour, task in enumerate(TASKS):
        along = study.curve(task, parameter)
        at = [point.value for point in along]
        above.loglog(at, [point.seconds for point in along], f"C{colour}s-", markersize=2.5, label=task)
        below.loglog(at, [max(point.megabytes, 0.1) for point in along], f"C{colour}s-", markersize=2.5)
    below.set_xlabel(LABELS[parameter])
    below.set_xticks(SWEEPS[parameter], [str(value) for value in SWEEPS[parameter]], minor=False)
    for axes in (above, below):
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(bottom=False, left=False)  # the grid shows the same
