"""The page docs/fleet-live.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import page_of, table
from .claims import accuracy, apart, late, total
from .demand import CALM, CALM_RATE, PART, SETTINGS, fleet, length
from .live import HEARTBEAT
from .results import LIVE, SIMULATED, SLOWER, Study, Window


def page(study: Study) -> str:
    """The page in Markdown."""
    facts, described = study.facts, fleet()
    live, simulated, slower = (study.of(run) for run in (LIVE, SIMULATED, SLOWER))
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
            as the buffer saw it: encoding, HTTP, two processes of a worker, and waiting for a core. *Longer* is the simulation
            with that added to every batch. Of a hundred requests the latest was sent {1e3 * facts.lag:.0f} ms after its time: so
            long did even the sender wait for a core.""",
            "## The day",
            table(
                ["", "late, %", "accuracy, %", "over all requests, %", "in time, 1/s"],
                [_sums("live", live), _sums("simulated", simulated), _sums("longer", slower)],
                spaced=True,
            ),
            f"""
            Other variants were served, or by other numbers of workers, {changed[LIVE]} times live and {changed[SIMULATED]} times
            simulated. Of all {facts.requests:,} requests, with those of the calm end, {facts.failed_all} had no answer: who could
            not be in time is given up. The controller used {100 * facts.controller:.1f} % of a core.""",
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
            {late(live) - late(slower):+.2f} and {accuracy(live) - accuracy(slower):+.2f}. What differs: the two loops look at
            other moments, and where two plans are nearly as good they may take one each, and keep what they have loaded from there
            on; a live change comes a moment later, as buffers are to have the plan before a worker unloads; and a batch that waits
            for a core is late where a simulated one is just in time, as a fleet this small has little to spare.""",
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
