"""What a placement would have done with the demand of the last minutes: its queues, simulated (docs/model.md, section 5).

Families share no queue, so each is rehearsed for itself: its remembered requests, dealt by shares that follow its demand as the
loop has them follow it, through the tables of its queues. A number that counts capacity alone does not see that a burst of ten
finds a device busy with a batch; this does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.demand import DemandForecast, Remembered
from sluice.optimizer.fleet.problem import fill
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule, simulate_fleet

MOST_REQUESTS = 20_000  # of a family, the last ones


class Outcome(NamedTuple):
    """Of a family's: the share that was late, given up or routed nowhere, and the mean accuracy of others, %; nan of none."""

    late: float
    accuracy: float


class Rehearsal:
    """Placements on the demand that was seen up to now.

    Parameters
    ----------
    fleet : ControlledFleet
    forecast : DemandForecast
    rates : array, shape (n_families,)
        Requests/s that it is to come at.
    n_parts : int
        Of a step, in which demand that was not seen is drawn.
    """

    def __init__(self, fleet: ControlledFleet, forecast: DemandForecast, rates: Array, n_parts: int) -> None:
        self._fleet = fleet
        self._remembered = [
            _last(forecast.remembered(q, float(rates[q]), n_parts), MOST_REQUESTS) for q in range(fleet.problem.n_families)
        ]
        self._known: dict[tuple[int, bytes, float], Outcome] = {}

    def of_family(self, family: int, counts: Counts, headroom: float) -> Outcome:
        """What becomes of its requests on the devices of these ``counts``, shares being made for ``headroom`` times the demand."""
        members = np.flatnonzero(self._fleet.problem.family == family)
        if np.count_nonzero(counts[:, members]) < 2:
            headroom = 1.0  # all goes where it can
        key = family, counts[:, members].tobytes(), headroom
        if key not in self._known:
            self._known[key] = self._run(family, members, counts, headroom)
        return self._known[key]

    def _run(self, family: int, members: Counts, counts: Counts, headroom: float) -> Outcome:
        problem, remembered = self._fleet.problem, self._remembered[family]
        able = (counts[:, members] > 0) & (problem.throughput[:, members] > 0)
        places = [(int(d), int(members[m])) for d, m in np.argwhere(able)]
        if not places or not len(remembered.arrival_times):
            return Outcome(float(not places), np.nan)
        queues = [
            FleetQueue(d, m, 0, float(problem.accuracy[m]), self._fleet.policies[d, m], self._fleet.services[d, m])
            for d, m in places
        ]
        reach = np.array([problem.throughput[place] * counts[place] for place in places])
        shares = fill(np.array([queue.accuracy for queue in queues]), reach, headroom * remembered.followed)
        servers = np.tile([counts[place] for place in places], (len(shares), 1))
        schedule = FleetSchedule(queues, remembered.ends[:-1], shares, servers)
        slo = self._fleet.slos[family : family + 1]
        run = simulate_fleet(schedule, [remembered.arrival_times], slo, np.random.default_rng(0))
        return Outcome(run.violation_ratio, run.effective_accuracy)


def _last(remembered: Remembered, n: int) -> Remembered:
    """The end of it, with so many requests at most."""
    times = remembered.arrival_times
    if len(times) <= n:
        return remembered
    begin = int(np.searchsorted(remembered.ends, times[-n], side="right"))
    starts = remembered.ends[begin - 1] if begin else 0.0
    return Remembered(times[times >= starts] - starts, remembered.ends[begin:] - starts, remembered.followed[begin:])
