"""The event loop as it is specified: a clock and a service around ``Batcher``, in plain Python."""

from __future__ import annotations

import heapq

import numpy as np

from batching import Batcher, Policy
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.map import Array

INF = float("inf")


def run_batcher(
    policy: Policy, arrival_times: Array, service: ServiceTimes, rng: np.random.Generator
) -> list[tuple[float, float, list[int]]]:
    """(dispatch time, response time, members) of every batch, in order of dispatch."""
    batcher: Batcher[int] = Batcher(policy)
    completions: list[float] = []
    batches = []
    arrivals = [*arrival_times.tolist(), INF]
    request, wake_at = 0, INF
    while (now := min(arrivals[request], wake_at, completions[0] if completions else INF)) < INF:
        done = 0
        while completions and completions[0] <= now:
            heapq.heappop(completions)
            done += 1
        first = request
        while arrivals[request] <= now:
            request += 1
        step = batcher.advance(now, range(first, request), done)
        wake_at = INF if step.wake_at is None else step.wake_at
        for members in step.batches:
            response = service.draw(len(members), rng)
            batches.append((now, response, list(members)))
            heapq.heappush(completions, now + response)
    return batches
