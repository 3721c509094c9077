"""The figures of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from sluice.optimizer.service import SizeMix, service_by_size

from ..publishing import Figures, look
from .claims import cells
from .computation import MIXES, POISSON, halves, lengths
from .results import CLASSES, ONE_QUEUE, SEEING, Row, profile

LOOK = look("request-sizes")


def draw(rows: Sequence[Row]) -> Figures:
    """The figures by file name."""
    return {"request-sizes-profile.svg": draw_profile(), "request-sizes-cost.svg": draw_costs(rows)}


def draw_profile() -> Figure:
    """Milliseconds of a request by the size of its batch, and the mixes."""
    memory_mb = profile().memory_sizes[0]
    by_size = service_by_size(profile(), memory_mb, 64)
    figure = Figure((8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    n = np.arange(1, by_size.max_batch_size + 1)
    for size, times in zip(by_size.sizes, by_size.of_size, strict=True):
        left.plot(n, times.mean_response / n / times.mean_response[0], label=f"{size:g} tokens")
    left.set_xscale("log", base=2)
    left.set_xlabel("batch size")
    left.set_ylabel("time of a request / alone")
    left.legend(fontsize=6)
    for name in MIXES:
        for half, line, which in zip(halves(lengths(name)), ("-", ":"), ("first", "second"), strict=True):
            mix = SizeMix.of(half)
            right.step(mix.values, np.cumsum(mix.shares), line, where="post", label=f"{name}, {which} half")
    right.set_xlabel("tokens")
    right.set_ylabel("share of the requests")
    right.legend(fontsize=6)
    return figure


def draw_costs(rows: Sequence[Row]) -> Figure:
    """Cost over that of one queue, by cell."""
    found = [cell for cell in cells(rows, POISSON) if ONE_QUEUE in cell]
    figure = Figure((8, 3), layout="constrained")
    axes = figure.subplots()
    for way, mark in ((CLASSES, "o"), (SEEING, "x")):
        axes.plot([cell[way].cost / cell[ONE_QUEUE].cost for cell in found], mark, label=way)
    axes.axhline(1, color="0.5")
    names = [f"{cell[CLASSES].mix}, {cell[CLASSES].rate:g}/s, {cell[CLASSES].slo:g} s" for cell in found]
    axes.set_xticks(range(len(found)), names, rotation=60, ha="right")
    axes.set_ylabel("cost / that of one queue")
    axes.legend()
    return figure
