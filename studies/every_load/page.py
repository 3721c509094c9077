"""The page docs/every-load.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import page_of, table
from ..perceptron import INIT, INTERCEPT, MEMORY_SIZES, SLOPE
from .claims import best, of, worst
from .computation import LATENCIES, LOADS, MADE_FOR, RATES
from .results import EVERY_LOAD, Row


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    some = [row for row in rows if row.made_for == EVERY_LOAD]
    small, large = MEMORY_SIZES
    return page_of(
        [
            "# A plan for every load",
            """
            Made by `python -m studies.every_load --compute`, which takes some seconds, from what it leaves in
            [every-load.csv](../studies/data/every-load.csv). How the plan is found is in [the model](model.md), 2.8 and 3.4;
            `sluice recommend` makes one unless told `--loads 1`.""",
            f"""
            **One plan, made at {MADE_FOR:g} requests/s, costs {best(rows, EVERY_LOAD):.3f} to {worst(rows, EVERY_LOAD):.3f} times
            the cheapest table of each rate at {rates()} requests/s.** A table that waits to the last moment keeps its promise at
            every rate, but its largest batch and its memory are those of the rate it was made for: made for {RATES[0]:g}/s it costs
            up to {worst(rows, f"{RATES[0]:g}"):.2f} times the least elsewhere, made for {RATES[1]:g}/s
            {worst(rows, f"{RATES[1]:g}"):.2f}, for {RATES[2]:g}/s {worst(rows, f"{RATES[2]:g}"):.2f}, for {RATES[3]:g}/s
            {worst(rows, f"{RATES[3]:g}"):.2f}.""",
            f"""
            The function is the perceptron of the [policy zoo](policy-zoo.md), {1e3 * INTERCEPT:g} + {1e3 * SLOPE:g} b ms for a
            batch of b up to 32 on one core ({large} MB), in proportion slower at {small} MB, with an INIT of {INIT:g} s. Arrivals
            are Poisson. The plan was asked for {LOADS[0]:g} to {LOADS[1]:g} times its rate, and knows no other.""",
            "![cost over the least by rate, for each plan](figures/every-load.svg)",
            *(of_latency(rows, latency) for latency in LATENCIES),
            f"""
            Costs are USD per million requests, of GB-seconds, fees and cold starts; *predicted* is exact but for cold starts, which
            are estimated (docs/model.md, 3.2 and 3.4), *simulated* is a run of 131 072 requests with cold starts as the
            platform has them. Nobody was late in an environment that was warm
            ({sum(row.warm_late for row in some):g} of all requests); with cold starts it was at most
            {100 * max(row.late for row in some):.2g} %, where the SLO allows 5 %.""",
        ]
    )


def rates() -> str:
    """In words."""
    *some, last = (f"{rate:g}" for rate in RATES)
    return f"{', '.join(some)} and {last}"


def of_latency(rows: Sequence[Row], latency: float) -> str:
    """The heading of an SLO, and the table of its plans."""
    plans = [*(f"{rate:g}" for rate in RATES), EVERY_LOAD]
    ratios = [[said(made_for, of(rows, latency, made_for)[0]), *ratio_cells(of(rows, latency, made_for))] for made_for in plans]
    mine = of(rows, latency, EVERY_LOAD)
    money = [
        ["cheapest table of the rate", *(usd(row.least) for row in mine)],
        ["every load, predicted", *(usd(row.cost) for row in mine)],
        ["every load, simulated", *(usd(row.simulated) for row in mine)],
    ]
    header = [f"{rate:g}/s" for rate in RATES]
    return "\n\n".join(
        [
            f"## 95 % within {1e3 * latency:g} ms",
            table(["cost over the cheapest table's, at", *header], ratios),
            table(["USD per million", *header], money),
        ]
    )


def said(made_for: str, row: Row) -> str:
    """A plan in words."""
    name = "**every load**" if made_for == EVERY_LOAD else f"made for {made_for}/s"
    return f"{name} ({row.functions})"


def ratio_cells(rows: Sequence[Row]) -> list[str]:
    """The ratios at each rate."""
    return [f"{row.ratio:.3f}" for row in rows]


def usd(per_request: float) -> str:
    """USD per million requests."""
    return f"{1e6 * per_request:.4f}"
