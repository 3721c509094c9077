"""How simulated policies went over time, as a figure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from sluice.optimizer.simulation.statistics import RunStatistics


def plot_series(runs: Mapping[str, RunStatistics]) -> Figure:
    """Arrivals, mean latency and, where an SLO was given, the share in time of every run that has a series."""
    with_slo = any(run.latencies for run in runs.values())
    figure = Figure((8, 6 if with_slo else 4.5), layout="constrained")
    axes = figure.subplots(3 if with_slo else 2, 1, sharex=True)
    for i, (name, run) in enumerate(runs.items()):
        series = run.series
        if series is None:
            continue
        if i == 0:
            axes[0].stairs(series.arrivals / np.diff(series.edges), series.edges, color="k", linewidth=1)
        answered = np.where(series.answered > 0, series.mean_latency, np.nan)
        line = {"color": f"C{i % 10}", "linestyle": "-" if i < 10 else "--", "linewidth": 1, "label": name, "baseline": None}
        axes[1].stairs(1e3 * answered, series.edges, **line)
        if with_slo:
            in_time = np.where(series.arrivals > 0, series.in_time / np.maximum(1, series.arrivals), np.nan)
            axes[2].stairs(100 * in_time, series.edges, **line)
    axes[0].set_ylabel("arrivals/s")
    axes[1].set_ylabel("mean latency, ms")
    axes[1].set_yscale("log")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", fontsize=7, ncols=5)
    if with_slo:
        axes[2].set_ylabel("in time, %")
    axes[-1].set_xlabel("s")
    return figure
