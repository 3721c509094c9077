"""The page docs/cpu-or-gpu.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sluice.optimizer.billing.prices import default_prices

from ..markdown import bullets, page_of, table
from .claims import NEAR, Findings, Kinds, one_worker_pays_from, ranges, saving, winner
from .computation import N_REQUESTS
from .results import KINDS, MARK, Row
from .settings import ARRIVALS, CORE, CORES, CPU, INIT, NETWORKS, PERCENTILE, RATES, excerpt


def page(rows: Sequence[Row]) -> str:
    """The page, all numbers from the data."""
    found = Findings.of(rows)
    return page_of(
        [
            "# CPU or GPU",
            *what_is_asked(),
            *what_is_compared(),
            *which_wins(found),
            *where_both_win(found),
            *what_mark_costs(found),
            *what_is_not_here(),
            *all_figures(found),
        ]
    )


def what_is_asked() -> list[str]:
    """The question."""
    return [
        """
        Made by `python -m studies.cpu_or_gpu --compute` from the data that it leaves in
        [cpu-or-gpu.csv](../studies/data/cpu-or-gpu.csv); a test makes this page again from the data, and some of the data from the
        models.""",
        """
        A function is paid for what it runs, a GPU by the hour. Below some rate the function costs less, above it the GPU;
        between them stands what `sluice recommend --worker PROFILE:MACHINE` also considers: workers for the base load and the
        function for what they cannot serve in time, as one [plan](recommendation.md). This page shows at which rate which wins.""",
    ]


def what_is_compared() -> list[str]:
    """Networks, prices, arrivals, kinds."""
    prices, process = default_prices(), excerpt()
    busy, quiet = (1 / rate for rate in -np.diag(process.D0) - process.D1.sum(axis=1))
    peak = process.D1.sum(axis=1).max() / process.arrival_rate
    machines = {machine: prices.machine(machine) for network in NETWORKS.values() for machine in network.workers}
    named = ", ".join(f"{machine} {usd:g} USD an hour" for machine, usd in machines.items())
    endpoint = prices.machine("ml.g4dn.xlarge")
    return [
        "## What is compared",
        bullets(*(f"**{name}**: {network.said}" for name, network in NETWORKS.items())),
        f"""
        Prices: {prices.region}, read {prices.read_on}; {named}; a worker on the {CPU} is one of its {CORES} vCPUs for a part of the
        price. As an endpoint of SageMaker the g4dn.xlarge costs {endpoint:g}, which moves its rates up by
        {100 * (endpoint / prices.machine("g4dn.xlarge") - 1):.0f} %. The function has {CORE} MB for a core, half of that, or
        several; a cold start is taken to last {INIT:g} s, as
        in the policy zoo. Those of both and of MArk are simulated and paid for; the function alone is predicted warm, which
        favours it.""",
        f"""
        Arrivals: Poisson, and *bursty*: an MMPP(2) fitted to [the excerpt](../sluice/local/traces/README.md) of requests to a code
        LLM, {peak:.1f} times the mean rate for {busy:.1f} s and next to nothing for {quiet:.1f} s, its rates multiplied and its
        phases left as long as they are. {len(RATES)} rates from {RATES[0]:g} to {RATES[-1]:g} requests/s, and two SLOs for each
        network ({PERCENTILE:g} %).""",
        f"""
        Each kind is the cheapest that surely keeps the SLO: *function*, size-or-timeout or a table that waits to the last moment;
        *workers*, the fewest of the machines; *both*, fewer of them with the function beside ([the model](model.md), section 7),
        a dash where one worker alone is enough. *MArk* chooses its workers every minute from the last five and from prices, has
        new ones after three minutes, and lets the function take all that wait; it runs for half an hour or {N_REQUESTS}
        requests, whatever is longer. Costs are USD per million requests with hours, function, cold starts and log; the buffer
        stands before all alike and is left out.""",
    ]


def which_wins(found: Findings) -> list[str]:
    """The winner by rate."""
    lines = []
    for (network, arrivals, slo), line in found.lines.items():
        said = ranges(line)
        lines.append([network, arrivals, f"{1e3 * slo:g}", said["function"], said["both"], said["workers"]])
    tight = NETWORKS["GoogLeNet"].slos[0]
    cell = next(c for c in found.lines["GoogLeNet", "Poisson", tight] if c[MARK].rate == 100)
    core, gpu = one_worker_pays_from(cell, CPU, CORES), one_worker_pays_from(cell, "g4dn.xlarge")
    won = {kind: len(found.won_by(kind)) for kind in KINDS}
    return [
        "## Which wins at which rate",
        f"""
        Of {len(found.cells)} cells the function alone is the cheapest in {won["function"]}, workers alone in {won["workers"]},
        both in {won["both"]}. Requests/s at which each wins, of those looked at:""",
        table(["network", "arrivals", "SLO, ms", "function", "both", "workers"], lines),
        "![cost by rate under the tighter SLO](figures/cpu-or-gpu.svg)",
        "![cost by rate under the other SLO](figures/cpu-or-gpu-later.svg)",
        f"""
        The rates by hand: GoogLeNet as a function costs {cell["function"].cost:.2f} USD per million requests at 100 requests/s,
        so that an hour of a core is paid for at {core:.0f} requests/s and an hour of the GPU at {gpu:.0f}; it serves 2955. A
        worker that is small beside the load is kept busy, and workers alone win soon; a large one stands idle between the rate
        at which it pays and the one that it can serve.""",
    ]


def where_both_win(found: Findings) -> list[str]:
    """How much both save."""
    some = found.won_by("both")
    best = found.most_saved
    row = winner(best)
    by_arrivals = {name: [cell for cell in some if cell[MARK].arrivals == name] for name in ARRIVALS}
    lines = [
        [
            at.network,
            at.arrivals,
            f"{1e3 * at.slo:g}",
            f"{at.rate:g}",
            f"{at.workers:g} × {at.machine}",
            f"{100 * at.by_function:.2g} %",
            f"{at.cost:.4f}",
            *(f"{cell[kind].cost:.4f}" for kind in ("function", "workers", MARK)),
            f"{100 * saving(cell):.2g} %",
        ]
        for cell in some
        for at in [cell["both"]]
    ]
    return [
        "## Where both win",
        f"""
        {len(by_arrivals["bursty"])} of these {len(some)} cells are bursty. Workers alone must be there for the peak, and the
        function pays its price for the base as well; both save up to {100 * saving(best):.0f} % against the cheaper of them
        ({where(row)}). Where the load is steady there is little to overflow, and the next worker soon costs less than the
        function.""",
        table(
            [
                "network",
                "arrivals",
                "SLO, ms",
                "1/s",
                "workers",
                "by the function",
                "both",
                "function",
                "workers",
                MARK,
                "saves",
            ],
            lines,
        ),
        """
        In both the function takes the oldest at the last moment at which it would be in time, so that but for cold starts nobody
        is late whatever the arrivals do; workers alone use up what the SLO allows, and rest on the arrivals that they were sized
        for. On real traces that difference is larger than the one in cost: [policy zoo](policy-zoo.md).""",
    ]


def what_mark_costs(found: Findings) -> list[str]:
    """The baseline."""
    beyond, against = found.mark_beyond, found.mark_beyond_both
    (worst, at), (best, there) = beyond[0], beyond[-1]
    return [
        "## What MArk costs",
        f"""
        MArk keeps the SLO in {len(beyond)} of {len(found.cells)} cells. It costs
        {100 * float(np.median([b for b, _ in beyond])):.1f} % more than the winner in the median, as where one kind wins clearly it
        comes to the same, and {100 * worst:.0f} % at most ({where(at[MARK])}). In {sum(b < -NEAR for b, _ in beyond)} cells it is
        cheaper by more than {100 * NEAR:g} %, by {-100 * best:.1f} % at most ({where(there[MARK])}). Where both win it costs
        {100 * float(np.median([b for b, _ in against])):.0f} % more than they in the median. It forecasts the mean of minutes,
        which says nothing of bursts of seconds, buys workers for the mean alone,
        and its function takes all that wait where the oldest one or two would have been enough. What it is made for, a load that
        drifts over hours, is not in these arrivals.""",
    ]


def what_is_not_here() -> list[str]:
    """What the figures do not say."""
    return [
        "## What is not here",
        bullets(
            """No GPU was at hand: their times are as published, without spread, and nothing on this page was measured on one.
            `sluice profile http://…` measures a worker, and `sluice recommend --worker` takes what it writes.""",
            """A load that changes over the day: workers are for one rate and stay. A plan for each part of the day is a plan for
            each.""",
            """The time until a machine is there, and machines that fail: where a worker is lost, the function beside it takes
            what it would have served, which is not priced here.""",
            """What the buffer costs a month, and the network between it and the workers.""",
        ),
    ]


def all_figures(found: Findings) -> list[str]:
    """Every cell."""
    return [
        "## All figures",
        """
        USD per million requests; of workers their number, of both the share that the function serves. **Bold**: the cheapest of the
        three.""",
        *tables(found),
    ]


def tables(found: Findings) -> Iterator[str]:
    """A table for each network, arrivals and SLO."""
    for (network, arrivals, slo), line in found.lines.items():
        head = [f"{network}, {arrivals}, {1e3 * slo:g} ms", "function", "workers", "", "both", "", MARK, ""]
        yield table(head, (cells_of(cell) for cell in line))


def cells_of(cell: Kinds) -> list[str]:
    """A rate, and what each kind comes to."""
    best = winner(cell)

    def cost(kind: str) -> str:
        row = cell[kind]
        if np.isnan(row.cost):
            return "-"
        return f"**{row.cost:.4f}**" if row is best else f"{row.cost:.4f}"

    workers, both, mark = cell["workers"], cell["both"], cell[MARK]
    return [
        f"{mark.rate:g}/s",
        cost("function"),
        cost("workers"),
        "-" if np.isnan(workers.cost) else f"{workers.workers:g} × {workers.machine}",
        cost("both"),
        "-" if np.isnan(both.cost) else f"{both.workers:g} × {both.machine}, {100 * both.by_function:.3g} %",
        cost(MARK),
        f"{mark.workers:.2g} × {mark.machine}, {100 * mark.by_function:.3g} %",
    ]


def where(row: Row) -> str:
    """A cell in words."""
    return f"{row.network}, {row.arrivals}, {1e3 * row.slo:g} ms, {row.rate:g} requests/s"
