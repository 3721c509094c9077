"""The figures of the page, each one panel so that a narrow screen shows them one below the other.

Black is the ink; ``svg`` makes it the colour of the page's text. Everything else is legible on white and on black.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sluice.batching.documents import Slo, quantile_of
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.function.latency import LatencyPrediction
from sluice.optimizer.recommend import Answer, OverflowSetting, WorkerSetting
from sluice.optimizer.recommend.candidate import predicted_cost
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.report.evidence import Seen
from sluice.optimizer.report.wording import named

SIZE = (4.6, 3.3)  # inches; at 72 points an inch what a telephone shows without shrinking letters
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "path.simplify_threshold": 0.2,
}
PREDICTED, PAPER, UNBATCHED, CHOSEN = "#1f83c9", "#808080", "#b05fa0", "#d55e00"
WORKERS = "#8c6d4f"
SEEN = ("#e69f00", "#009e73", "#d55e00")  # Okabe and Ito's, told apart by the colour-blind
MARKERS = ("o", "x", "+")
PARTS = ("#1f83c9", "#e69f00", "#009e73", "#b05fa0", "#d55e00", "#56b4e9", "#8c6d4f", "#999933", "#661100")
N_POINTS = 400
N_MARKERS = 32
WIDE = 8.0  # ratio of the ends of an axis from which on it is logarithmic
P = ParamSpec("P")


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    @wraps(draw)
    def in_style(*arguments: P.args, **named_arguments: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            figure = draw(*arguments, **named_arguments)
            figure.draw_without_rendering()  # settles ticks and layout while the style holds
            figure.set_layout_engine("none")
        return figure

    return in_style


@_styled
def latency_cdf(
    predicted: LatencyPrediction,
    paper: LatencyPrediction | None,
    unbatched: LatencyPrediction | None,
    seen: Sequence[Seen],
    slos: Sequence[Slo],
    workers: WorkerSetting | OverflowSetting | None = None,
) -> Figure:
    """Percentage of the requests answered within a latency, predicted and seen; the SLOs marked, and percentiles of workers."""
    figure, axes = _panel("latency", "requests answered, %")
    others = [other for other in (unbatched, paper) if other is not None]
    first = min([p.quantile(0.01) for p in (predicted, *others)] + [float(np.interp(0.01, s.quantiles, s.latencies)) for s in seen])
    last = max([p.quantile(0.999) for p in (predicted, *others)] + [slo.latency for slo in slos])
    low, high = first * 0.9, max([last] + [float(np.interp(0.99, s.quantiles, s.latencies)) for s in seen]) * 1.1
    times = np.geomspace(low, high, N_POINTS)
    if unbatched is not None:
        axes.plot(times, 100 * unbatched.cdf(times), color=UNBATCHED, linewidth=1.2, label="no batching, predicted")
    if paper is not None:
        axes.plot(times, 100 * paper.cdf(times), color=PAPER, linewidth=1.0, label="BATCH's approximation")
    axes.plot(times, 100 * predicted.cdf(times), color=PREDICTED, linewidth=2.2, label="predicted, exact")
    for number, sample in enumerate(seen):
        _add_seen(axes, number, sample, sample.latencies, 100 * sample.quantiles)
    if workers is not None:
        low = min(low, 0.9 * _add_workers(axes, workers, lambda quantiles: 100 * quantiles))
    for slo in slos:
        _add_promise(axes, slo, low, slo.percentile, 0)
        beyond = len(slos) > 1 and slo.latency == max(other.latency for other in slos)  # so that two close ones do not collide
        look: dict[str, Any] = {"rotation": 90, "ha": "left" if beyond else "right", "va": "bottom", "fontsize": 7.5}
        name = f"{slo.name}: {milliseconds(slo.latency)}"
        axes.annotate(name, (slo.latency, 0), (2 if beyond else -2, 4), textcoords="offset points", **look)
    _latency_axis(axes, low, high)
    axes.set_ylim(0, 102)
    _legend_below(figure, axes)
    return figure


@_styled
def latency_tail(
    predicted: LatencyPrediction,
    paper: LatencyPrediction | None,
    seen: Sequence[Seen],
    slos: Sequence[Slo],
    workers: WorkerSetting | OverflowSetting | None = None,
) -> Figure:
    """The same from 90 to 99.9 %, where promises are made, on a scale that gives every nine the same room."""
    figure, axes = _panel("latency", "requests answered, %")
    ends = []
    looks = ((paper, PAPER, 1.0, "BATCH's approximation"), (predicted, PREDICTED, 2.2, "predicted, exact"))
    for law, colour, width, name in looks:
        if law is not None:
            times = np.linspace(law.quantile(0.9), law.quantile(0.999), N_POINTS)
            heights = _nines(np.clip(law.cdf(times), 0.9, 0.999))
            axes.plot(times, heights, color=colour, linewidth=width, label=name)
            ends.append(times)
    for number, sample in enumerate(seen):
        inside = (sample.quantiles >= 0.9 - 1e-9) & (sample.quantiles <= 0.999 + 1e-9)
        if inside.any():
            ends.append(sample.latencies[inside])
            _add_seen(axes, number, sample, sample.latencies[inside], _nines(sample.quantiles[inside]))
    if workers is not None:
        ends.append(np.array([workers.percentile(90).value]))
        _add_workers(axes, workers, lambda quantiles: _nines(np.minimum(quantiles, 1 - 1e-9)))
    low = min(float(latencies.min()) for latencies in ends)
    high = max([float(latencies.max()) for latencies in ends] + [slo.latency for slo in slos])
    low, high = _padded(low, high)
    for slo in slos:
        if 90 <= slo.percentile <= 99.9:
            _add_promise(axes, slo, low, float(_nines(np.array([slo.quantile]))[0]), 1)
    _latency_axis(axes, low, high)
    axes.set_ylim(1, 3.02)
    axes.set_yticks(_nines(np.array([0.9, 0.95, 0.99, 0.999])), ["90", "95", "99", "99.9"])
    _legend_below(figure, axes)
    return figure


@_styled
def frontier(answer: Answer) -> Figure:
    """The least cost by the latency percentile allowed, with the settings of the answer on it."""
    slo = answer.slo
    figure, axes = _panel(f"{slo.name} latency", "USD per million requests")
    workers = answer.simulated
    settings = [answer.best, answer.no_batching, *answer.runners_up]
    reached = {id(setting): setting.latency.percentile(slo.percentile) for setting in settings}
    known = [(point.latency, 1e6 * point.cost_per_request) for point in answer.frontier]
    known += [(reached[id(setting)], 1e6 * predicted_cost(setting).by_request) for setting in settings]
    latencies, costs = np.array(sorted(known)).T
    cheapest = np.minimum.accumulate(costs)
    there = [] if workers is None else [workers.percentile(slo.percentile).value]
    low, high = _padded(min([float(latencies[0]), *there]), max([float(latencies[-1]), slo.latency, *there]))
    label = "cheapest found, by latency"
    axes.step([*latencies, high], [*cheapest, cheapest[-1]], where="post", color=PREDICTED, linewidth=1.8, label=label)
    runners = answer.runners_up
    if runners:
        axes.plot(
            [reached[id(s)] for s in runners],
            [1e6 * predicted_cost(s).by_request for s in runners],
            "o",
            color="black",
            markersize=6,
            fillstyle="none",
            markeredgewidth=0.8,
            label="runners-up",
        )
    for setting, marker, size, colour, name in (
        (answer.no_batching, "s", 6.0, UNBATCHED, "no batching"),
        (answer.best, "*", 11.0, CHOSEN, "recommended" if answer.winner is answer.best else "function"),
    ):
        point = [reached[id(setting)]], [1e6 * predicted_cost(setting).by_request]
        axes.plot(*point, marker, color=colour, markersize=size, linestyle="none", label=name)
    dearest = float(costs.max())
    if workers is not None:
        usd = 1e6 * predicted_cost(workers).by_request
        dearest = max(dearest, usd)
        axes.plot(there, [usd], "D", color=WORKERS, markersize=6, linestyle="none", label=workers.runs_on)
    axes.axvline(slo.latency, color="black", linewidth=0.8, linestyle=":")
    _latency_axis(axes, low, high)
    axes.set_ylim(0, 1.08 * dearest)
    _legend_below(figure, axes)
    return figure


@_styled
def batch_sizes(pmf: Array, seen: Sequence[Seen], by: str) -> Figure:
    """Distribution of the batch size ``by`` batches, or as the requests in them see it (``"requests"``)."""
    figure, axes = _panel("batch size", f"{by}, %")
    sizes = np.arange(1, len(pmf) + 1)
    predicted = by_requests(pmf) if by == "requests" else pmf
    axes.bar(sizes, 100 * predicted, width=0.8, color=PREDICTED, alpha=0.75, label="predicted")
    for number, sample in enumerate(seen):
        if sample.batch_size_pmf is not None:
            shares = by_requests(sample.batch_size_pmf) if by == "requests" else sample.batch_size_pmf
            axes.plot(sizes, 100 * shares, MARKERS[number], color=SEEN[number], markersize=4, fillstyle="none", label=sample.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 4, 5, 8, 10]))
    axes.set_xlim(0.3, len(pmf) + 0.7)
    axes.set_ylim(0, None)
    axes.grid(False, axis="x")
    _legend_below(figure, axes)
    return figure


@_styled
def cost_breakdown(costs: Mapping[str, BatchCost]) -> Figure:
    """USD per million requests of every alternative, term by term."""
    terms = {name: cost.terms() for name, cost in costs.items()}
    shown = [term for term in next(iter(terms.values())) if any(by_term[term] > 0 for by_term in terms.values())]
    parts = {named(term): [1e6 * by_term[term] for by_term in terms.values()] for term in shown}
    return _stacked_bars(list(costs), parts, "USD per million requests")


@_styled
def monthly_bill(costs: Mapping[str, BatchCost], arrival_rate: float) -> Figure:
    """USD per month of every alternative at this arrival rate (requests/s): what requests cost, and what stands there anyway."""
    requests = arrival_rate * SECONDS_PER_MONTH
    parts = {
        "by the request": [requests * (cost.by_request) for cost in costs.values()],
        "fixed": [cost.fixed_per_month for cost in costs.values()],
    }
    return _stacked_bars(list(costs), parts, "USD per month")


def by_requests(pmf: Array) -> Array:
    """The sizes of the batches that requests are in, from those of the batches."""
    weighted = pmf * np.arange(1, len(pmf) + 1)
    return np.asarray(weighted / weighted.sum())


def _panel(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _add_seen(axes: Axes, number: int, sample: Seen, latencies: Array, heights: Array) -> None:
    """What was simulated as points, so that the curve under them shows; what was measured as a line."""
    if sample.batch_size_pmf is None:
        axes.plot(latencies, heights, color=SEEN[number], linewidth=1.4, label=sample.name)
    else:
        few = np.unique(np.linspace(0, len(latencies) - 1, N_MARKERS).astype(int))
        look: dict[str, Any] = {"color": SEEN[number], "markersize": 4, "fillstyle": "none", "linestyle": "none"}
        axes.plot(latencies[few], heights[few], MARKERS[number], label=sample.name, **look)


def _add_promise(axes: Axes, slo: Slo, left: float, height: float, bottom: float) -> None:
    axes.plot([left, slo.latency, slo.latency], [height, height, bottom], color="black", linewidth=0.8, linestyle=":")


def _add_workers(axes: Axes, workers: WorkerSetting | OverflowSetting, height: Callable[[Array], Array]) -> float:
    """Percentiles of workers with their confidence intervals; returns the least latency of them."""
    known = [(quantile_of(float(name[1:])), *at) for name, at in workers.latency.items() if np.isfinite(at.high)]
    quantiles, values, low, high = np.array(known).T
    look: dict[str, Any] = {"fmt": "D", "color": WORKERS, "markersize": 4, "elinewidth": 1, "capsize": 2}
    axes.errorbar(values, height(quantiles), xerr=[values - low, high - values], label=f"{workers.runs_on}, simulated", **look)
    return float(values.min())


def _nines(quantiles: Array) -> Array:
    """A scale on which 90, 99 and 99.9 % are at equal distances."""
    return np.asarray(-np.log10(1 - quantiles))


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little more on both sides: of nothing 5 %, of a range 4 % of it."""
    if high <= low * 1.001:
        return low * 0.95, high * 1.05
    if high > WIDE * low:
        return low * 0.9, high * 1.1
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


def _latency_axis(axes: Axes, low: float, high: float) -> None:
    if high > WIDE * low:
        axes.set_xscale("log")
        subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
        axes.xaxis.set_major_locator(LogLocator(subs=subs))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"))
    axes.set_xlim(low, high)


def _stacked_bars(names: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str) -> Figure:
    figure = Figure(figsize=(SIZE[0], 1.3 + 0.34 * len(names) + 0.09 * len(parts)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(unit)
    left = np.zeros(len(names))
    heights = np.arange(len(names))[::-1]
    for (part, values), colour in zip(parts.items(), PARTS, strict=False):
        axes.barh(heights, values, left=left, height=0.62, color=colour, label=part)
        left += np.asarray(values)
    for height, total in zip(heights.tolist(), left.tolist(), strict=True):
        axes.annotate(
            f"{total:,.0f}" if total >= 1000 else f"{total:.3g}",
            (total, height),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(heights, names)
    axes.set_xlim(0, 1.18 * float(left.max()) or 1.0)
    axes.grid(False, axis="y")
    _legend_below(figure, axes)
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    arguments: dict[str, Any] = {"loc": "outside lower center", "ncols": 2 if len(labels) > 1 else 1, "columnspacing": 1.2}
    figure.legend(handles, labels, **arguments)
