"""The page docs/smdp-figures.md: the papers' tables and what they say of their figures, beside what is found here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sluice.optimizer.smdp import evaluate, solve
from sluice.optimizer.smdp.policy_iteration import greedy

from ..claims import Claim, claimed
from ..markdown import page_of, table
from .claims import approximation_claims, cost_claims, curve_claims, latency_claims, other_claims, table_claims
from .coefficients import PAPER_LENGTHS, corners, refined
from .computation import OVERFLOW_COSTS, RUNS, WEIGHTS
from .results import Study
from .servers import PRINTED, cases, cost

PAPER_TABLE_1 = {
    "static 8": (46.27, 6.85, 6.51, 9.85, 11.34),
    "SMDP, w2 = 1.6": (44.96, 6.90, 6.83, 9.23, 9.96),
    "SMDP, w2 = 2.2": (44.41, 7.81, 7.72, 10.45, 11.24),
}
MEASURES = ("power, W", "mean, ms", "p50, ms", "p90, ms", "p95, ms")
PAPER_TABLE_2: dict[str, tuple[float, ...]] = {
    "min s_max": (89, 78, 70, 161, 192),
    "iterations": (1847, 1635, 1483, 10000, 10000),
    "Δ": (9.36e-4, 9.78e-4, 8.36e-4, 6.14e-12, 1.30e-14),
    "g": (66.1384, 66.1383, 66.1377, 66.1374, 66.1374),
}
IN_TABLE_2 = {"min s_max": ("max_state", "d"), "iterations": ("iterations", "d"), "Δ": ("overflow", ".2e"), "g": ("gain", ".4f")}
PAPER_TABLE_3 = {"0": (108.14, 108.14, 38.86, 38.86), "100": (114.46, 44.47, 38.86, 38.86)}
PAPER_NEVER_SERVED = (197.33, 383.20, 386.58, 417.00, 909.73)  # the other columns of Table III: 100 + n / lambda
PAPER_AVI = 42.53


def page(study: Study) -> str:
    """The page in Markdown."""
    return page_of(
        [
            "# The SMDP papers' tables and figures",
            *what_is_whose(),
            *coefficients_behind(study),
            *power_and_overflow(study),
            *iterations(study),
            *figures(study),
        ]
    )


def what_is_whose() -> list[str]:
    """What is computed, what of it the papers print, and what is ours."""
    return [
        """
        Made by `python -m studies.smdp_figures --compute` from the data that it leaves in `studies/data`, `smdp-*.csv` and
        `smdp-tables.json`; a test makes this page again from the data, and some of the data from the solvers.
        """,
        """
        Xu, Sun, Zhou and Niu (ICC 2023) and Xu, Zhou and Niu (the journal version) choose for a GPU how many waiting requests
        to take at a time. Here are the tables and figures of both from this project's solvers: tables of actions, gains,
        latencies and powers by policy iteration with an exact tail, percentiles by the exact law of the latency, Tables II and
        III and figure 10 by the papers' own value iteration. Nothing here is simulated but the error of the papers'
        simulations.
        """,
        """
        **Of the papers:** l(b) = 0.3051 b + 1.0524 ms, ζ(b) = 19.899 b + 19.603 mJ, batches to 32 (to 8 in Cases 1 to 7), the
        load ρ as a share of what batches of 32 can bear, w1 = 1 per ms, w2 per W. **Ours**, as the text at hand does not print
        it: that Case 1 has fixed service times; the energy of Case 5, of which two are shown; Case 7; and that the logarithm of
        figure 8 is the natural one. (By that energy Case 5 has a table with two thresholds, as the paper says, which it has not
        with base 10; with base 2 greedy's power in figure 8 would still grow from load 0.6 to 0.7.)
        """,
    ]


def coefficients_behind(study: Study) -> list[str]:
    """What the printed numbers say of those that they were computed with."""
    behind, (high, middle), (highs, middles) = refined(), study.gains, study.allowed_gains
    slopes, intercepts = zip(*corners(), strict=True)
    return [
        "## The coefficients behind the printed ones",
        f"""
        With the printed coefficients g is {high:.4f} at load 0.9 and {middle:.4f} at 0.5, the papers have 66.1374 and 38.86.
        The papers computed with more digits than they print, and other numbers that they print show these:
        """,
        coefficient_table(),
        f"""
        All six hold for slopes of {min(slopes):.6f} to {max(slopes):.6f} and intercepts of {min(intercepts):.5f} to
        {max(intercepts):.5f} alone, which round to the printed ones; the middle, {behind.slope:.6f} and {behind.intercept:.5f},
        is *the coefficients behind* from here on. Over these, and energies within their rounding, g is {highs.min():.4f} to
        {highs.max():.4f} at load 0.9 and {middles.min():.4f} to {middles.max():.4f} at 0.5: the papers' figures are inside. The
        arrival rate is ρ 32 / l(32), so a slope that is smaller by 0.01 % is more requests, and more W. Everything else on this
        page has the printed coefficients.
        """,
    ]


def power_and_overflow(study: Study) -> list[str]:
    """Tables I and II."""
    return [
        "## Table I of the journal: power and latency at load 0.7",
        f"""
        The paper simulated 1.66 million requests per policy. *Here* is exact; the error of a simulation is the standard
        deviation over {RUNS} simulations of as many requests.
        """,
        table_1(study),
        """
        All percentiles, means and powers of the SMDP policies that a simulation of this length fixes to two decimals are the
        paper's. The rest is off by less than the paper's own error: the energy of a run hangs on how many requests happen to
        arrive in it, and static batching at 90 % of its capacity forgets slowly.
        """,
        "## Table II of the journal, Table I of ICC: overflow costs at load 0.9, w = (1, 1)",
        table_2(study),
        """
        Iterations: the paper has one more, perhaps the sweep that reads off the table. The step η is 0.99 of its bound (25),
        which the paper does not say; with 0.999 there would be 1 % fewer iterations. g is off by the coefficients and within
        their range above. Δ at c_o = 0: the paper's stationary distribution has rounding errors of that size, ours is found
        without a subtraction.
        """,
    ]


def iterations(study: Study) -> list[str]:
    """Table III."""
    behind = refined()
    rate = behind.problem(0.5).arrival_rate / 1000
    never = ", ".join(f"{value:.2f}" for value in PAPER_NEVER_SERVED)
    states = ", ".join(f"{(value - 100) * rate:.2f}" for value in PAPER_NEVER_SERVED)
    half = behind.problem(0.5, 1)
    by_greedy = cost(half, evaluate(half, greedy(half)))
    by_quickest = cost(half, solve(half.weighted(half.latency_weight, 0)))
    return [
        "## Table III of the journal: iterations at load 0.5, w = (1, 1)",
        table_3(study),
        f"""
        Of approximate value and policy iteration the paper prints {never}, which are 100 + n / λ with n = {states}: whole
        numbers but for the rounding, the states there were by then, none of whose last ones serves, so that the queue is held
        at their end, for 100 more; likewise 108.14 is 160 / λ, and 208.14 that and 100. The {PAPER_AVI} to which both are said to
        converge is the cost of the greedy policy, {by_greedy:.2f}, and of the best for w2 = 0, {by_quickest:.2f}, as if the
        energy were missing from what they minimise; the best for w2 = 1 has {solve(half).gain:.2f}. Seconds, and both
        iterations with the energy, are in `benchmarks/smdp.py`.
        """,
    ]


def figures(study: Study) -> list[str]:
    """Each figure, and what the papers say of it."""
    return [
        "## Figures 3 and 11, ICC figure 4: the tables",
        "Control limits at loads 0.1, 0.3, 0.5, 0.7, 0.9; – where a table is none.",
        limit_table(study),
        "![tables of Cases 1 to 3](figures/smdp-figure-3.svg)",
        "![tables of Cases 4 to 7](figures/smdp-figure-11.svg)",
        "Boxes: where serving begins. Crosses: what is no control limit.",
        said(table_claims(study)),
        "## Figure 4, ICC figure 5: the cost",
        "![cost against w2](figures/smdp-figure-4.svg)",
        said(cost_claims(study)),
        "## Figure 5, ICC figures 6 and 7: latency against power",
        "![latency, power, efficiency](figures/smdp-figure-5.svg)",
        said(curve_claims(study)),
        "## Figure 6: the distribution of the latency at load 0.7",
        "![distributions, percentiles](figures/smdp-figure-6.svg)",
        said(latency_claims(study)),
        "## Figures 7, 8, 9: other servers",
        "![service of 6.0859 ms](figures/smdp-figure-7.svg)",
        "![logarithmic energy](figures/smdp-figure-8.svg)",
        "![laws of the service time](figures/smdp-figure-9.svg)",
        said(other_claims(study)),
        "## Figure 10: convergence at load 0.9, w = (1, 1)",
        "![gain and Delta against s_max](figures/smdp-figure-10.svg)",
        said(approximation_claims(study)),
    ]


def said(claims: Iterable[Claim]) -> str:
    """Claims as a table."""
    return claimed(claims, "the papers say", spaced=True)


def verdict(theirs: float, extremes: Sequence[float], error: float) -> str:
    """Whether a printed number is a rounding of what the coefficients allow; else how far off it is in errors of a simulation."""
    low, high = min(extremes), max(extremes)
    if low - 0.005 <= theirs <= high + 0.005:
        return "rounds to it"
    distance = theirs - (high if theirs > high else low)
    return f"off by {distance:+.3f}: {abs(distance) / error:.1f} errors"


def table_1(study: Study) -> str:
    """Table I of the journal beside ours."""
    data = study.published.table_1
    rows = []
    for name, numbers in PAPER_TABLE_1.items():
        for i, (measure_name, theirs) in enumerate(zip(MEASURES, numbers, strict=True)):
            error = data.simulated[name][1][i]
            behind = [one[name][i] for one in data.allowed]
            rows.append(
                [
                    name if i == 0 else "",
                    measure_name,
                    f"{theirs:.2f}",
                    f"{data.printed[name][i]:.3f}",
                    " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(behind), max(behind)))),
                    f"{error:.3f}",
                    verdict(theirs, behind, error),
                ]
            )
    return table(["", "", "paper", "here", "by the coefficients behind", "error of a simulation", "the paper's"], rows, spaced=True)


def table_2(study: Study) -> str:
    """Table II of the journal, I of ICC, beside ours."""
    data = study.published.table_2
    rows = []
    for name, (measure, form) in IN_TABLE_2.items():
        here, behind = ([format(getattr(row, measure), form) for row in some] for some in (data.printed, data.refined))
        rows.append([f"{name}, paper", *(format(value, form) for value in PAPER_TABLE_2[name])])
        rows.append(["here", *here])
        if name in ("Δ", "g"):
            rows.append(["by the coefficients behind", *behind])
    return table(["c_o", *(str(c) for c in OVERFLOW_COSTS)], rows, spaced=True)


def table_3(study: Study) -> str:
    """The columns of relative value iteration of Table III beside ours: after so many iterations that ours is the paper's."""
    data = study.published.table_3
    rows = []
    for overflow_cost, gains in PAPER_TABLE_3.items():
        here, behind = data.printed[overflow_cost], data.refined[overflow_cost]
        for theirs in dict.fromkeys(gains):
            after, ours = next(((n, gain) for n, gain in behind if abs(gain - theirs) <= 0.005), (0, np.nan))
            by_then = [gain for n, gain in here if n <= after][-1]
            rows.append([overflow_cost, str(after), f"{theirs:.2f}", f"{by_then:.2f}", f"{ours:.2f}"])
    return table(["c_o", "iterations", "g of the table then, paper", "here", "by the coefficients behind"], rows, spaced=True)


def limit_table(study: Study) -> str:
    """Control limits of Cases 1 to 7."""
    rows = []
    for case in cases():
        by_weight = (study.limits(case.name, w) for w in WEIGHTS)
        rows.append([case.name, case.what, *(" ".join("–" if x is None else str(x) for x in limits) for limits in by_weight)])
    return table(["Case", "", *(f"w2 = {w:g}" for w in WEIGHTS)], rows, spaced=True)


def coefficient_table() -> str:
    """What the printed numbers say of the coefficients."""
    servers = (PRINTED, refined())
    rows = []
    for stated in PAPER_LENGTHS:
        values = (stated.value, *(stated.by(server.slope, server.intercept) for server in servers))
        rows.append([stated.what, *(f"{value:.{stated.digits}f}" for value in values)])
    return table(["", "paper", "by the printed coefficients", "by those behind"], rows, spaced=True)
