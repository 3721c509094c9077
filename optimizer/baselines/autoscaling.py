"""Workers that are started and stopped by what has been counted, and start late.

Time is cut into periods. At the end of each a rule sees how many requests came in every period so far, and nothing of what is yet
to come; a worker it asks for serves ``lag`` seconds later, one it gives up ends its batch and is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.baselines.in_time import largest_throughput, seconds_in_time
from sluice.optimizer.recommend import WorkerOffer
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.schedule import Schedule

SAFETY = 0.5  # of what a worker serves at most: the factor that SageMaker's guide begins with


@dataclass(frozen=True)
class TargetTracking:
    """The rule of AWS's target tracking on requests per worker, with its defaults.

    Parameters
    ----------
    target : float
        Requests/s per worker that are aimed at.
    period : float
        Seconds of a count.
    periods_out, periods_in : int
        Periods in a row that must lie above the target before workers are added, or more than ``slack`` of it below before some
        are given up.
    cooldown : float
        Seconds after a change in which there is no other in that direction.
    lag : float
        Seconds from the decision until a new worker serves.
    least, most : int
        Workers.
    """

    target: float
    period: float = 60.0
    periods_out: int = 3
    periods_in: int = 15
    slack: float = 0.1
    cooldown: float = 300.0
    lag: float = 180.0
    least: int = 1
    most: int = 1000

    def __post_init__(self) -> None:
        for name in ("target", "period"):
            require(0 < getattr(self, name) < np.inf, name, getattr(self, name), "a number > 0")
        for name in ("cooldown", "lag"):
            require(0 <= getattr(self, name) < np.inf, name, getattr(self, name), "a number of seconds >= 0")
        for name in ("periods_out", "periods_in"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "an integer >= 1")
        require(0 <= self.slack < 1, "slack", self.slack, "a part of the target, 0 <= slack < 1")
        require(1 <= self.least <= self.most, "least", self.least, f"an integer from 1 to {self.most}")

    def wanted(self, arrival_rate: float) -> int:
        """Workers that bring ``arrival_rate`` (requests/s) to the target."""
        return min(max(ceil(arrival_rate / self.target), self.least), self.most)

    def changes(self, rates: Array, first: int) -> list[tuple[float, int]]:
        """When how many workers come or go, s from the start, under these mean rates of successive periods."""
        changes: list[tuple[float, int]] = []
        running = expected = first
        above = below = 0
        last_out = last_in = -np.inf
        for i, rate in enumerate(rates.tolist()):
            now = (i + 1) * self.period
            running = first + sum(by for at, by in changes if at <= now)
            per_worker = rate / max(running, 1)
            above = above + 1 if per_worker > self.target else 0
            below = below + 1 if per_worker < (1 - self.slack) * self.target else 0
            wanted = self.wanted(rate)
            if above >= self.periods_out and wanted > expected and now - last_out >= self.cooldown:
                changes.append((now + self.lag, wanted - expected))
                expected, last_out = wanted, now
            elif below >= self.periods_in and wanted < expected == running and now - max(last_in, last_out) >= self.cooldown:
                changes.append((now, wanted - expected))
                expected, last_in = wanted, now
        return changes


def autoscaled(
    offer: WorkerOffer, slo: Slo, arrival_times: Array, tracking: TargetTracking | None = None, first: int | None = None
) -> Deployment:
    """Greedy workers whose number follows the load, late: a SageMaker endpoint under target tracking.

    Kept: requests per instance and minute against a target, alarms after three periods above or fifteen below it, cooldowns,
    minutes until a new instance serves, and pay from the moment it does. Left out: what an instance costs while it starts, the
    chance in that time, and a queue of its own for each (here all serve one, and in batches).

    Parameters
    ----------
    tracking : TargetTracking, optional
        By default half of what a worker serves at most, the defaults of AWS, and three minutes to start.
    first : int, optional
        Workers at the start; by default the rule's least.
    """
    tracking = tracking or TargetTracking(SAFETY * largest_throughput(offer.service, slo))
    first = tracking.least if first is None else first
    table = policies.greedy(len(seconds_in_time(offer.service, slo)), 1)
    changes = tracking.changes(rates_by_period(arrival_times, tracking.period), first)
    return offer.under(as_schedule(table, float(arrival_times[0]), first, changes))


def rates_by_period(arrival_times: Array, period: float) -> Array:
    """Requests/s in every period that is over before the last arrival; the first begins with the first arrival."""
    n_periods = floor((arrival_times[-1] - arrival_times[0]) / period)
    edges = arrival_times[0] + period * np.arange(n_periods + 1)
    return np.asarray(np.diff(np.searchsorted(arrival_times, edges)) / period)


def as_schedule(table: Policy, start: float, first: int, changes: list[tuple[float, int]]) -> Schedule:
    """One table, and workers that come and go: ``changes`` are seconds from ``start`` and how many more there are then.

    Of one moment those that come are first, as one that comes may go at once.
    """
    changes = sorted(changes, key=lambda change: (change[0], -change[1]))
    times = start + np.array([at for at, _ in changes])
    workers: NDArray[np.int64] = first + np.cumsum([0, *(by for _, by in changes)])
    return Schedule([table], times, np.zeros(len(changes), dtype=np.int64), servers=workers)
