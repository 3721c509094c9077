"""The page docs/watching.md."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.change_tests import Cell

from ..markdown import bullets, page_of, table
from .claims import AFTER, alarms, rows_of
from .computation import HOURS, RUNS

EXAMPLE = """```python
import numpy as np
from sluice.optimizer.tuning.changes import RateTest

rng = np.random.default_rng(1)
steady = np.cumsum(rng.exponential(1 / 50, 30_000))
test = RateTest()
test.see(steady)
assert test.alarm is None

test.see(steady[-1] + np.cumsum(rng.exponential(1 / 150, 200)))
print(test.alarm.words)
```"""


def page(cells: Sequence[Cell]) -> str:
    """The page in Markdown."""
    return page_of([*what_is_watched(), *arrivals(cells), *of_batches(cells), *the_profile()])


def what_is_watched() -> list[str]:
    """Which tests there are."""
    return [
        "# What is watched while requests come",
        """
        Made by `python -m studies.watching` of what [its last run](../studies/data/watching.csv) found; with `--compute` it
        is run anew, some minutes.""",
        """
        A plan rests on an arrival rate, on how bursty arrivals are, on the times of the function, and it makes a promise.
        `sluice.optimizer.tuning` watches all four as they come, without a clock or I/O, in memory that does not grow and some
        microseconds a count or a batch, and keeps a profile up to date. The formulas are in
        [the model](model.md#10-noticing-that-something-changed), section 10; what is done about an alarm is
        [decided elsewhere](control.md).""",
        EXAMPLE,
        """
        Every watch has `see(...)`, which takes what came since the last call, and `alarm`: `None`, or what was found, when,
        since when, before and after, and a sentence. `clear()` takes note of it. Where the record of arrivals has a hole,
        `resume(at)` says where it goes on; a clock that is set back by more than a minute is taken for one.""",
        "## The tests",
        table(
            ["class", "of what", "by which test", "false alarms asked for"],
            [
                [
                    "`RateTest`",
                    "the arrival rate, against that since the last change",
                    "likelihood ratio of counts in windows of every length, over their dispersion: a fit's, then as measured",
                    "one in ten days",
                ],
                [
                    "`BurstinessTest`",
                    "how much neighbouring counts differ",
                    "the same of (a - b)²/(a + b), of pairs in which a request came",
                    "one in ten days",
                ],
                [
                    "`ServiceWatch`",
                    "times of batches over those of the profile at their size, by memory size: the function's own, and the "
                    "invocation's",
                    "the same of their logarithms, cut at a factor of two; and Page's sums for a factor of 1.5, over the spread as "
                    "measured",
                    "one in a million batches",
                ],
                [
                    "`PromiseWatch`",
                    "the share of requests that failed (5xx) or were later than the SLO's latency",
                    "bets on lateness, batch by batch, as a Shiryaev-Roberts sum (an e-detector)",
                    "one in 50 000 batches",
                ],
            ],
        ),
        bullets(
            """**Bursts are no change.** The dispersion is measured for windows of every length while running, so that
            arrivals may come in bursts of whatever shape that last for up to some minutes; what varies more slowly *is* a
            change of the rate, and the course of a day gives alarms as the rate leaves the level it stood at by more than a
            tenth. Of lengths of which few windows were seen yet a fit tells (`RateTest(expected=…)`, `expect(…)`); the tuner
            tells each that it makes. Until bursts have been seen, or fitted, they are changes too.""",
            """**What comes back was no change.** If the rate of the two minutes after an alarm is within a tenth of that
            before, it was a stall or a burst: from then on twice as much of it is let pass, in windows of its length and, by
            as much less as they are longer, beyond; 64 times at most, and of the doublings half after a day.
            `RateTest.false` counts such alarms.""",
            """**The new rate is that since the change.** A large change is noticed before a window of eight counts is full of it.
            The rate that is told is that since the moment which makes what was seen most likely, four counts at the least
            (`python -m benchmarks rate_step`: 0.73 to 0.83 of the true rate was told after a step of three of Poisson arrivals
            before this, 0.93 to 1.02 with it).""",
            """**One outlier is no change.** No window is shorter than eight counts, and a batch that took ten times as
            long says no more than one that took two or three times as long. What holds up one batch may hold up those that run
            beside it: no sum passes in fewer than seven batches of which all overlap, or in fewer than four of which none does.
            Four in a row that are slow for a moment are a change, and so are those after them: each is planned for.""",
            """**Silence says nothing of burstiness.** Pairs of counts in which no request came are left out.""",
            """**All late together is one event.** `PromiseWatch` counts by batch, so that it does not matter how those of
            one batch depend on each other. Where late batches come in runs it bets less. Requests that failed (5xx) were not
            served in time, and count as late; what is the caller's mistake (4xx) counts by when it was answered.""",
            """**Cold batches**, those of which a request failed or was rejected, and sizes that the profile does not have, say
            nothing of
            service times.""",
            """**Alarms in vain are heeded more seldom.** A decision that leaves the plan has found it right at the rate of
            then. An alarm at a rate between those at which it was found right is acted on 5 s after the decision before, the
            next 10 s after, and so on up to the 300 s after which one is made anyway; an alarm of a rate beyond them is
            acted on after 5 s, however many came before. Alarms of the promise wait in the same way, by a count of their own.""",
        ),
    ]


def arrivals(cells: Sequence[Cell]) -> list[str]:
    """Of the rate and the burstiness."""
    steady, burstiness = rows_of(cells, "rate, steady"), rows_of(cells, "burstiness, steady")
    noticed, came = rows_of(cells, "rate, noticed"), rows_of(cells, "rate, as it came")
    factors = [column for column in next(iter(noticed.values())) if column != "I(10 s)"]
    first = ["first hour", "first hour, fits told", AFTER]
    return [
        "## Rates and delays",
        """
        By `python -m benchmarks.change_tests`, in virtual time. To make a trace steady, stretches of a 64th of it are drawn
        in random order. Only an excerpt of the trace of a language model is in the repository; LiveMaps and Bellcore are
        those of the KPC-Toolbox.""",
        f"""
        **While nothing changes**: alarms of steady arrivals in the first hour, in which bursts are learnt, the same where
        the test is told fits as the tuner tells them, and in the {HOURS} hours after it (of that test). `BurstinessTest` counts
        by seconds.""",
        table(
            ["arrivals", "thousands", "rate: first hour", "with fits", f"{HOURS} hours after", "burstiness: first hour", AFTER],
            [
                [
                    name,
                    row["thousand arrivals"],
                    *(row[column] for column in first),
                    burstiness[name]["first hour"],
                    burstiness[name][AFTER],
                ]
                for name, row in steady.items()
            ],
        ),
        f"""
        The traces as they came: {
            "; ".join(
                f"{name.removeprefix('trace ')} {row['alarms']} of the rate in {row['minutes']} minutes, "
                f"of them false {row['false']}"
                for name, row in came.items()
            )
        }. False is an alarm after which the rate of two minutes is within
        a tenth of that of the two before. In all there were {
            alarms(cells, "rate, steady", AFTER)
        } alarms of the rate after the first
        hour, and {alarms(cells, "burstiness, steady", AFTER)} of burstiness. The LiveMaps trace holds one stall of a second and
        what it held back, which is drawn about twice an hour: the test lets it pass once it has come back some times.""",
        f"""
        **After a change**, seconds until `RateTest` notices it after an hour at the old rate, told of the process (median
        and 95 % of {RUNS} runs; a dash: not within ten minutes; I is the index of dispersion):""",
        table(
            ["arrivals", "I(10 s)", *factors],
            [[name, row["I(10 s)"], *(row[factor] for factor in factors)] for name, row in noticed.items()],
        ),
        """
        The burstier arrivals are, the later: a change must outlast what bursts do. What no test can tell from a burst is not
        noticed here either; the promise is watched besides.""",
        "`BurstinessTest`, seconds until it notices the other process:",
        table(
            ["before, then after", "I(1 s)", "seconds"],
            [[name, row["I(1 s)"], row["seconds"]] for name, row in rows_of(cells, "burstiness, noticed").items()],
        ),
    ]


def of_batches(cells: Sequence[Cell]) -> list[str]:
    """Of promises and service times."""
    promise, service = rows_of(cells, "promise"), rows_of(cells, "service")
    slow, often = (rows_of(cells, f"service, one in {rare}") for rare in ("fifty ten times as long", "ten"))
    ratios = [column for column in next(iter(service.values())) if column not in ("alarms", "least for × 1.5")]
    return [
        "`PromiseWatch` of p95, ten batches a second of 1 to 8 requests, 3 % late before (seconds, median and 95 %):",
        table(
            ["late requests", "alarms where exactly 5 % are late", "10 % late", "20 % late", "50 % late"],
            [[name, *row.values()] for name, row in promise.items()],
        ),
        """
        Asked for is one alarm in 50 000 batches, 10 in 500 000. Ten batches that are late together are one event, so that it takes
        longer there until as much was seen. Who plans for less than 5 % late sees far fewer.""",
        """
        `ServiceWatch`, batches until a change of all times is noticed, after 1000 at the profile's (median and 95 %), and
        alarms while nothing changes:""",
        table(
            [
                "SCV of a batch's time",
                "alarms",
                *ratios,
                "least for × 1.5",
                "× 1.5, one in fifty ten times as long",
                "alarms then",
                "alarms, one in ten",
            ],
            [
                [
                    name,
                    row["alarms"],
                    *(row[ratio] for ratio in ratios),
                    row["least for × 1.5"],
                    slow[name]["× 1.5"],
                    slow[name]["alarms"],
                    often[name]["alarms"],
                ]
                for name, row in service.items()
            ],
        ),
        "![batches until × 1.5 is noticed, by the spread of their times, and the least](figures/watching.svg)",
        """
        *Least* is what no test with one false alarm in a million batches can do without in the mean, of independent batches
        whose logarithms are normal (Lorden's bound, log 10⁶ over the divergence; a median lies below a mean). So whatever the
        test, a factor of 1.5 can be noticed within ten batches up to an SCV of 0.05 and not beyond. These here
        come one after another, of which four are enough where they spread little. Where one in ten takes ten times as long, runs of
        them come by chance, and times that leave the profile are what they are told as.""",
    ]


def the_profile() -> list[str]:
    """What is learnt of service times."""
    return [
        "## The profile that follows",
        """
        `LiveProfile(profile).see(batches)` and `.profile()`, which is a [profile](architecture.md) like any other, to be planned
        with:""",
        bullets(
            """A linear profile of a function of one memory size keeps its law, times one ratio, and gets the spread of the measured
            times about it, of all sizes together, from 20 batches on, where that is 2 % of the time or more. With several
            memory sizes it has none.""",
            """A size that was seen has its own mean, as far as its error allows; sizes and memory sizes that were not seen
            keep the profile's curve, at the ratio of their neighbours. Quantiles are the sample's from 20 batches on. The
            last 256 batches of a setting count, of 512 settings at most.""",
            """Fewer than eight batches change nothing. `restart(since)` forgets what was before an alarm, and the first since
            then, which may be of before too; then four are enough.""",
            """Without a profile (`LiveProfile(function="mlp-{memory_mb}")`) a size counts from eight batches on, and nothing
            is said of larger batches than were seen: plans begin without batching. What was learned before `restart` is then
            the profile that was known, so that sizes that have not come since keep its curve.""",
            """INIT is what cold batches take beyond warm ones, `cold_share()` how many there are, `overhead()` what an
            invocation takes beyond the function's own time.""",
            """`bias()` is what was measured less what was predicted, for latency and cost, by memory size and batch size, with
            standard errors: each decision tells it, in the journal and on the live page.""",
        ),
        "A profile whose points have sizes of requests is refused: a measured batch does not tell those of its own.",
    ]
