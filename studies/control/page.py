"""The page docs/control.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import bullets, page_of, table
from .claims import controlled, loads, of, over_static
from .computation import COST_NEAR, FACTOR, PERCENTILE_NEAR, RATE, SLO, STEP, WINDOW
from .results import Row


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    mine = controlled(rows)
    kept, feasible = sum(row.kept for row in mine), sum(row.feasible for row in mine)
    dearest = max(row.ratio for row in mine)
    static = max(over_static(rows, load) for load in loads(rows))
    return page_of(
        [
            "# A plan that is tuned while requests come",
            """
            Made by `python -m studies.control --compute`, which takes a minute and a half, from the data that it leaves in
            [control.csv](../studies/data/control.csv).""",
            "## What it does",
            """
            The tuner (`sluice.optimizer.tuning`) follows one model. It is told when requests come and what batches took, and says
            whether another plan is to come into force, and why. It reads no clock, and what it keeps is bounded.""",
            bullets(
                """**It proposes by analysis.** A process of two phases is fitted to the latest arrivals, and the searches of
                `sluice recommend` are asked for the cheapest size-or-timeout (for the promise, and for half of what it allows to
                be late), tables that wait to the last moment, the plan for every load, and workers where some are offered. They
                are asked anew when the rate has moved by a fifth, or a service time by 3 %.""",
                """**It chooses by rehearsal.** Each proposal, and the plan in force, is run by the simulator over the arrivals
                of the
                last half hour, 32 768 at most, with cold starts and with the service times that live batches measured. A plan is
                fit to serve if the next five minutes surely keep the promise: a prediction interval on the means of blocks, with 95
                % confidence, to which those are added whom new environments would make late. If yesterday the rate then rose
                or fell by a quarter, the arrivals are run at that rate as well. Of the plans that are fit the cheapest is taken,
                recent arrivals weighing more; one that rests on a fit must be 1 % cheaper.""",
                """**It changes little.** Another plan comes where what it saves in an hour, at the lower end of its interval on
                the same arrivals, is more than its cold environments cost, and no more than once a minute. A memory size of
                which no
                batch was measured gets 5 % of the requests until 32 were. A broken promise, or service times that
                have changed, is acted on at once.""",
                """**It corrects itself.** How long requests are on their way through the buffer is measured of live batches, and
                planned with ([live control](live-control.md#models-that-plan-themselves)). Where the measured percentile surely
                lies above the rehearsed one, half of the difference is added to every rehearsed latency, and of what is left half
                again at the next decision.""",
                """**Without a profile** it begins with no batching at the largest memory size, and doubles the largest batch
                whenever the last was measured, taking one twice as large to take at most twice as long. Other memory sizes are not
                tried then. **With too few arrivals**, below 200, the plan stays. **Where nothing keeps the promise** the plan with
                the fewest late serves, and an alarm says which percentile can be reached at best.""",
            ),
            "`sluice simulate --policy control` runs it in virtual time, and prints what it decided:",
            "```sh\nsluice simulate --profile profile.json --trace trace.csv --slo 0.2 \\\n"
            "    --policy control --service-change 600:1.5\n```",
            """
            `--service-change 600:1.5` has the function take half as long again from the 600th second on, which the tuner is not
            told.""",
            "## What it is worth",
            f"""
            **Over three loads control kept the promise in {kept} of {feasible} windows of five minutes in which any of the plans
            that were tried did, {100 * kept / feasible:.1f} %; it cost at most {dearest:.3f} times what the best plan of each
            window would have, known beforehand, and at most {static:.3f} times the cheapest plan that stays, whether that kept the
            promise or not.**""",
            "![cost over the clairvoyant's, and broken windows, by load and policy](figures/control.svg)",
            *(of_load(rows, load) for load in loads(rows)),
            """
            *Over the clairvoyant's*: of the cost of the cheapest plan of each window that kept the promise there, among some dozens
            (settings and tables of every memory size, and proposals for each four hours), without what changes cost. *Kept*: of the
            windows in
            which one of these did. BATCH is made anew each half hour from the last hour, at one memory size. The static plans are
            made from the first hour, and the run begins after it. Control begins with the plan for every load.""",
            f"""
            Of the windows under control {shares([row.percentile_near for row in mine])} had their p{SLO.percentile:g} within
            {100 * PERCENTILE_NEAR:g} % of what was rehearsed (in the order of the tables). What a window costs depends on how many
            come in it: so a decision tells the cost at a quarter of the rate of then up to four times it (`cost_by_rate` in the
            journal). {shares([row.cost_at_rate_near for row in mine])} of the windows cost within {100 * COST_NEAR:g} % of that at
            the rate which they turned out to have, where 95 % were the goal; of the cost that was rehearsed at the rate of the
            decision {shares([row.cost_near for row in mine])} were. The requests of the load balancer come in bursts within each
            window, so that the costs of equal windows differ by a fifth; the others are beyond where few or very many came.
            {missed(rows)}""",
            "## What was run",
            f"""
            The function is the perceptron of [every load](every-load.md), under p{SLO.percentile:g} within {
                1e3 * SLO.latency:g} ms,
            with cold starts as the platform has them. The loads are counts of requests in five minutes, over a day, scaled to
            {RATE:g} request/s in the mean: of an AWS load balancer, laid out within each window with the gaps of the
            [Azure excerpt](../examples/traces/README.md), stretched to the window; and of tweets that name a company, around their
            largest spike, as Poisson arrivals. In the third case the tweets' function takes {FACTOR:g} times as long from the
            middle on.
            The tuner looked every {STEP:g} s; windows are of {WINDOW:g} s.""",
            """
            Counts: Numenta Anomaly Benchmark (<https://github.com/numenta/NAB>), `realAWSCloudwatch/elb_request_count_8c0756` and
            `realTweets/Twitter_volume_AMZN`, a day of each as they are, in
            [control-loads.csv](../studies/data/control-loads.csv). Licence: MIT.""",
        ]
    )


def of_load(rows: Sequence[Row], load: str) -> str:
    """The table of a load."""
    mine = of(rows, load)
    cells = [
        [
            row.policy,
            f"{row.kept} of {row.feasible}",
            f"{100 * row.late:.2g} %",
            f"{1e6 * row.cost:.4f}",
            f"{row.ratio:.3f}",
            str(row.plans),
        ]
        for row in mine
    ]
    header = ["", "kept", "late", "USD per million", "over the clairvoyant's", "plans"]
    said = f"{mine[0].requests} requests in {mine[0].windows} windows"
    return f"### {load[0].upper()}{load[1:]}\n\n{said}.\n\n{table(header, cells)}"


def shares(values: Sequence[float | None]) -> str:
    """In words."""
    *some, last = (f"{100 * (value or 0):.0f} %" for value in values)
    return f"{', '.join(some)} and {last}"


def missed(rows: Sequence[Row]) -> str:
    """What was not reached, in words."""
    broken = [load for load in loads(rows) for row in controlled(rows) if row.load == load and row.kept < 0.99 * row.feasible]
    dear = [row.load for row in controlled(rows) if row.ratio > 1.10]
    over = [load for load in loads(rows) if over_static(rows, load) > 1.02]
    said = [
        f"The promise was not kept in 99 % of the windows under: {'; '.join(broken)}." if broken else "",
        f"The cost was beyond 1.10 times the clairvoyant's under: {'; '.join(dear)}." if dear else "",
        f"It was beyond 1.02 times that of a plan that stays under: {'; '.join(over)}." if over else "",
    ]
    return " ".join(part for part in said if part)
