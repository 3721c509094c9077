"""The page docs/policy-zoo.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from sluice.optimizer.baselines.names import FIXED, LAG, STATIC
from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.recommend.question import PREMIUM

from ..markdown import bullets, page_of, table
from .claims import NEAR, Findings, Outcomes, verdict, winner
from .computation import CHOSEN, CONTROL, CORE, INIT, KEEP_ALIVE, LATENCIES, MACHINE, MEMORY_SIZES, NETWORKS, TRACES, WINDOWS
from .results import PERCENTILE, Row, milliseconds


def page(rows: Sequence[Row]) -> str:
    """The page, all numbers from the data."""
    found = Findings.of(rows)
    return page_of(
        [
            "# Policy zoo",
            *what_is_compared(),
            *who_wins(found),
            *why_not_recommended(found),
            *what_else(found),
            *all_figures(found),
        ]
    )


def what_is_compared() -> list[str]:
    """Traces, networks and policies, in words."""
    return [
        """
        Made by `python -m studies.policy_zoo --compute [TRACES_FOLDER]` from the data that it leaves in
        [policy-zoo.csv](../studies/data/policy-zoo.csv); a test makes this page again from the data, and part of the data from the
        models.""",
        f"""
        Every policy on real traces under several SLOs ({PERCENTILE:g} % within {spoken(LATENCIES)} s): who keeps the SLO, and at
        what cost. Each trace is cut in the middle of its time. Whatever is planned is planned on the first half; the figures are of
        the second, which nobody has seen before. `sluice simulate --trace FILE --policy all` does the same for a trace of one's
        own.""",
        "## What is compared",
        "\n".join(f"- **{name}**: {kind.said}" for name, kind in TRACES.items()),
        f"""
        Two networks on one core: a perceptron whose time is reading its weights, 5.6 + 0.74 b ms for a batch of b, and GoogLeNet,
        46.7 b ms, for which batching saves nothing but the request fee. As a function they have {spoken(MEMORY_SIZES)} MB
        ({CORE} MB is one core), cold starts of {INIT:g} s and environments that stay {KEEP_ALIVE:g} s; as workers, a core of a
        {MACHINE} each, for a quarter of its price. Prices: {default_prices().region}, read {default_prices().read_on}.""",
        f"""
        The policies are those of `optimizer/baselines`, where each says what of its original it keeps and leaves out. A
        policy that needs a number of workers gets the fewest that keep the SLO in the first half; one that needs a memory size the
        cheapest that does. *Size or timeout* is {FIXED[0]} or {milliseconds(FIXED[1])} whatever the load, *static* {STATIC}.
        *BATCH* is the best size-or-timeout setting for the process fitted to the first half, *BATCH again* another one whenever
        a {WINDOWS}th of that time is over. *Recommended* is the answer of `sluice recommend`, which lets tables that wait to the
        last moment, workers, and workers with the function beside them compete with that, and gives a table, which keeps the SLO
        whatever comes, the preference up to {100 * PREMIUM:g} % of the cost; *without premium* it does not. *Rehearsed* is no
        policy of its own but the one that was cheapest in the first half among those that surely kept the SLO there (the upper
        end of the confidence interval). *Control* begins with the recommended plan and is
        [tuned while requests come](control.md).""",
    ]


def who_wins(found: Findings) -> list[str]:
    """The winner of each cell beside the recommended policy and the rehearsed choice."""
    beyond = found.beyond_winner(CHOSEN)
    return [
        "## The winner of each cell",
        f"""
        USD per million requests, share of late requests in brackets; **bold** where the SLO is kept. The cheapest that keeps it is
        {spoken([f"{name} in {found.wins[name]}" for name in found.ranked])} of {len(found.cells)} cells. The rehearsed choice
        keeps the SLO in {len(beyond)} and costs {100 * float(np.median(beyond)):.1f} % more than the winner in the median,
        {100 * max(beyond):.0f} % at most.""",
        winners(found.cells),
        "![cost beyond the winner, by policy](figures/policy-zoo.svg)",
        """
        A row for each cell, a column for each policy; the colour is the cost over the winner's, grey where the SLO is not
        kept.""",
    ]


def why_not_recommended(found: Findings) -> list[str]:
    """The cells in which something else is cheaper, by reason."""
    return [
        "## Why the recommended policy is not always the cheapest",
        f"""
        `sluice recommend` answers from a process fitted to the first half, as `sluice fit` chooses it. In
        {len(found.by_verdict["cheapest"])} of {len(found.cells)} cells nothing that keeps the SLO is cheaper by more than
        {100 * NEAR:g} %. The reasons in the others, named in the last column above:""",
        bullets(*(reason for said, reason in reasons(found).items() if found.by_verdict[said])),
        f"""
        Against all of them helps a rehearsal: `sluice simulate --policy all` on the past, and the cheapest that surely kept the SLO
        there. It keeps the SLO in {found.kept(CHOSEN)} cells, where the recommended policy does in
        {found.kept("recommended")}.""",
    ]


def what_else(found: Findings) -> list[str]:
    """Of single policies."""
    tuned = found.beyond_winner(CONTROL)
    return [
        "## What else can be seen",
        bullets(
            f"""Nobody is late *at the last moment* but for cold starts, and it needs no fit. Using up the 5 % that a promise
            of 95 % leaves, as BATCH does, is worth {100 * found.most_saved():.1f} % of the cost at most where both keep the SLO;
            and BATCH keeps it in {found.kept("BATCH")} cells only.""",
            f"""Control keeps it in {found.kept(CONTROL)} cells, and costs {100 * float(np.median(tuned)):.1f} % more than the
            winner in the median, {100 * max(tuned):.0f} % at most. Half a trace is short for it: where nothing drifts it can but
            leave the recommended plan alone, and mend it where that does not keep the promise.""",
            f"""Choosing again window by window keeps it in {found.kept("BATCH again")} cells: a short window says
            less about bursts than a long one, and every choice uses up the promise.""",
            f"""Workers by the hour are part of the winner in {len(found.by_workers)} cells
            ({spoken(sorted({f"{row.network} on {row.trace}" for row in found.by_workers}))}), where a core is kept busy.
            Elsewhere they stand idle: on the LLM traces the perceptron's fixed workers cost
            {spoken([f"{ratio:.0f}" for ratio in found.worker_ratios()], "to")} times what the function costs at the last
            moment.""",
            f"""Autoscaling misses the SLO in {found.missed("autoscaling")} cells and pays for half empty workers in the others:
            these bursts last seconds, and a new worker takes {LAG:g} s after three minutes of alarm. No trace here lasts a day,
            which is what it is made for.""",
            f"""Static batches of {STATIC} miss it in {found.missed("static")} cells: nobody fills the last one.""",
            f"""No batching keeps the SLO in {found.kept("no batching")} cells and is the cheapest in
            {found.wins["no batching"]}.""",
        ),
    ]


def all_figures(found: Findings) -> list[str]:
    """Every row of the data."""
    return [
        "## All figures",
        """
        USD per million requests, p95 in ms, share of late requests; a dash where the policy cannot be had for the SLO. **Bold**:
        the cheapest that keeps it.""",
        *tables(found.cells),
    ]


def reasons(found: Findings) -> dict[str, str]:
    """Why the recommended policy is not the cheapest, by verdict."""
    count = {said: len(some) for said, some in found.by_verdict.items()}
    return {
        "cold": f"""*Cold* ({count["cold"]}): more than half of what it costs beyond the winner are cold starts; in a
            smaller function each costs less.""",
        "family": f"""*Family* ({count["family"]}): what is cheaper is not among the tables and workers that are searched.
            *Overflow* (MArk) chooses its workers anew every minute, and *control* its tables; *early drop* needs fewer, as it
            gives up whom it would answer late.{dearest(found)}""",
        "fit": f"""*Fit* ({count["fit"]}): the answer is exact for the fitted process, but late more often than promised on the very
            half that was fitted{latest(found)}. A process of a few phases misses what lasts for minutes, and arrivals milliseconds
            apart. With the premium the SLO is kept in {found.kept("recommended")} cells instead of
            {found.kept("without premium")}.""",
        "drift": f"""*Drift* ({count["drift"]}): the promise was kept in the first half and not in the second. A promise of
            {PERCENTILE:g} % that is used up to the last request leaves nothing for another load.""",
    }


def dearest(found: Findings) -> str:
    """By how much the recommended policy is beaten where something cheaper was not searched, in words."""
    pairs = [(cell["recommended"], winner(cell)) for cell in found.by_verdict["family"]]
    if not pairs:
        return ""
    row, best = max(pairs, key=lambda pair: pair[0].cost / pair[1].cost)
    return f" At most {100 * (row.cost / best.cost - 1):.0f} % ({row.where}: {best.policy})."


def latest(found: Findings) -> str:
    """How late the recommended policy was on the half that was fitted, in words."""
    rows = [cell["recommended"] for cell in found.by_verdict["fit"]]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row.past_violations)
    return f", in up to {100 * row.past_violations:.1f} % ({row.where})"


def spoken(values: Iterable[object], last: str = "and") -> str:
    """Values with commas between and a word before the last."""
    words = [f"{value:g}" if isinstance(value, float | int) else str(value) for value in values]
    return ", ".join(words[:-1]) + f" {last} {words[-1]}" if len(words) > 1 else words[0]


def winners(cells: Sequence[Outcomes]) -> str:
    """A line for each cell: the winner, the recommended policy, the rehearsed choice."""
    lines = []
    for cell in cells:
        best = winner(cell)
        costs = [figure(row) for row in (best, cell["recommended"], cell[CHOSEN])]
        lines.append([best.trace, best.network, f"{1e3 * best.slo:g}", best.policy, *costs, verdict(cell)])
    return table(["trace", "network", "SLO, ms", "winner", "", "recommended", "rehearsed", "why"], lines)


def figure(row: Row) -> str:
    """Cost and lateness."""
    cost = f"**{row.cost:.4f}**" if row.keeps else f"{row.cost:.4f}"
    return f"{cost} ({100 * row.violations:.1f} %)"


def tables(cells: Sequence[Outcomes]) -> Iterator[str]:
    """All policies, a table for each trace and network."""
    for trace, network in product(TRACES, NETWORKS):
        some = [cell for cell in cells if cell[CHOSEN].cell[:2] == (trace, network)]
        if some:
            slos = [name for cell in some for name in (milliseconds(cell[CHOSEN].slo), "p95", "late")]
            policies = [policy for policy in some[0] if policy != CHOSEN]
            lines = ([policy, *(shown for cell in some for shown in figures(cell[policy], winner(cell)))] for policy in policies)
            yield table([f"{trace}, {network}", *slos], lines)


def figures(row: Row, best: Row) -> tuple[str, str, str]:
    """Cost, p95 in ms and lateness."""
    if np.isnan(row.cost):
        return "-", "-", "-"
    cost = f"**{row.cost:.4f}**" if row is best else f"{row.cost:.4f}"
    p95 = f"{1e3 * row.p95:.4g}" if np.isfinite(row.p95) else "never"
    return cost, p95, f"{100 * row.violations:.1f} %"
