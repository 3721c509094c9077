"""The page docs/latency-models.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..markdown import page_of, table
from .claims import agrees, by_setting, mean_error
from .class_comparison import ClassRow
from .class_page import classes_in_one_queue
from .computation import HELD_OUT_QUANTILES, N_BLOCKS, N_REQUESTS, QUANTILES
from .results import Row
from .settings import BATCH_SIZES, FILLS

REPORTED = 9.0  # %, the average error that BATCH reports
SHOWN = {"exact": "exact", "batch_paper": "batch-paper", "simulation": "standard error of the simulation"}


def page(rows: Sequence[Row], of_classes: Sequence[ClassRow]) -> str:
    """The page in Markdown."""
    grid = [row for row in rows if row.group == "grid"]
    batch = [row for row in rows if row.group == "batch"]
    apart = [row for row in rows if row.group == "held-out"]
    return page_of(
        [
            "# Latency models against simulation",
            *what_is_compared(grid),
            *errors(rows, grid),
            *own_error(grid, batch),
            *held_out(apart),
            *classes_in_one_queue(of_classes),
        ]
    )


def what_is_compared(grid: Sequence[Row]) -> list[str]:
    """The two models, and why one of them must be off."""
    return [
        """
        Made by `python -m studies.latency_models --compute` from the data that it leaves in
        [latency-models.csv](../studies/data/latency-models.csv); a test makes this page again from the data, and some of the
        data from the models.""",
        f"""
        `exact` is docs/model.md, (2.1)–(2.7); `batch-paper` is the approximation of BATCH, eqs (7)–(10). Both predict the
        quantiles of a request's latency, from arrival to answer, for {len(by_setting(grid))} settings: five arrival processes,
        batch sizes {", ".join(map(str, BATCH_SIZES))}, timeouts of {", ".join(f"{f:g}" for f in FILLS)} times the mean time
        that a batch takes to fill, and three laws of the service time. Each setting is held against a simulation of
        {N_REQUESTS / 1e6:g} million requests by a simulator that shares no code with the models or with the project's own
        event loop; its standard error is that of the means of {N_BLOCKS} successive blocks.""",
        "## Why a uniform wait is off",
        """
        BATCH takes the wait as uniform. In a batch that leaves by timeout the first request waits exactly T: a whole share
        of the requests sits at the very end of the interval over which the approximation spreads them. In a full batch the
        last request waits nothing, and the time to fill is random: half of the time longer than the (B - 1)/λ at which the
        approximation ends. Under bursts that mean says little at all, since full batches come from the bursts and fill much
        faster; with gaps smoother than Poisson it is met, and the approximation is at its best.""",
    ]


def errors(rows: Sequence[Row], grid: Sequence[Row]) -> list[str]:
    """The errors over the grid, and the standard scores of the exact law over all."""
    z = np.array([row.z for row in rows])
    late = [row for row in grid if row.quantile == 0.95 and row.batch_paper < row.simulated]
    return [
        "## The error",
        "Relative error of the predicted quantile, in %: mean, worst.",
        error_table(grid),
        f"""
        What remains of the error of `exact` is that of the simulation. In probability, at all {len(rows)} quantiles of this
        page, the simulated share of latencies up to the predicted quantile differs from the predicted share by more than 2
        of its standard errors in {100 * np.mean(np.abs(z) > 2):.1f} % of the cases (a normal law: 4.6 %), by more than 3 in
        {100 * np.mean(np.abs(z) > 3):.2f} % (0.27 %), by {np.abs(z).max():.1f} at most; their root mean square is
        {np.sqrt(np.mean(z**2)):.2f}. Quantiles of one setting share a simulation, so these are not as many independent
        trials.""",
        "![error of the 95th percentile, and standard scores](figures/latency-models.svg)",
        f"""
        On the left the error of the 95th percentile under `batch-paper` against how full batches leave: too short in
        {len(late)} of {len(by_setting(grid))} settings, which is the direction that breaks an SLO. On the right the
        standard scores of `exact` beside the normal law.""",
        "![four distributions](figures/latency-models-cdf.svg)",
    ]


def own_error(grid: Sequence[Row], batch: Sequence[Row]) -> list[str]:
    """The errors where BATCH reports its own."""
    markov = [row for row in grid if row.process in ("Poisson", "MMPP(2), mild", "MMPP(2), bursty") and "random" not in row.law]
    own = {law: [row for row in batch if row.law == law] for law in dict.fromkeys(row.law for row in batch)}
    return [
        "## BATCH's own error",
        f"""
        BATCH reports an average error below {REPORTED:g} % against measurements on AWS Lambda, over frameworks, networks,
        memory sizes, batch sizes and timeouts; that error contains its profile's, its fit's and the network's as well, and
        depends on how much of a latency is service. On settings of its kind (Poisson and MMPP(2) of 150 requests/s, batch
        sizes 5, 10, 20, timeouts of 50 to 300 ms, deterministic service) `batch-paper` alone is off in the mean over these
        four quantiles by
        {"; ".join(f"{mean_error(some, 'batch_paper'):.1f} % for a service of {law}" for law, some in own.items())}:
        little where the service outlasts the wait, as in its image networks, and much where it does not.
        Over the part of the grid above that the paper speaks of (Poisson and MMPP(2), deterministic service) it is
        {mean_error(markov, "batch_paper"):.0f} %. `exact` is off by
        {percent(max(mean_error(some, "exact") for some in (*own.values(), markov)))} % or less, as the simulation is.""",
        error_table(batch, ("exact", "batch_paper")),
    ]


def held_out(apart: Sequence[Row]) -> list[str]:
    """The settings drawn at random."""
    worst = max(apart, key=lambda row: abs(row.z))
    return [
        "## Held-out cases",
        f"""
        {len(by_setting(apart))} settings drawn at random (1 to 6 phases, batch sizes to 64, service times by 2 to 7
        quantile points, timeouts of 0.04 to 4 mean times to fill), quantiles
        {", ".join(f"{100 * q:g}" for q in HELD_OUT_QUANTILES)} %. A quantile agrees when it is within 4
        standard errors or 0.1 % of the simulation: {sum(map(agrees, apart))} of {len(apart)} do; the largest
        standard score is {abs(worst.z):.1f}.""",
        held_out_table(apart),
    ]


def error_table(rows: Sequence[Row], methods: Sequence[str] = ("exact", "batch_paper", "simulation")) -> str:
    """Mean and worst size of the relative error in %, by arrivals, method and quantile."""
    lines = []
    for process in dict.fromkeys(row.process for row in rows):
        some = [row for row in rows if row.process == process]
        for method in methods:
            shown = (mean_and_worst([row for row in some if row.quantile == q], method) for q in QUANTILES)
            lines.append([process if method == methods[0] else "", SHOWN[method], *shown])
    return table(["arrivals", "", *(f"p{100 * q:g}" for q in QUANTILES)], lines)


def mean_and_worst(rows: Sequence[Row], method: str) -> str:
    """Of the sizes of the errors, %."""
    sizes = np.abs([row.error(method) for row in rows])
    return f"{percent(sizes.mean())}, {percent(sizes.max())}"


def held_out_table(rows: Sequence[Row]) -> str:
    """A line for each held-out setting."""
    header = ["arrivals", "B", "E[N]", "service", "largest error, %", "largest abs z", "agrees"]
    lines = []
    for setting in by_setting(rows):
        first = setting[0]
        error, z = max(abs(row.error("exact")) for row in setting), max(abs(row.z) for row in setting)
        drawn = [first.process, str(first.batch_size), f"{first.mean_batch_size:.1f}", first.law]
        lines.append([*drawn, f"{error:.3f}", f"{z:.1f}", "yes" if all(map(agrees, setting)) else "**no**"])
    return table(header, lines)


def percent(value: float) -> str:
    """Two digits that mean something."""
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
