"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sluice.optimizer.arrays import Array

from ..publishing import Figures, look
from .computation import LARGEST, NETWORKS, NOW, THEN, saving
from .results import Curve, Study

LOOK = look("batch")
COLOURS = {"latency": "C0", "throughput": "C2", "cost": "C3"}
NAMES = {"latency": "service time", "throughput": "throughput", "cost": "cost"}


def draw(study: Study) -> Figures:
    """The figures by file name."""
    first = draw_panel(
        "batch size (3008 MB, timeout 1 h)",
        [(study.a, "-", "", tuple(COLOURS))],
        whole_numbers=True,
    )
    second = draw_panel(
        "timeout, s (batch size 20, 3008 MB)",
        [(study.b, "-", "", tuple(COLOURS)), (study.b_bursty, ":", ", bursty", tuple(COLOURS))],
    )
    third = draw_panel(
        "memory, GB (batch size 5, timeout 1 h)",
        [(study.c, "-", "", tuple(COLOURS)), (study.c_now, ":", ", 1 ms bill", ("cost",))],
    )
    return {
        "batch-figure-4a.svg": first,
        "batch-figure-4b.svg": second,
        "batch-figure-4c.svg": third,
        "batch-rounding.svg": draw_savings(),
    }


def draw_panel(label: str, curves: Sequence[tuple[Curve, str, str, Sequence[str]]], whole_numbers: bool = False) -> Figure:
    """Curves, each with its line, what is added to its names, and which of its quantities are shown."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for curve, line, more, quantities in curves:
        for quantity in quantities:
            values = min_max(getattr(curve, quantity))
            axes.plot(curve.at, values, COLOURS[quantity] + line, label=NAMES[quantity] + more)
    axes.set_xlabel(label)
    axes.set_ylabel("normalised (min-max)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=whole_numbers))
    axes.legend(fontsize=7)
    return figure


def min_max(values: Array) -> Array:
    """Values on the scale of figure 4."""
    return np.asarray((values - values.min()) / np.ptp(values))


def draw_savings() -> Figure:
    """What batching saves of the bill, by batch size and rounding."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for network in NETWORKS:
        for granularity, line, bill in ((THEN, "-", "100 ms"), (NOW, ":", "1 ms")):
            axes.plot(range(1, LARGEST + 1), saving(network, granularity), network.colour + line, label=f"{network.name}: {bill}")
    axes.set_xlabel("batch size")
    axes.set_ylabel("bill one by one / bill batched")
    axes.legend(fontsize=7)
    return figure
