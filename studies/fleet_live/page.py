"""The page docs/fleet-live.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import page_of, table
from .claims import accuracy, apart, late, total
from .demand import CALM, CALM_RATE, PART, SETTINGS, fleet, length
from .live import HEARTBEAT
from .results import LIVE, REPLAYED, SIMULATED, SLOWER, Study, Window

CAUSES = [
    [
        "the loop counted accepted requests alone: a buffer that refuses 10 of 33, as too many wait, told of 23, so that the less "
        "of a burst was seen the more of it there was",
        "the plans of two live days, simulated: 1.05 and 1.06 %, where 14 simulated days had 0.55 in the mean; with the count 0.43",
        "buffers count what they refuse, and the loop sees it",
    ],
    [
        "tables were made of the profile alone, and serve to the last moment: where batches take longer, who left last is late, "
        "and took the time of others",
        "simulated: of batches of 13 ms more 0.96 %, 0.85 where plans know 13, 0.60 where they know 20; of 30 ms 1.87, and 0.42",
        "the loop measures what batches take beyond their profiles, and plans with what 95 % of them keep; `--buffer-overhead` "
        "tells it beforehand, and tells it to `sluice fleet`",
    ],
    [
        "a period of 10 s was one of 10.5 live, as looks came a millisecond early",
        "simulated: 0.68 % in place of 0.59, the means of 14 days",
        "the look next to it counts",
    ],
    [
        "the only worker of a family unloaded what it served to load another variant, and was asked still",
        "12 of the 14 late requests of a run of 80 s, of 6,248",
        "another that can be spared loads it first",
    ],
    [
        "a worker that was alone had a batch that nobody counted: it got a second, where the one that came beside it was idle",
        "not measured: the time of a batch, where a worker joins a route",
        "it is counted",
    ],
]
"""What was found when live runs and their simulation were compared, what it was worth then, and what is done about it."""


def page(study: Study) -> str:
    """The page in Markdown."""
    facts, described = study.facts, fleet()
    live, replayed, simulated, slower = (study.of(run) for run in (LIVE, REPLAYED, SIMULATED, SLOWER))
    (slo,) = {family.slo.latency for family in described.families}
    (device,) = described.devices
    parts = " and ".join(f"{part:g} of {name}'s" for name, part in PART.items())
    changed = facts.hosts_changed
    return page_of(
        [
            "# A live fleet beside its simulation",
            """
            Made by `python -m studies.fleet_live --compute`, which takes seven minutes, from what it leaves in
            `studies/data/fleet-live*`. How a fleet is run is in [live control](live-control.md#a-fleet-that-plans-itself), how it
            is planned in [fleets](fleet.md).""",
            f"""
            A Redis, a buffer, `sluice control --fleet` and {device.count} `sluice worker --register` ran on the two cores of one
            machine, beside other work. The variants are a user's models that sleep for as long as their profiles say
            (`studies/fleet_live/sleepers.py`): two of each of two families, within {slo:g} s for 95 % of the requests. The demand
            is a day of what people wrote of a company, counted every five minutes, another day for each family (Numenta Anomaly
            Benchmark): {parts} counts. Five minutes became a second, and requests lie at random within it:
            {total(live, "arrivals"):,} requests in {length():.0f} s. So demand jumps from second to second as it did from five
            minutes to five minutes, which no fleet can follow whose workers load for half a second.""",
            f"""
            *Simulated* is the same `FleetController` with the same settings in `run_control`, told the same requests after as many
            seconds without any as the live one saw ({facts.idle:g} s); a plan takes {facts.decision_time:g} s there, loading
            {SETTINGS.load_time:g} s. *Live* a batch took {1e3 * facts.overhead:.1f} ms longer than its profile says, in the mean,
            and 95 % of them {1e3 * facts.longest:.1f} ms at most, as the buffer saw it: encoding, HTTP, two processes of a worker,
            and waiting for a core. *Longer* is the simulation with the mean added to every batch, and plans that know of the other.
            *Live plans* are the queues alone, simulated under the plans that were in force live, with the same batches: what is
            left between it and live is what happens between caller and worker, and between it and *longer* what was decided. Of a
            hundred requests the latest was sent {1e3 * facts.lag:.0f} ms after its time.""",
            "## The day",
            table(
                ["", "late, %", "accuracy, %", "over all requests, %", "in time, 1/s"],
                [
                    _sums("live", live),
                    _sums("live plans", replayed),
                    _sums("simulated", simulated),
                    _sums("longer", slower),
                ],
                spaced=True,
            ),
            f"""
            Other variants were served, or by other numbers of workers, {changed[LIVE]} times live and {changed[SIMULATED]} times
            simulated. Of all {facts.requests:,} requests, with those of the calm end, {facts.failed_all} had no answer: who could
            not be in time is given up. The controller used {100 * facts.controller:.1f} % of a core. What is simulated hangs on the
            moment at which the loop looks first: from {len(facts.starts)} moments within a second it has from
            {min(facts.starts):.2f} to {max(facts.starts):.2f} % late.""",
            "![requests in time, accuracy, late](figures/fleet-live.svg)",
            "Two hours of the day after the other, with the workers of each variant in the middle:",
            table(
                [
                    "from, s",
                    "requests",
                    "late, %: live",
                    "simulated",
                    "longer",
                    "accuracy, %: live",
                    "simulated",
                    "live",
                    "simulated",
                ],
                [_row(*windows) for windows in zip(live, simulated, slower, strict=True)],
                spaced=True,
            ),
            f"""
            In the mean over these windows the live run and the simulation are {apart(live, simulated, "late"):.2f} points of late
            requests and {apart(live, simulated, "accuracy"):.2f} points of accuracy apart, whichever has more. Over the day the
            live run has {late(live) - late(simulated):+.2f} points of late requests and
            {accuracy(live) - accuracy(simulated):+.2f} of accuracy; beside the one with longer batches
            {late(live) - late(slower):+.2f} and {accuracy(live) - accuracy(slower):+.2f}, beside the one under the same plans
            {late(live) - late(replayed):+.2f} and {accuracy(live) - accuracy(replayed):+.2f}.""",
            "## What lay between them",
            """
            This page once had 2.66 % late live and 0.58 % simulated, 0.93 % with longer batches, beside other work on the machine;
            on a quiet machine it was 1.22 %. Requests, batches, looks and decisions of live runs were written down one by one, and
            what was simulated of them told what each cause was worth; a simulated day begins at other moments each time:""",
            table(["what was found", "what it was worth, late", "now"], CAUSES, spaced=True),
            """
            What was not it: heartbeats (a change is told at once), the time from a plan written to its being in force (some
            milliseconds), loads (0.5 s, as simulated), the dealing of shares, or the way through HTTP and Redis on a quiet machine:
            from the end of a batch to its callers it is 1.7 ms in the mean.""",
            "## A worker that is killed",
            f"""
            After the day {CALM_RATE:g} requests/s of each family came for {CALM:g} s. Amid them the worker with the greatest part
            of a family's requests was killed with signal 9; workers tell of themselves every {HEARTBEAT:g} s, and count as dead
            when two heartbeats are missed. **{facts.failed} of the {facts.near} requests around it had no answer, and
            {facts.moved - facts.killed:.2f} s after the kill the plan in force had given its share to the {facts.workers - 1} that
            are left.** Around it is from {slo:g} s before the kill to a second after that plan. A buffer that finds a worker away
            asks another of the route at once, and a route without workers gives its share to the others, plan or not. Late were
            {facts.late_before:.2f} % of the requests of the calm end before the kill, and {facts.late_after:.2f} % of the
            {facts.after} from it on, with a worker less.""",
        ]
    )


def _row(live: Window, simulated: Window, slower: Window) -> list[str]:
    missed = [f"{window.late:.1f}" for window in (live, simulated, slower)]
    means = [f"{window.accuracy:.1f}" for window in (live, simulated)]
    return [f"{live.begin:.0f}", f"{live.arrivals}", *missed, *means, live.hosts, simulated.hosts]


def _sums(name: str, windows: Sequence[Window]) -> list[str]:
    missed, mean = late(windows), accuracy(windows)
    in_time = total(windows, "in_time") / length()
    return [name, f"{missed:.2f}", f"{mean:.2f}", f"{(1 - missed / 100) * mean:.2f}", f"{in_time:.1f}"]
