"""The page docs/control.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import bullets, page_of, table
from .claims import controlled, loads, of, over_static
from .computation import CASES, COST_NEAR, FACTOR, PERCENTILE, PERCENTILE_NEAR, STEP, WINDOW
from .results import Row

COST_GOAL = 0.95  # of the windows
COST_HEADERS = (
    f"cost within {100 * COST_NEAR:g} % on its own arrivals",
    f"within {100 * COST_NEAR:g} % at its rate",
    "inside the interval",
    f"within {100 * COST_NEAR:g} % as forecast",
)


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
            Made by `python -m studies.control --compute [TRACES_FOLDER]`, which takes ten minutes of one core, from
            the data that it leaves in [control.csv](../studies/data/control.csv).""",
            "## What it does",
            """
            The tuner (`sluice.optimizer.tuning`) follows one model. It is told when requests come and what batches took, and says
            whether another plan is to come into force, and why. It reads no clock, and what it keeps is bounded.""",
            bullets(
                """**It proposes by analysis.** A process of two phases is fitted to the latest arrivals, and the searches of
                `sluice recommend` are asked for the cheapest size-or-timeout (for the promise, and for 97 to 50 % of
                what it allows to be late), tables that wait to the last moment, of the cheapest sizes and of all, the plan for
                every load, and where workers are offered these, alone, with the function for what they leave too late, and with
                the function beside them. Tables that wait to the last moment leave batches so that more are in time than is
                promised of the requests: so many that the next five minutes keep it with 99 % confidence, if each batch is left
                so long, as few requests are broken by one batch (98.5 % of a p95 for 300 requests in batches of three, 96.0 for
                6000, 99.9 for 30). The plan that it found in force stays among them. They are asked anew when the rate has
                moved by a fifth, or a service time by 3 %, and once more when a new rate was seen for a minute. The process, by
                which the rate is watched as well, is then fitted anew, and where the rate or the burstiness changed, twice as
                many arrivals are known, or an hour has passed.""",
                """**It chooses by rehearsal.** Each proposal, and the plan in force, is run by the simulator over the arrivals
                of the last half hour, 32 768 at most, or for up to a day as many as it takes to be sure of the promise (200 for a
                p95, 922 for a p99), with cold starts and with the service times that live batches measured;
                while less was seen than environments are kept for, behind a first run over the same arrivals, in which they
                start. A plan is fit to serve if the next five minutes surely keep the promise: a prediction interval on the
                means of blocks, with 99 % confidence. Environments of a function that does not serve yet are [started before the
                plan comes into force](deploy.md#environments-that-are-there-before-the-first-request); where they take more than
                five seconds, those are added whom they would make late: each five minutes of the arrivals are run as if the plan
                came before them, and where most more are late counts.
                Nor may it have broken the promise in any five minutes in which another kept it. If
                yesterday the rate then rose or fell by a quarter, the arrivals are run at that rate as well, unless the record
                has a hole there; what came yesterday is known after a restart too. Before workers that only carry so much, they
                are run at the most that a rate may be which was seen for less than a minute. Of the plans that
                are fit the cheapest is taken, recent arrivals weighing more, and of those within a thousandth of it the one with
                the fewest late, or what is in force; one that rests on a fit, as workers alone do, must be 1 % cheaper. Of fixed
                workers, whose tables cost the same, it is the one of least energy, or where none is known of least latency in the
                mean among those that use at most half of what the promise allows to be late. One that is not sure of the
                promise, of which it used no more than half where it was rehearsed, is taken where to be sure costs more than it is
                worth: a window that breaks the promise counts as five more, in proportion to its chance beyond the one per cent,
                and what a change costs in as long as the plan in force has served comes to it. Where to be sure costs more than
                twice as much, so is one that used up to all of it: no batching is sure at a multiple of the cost. Where a window
                may have 32 late requests or fewer, so that means of blocks do not see what one late batch does, plans that are
                sure compare by that chance too: batches with late requests fall into the windows at random, as many and as large
                as they were (a compound Poisson sum), of few arrivals in up to eight runs.""",
                """**It keeps environments** by [pings](deploy.md#pings). After a lull longer than a platform keeps what nobody uses
                a burst starts cold, and of a p99 that may be all that is allowed. So the three cheapest plans that do not surely
                keep the promise are run again with as many environments kept as batches were under way at once; what
                pings cost up to 1 % is not held against a plan, as nobody knows when the next burst comes, nor are they given up
                before they have cost as much as it does to start those again. A plan that comes for another reason has
                them too where they cost no more than 1 %.""",
                """**It changes little.** Another plan comes where what it saves, with 95 % confidence on the same
                arrivals, in as long as the plan in force has served, five minutes at the least and an hour at the most, is more
                than its cold environments cost; no more than once a minute, and not before requests have come at that rate for
                a minute, which a stall and what it held back do not: what waits for that is decided about again when it is
                over, or after five minutes. A memory size of which no batch was measured gets 5 % of the requests until 32
                were, or as many for each function that is tried, as some serve larger batches than come of a share; without the
                workers that it is to stand beside. Where the profile is surely wrong of what was measured, a size that it has
                dearer may be [tried with fewer](live-control.md#models-that-plan-themselves). A broken promise, service
                times that have changed, or a way through the buffer that has become longer and may break it, is acted on at once;
                but not what a lower rate would break that was seen for less than a minute, or for ten requests: after a silence
                nobody knows yet what comes, and nobody was late. Where nothing surely keeps the promise, a plan that has not
                broken it where it was rehearsed stays, too: of a few hundred requests no plan is sure of the hundredth that may
                be late. Fewer late at twice the cost and more are bought only where that leaves, by more than chance, no more
                than half of what is late beyond the promise: bursts that start cold are late whatever the plan, and no batching
                costs ten times as much. Before workers that only carry so much, what was decided about a rate that was seen for
                a moment is looked at again when it was seen for twice as long, until that is a minute.""",
                """**It corrects itself.** How long requests are on their way through the buffer is measured of live batches,
                and planned with ([live control](live-control.md#models-that-plan-themselves)). Where the measured percentile
                surely lies above the rehearsed one of the same requests, half of the difference is added to every rehearsed
                latency, and of what is left half again at the next decision. Where workers that are too few break the promise,
                about as many requests as will wait when another plan comes stand before the arrivals that are rehearsed; what
                is chosen for them is looked at again a minute later. Who came before a plan did is no proof against it. Nor is
                what was measured before service times changed: where a promise is broken and batches surely take another time
                since then, by however little, what they took before is forgotten as where an alarm of the service times tells
                so. Where they drift by less than such an alarm tells of, it is asked after 32 batches, and at each decision,
                whether they surely take 0.3 % more or less than before the last one; that is acted on 20 s after it at the
                earliest, and ever more seldom while the plan stays.""",
                """**Without a profile** it begins with no batching at the largest memory size, and doubles the largest batch
                whenever the last was measured, taking one twice as large to take at most twice as long. Other memory sizes are
                not tried then. **With too few arrivals**, below 200 or in less than a minute, the plan stays, but what it began
                with is made anew where that was for other service times; then plans are compared whenever twice as long was
                seen, until that is each five minutes, or where 200 take longer than half an hour each sixth of that. **Where
                nothing keeps the promise** the cheapest plan with the fewest late serves, where most are late of those that are
                as quick, and an alarm says which percentile can be reached at best, and of workers that are too few how many
                requests a second they answer at the most.""",
            ),
            "`sluice simulate --policy control` runs it in virtual time, and prints what it decided:",
            "```sh\nsluice simulate --profile profile.json --trace trace.csv --slo 0.2 \\\n"
            "    --policy control --service-change 600:1.5\n```",
            """
            `--service-change 600:1.5` has the function take half as long again from the 600th second on, which the tuner is not
            told.""",
            "## What it is worth",
            f"""
            **Over {len(mine)} loads control kept the promise in {kept} of {feasible} windows of five minutes in which any of the
            plans that were tried did, {100 * kept / feasible:.1f} %; it cost at most {dearest:.3f} times what the best plan of each
            window would have, known beforehand, and at most {static:.3f} times the cheapest plan that stays, whether that kept the
            promise or not.**""",
            "![cost over the clairvoyant's, and broken windows, by load and policy](figures/control.svg)",
            *(of_load(rows, load) for load in loads(rows)),
            """
            *Over the clairvoyant's*: of the cost of the cheapest plan of each window that kept the promise there, among some dozens
            (settings and tables of every memory size, and proposals for each four hours), without what changes cost. *Kept*: of the
            windows in
            which one of these did. BATCH is made anew each half hour from the last hour, at one memory size. The static plans are
            made from the first hour (of a trace that is shorter than four, its first quarter), and the run begins after it.
            *Rehearsed* is each half hour the one of all these plans that was cheapest in the last hour among those that kept the
            promise there; it begins with the recommended one, knows what is proposed for later hours, and changes for nothing.
            Control begins with the plan for every load.""",
            "## Predicted beside measured",
            """
            What a window costs per request depends on how many come in it. So a decision does not tell one figure but a curve
            (`cost_by_rate` in the journal, `sluice control --explain`): the latest arrivals are rehearsed at an eighth of the rate
            of then up to eight times it, each window of them brought to that rate, with the interval in which 95 % of windows are
            expected. Of the windows under control:""",
            table(
                ["", f"p{PERCENTILE:g} within {100 * PERCENTILE_NEAR:g} %", *COST_HEADERS],
                [[row.load, *(percent(value) for value in shares_of(row))] for row in mine],
            ),
            f"""
            *On its own arrivals*: of what a run of the plan over the arrivals of the window costs, with the service times that
            were known before it, which says whether the model of the system is true: the standard deviation of what is left is
            {least_and_most([row.system_spread for row in mine])}. *At its rate*: of the curve, at the rate that the window turned
            out to have; the rest, {least_and_most([row.spread for row in mine])}, is how the requests of a window happened to lie,
            which no decision before it knows: Poisson arrivals leave less of it the more come, and the bursts of the load balancer
            make windows of one rate differ. The interval tells how far. *As forecast*: of the cost at the rate of the decision, so
            that how the demand changed counts as well. {missed(rows)}""",
            "## What was run",
            f"""
            The function is the perceptron of [every load](every-load.md), under p{PERCENTILE:g} within {
                1e3 * CASES[0].latency:g} ms where nothing else is said, with cold starts as the platform has them. The loads are
            counts of requests in five minutes, over a day, scaled to {CASES[0].rate:g} request/s in the mean where
            nothing else is said, of both also over three days in a row: of an AWS load balancer, laid out within each window with
            the gaps of the [Azure excerpt](../sluice/local/traces/README.md), stretched to the window; and of tweets that name a
            company, around their
            largest spike, as Poisson arrivals. In the third case the tweets' function takes {FACTOR:g} times as long from the
            middle on. The others are traces of the [policy zoo](policy-zoo.md#what-is-compared): the hour of the LLM as fast as it
            was, the packets of the Ethernet a tenth as fast, and the map service.
            The tuner looked every {STEP:g} s; windows are of {WINDOW:g} s. Of the loads of days in a row the clairvoyant has
            proposals for each half day.""",
            """
            Counts: Numenta Anomaly Benchmark (<https://github.com/numenta/NAB>), `realAWSCloudwatch/elb_request_count_8c0756` and
            `realTweets/Twitter_volume_AMZN`, a day of each as they are, in
            [control-loads.csv](../studies/data/control-loads.csv); the days in a row are of their files in the folder. Licence:
            MIT.""",
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


def shares_of(row: Row) -> list[float | None]:
    """In the order of the columns."""
    return [row.percentile_near, row.system_near, row.cost_at_rate_near, row.cost_inside, row.cost_near]


def percent(share: float | None) -> str:
    """In words."""
    return f"{100 * (share or 0):.1f} %"


def least_and_most(values: Sequence[float | None]) -> str:
    """In words."""
    known = [value for value in values if value is not None]
    return f"{100 * min(known):.2g} to {100 * max(known):.2g} %"


def missed(rows: Sequence[Row]) -> str:
    """What was not reached, in words."""
    broken = [load for load in loads(rows) for row in controlled(rows) if row.load == load and row.kept < 0.99 * row.feasible]
    dear = [row.load for row in controlled(rows) if row.ratio > 1.10]
    apart = [row.load for row in controlled(rows) if (row.cost_at_rate_near or 0) < COST_GOAL]
    over = [load for load in loads(rows) if over_static(rows, load) > 1.02]
    said = [
        f"The promise was not kept in 99 % of the windows under: {'; '.join(broken)}." if broken else "",
        f"The cost was beyond 1.10 times the clairvoyant's under: {'; '.join(dear)}." if dear else "",
        f"Fewer than {100 * COST_GOAL:g} % of windows were within {100 * COST_NEAR:g} % at their rate under: {'; '.join(apart)}."
        if apart
        else "",
        f"It was beyond 1.02 times that of a plan that stays under: {'; '.join(over)}." if over else "",
    ]
    return " ".join(part for part in said if part)
