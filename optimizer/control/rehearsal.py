"""What a placement would have done with the demand of the last minutes: its queues, simulated (docs/model.md, section 5).

Families share no queue, so each is rehearsed for itself: its remembered requests, dealt by shares that follow its demand as the
loop has them follow it, through the tables of its queues: brought to the rate that is forecast, and, for as much as they are likely
to come again (``DemandForecast.comes_again``), as they came. A number that counts capacity alone does not see that a burst of ten
finds a device busy with a batch; this does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.demand import RARE, DemandForecast, Remembered
from sluice.optimizer.fleet.problem import fill
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule, simulate_fleet

MOST_REQUESTS = 20_000  # of a family, the last ones
LEAST_PART = 0.01  # of all requests, that a family counts for: no family is given up as there are few of it


class _Past(NamedTuple):
    """What is rehearsed, and how many requests/s are expected to come like it."""

    remembered: Remembered
    rate: float


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

    Attributes
    ----------
    part_of : array, shape (n_families,)
        For how much of all requests each family counts, ``LEAST_PART`` at least.
    """

    def __init__(self, fleet: ControlledFleet, forecast: DemandForecast, rates: Array, n_parts: int) -> None:
        self._fleet = fleet
        self._pasts = [_pasts_of(forecast, q, float(rates[q]), n_parts) for q in range(fleet.problem.n_families)]
        expected = np.array([sum(past.rate for past in pasts) for pasts in self._pasts])
        self.part_of = np.maximum(expected / expected.sum(), LEAST_PART)
        self._known: dict[tuple[int, bytes, float], Outcome] = {}

    def of_family(self, family: int, counts: Counts, headroom: float) -> Outcome:
        """What becomes of its requests on the devices of these ``counts``, shares being made for ``headroom`` times the demand."""
        members = np.flatnonzero(self._fleet.problem.family == family)
        if np.count_nonzero(counts[:, members]) < 2:
            headroom = 1.0  # all goes where it can
        key = family, counts[:, members].tobytes(), headroom
        if key not in self._known:
            outcomes = [self._run(family, past.remembered, members, counts, headroom) for past in self._pasts[family]]
            self._known[key] = _together(outcomes, [past.rate for past in self._pasts[family]])
        return self._known[key]

    def _run(self, family: int, remembered: Remembered, members: Counts, counts: Counts, headroom: float) -> Outcome:
        problem = self._fleet.problem
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


def _pasts_of(forecast: DemandForecast, family: int, rate: float, n_parts: int) -> list[_Past]:
    """What it did, brought to a rate, and what it did as it came: each for as much as it is likely, where that is anything."""
    again, pasts = forecast.comes_again(family), []
    if again < 1:
        stretched = forecast.remembered(family, rate, n_parts)
        pasts.append(_Past(_last(stretched, MOST_REQUESTS), (1 - again) * rate))
    if again > 0:
        came = forecast.remembered(family, rate, n_parts, stretched=False)
        mean = len(came.arrival_times) / float(came.ends[-1])  # of all of it, of which no more than the end may be run
        pasts.append(_Past(_last(came, MOST_REQUESTS), again * max(mean, RARE)))
    return pasts


def _together(outcomes: Sequence[Outcome], rates: Sequence[float]) -> Outcome:
    """Of requests that met one of these outcomes each, so many a second."""
    late = float(np.average([outcome.late for outcome in outcomes], weights=rates))
    accuracy = np.array([outcome.accuracy for outcome in outcomes])
    in_time = np.array([(1 - outcome.late) * rate for outcome, rate in zip(outcomes, rates, strict=True)])
    some = (in_time > 0) & ~np.isnan(accuracy)
    return Outcome(late, float(np.average(accuracy[some], weights=in_time[some])) if some.any() else np.nan)


def _last(remembered: Remembered, n: int) -> Remembered:
    """The end of it, with so many requests at most."""
    times = remembered.arrival_times
    if len(times) <= n:
        return remembered
    begin = int(np.searchsorted(remembered.ends, times[-n], side="right"))
    starts = remembered.ends[begin - 1] if begin else 0.0
    return Remembered(times[times >= starts] - starts, remembered.ends[begin:] - starts, remembered.followed[begin:])
