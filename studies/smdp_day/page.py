"""The page docs/smdp-day.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import bullets, page_of, table
from .claims import over_clairvoyant, row_of, spared
from .computation import BUDGET, BUSY, ENERGY, LARGEST, SERVICE, SLO, SLOWER, STEP, WINDOW
from .results import AGAIN, BANDS, CONTROL, GREEDY, LATEST, MEAN, Row


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    mine, of_mean = row_of(rows, CONTROL), row_of(rows, MEAN)
    apart = 100 * abs(row_of(rows, BANDS).joules / row_of(rows, AGAIN).joules - 1)
    static = "more" if mine.joules > of_mean.joules else "less"
    return page_of(
        [
            "# A table that follows the rate",
            """
            Made by `python -m studies.smdp_day --compute`, which takes a few minutes, from the data that it leaves in
            [smdp-day.csv](../studies/data/smdp-day.csv).""",
            """
            A server of one's own costs the same whatever it does. What its table decides is how long requests wait, and how much
            energy the server takes: [`sluice smdp`](smdp.md) finds the table of least energy that keeps a promise, at one rate of
            arrivals. Here is what a tuner does that makes its table follow the rate.""",
            "## How",
            "```sh\nsluice simulate --profile server.json --worker server.json:0.5 --servers 1 --trace trace.csv \\\n"
            "    --slo 3 --policy control\n"
            "sluice control --profile server.json --servers 1 --redis-url redis://HOST:6379/0\n```",
            bullets(
                """**What is proposed**: greedy, which takes all that waits, the table that waits to the last moment, and
                the optimal tables of the band in which the rate lies (neighbouring bands differ by a tenth), for all of
                what the promise allows to be late, for half and for a quarter. Nobody waits at an idle server until he is
                late. A band is solved when it is first seen, some tenths of a second of CPU at batches of 32, and 256 are
                kept; service times that are others make all anew. With batches of more than 64 greedy alone is
                proposed.""",
                """**What is chosen**: what surely keeps the promise of the next window in rehearsal, as
                [everywhere](control.md). All tables cost the same, so that the one of least energy is taken, or of least mean
                latency where the profile tells no `energy`; it comes if it surely spares 2 %.""",
                """**When**: a table changes by a decision like any other, every five minutes and when the rate is seen to be
                another, so that no band is left unrehearsed. The workers stay, and nothing starts.""",
                """Service times are those of live batches. Of several workers the table is that of one with its share.""",
            ),
            "## What it is worth",
            f"""
            **Over the day control took {100 * spared(rows, CONTROL, GREEDY):.1f} % less energy than greedy and
            {100 * abs(spared(rows, CONTROL, MEAN)):.1f} % {static} than the table of the mean rate, which kept the promise in
            {of_mean.kept} windows where control kept it in {mine.kept} of {mine.feasible}; it took
            {over_clairvoyant(rows, CONTROL):.3f} times what the best table of each window would have, known beforehand.**""",
            "![energy and broken windows by policy](figures/smdp-day.svg)",
            table(
                ["", "kept", "late", "J a request", "over the clairvoyant's", "mean latency, ms", "tables"],
                [
                    [
                        row.policy,
                        f"{row.kept} of {row.feasible}",
                        f"{100 * row.late:.2g} %",
                        f"{row.joules:.4f}",
                        f"{over_clairvoyant(rows, row.policy):.3f}",
                        f"{1e3 * row.latency:.0f}",
                        str(row.tables),
                    ]
                    for row in rows
                ],
            ),
            f"""
            Here the table that waits to the last moment, which knows no rate, took {over_clairvoyant(rows, LATEST):.3f} times what
            the clairvoyant did, and control found it: at an SLO as long as this, following the rate band by band
            is worth nothing beside it, and less than a table that stays. A table solved for one rate serves sooner than it must
            when fewer come.""",
            f"""
            *Kept*: of the windows in which any table that was tried kept the promise. The tables by band and those that are solved
            again go by the rate of the last window alone, without rehearsal, for {100 * BUDGET:g} % of what may be late: they
            are within {apart:.2g} % of each other, so that a band is as good as the rate itself. The clairvoyant takes of all
            tables the one of least energy that keeps the promise of the window, each run for itself over the whole day.""",
            "## What was run",
            f"""
            The server is GoogLeNet on the Tesla P4 of the [SMDP papers](smdp-figures.md), {SLOWER} times as slow, so that a day
            has {row_of(rows, CONTROL).requests} requests: {1e3 * SERVICE[0]:.4g} + {1e3 * SERVICE[1]:.4g} b ms and
            {ENERGY[0]:.4g} + {ENERGY[1]:.4g} b J a batch of b, up to {LARGEST}, under p{SLO.percentile:g} within
            {SLO.latency:g} s. The load is the day of an AWS load balancer that [control](control.md) has, in windows of
            {WINDOW:g} s, Poisson within each and scaled so that the busiest is {100 * BUSY:g} % of the capacity. Control begins
            with greedy and looks every {STEP:g} s.""",
        ]
    )
