"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.phase_filter import FilteredPhases, filter_phases

from ..publishing import Figures, look
from .claims import SINGLE, above, by_setting, pick
from .results import Row
from .sampling import Sampled, sample
from .settings import ENERGIES, KINDS, SHOWN_STAY, process_of

LOOK = look("modulated-arrivals")
START, END = 1.0, 1.6  # s, of the stretch that is shown


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"modulated-saving.svg": draw_savings(rows), "modulated-filter.svg": draw_filter(np.random.default_rng(4))}


def draw_savings(rows: Sequence[Row]) -> Figure:
    """Cost beyond the bound against the load, by energy and kind of phases."""
    figure = Figure((8, 4.4), layout="constrained")
    panels = figure.subplots(len(ENERGIES), len(KINDS), squeeze=False)
    for (row, energy), (column, kind) in product(enumerate(ENERGIES), enumerate(KINDS)):
        axes = panels[row][column]
        draw_saving(axes, by_setting(pick(rows, group="grid", energy=energy, process=kind, stay=SHOWN_STAY)))
        axes.set_title(f"{kind}, {energy}", fontsize=8)
        if row == len(ENERGIES) - 1:
            axes.set_xlabel("load")
        if column == 0:
            axes.set_ylabel("cost beyond the bound, %")
    panels[0][0].legend(fontsize=7)
    return figure


def draw_saving(axes: Axes, settings: Sequence[dict[str, Row]]) -> None:
    """Cost beyond the bound of settings by load."""
    loads = [setting["seen"].load for setting in settings]
    for policy, colour in zip(SINGLE, ("C1", "C2", "C7"), strict=True):
        axes.plot(loads, [above(setting, policy) for setting in settings], ".-", color=colour, linewidth=1, label=policy)
    errors = [200 * setting["filtered"].excess_error / setting["seen"].exact for setting in settings]
    beyond = [above(setting, "filtered") for setting in settings]
    axes.errorbar(loads, beyond, errors, fmt="o-", color="C0", ms=3, label="filtered")
    axes.set_ylim(0, 1.15 * max(max(above(setting, policy) for policy in ("Poisson", "filtered")) for setting in settings))


def draw_filter(rng: np.random.Generator) -> Figure:
    """A stretch of arrivals with their hidden phases, and the probability that the filter gives the busy one."""
    arrivals = process_of("8 : 2", SHOWN_STAY, 0.3)
    sampled = sample(arrivals, 4000, rng)
    filtered = filter_phases(arrivals, sampled.times)
    within = sampled.times[(sampled.times > START) & (sampled.times < END)]
    figure = Figure((8, 2.8), layout="constrained")
    above_ax, below_ax = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    above_ax.vlines(within, 0, 1, color="k", linewidth=0.4)
    above_ax.set_yticks([])
    shade_busy((above_ax, below_ax), sampled)
    draw_belief(below_ax, filtered, np.union1d(np.linspace(START, END, 400), within))
    return figure


def shade_busy(panels: Sequence[Axes], sampled: Sampled) -> None:
    """Shade the busy phase."""
    edges = np.concatenate([[0.0], sampled.shift_times, sampled.times[-1:]])
    for i, (left, right) in enumerate(pairwise(edges)):
        if (sampled.first + i) % 2 == 0 and right > START and left < END:
            for axes in panels:
                axes.axvspan(left, right, color="C0", alpha=0.15, linewidth=0)


def draw_belief(axes: Axes, filtered: FilteredPhases, at: Array) -> None:
    """The probability of the busy phase at these times (s), and the likeliest phase."""
    axes.plot(at, filtered.belief(at)[:, 0], color="C0", linewidth=0.8)
    axes.step(at, np.where(filtered.likeliest(at) == 0, 1.03, -0.03), where="post", color="C3", linewidth=1)
    axes.axhline(0.5, color="k", linewidth=0.5)
    axes.set_xlim(START, END)
    axes.set_xlabel("s")
    axes.set_ylabel("probability of busy")
