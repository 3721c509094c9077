"""The event loop as it is specified: a clock and a service around ``Batcher``, in plain Python."""

from __future__ import annotations

import heapq

import numpy as np

from sluice.batching import Batcher, Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.schedule import Schedule

INF = float("inf")


def run_batcher(
    policy: Policy | Schedule, arrival_times: Array, service: ServiceTimes, rng: np.random.Generator
) -> list[tuple[float, float, list[int]]]:
    """(dispatch time, response time, members) of every batch, in order of dispatch; tables are swapped by ``Batcher.swap``."""
    schedule = policy if isinstance(policy, Schedule) else Schedule.of(policy)
    batcher: Batcher[int] = Batcher(schedule.tables[schedule.first])
    completions: list[float] = []
    batches = []
    arrivals, swaps = [*arrival_times.tolist(), INF], [*schedule.swap_times.tolist(), INF]
    request, swap, wake_at = 0, 0, INF
    while (now := min(arrivals[request], wake_at, swaps[swap], completions[0] if completions else INF)) < INF:
        done = 0
        while completions and completions[0] <= now:
            heapq.heappop(completions)
            done += 1
        first = request
        while arrivals[request] <= now:
            request += 1
        batcher.accept(now, range(first, request), done)
        table = batcher.policy
        while swaps[swap] <= now:
            table = schedule.tables[schedule.swap_to[swap]]
            swap += 1
        step = batcher.swap(now, table)
        wake_at = INF if step.wake_at is None else step.wake_at
        for members in step.batches:
            response = service.draw(len(members), rng)
            batches.append((now, response, list(members)))
            heapq.heappush(completions, now + response)
    return batches
