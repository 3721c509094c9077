"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..publishing import Figures, look
from .computation import OVERFLOW_COSTS, WEIGHTS
from .results import Study
from .servers import CONSTANT, LARGEST, LAWS, LOADS, PRINTED, logarithmic

SHOWN = 18  # states of figures 3 and 11
MARKS = {"greedy": "^", "static 8": "s", "static 16": "D", "static 32": "v"}
LOOK = look("smdp")


def draw(study: Study) -> Figures:
    """The figures by file name."""
    return {
        "smdp-figure-3.svg": draw_tables(study, ("1", "2", "3")),
        "smdp-figure-4.svg": draw_costs(study),
        "smdp-figure-5.svg": draw_curves(study, "basic"),
        "smdp-figure-6.svg": draw_latency(study),
        "smdp-figure-7.svg": draw_curves(study, "constant"),
        "smdp-figure-8.svg": draw_curves(study, "logarithmic"),
        "smdp-figure-9.svg": draw_laws(study),
        "smdp-figure-10.svg": draw_approximations(study),
        "smdp-figure-11.svg": draw_tables(study, ("4", "5a", "5b", "6", "7a", "7b")),
    }


def panels(n: int, height: float = 3.0) -> tuple[Figure, Sequence[Axes]]:
    """A figure of panels side by side."""
    figure = Figure(figsize=(9.6, height), layout="constrained")
    return figure, figure.subplots(1, n)


def name_marks(axes: Axes, size: float) -> None:
    """Put the benchmarks into the legend."""
    for name, mark in MARKS.items():
        axes.plot([], [], mark, color="gray", markersize=size, label=name)


def draw_tables(study: Study, names: Sequence[str]) -> Figure:
    """Actions by number waiting and load, a panel for each case and weight."""
    figure = Figure(figsize=(9.6, 0.4 + 0.95 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), len(WEIGHTS), sharex=True, sharey=True)
    for (i, name), (j, weight) in product(enumerate(names), enumerate(WEIGHTS)):
        axes: Axes = panels[i, j]
        rows = [row for row in study.tables if row.case == name and row.power_weight == weight]
        takes = np.array([row.of_states(SHOWN) for row in rows])
        axes.imshow(takes, cmap="Blues", vmin=0, vmax=8, aspect="auto", origin="lower", interpolation="none")
        axes.plot([row.first_served for row in rows], range(len(rows)), "s", color="hotpink", markersize=5, fillstyle="none")
        crossed = [(s, y) for y, row in enumerate(rows) for s in row.deviations(SHOWN)]
        axes.plot(*(zip(*crossed, strict=True) if crossed else ([], [])), "x", color="magenta", markersize=4)
        axes.set_yticks(range(len(rows)), [str(row.load) for row in rows])
        axes.tick_params(left=j == 0, bottom=i == len(names) - 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(False)
        if i == 0:
            axes.set_title(f"w2 = {weight:g}", fontsize=8)
        if j == 0:
            axes.set_ylabel(f"Case {name}")
    figure.supxlabel("requests waiting (rows: load)", fontsize=8)
    figure.colorbar(panels[0, 0].images[0], ax=panels, label="batch taken", shrink=0.8)
    return figure


def draw_costs(study: Study) -> Figure:
    """Cost against w2."""
    figure, all_axes = panels(3, 2.8)
    for axes, load in zip(all_axes, (0.1, 0.3, 0.7), strict=True):
        rows = [row for row in study.costs if row.load == load]
        weights = [row.power_weight for row in rows]
        axes.plot(weights, [row.smdp for row in rows], "C1", linewidth=2.5, label="SMDP")
        for color, name in zip(("C0", "C2", "C3", "C4"), MARKS, strict=True):
            costs = [getattr(row, name.replace(" ", "_")) for row in rows]
            axes.plot(weights, costs, color, linewidth=1, label=name)
        axes.set_title(f"load {load}", fontsize=8)
        axes.set(xlabel="w2", ylabel="cost, ms + w2 · W")
        axes.legend(fontsize=7)
    return figure


def draw_curves(study: Study, setting: str) -> Figure:
    """Latency against power, and against requests per J, at every load; in front what the setting changes, or two loads alone."""
    figure, (first, second, third) = panels(3, 3.4)
    sizes = np.arange(1, LARGEST + 1)
    longest = 1000 * PRINTED.service_time()[-1]
    if setting == "basic":
        for color, load in (("C0", 0.3), ("C3", 0.7)):
            curve = study.curve(setting, load)
            first.plot([p.latency for p in curve], [p.power for p in curve], color + ".-", markersize=3, label=f"load {load}")
        first.axvline(5, color="gray", linewidth=0.7)
        first.set(xlabel="mean latency, ms", ylabel="power, W")
    elif setting == "constant":
        longest = CONSTANT
        first.plot(sizes, sizes / CONSTANT, "C1", label=f"{CONSTANT} ms")
        first.plot(sizes, sizes / PRINTED.service_time() / 1000, "C0", label="default")
        first.set(xlabel="batch size", ylabel="requests per ms")
    else:
        first.plot(sizes, sizes / logarithmic(LARGEST), "C1", label="105 ln b + 60 mJ")
        first.plot(sizes, sizes / PRINTED.energy(), "C0", label="default")
        first.set(xlabel="batch size", ylabel="requests per J")
    first.legend(fontsize=7)
    for i, load in enumerate(LOADS):
        shown = {"smdp": study.curve(setting, load)}
        shown |= {p.policy: [p] for p in study.benchmarks(setting) if p.load == load}
        for name, found in shown.items():
            style, label = ("-", f"load {load}") if name == "smdp" else (MARKS[name], None)
            for axes, y in (
                (second, [p.power for p in found]),
                (third, [1000 * (load * LARGEST / longest) / p.power for p in found]),
            ):
                axes.plot([p.latency for p in found], y, style, color=f"C{i}", markersize=3.5, linewidth=1, label=label)
    for axes, label in ((second, "power, W"), (third, "requests per J")):
        axes.set(xlim=(0, 40), xlabel="mean latency, ms", ylabel=label)
    name_marks(third, 3.5)
    third.legend(fontsize=6, ncols=2)
    return figure


def draw_latency(study: Study) -> Figure:
    """Distribution functions; p95 and the share within 10 ms against power."""
    figure, (first, second, third) = panels(3)
    labels = {name.replace(" ", "_"): name for name in MARKS} | {"smdp_1_6": "SMDP, w2 = 1.6", "smdp_2_2": "SMDP, w2 = 2.2"}
    ms = [row.ms for row in study.shares]
    for i, (name, label) in enumerate(labels.items()):
        first.plot(ms, [getattr(row, name) for row in study.shares], f"C{i}", linewidth=1, label=label)
    first.set(xlabel="latency, ms", ylabel="requests, %")
    first.legend(fontsize=6)
    for axes, measure, label, bound in ((second, "p95", "p95, ms", 10), (third, "within_10", "within 10 ms, %", 95)):
        rows = [row for row in study.percentiles if row.policy == "smdp"]
        axes.plot([getattr(row, measure) for row in rows], [row.power for row in rows], "C1.-", markersize=3, label="SMDP")
        for row in study.percentiles:
            if row.policy != "smdp":
                axes.plot(getattr(row, measure), row.power, MARKS[row.policy], color="C0", markersize=4, label=row.policy)
        axes.axvline(bound, color="gray", linewidth=0.7)
        axes.set(xlabel=label, ylabel="power, W")
    second.legend(fontsize=6)
    return figure


def draw_laws(study: Study) -> Figure:
    """The laws of the service time at b = 8, and the curves under them."""
    figure, (first, second, third) = panels(3)
    levels = np.linspace(0, 0.998, 250)
    mean = 1000 * PRINTED.service_time()[7:8]
    for i, (name, law) in enumerate(LAWS.items()):
        label = "fixed" if name == "basic" else name
        first.plot(mean[0] * law(mean / 1000).shape.quantile(levels), levels, f"C{i}", linewidth=1, label=label)
        for axes, load in ((second, 0.3), (third, 0.7)):
            curve = study.curve(name, load)
            axes.plot([p.latency for p in curve], [p.power for p in curve], f"C{i}", linewidth=1)
            for p in study.benchmarks(name):
                if p.load == load:
                    axes.plot(p.latency, p.power, MARKS[p.policy], color=f"C{i}", markersize=4)
            axes.set_title(f"load {load}", fontsize=8)
            axes.set(xlabel="mean latency, ms", ylabel="power, W")
    first.set(xlim=(0, 20), xlabel="service time of a batch of 8, ms")
    first.legend(fontsize=7)
    name_marks(third, 4)
    third.legend(fontsize=6)
    return figure


def draw_approximations(study: Study) -> Figure:
    """Gain and Delta against s_max."""
    figure, (first, second) = panels(2)
    for i, overflow_cost in enumerate(OVERFLOW_COSTS):
        rows = [row for row in study.approximations if row.overflow_cost == overflow_cost]
        states = [row.max_state for row in rows]
        first.plot(states, [row.gain for row in rows], f"C{i}", linewidth=1, label=f"c_o = {overflow_cost}")
        second.semilogy(states, [row.overflow for row in rows], f"C{i}", linewidth=1)
    second.axhline(1e-3, color="gray", linewidth=0.7)
    first.set(xlabel="s_max", ylabel="g", ylim=(0, 150))
    second.set(xlabel="s_max", ylabel="Δ")
    first.legend(fontsize=7)
    return figure
