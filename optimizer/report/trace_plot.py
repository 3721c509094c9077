"""A trace in one figure: rate over time, autocorrelation, dispersion, gaps, and what a fitted process makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.linalg import expm

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.traces.trace import FEWEST_WINDOWS, Trace

SUFFIXES = (".svg", ".png", ".pdf")

SEEN, FITTED, REFERENCE = "#1f4e79", "#d1495b", "#8a8a8a"
LARGEST_LAG = 1000
MAX_RATE_WINDOWS = 150
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 1.5, "columnspacing": 1.2}


def plot_trace(trace: Trace, fitted: ArrivalProcess | None = None) -> Figure:
    """The statistics of a trace, and those of a process fitted to it.

    Parameters
    ----------
    fitted : ArrivalProcess, optional
        Its closed forms are drawn over the trace's estimates; around its rate, two standard deviations of the counts in a window.
    """
    figure = Figure(figsize=(10, 7), layout="constrained")
    rate, correlation, dispersion, gaps = figure.subplots(2, 2).ravel()
    _draw_rate(rate, trace, fitted)
    _draw_autocorrelation(correlation, trace, fitted)
    _draw_dispersion(dispersion, trace, fitted)
    _draw_gaps(gaps, trace, fitted)
    for axes in (rate, correlation, dispersion, gaps):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
    statistics = trace.statistics()
    figure.suptitle(
        f"{len(trace):,} arrivals in {trace.duration:.4g} s: {trace.arrival_rate:.4g} requests/s, "
        f"SCV {statistics.scv:.3g}, skewness {statistics.skewness:.3g}",
        fontsize=12,
    )
    return figure


def write_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as the suffix of ``path`` says; the same figure gives the same SVG.

    Raises
    ------
    InvalidInput
        Another suffix; a path that cannot be written.
    """
    require_figure_path(path)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sluice", "font.sans-serif": ["DejaVu Sans"]}):
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
        except OSError as error:
            raise InvalidInput("plot", str(path), f"a writable path ({error.strerror})") from None


def require_figure_path(path: str | Path) -> None:
    """Refuse a path that ends in none of ``SUFFIXES``."""
    if Path(path).suffix not in SUFFIXES:
        raise InvalidInput("plot", str(path), "a file name that ends in " + ", ".join(SUFFIXES))


def _draw_rate(axes: Axes, trace: Trace, fitted: ArrivalProcess | None) -> None:
    n_windows = int(np.clip(len(trace) // 20, FEWEST_WINDOWS, MAX_RATE_WINDOWS))
    width = trace.duration / n_windows
    rates = trace.counts(n_windows) / width
    axes.stairs(rates, width * np.arange(n_windows + 1), color=SEEN, linewidth=1.2, label=f"trace, per {width:.3g} s")
    axes.axhline(trace.arrival_rate, color=REFERENCE, linestyle="--", linewidth=1, label="its mean")
    if fitted is not None:
        spread = 2 * np.sqrt(fitted.arrival_rate * float(dispersion_of_counts(fitted, [width])[0]) / width)
        low, high = max(0.0, fitted.arrival_rate - spread), fitted.arrival_rate + spread
        axes.axhspan(low, high, color=FITTED, alpha=0.13, linewidth=0, label="fit, mean ± 2 sd")
    axes.set(title="Rate over time", xlabel="seconds since the first arrival", ylabel="requests/s", xlim=(0, trace.duration))
    axes.set_ylim(0, 1.25 * float(rates.max()))  # with room for the legend
    axes.legend(loc="upper left", ncols=3, **LEGEND)


def _draw_autocorrelation(axes: Axes, trace: Trace, fitted: ArrivalProcess | None) -> None:
    largest = min(LARGEST_LAG, max(2, len(trace) // FEWEST_WINDOWS))
    lags = np.unique(np.geomspace(1, largest, 50).astype(int))
    noise = 1.96 / np.sqrt(len(trace))
    axes.axhspan(-noise, noise, color=REFERENCE, alpha=0.2, linewidth=0, label="95 % if independent")
    axes.plot(lags, trace.autocorrelation(lags), "o", color=SEEN, markersize=3.5, label="trace")
    if fitted is not None:
        axes.plot(lags, fitted.autocorrelation(lags) if fitted.n_phases > 1 else 0 * lags, color=FITTED, linewidth=1.8, label="fit")
    axes.set(title="Autocorrelation of the gaps", xlabel="lag, gaps", ylabel="autocorrelation", xscale="log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))  # with room for the legend
    axes.legend(loc="upper right", ncols=3, **LEGEND)


def _draw_dispersion(axes: Axes, trace: Trace, fitted: ArrivalProcess | None) -> None:
    windows = trace.dispersion_windows(per_decade=6)
    seen = np.array([trace.dispersion(window) for window in windows.tolist()])
    axes.axhline(1, color=REFERENCE, linestyle="--", linewidth=1, label="Poisson")
    axes.plot(windows, seen, "o", color=SEEN, markersize=3.5, label="trace")
    if fitted is not None:
        axes.plot(windows, dispersion_of_counts(fitted, windows), color=FITTED, linewidth=1.8, label="fit")
    axes.set(title="Index of dispersion for counts", xlabel="window, s", ylabel="variance / mean", xscale="log", yscale="log")
    axes.set_ylim(max(1e-3, min(0.5, float(np.nanmin(seen)) / 1.5)), max(2.0, 3 * float(np.nanmax(seen))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper left", ncols=3, **LEGEND)


def _draw_gaps(axes: Axes, trace: Trace, fitted: ArrivalProcess | None) -> None:
    n = len(trace.interarrivals)
    ranks = np.unique(np.round(np.geomspace(1, 0.99 * n, 120)).astype(int))  # the longest gaps one by one
    longest = np.sort(trace.interarrivals)[::-1]
    seen = longest[ranks - 1]
    shown = seen > 0
    axes.plot(seen[shown], ranks[shown] / n, color=SEEN, linewidth=3.2, alpha=0.75, label="trace")
    lengths = np.geomspace(float(seen[shown].min()), float(seen.max()), 80)
    poisson = np.exp(-lengths * trace.arrival_rate)
    axes.plot(lengths, poisson, color=REFERENCE, linestyle="--", linewidth=1, label="Poisson of the same rate")
    if fitted is not None:
        axes.plot(lengths, _survival(fitted, lengths), color=FITTED, linewidth=1.8, label="fit")
    axes.set(title="Gaps", xlabel="gap, s", ylabel="share of longer gaps", xscale="log", yscale="log", ylim=(0.4 / n, 1.6))
    axes.legend(loc="lower left", **LEGEND)


def _survival(fitted: ArrivalProcess, lengths: Array) -> Array:
    """P(gap > t) = phi exp(D0 t) 1."""
    return np.array([float((fitted.embedded @ expm(fitted.D0 * t)).sum()) for t in lengths.tolist()])
