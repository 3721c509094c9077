"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sluice.optimizer.function.latency import predict_latency

from ..publishing import Figures, look
from .results import Row
from .settings import LAWS, Setting, processes
from .simulator import simulate

LOOK = look("latency-models")
TELLING = (
    ("Poisson", 8, 1.0, "10 + 2 b ms"),
    ("MMPP(2), bursty", 16, 1.0, "10 + 2 b ms"),
    ("Erlang-4 gaps", 8, 3.0, "10 + 2 b ms, random"),
    ("trace, fitted", 8, 3.0, "10 b ms"),
)


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {
        "latency-models.svg": draw_errors(rows),
        "latency-models-cdf.svg": draw_distributions(np.random.default_rng(3)),
    }


def draw_errors(rows: Sequence[Row]) -> Figure:
    """The error of BATCH's 95th percentile against how full batches are, and the standard scores of the exact law."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_fills(left, [row for row in rows if row.group == "grid" and row.quantile == 0.95])
    draw_scores(right, rows)
    return figure


def draw_fills(axes: Axes, rows: Sequence[Row]) -> None:
    """The error by how full batches are."""
    for colour, process in enumerate(dict.fromkeys(row.process for row in rows)):
        points = [(row.mean_batch_size / row.batch_size, row.error("batch_paper")) for row in rows if row.process == process]
        axes.plot(*np.array(points).T, f"C{colour}o", markersize=3.5, alpha=0.7, label=process)
    axes.axhline(0, color="black", linewidth=0.8, label="exact: within the noise")
    axes.set_xlabel("mean batch size / B")
    axes.set_ylabel("error of p95 by batch-paper, %")
    axes.legend(fontsize=7)


def draw_scores(axes: Axes, rows: Sequence[Row]) -> None:
    """The standard scores beside the normal law."""
    edges = np.linspace(-4.5, 4.5, 28).tolist()
    axes.hist([row.z for row in rows], edges, density=True, color="C0", alpha=0.5, label="exact")
    at = np.linspace(-4.5, 4.5, 91)
    axes.plot(at, np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi), "k", linewidth=1, label="normal")
    axes.set_xlabel("standard errors from the simulation")
    axes.set_ylabel("density")
    axes.legend(fontsize=7)


def draw_distributions(rng: np.random.Generator) -> Figure:
    """The latency CDF of four settings, three ways."""
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    arrivals_of = processes()
    for axes, (process, batch_size, fill, law) in zip(figure.subplots(2, 2).flat, TELLING, strict=True):
        arrivals = arrivals_of[process]
        timeout = fill * (batch_size - 1) / arrivals.arrival_rate
        draw_distribution(axes, Setting("grid", process, arrivals, law, LAWS[law](batch_size), batch_size, timeout), rng)
    figure.axes[0].set_ylabel("share of the requests")
    figure.axes[0].legend(fontsize=7)
    return figure


def draw_distribution(axes: Axes, setting: Setting, rng: np.random.Generator) -> None:
    """Of one setting."""
    arrivals, batch_size, timeout = setting.arrivals, setting.batch_size, setting.timeout
    exact, paper = (predict_latency(arrivals, setting.service, batch_size, timeout, m) for m in ("exact", "batch-paper"))
    ascending = np.sort(simulate(setting, 1_000_000, rng))
    times = np.linspace(0, 1.02 * max(ascending[-2000], paper.quantile(0.999)), 400)
    simulated = np.searchsorted(ascending, times, side="right") / len(ascending)
    axes.plot(1e3 * times, simulated, "C0", linewidth=4, alpha=0.35, label="simulated")
    axes.plot(1e3 * times, exact.cdf(times), "k", linewidth=0.9, label="exact")
    axes.plot(1e3 * times, paper.cdf(times), "C3--", linewidth=1.1, label="batch-paper")
    axes.set_title(f"{setting.process}; B = {batch_size}, T = {1e3 * timeout:.0f} ms; {setting.law}", fontsize=8)
    axes.set_xlabel("latency, ms")
