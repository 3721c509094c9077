"""The figures of the page."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..publishing import Figures, look
from .results import Study
from .systems import OURS, PROTEUS

LOOK = look("proteus")
COLOURS = {
    OURS: "#d55e00",
    PROTEUS: "#1f83c9",
    "Sommelier": "#009e73",
    "INFaaS-accuracy": "#b05fa0",
    "Clipper-HA": "#e69f00",
    "Clipper-HT": "#56b4e9",
    "bound": "#808080",
}
KINDS = {
    "throughput": "requests/s answered in time",
    "accuracy": "effective accuracy, %",
    "violations": "violations, %",
}


def draw(study: Study) -> Figures:
    """The figures by file name; those alone that there are data for."""
    figures = {f"proteus-{kind}.svg": draw_series(study, kind) for kind in KINDS}
    if study.of("headrooms"):
        figures["proteus-headrooms.svg"] = draw_headrooms(study)
    if study.of("deadlines"):
        figures["proteus-deadlines.svg"] = draw_deadlines(study)
    if study.cells:
        figures["proteus-batching.svg"] = draw_batching(study)
    return figures


def draw_series(study: Study, kind: str) -> Figure:
    """A measure of every system over time, a panel for each demand and fleet."""
    cases = list(dict.fromkeys(window.case for window in study.windows))
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for axes, case in zip(panels, cases, strict=True):
        systems = list(dict.fromkeys(window.system for window in study.windows if window.case == case))
        for system in systems:
            windows = study.series(case, system)
            times = [window.start for window in windows]
            if kind == "throughput" and system == systems[0]:
                axes.plot(times, [window.demand for window in windows], "k:", linewidth=1.2, label="demand")
            factor = 100 if kind == "violations" else 1
            values = [factor * getattr(window, kind) for window in windows]
            look: Any = {"color": COLOURS.get(system), "linewidth": 1.8 if system == OURS else 1}
            axes.plot(times, values, "--" if system == "bound" else "-", label=system, **look)
        if kind == "accuracy":  # without the least accurate, which are far below
            shown = [w.accuracy for w in study.windows if w.case == case and w.system != "Clipper-HT" and w.throughput]
            axes.set_ylim(min(shown) - 0.5, 100.3)
        axes.set_title(case, fontsize=8)
        axes.set(xlabel="s", ylabel=KINDS[kind])
    _legend_below(figure, panels[0])
    return figure


def draw_headrooms(study: Study) -> Figure:
    """Violations against effective accuracy, ours with each headroom kept to, and every system."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    kept = study.of("headrooms")
    axes.plot(
        [run.accuracy for run in kept], [100 * run.violations for run in kept], ".-", color="gray", label="ours, headroom kept to"
    )
    for run in kept:
        axes.annotate(run.case, (run.accuracy, 100 * run.violations), (3, 3), textcoords="offset points", fontsize=7)
    lowest = min(run.accuracy for run in kept) - 1
    for run in study.of("systems", study.cases("systems")[-1]):
        if run.accuracy < lowest:
            continue  # Clipper-HT is far to the left
        axes.plot(run.accuracy, 100 * run.violations, "o", color=COLOURS.get(run.system), markersize=5, label=run.system)
    axes.set(xlabel="effective accuracy, %", ylabel="violations, %")
    _legend_below(figure, axes)
    return figure


def draw_deadlines(study: Study) -> Figure:
    """Violations and the drop of accuracy of every system by deadline."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    first, second = figure.subplots(1, 2)
    cases = study.cases("deadlines")
    for system in study.systems("deadlines"):
        found = {case: study.run("deadlines", case, system) for case in cases}
        look: Any = {"color": COLOURS.get(system), "markersize": 3, "linewidth": 1.8 if system == OURS else 1}
        places = [i for i, case in enumerate(cases) if found[case] is not None]
        runs = [run for run in found.values() if run is not None]
        first.plot(places, [100 * run.violations for run in runs], "o-", label=system, **look)
        second.plot(places, [100 - run.accuracy for run in runs], "o-", label=system, **look)
    for axes, label in ((first, "violations, %"), (second, "100 - effective accuracy, %")):
        axes.set_xticks(range(len(cases)), cases)
        axes.set(xlabel="deadlines", ylabel=label)
    _legend_below(figure, first)
    return figure


def draw_batching(study: Study) -> Figure:
    """Violations on one queue by load, a panel for each kind of arrivals."""
    kinds = list(dict.fromkeys(cell.arrivals for cell in study.cells))
    policies = list(dict.fromkeys(cell.policy for cell in study.cells))
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for i, policy in enumerate(policies):
            cells = [cell for cell in study.cells if cell.arrivals == kind and cell.policy == policy]
            axes.plot([c.load for c in cells], [100 * c.violations for c in cells], f"C{i}.-", linewidth=1, label=policy)
        axes.set_title(kind, fontsize=8)
        axes.set(xlabel="load")
        axes.set_yscale("symlog", linthresh=0.1)
    panels[0].set_ylabel("violations, %")
    _legend_below(figure, panels[0])
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    arguments: dict[str, Any] = {"loc": "outside lower center", "ncols": 4, "fontsize": 7, "frameon": False}
    figure.legend(handles, labels, **arguments)
