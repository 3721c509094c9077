"""Tables that wait to the last moment: in time for the oldest whatever the arrivals do (docs/model.md, 2.6).

With ``n`` waiting the batch leaves when one of ``n + 1`` would just be in time: a hold for every number waiting where
size-or-timeout has one for all. With several SLOs it is in time for each, the service time being taken at the SLO's
quantile. So the share of requests that are late is at most what every percentile leaves, and none are where service times are
fixed. No fit is needed for that, but that requests come one by one: several at one moment may make a batch too large to be in time.
What the table costs is predicted for the arrivals (``falling_holds_law``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.function.batching_law import falling_holds_law
from sluice.optimizer.recommend.search import Search
from sluice.optimizer.service.times import ServiceTimes

SAME = 1e-9  # of the cost
MORE = 1.05  # times as many cold starts are looked for as were found
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
    function: ServiceTimes,
    workers: ServiceTimes,
    slos: Sequence[Slo],
    batch_size: int,
    workers_batch_size: int,
    longest: float = np.inf,
) -> Policy:
    """The function's table beside workers: the oldest ``batch_size`` leave when a batch of one more would just be in time.

    In time whoever serves it: until then a worker that gets free takes up to ``workers_batch_size`` of those that wait, and costs
    nothing more; so full batches wait as well. Who could not be in time in any case leaves at once. Nobody is held beyond
    ``longest`` seconds.
    """
    hold = left_beside(function, workers, slos, batch_size, workers_batch_size).clip(max=longest).tolist()
    tightest = min(slo.latency for slo in slos)
    take = [min(q, batch_size) for q in range(len(hold) + 1)]
    return Policy([np.inf, *hold], take, kind="last_moment", parameters={"slo": tightest, "max_batch_size": batch_size})


def left_beside(
    function: ServiceTimes, workers: ServiceTimes, slos: Sequence[Slo], batch_size: int, workers_batch_size: int
) -> Array:
    """Seconds that 1, 2, ... waiting may wait for one more before the function must take the oldest ``batch_size`` of them."""
    by_function, by_worker = (np.maximum(seconds_left(service, slos), 0.0) for service in (function, workers))
    one_more = np.arange(2, max(batch_size, workers_batch_size) + 2)
    there, here = np.minimum(one_more, batch_size), np.minimum(one_more, workers_batch_size)
    return np.asarray(np.minimum(by_function[there - 1], by_worker[here - 1]))


def cheapest_last_moments(search: Search, slos: Sequence[Slo]) -> tuple[list[LastMoment], int]:
    """The cheapest largest batch of every function that keeps the SLOs, cheapest first; and how many were compared.

    A batch that starts cold is late, so that more of the others must be in time; where these cannot be enough, so are the cold.
    """
    found, compared = [], 0
    for j, service in enumerate(search.services):
        service = service.up_to(min(service.max_batch_size, search.max_batch_size))
        whole, cold = last_moment(service, slos, search.max_timeout), 0.0
        while whole is not None:
            table, table_cold = _cheapest(search, j, whole)
            compared += whole.max_batch_size
            if table_cold <= cold:
                found.append(table)
                break
            cold, before = MORE * table_cold, whole  # that of a table with other holds, which is not known yet
            whole = last_moment(service, beside_cold(slos, cold, search.init(j)), search.max_timeout)
            if whole == before:
                found.append(table)
                break
    return sorted(found, key=lambda table: table.cost), compared


def beside_cold(slos: Sequence[Slo], cold: float, init: float) -> list[Slo]:
    """What those that are warm must keep where a share ``cold`` starts cold and takes ``init`` seconds longer.

    Where the cold are more than an SLO allows to be late, all must be in time as if they were cold.
    """
    found = []
    for slo in slos:
        quantile = slo.quantile / (1 - cold) if cold < 1 else np.inf
        if quantile < 1:
            found.append(Slo(slo.latency, 100 * quantile))
        else:
            found.append(slo.sooner(init))
    return found


def _cheapest(search: Search, j: int, whole: Policy) -> tuple[LastMoment, float]:
    """The cheapest largest batch of a table, and the share of its requests that start cold."""
    holds = np.array(whole.hold[1:-1])
    law = falling_holds_law(search.basis, holds)
    largest = law.max_batch_size
    invocation = law.batch_size_pmf @ search.compute[j, :largest] + search.per_invocation[j]
    late = np.zeros(largest)
    if search.starts is not None and search.starts.matter:
        cold, late = (of[0] for of in search.starts.by_largest(law.batch_size_pmf, holds, [j]))
        invocation = invocation + cold * search.starts.usd[j]
    cost = invocation / law.mean_batch_size
    best = int(np.argmax(cost <= cost.min() * (1 + SAME))) + 1  # of all but equal ones the smallest
    return LastMoment(j, _up_to(whole, best), float(cost[best - 1])), float(late[best - 1])


def _up_to(table: Policy, batch_size: int) -> Policy:
    """The same with batches of at most ``batch_size``."""
    hold, take = (*table.hold[:batch_size], 0.0), table.take[: batch_size + 1]
    return Policy(hold, take, kind=table.kind, parameters={**table.parameters, "max_batch_size": batch_size})
