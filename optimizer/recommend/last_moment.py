"""Tables that wait to the last moment: in time for the oldest whatever the arrivals do (docs/model.md, 2.6).

With ``n`` waiting the batch leaves when one of ``n + 1`` would just be in time: a hold for every number waiting where
size-or-timeout has one for all. With several SLOs it is in time for each, the service time being taken at the SLO's
quantile. So the share of requests that are late is at most what every percentile leaves, and none are where service times are
fixed. No fit is needed for that, but that requests come one by one: several at one moment may make a batch too large to be in time.
What the table costs is predicted for the arrivals (``FallingHolds``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.recommend.search import Search
from sluice.optimizer.service.times import ServiceTimes

SAME = 1e-9  # of the cost
ROUNDING = 1e-9  # of a latency: kept free, so that the rounding of times makes nobody late


@dataclass(frozen=True)
class LastMoment:
    """A table by the index of its function, with its cost (USD per request)."""

    service: int
    policy: Policy
    cost: float


def seconds_to_spare(service: ServiceTimes, slos: Sequence[Slo]) -> Array:
    """Age (s) of the oldest at which a batch of 1, 2, ... must leave to keep every SLO; ends where there is none."""
    spare = seconds_left(service, slos)
    return spare[spare >= 0]


def seconds_left(service: ServiceTimes, slos: Sequence[Slo]) -> Array:
    """The same of every batch size, negative where there is none."""
    slack = [slo.latency * (1 - ROUNDING) - service.quantile(slo.quantile) for slo in slos]
    return np.asarray(np.minimum.accumulate(np.min(slack, axis=0)))


def last_moment(service: ServiceTimes, slos: Sequence[Slo], longest: float = np.inf) -> Policy | None:
    """The table for every batch that fits into the SLOs; ``None`` where none does.

    Parameters
    ----------
    longest : float
        Seconds that nobody is held beyond.
    """
    spare = seconds_to_spare(service, slos)
    if not len(spare):
        return None
    tightest = min(slo.latency for slo in slos)
    seconds = tightest - np.minimum(spare, longest)
    return policies.deadline(tightest, np.maximum(seconds, 0.0).tolist(), servers=None)


def last_moment_beside(
    function: ServiceTimes, workers: ServiceTimes, slos: Sequence[Slo], batch_size: int, workers_batch_size: int
) -> Policy:
    """The function's table beside workers: the oldest ``batch_size`` leave when a batch of one more would just be in time.

    In time whoever serves it: until then a worker that gets free takes up to ``workers_batch_size`` of those that wait, and costs
    nothing more; so full batches wait as well. Who could not be in time in any case leaves at once.
    """
    by_function, by_worker = (np.maximum(seconds_left(service, slos), 0.0) for service in (function, workers))
    one_more = np.arange(2, max(batch_size, workers_batch_size) + 2)
    hold = np.minimum(
        by_function[np.minimum(one_more, batch_size) - 1], by_worker[np.minimum(one_more, workers_batch_size) - 1]
    ).tolist()
    tightest = min(slo.latency for slo in slos)
    take = [min(q, batch_size) for q in range(len(hold) + 1)]
    return Policy([np.inf, *hold], take, kind="last_moment", parameters={"slo": tightest, "max_batch_size": batch_size})


def cheapest_last_moments(search: Search, slos: Sequence[Slo]) -> tuple[list[LastMoment], int]:
    """The cheapest largest batch of every function that keeps the SLOs, cheapest first; and how many were compared."""
    found, compared = [], 0
    for j, service in enumerate(search.services):
        whole = last_moment(service.up_to(min(service.max_batch_size, search.max_batch_size)), slos, search.max_timeout)
        if whole is None:
            continue
        law = FallingHolds(search.arrivals, np.array(whole.hold[1:-1]), search.counting)
        largest = law.max_batch_size
        compared += largest
        cost = (law.batch_size_pmf @ search.compute[j, :largest] + search.per_invocation[j]) / law.mean_batch_size
        best = int(np.argmax(cost <= cost.min() * (1 + SAME))) + 1  # of all but equal ones the smallest
        found.append(LastMoment(j, _up_to(whole, best), float(cost[best - 1])))
    return sorted(found, key=lambda table: table.cost), compared


def _up_to(table: Policy, batch_size: int) -> Policy:
    """The same with batches of at most ``batch_size``."""
    hold, take = (*table.hold[:batch_size], 0.0), table.take[: batch_size + 1]
    return Policy(hold, take, kind=table.kind, parameters={**table.parameters, "max_batch_size": batch_size})
