"""The event loop: any policy table, run over given arrivals (docs/model.md, section 6).

It interprets the table by ``batching.Batcher``, the executable specification, and adds only what a batcher leaves out: the clock
and the service. Events are arrivals, completions and the batcher's wake times; those of one moment are handled as one, completions
first. Service times are drawn, one per batch, when the batch leaves.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batching.batcher import Batcher
from batching.errors import InvalidInput
from batching.policy import Policy
from optimizer.analysis.cost import BatchCost, Prices, predict_cost
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.map import Array

INF = float("inf")


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What happened, by request in order of arrival, and by batch in order of dispatch; seconds.

    ``waiting_time`` and ``latency`` are ``nan`` for a request that was dropped or still waited when all arrivals were over and no
    event could release it; ``batch_of`` is -1 for it.
    """

    waiting_time: Array
    latency: Array
    batch_of: NDArray[np.int64]
    dispatch_times: Array
    batch_sizes: NDArray[np.int64]

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        return self.batch_of >= 0

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_sizes.mean())

    def percentile(self, percentile: float) -> float:
        """Percentile (0-100) of the latency of those answered, s."""
        return float(np.percentile(self.latency[self.answered], percentile))

    def cost(self, service: ServiceTimes, prices: Prices | None = None, architecture: str = "x86_64") -> BatchCost:
        """What a request cost."""
        largest = int(self.batch_sizes.max())
        pmf = np.bincount(self.batch_sizes, minlength=largest + 1)[1:] / len(self.batch_sizes)
        return predict_cost(pmf, service, prices, architecture=architecture)


def simulate(policy: Policy, arrival_times: Array, service: ServiceTimes, rng: np.random.Generator) -> SimulationResult:
    """Run ``policy`` over ``arrival_times`` (s, ascending) in front of a function with these service times.

    Parameters
    ----------
    policy : Policy
        Any table; ``policy.servers`` batches are in service at most.
    service : ServiceTimes
        Must reach the policy's largest batch.
    rng : numpy.random.Generator
        Draws the service times.
    """
    times = np.asarray(arrival_times, dtype=float)
    if len(times) == 0 or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InvalidInput("arrival_times", f"{len(times)} times", "finite times in ascending order, at least one")
    service = service.up_to(min(policy.max_batch_size, len(times)))
    n = len(times)
    waiting, latency = np.full(n, np.nan), np.full(n, np.nan)
    batch_of = np.full(n, -1, dtype=np.int64)
    dispatched: list[float] = []
    sizes: list[int] = []
    batcher: Batcher[int] = Batcher(policy)
    completions: list[float] = []
    track_completions = policy.servers is not None  # an elastic function never makes a batch wait for another
    arrivals = times.tolist()
    next_request, wake_at = 0, INF
    while True:
        arrival = arrivals[next_request] if next_request < n else INF
        now = min(arrival, wake_at, completions[0] if completions else INF)
        if now == INF:
            break
        done = 0
        while completions and completions[0] <= now:
            heapq.heappop(completions)
            done += 1
        first = next_request
        while next_request < n and arrivals[next_request] <= now:
            next_request += 1
        step = batcher.advance(now, range(first, next_request), done)
        wake_at = INF if step.wake_at is None else step.wake_at
        for batch in step.batches:
            response = service.draw(len(batch), rng)
            members = slice(batch[0], batch[-1] + 1)  # oldest first and without gaps: arrivals keep their order
            waiting[members] = now - times[members]
            latency[members] = now - times[members] + response
            batch_of[members] = len(sizes)
            sizes.append(len(batch))
            dispatched.append(now)
            if track_completions:
                heapq.heappush(completions, now + response)
    return SimulationResult(waiting, latency, batch_of, np.array(dispatched), np.array(sizes, dtype=np.int64))
