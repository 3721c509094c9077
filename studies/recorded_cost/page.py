"""The page docs/recorded-cost.md."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.optimizer.simulation.batch_means import LEAST_UNSURE

from ..markdown import page_of, table
from ..perceptron import INIT, INTERCEPT, MEMORY_SIZES, SLOPE
from .claims import NEAR, Pair, between, cheaper, farthest, fit, half_fit, half_record, near, off, other_choice, record, width
from .computation import LATENCIES, PERCENTILE
from .results import Row


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    traces = list(dict.fromkeys(row.trace for row in rows))
    small, large = MEMORY_SIZES
    return page_of(
        [
            "# What a recommendation says it costs, and what is billed",
            """
            Made by `python -m studies.recorded_cost --compute [TRACES_FOLDER]`, which takes some minutes a trace, from what it
            leaves in [recorded-cost.csv](../studies/data/recorded-cost.csv). The project ships the first of the traces; without a
            folder the others stay as they are. How costs are found on a record is in [asking for a
            recommendation](recommendation.md#what-it-costs-on-the-arrivals-that-were-recorded).""",
            f"""
            **On the trace that it was recommended for, what is said is what is billed: within {100 * NEAR:g} % in
            {near(rows, record)} of {len(rows)} cells (farthest {percent(farthest(rows, record))} %). By the fitted process
            alone, as it was said before, it is in {near(rows, fit)} of {len(rows)} (farthest
            {percent(farthest(rows, fit))} %).** The first
            is so by construction, as what is said is a run over those arrivals; the run that bills has other luck of service times,
            which are fixed here.""",
            f"""
            **What traffic to come will cost is told between two ends, and was there in {between(rows)} of {len(rows)} cells.** What
            the first half of a trace recommends is within {100 * NEAR:g} % of
            what the second half is billed in {near(rows, half_record)} of {len(rows)} cells where it is said on the record, and in
            {near(rows, half_fit)} where it is said by the fit (farthest {percent(farthest(rows, half_record))} and
            {percent(farthest(rows, half_fit))} %). The second half has another rate, and other bursts: the table has both, and no
            cost is scaled to the rate. So a recommendation says beside its cost what as many arrivals would cost that come next,
            with 95 % confidence: from the variance of the costs of 32 successive blocks of the record, which is taken to fall no
            faster with longer blocks than it is seen to (traffic remembers), and not closer than {100 * LEAST_UNSURE:g} %. The ends
            are {widths(rows, traces)} away in the median.""",
            choice(rows),
            "![what is said beyond what is billed, by trace and SLO](figures/recorded-cost.svg)",
            f"""
            The function is the perceptron of the [policy zoo](policy-zoo.md), {1e3 * INTERCEPT:g} + {1e3 * SLOPE:g} b ms for a
            batch of b up to 32 on one core ({large} MB), in proportion slower at {small} MB, with an INIT of
            {INIT:g} s, and with cold
            starts as Lambda has them in all that is said and billed. {PERCENTILE:g} % are promised within
            {", ".join(f"{latency:g}" for latency in LATENCIES)} s. Counts of five minutes are laid out at random within them, so
            that the last traces are Poisson but for their drift. The 20 minutes of the LLM are of its hour.""",
            "## On the whole trace",
            whole(rows),
            "## Recommended from the first half, billed on the second",
            halves(rows),
            f"""
            USD per million requests, of GB-seconds, fees and cold starts. *Fit* is what is recommended, and said, by the fitted
            process alone; *record* the same with the record. *Between* is what the record of the first half says of as many
            that come next. *Late* is the share of the requests beyond the SLO in the run, of
            which {100 - PERCENTILE:g} % are allowed. Share of the cells of a trace within {100 * NEAR:g} %:
            {shares(rows, traces)}.""",
        ]
    )


def choice(rows: Sequence[Row]) -> str:
    """Whether choosing by the record is of use."""
    others = other_choice(rows)
    if not others:
        return "In no cell did the record of the first half choose another plan than its fit."
    better = sum(row.half_billed < row.half_fit_billed for row in others)
    return f"""
            Among settings that are near by prediction the record chooses. In {len(others)} of {len(rows)} cells it chose another
            plan from the first half than the fit did; on the second half it was the cheaper in {better} of these, by
            {100 * cheaper(others):.1f} % in the mean, and at most {100 * max(row.half_late for row in others):.2g} % were late."""


def whole(rows: Sequence[Row]) -> str:
    """The table of the whole traces."""
    header = ["trace, requests/s", "SLO, s", "fit says", "billed", "off, %", "record says", "billed", "off, %", "late, %"]
    return table(
        header, [[f"{row.trace}, {row.rate:.3g}", *said(row, fit), *said(row, record)[1:], late(row.late)] for row in rows]
    )


def halves(rows: Sequence[Row]) -> str:
    """The table of the halves."""
    header = ["trace, requests/s: all, second half", "SLO, s", "fit says", "billed", "off, %", "record says", "billed", "off, %"]
    return table(
        [*header, "between", "late, %: fit, record"],
        [
            [
                f"{row.trace}: {row.rate:.3g}, {row.second_rate:.3g}",
                *said(row, half_fit),
                *said(row, half_record)[1:],
                f"{1e6 * row.again_low:.4f}, {1e6 * row.again_high:.4f}",
                f"{late(row.half_fit_late)}, {late(row.half_late)}",
            ]
            for row in rows
        ],
    )


def widths(rows: Sequence[Row], traces: Sequence[str]) -> str:
    """How far the ends are from what is said, by trace."""
    return ", ".join(f"{100 * width([row for row in rows if row.trace == trace]):.2g} % ({trace})" for trace in traces)


def said(row: Row, of: Pair) -> list[str]:
    """SLO, what is said, what is billed, and the part between."""
    one, other = of(row)
    return [f"{row.latency:g}", f"{1e6 * one:.4f}", f"{1e6 * other:.4f}", percent(off((one, other)))]


def late(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.2f}"


def percent(part: float) -> str:
    """A part in percent, with its sign."""
    return f"{round(100 * part, 1) + 0.0:+.1f}"


def shares(rows: Sequence[Row], traces: Sequence[str]) -> str:
    """Of each trace, by fit and by record, on the whole and on the second half."""
    found = []
    for trace in traces:
        cells = [row for row in rows if row.trace == trace]
        counts = ", ".join(str(near(cells, of)) for of in (fit, record, half_fit, half_record))
        found.append(f"{trace} {counts}")
    return f"{'; '.join(found)} (of {len(LATENCIES)}, by fit and record on the whole, by fit and record of the first half)"
