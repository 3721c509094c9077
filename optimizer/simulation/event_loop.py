"""The event loop: any policy table, run over given arrivals (docs/model.md, section 6).

It interprets the table as ``batching.Batcher``, the executable specification, does, and adds what a batcher leaves out: the clock
and the service. Events are arrivals, completions, wake times, and swaps of the table, after which the new one rules over those as
well who wait already; those of one moment are handled as one: completions, arrivals, the swap, the rule. While every server is busy
nothing can leave, so arrivals and swaps then wait unseen for the next completion.

Requests leave or are dropped oldest first. So those that wait are a range of the arrivals, a batch is one as well, and the loop
writes four numbers per batch and none per request. Service times are drawn by inverse transform, the k-th batch to leave having the
k-th uniform number: two policies run with the same seed meet the same luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from batching.errors import InvalidInput
from batching.policy import INF, Policy
from optimizer.analysis.cost import BatchCost, predict_cost
from optimizer.analysis.prices import Prices
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.map import Array
from optimizer.compiled import compiled
from optimizer.simulation.batch_means import BLOCKS, Estimate, estimate_quantile, estimate_share
from optimizer.simulation.schedule import Schedule

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What happened, by batch in order of dispatch; by request, in order of arrival, where asked. Seconds.

    Parameters
    ----------
    arrival_times : array, shape (n_requests,)
    first_of_batch, batch_sizes : array of int, shape (n_batches,)
        Batch ``i`` holds the requests ``first_of_batch[i]`` to ``first_of_batch[i] + batch_sizes[i] - 1``.
    dispatch_times, response_times : array, shape (n_batches,)
        When a batch left, and the time from then to its answer.
    servers : int or None
        Those of the policy.
    """

    arrival_times: Array
    first_of_batch: Indices
    batch_sizes: Indices
    dispatch_times: Array
    response_times: Array
    servers: int | None

    @property
    def n_batches(self) -> int:
        """How many batches left."""
        return len(self.batch_sizes)

    @cached_property
    def batch_of(self) -> Indices:
        """Which batch a request was in; -1 where it was dropped, or waited still when no event was left to release it."""
        return _batch_of(len(self.arrival_times), self.first_of_batch, self.batch_sizes)

    @cached_property
    def waiting_time(self) -> Array:
        """Seconds from arrival to dispatch; ``nan`` for a request without an answer."""
        return _elapsed(self.arrival_times, self.first_of_batch, self.batch_sizes, self.dispatch_times, np.zeros(self.n_batches))

    @cached_property
    def latency(self) -> Array:
        """Seconds from arrival to answer; ``nan`` for a request without one."""
        return _elapsed(self.arrival_times, self.first_of_batch, self.batch_sizes, self.dispatch_times, self.response_times)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        return ~np.isnan(self.latency)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_sizes.mean())

    @property
    def mean_in_flight(self) -> float:
        """Mean number of batches in service, from the first arrival to the last answer."""
        if not self.n_batches:
            return 0.0
        end = float((self.dispatch_times + self.response_times).max())
        return float(self.response_times.sum()) / max(end - float(self.arrival_times[0]), np.finfo(float).tiny)

    @property
    def utilisation(self) -> float | None:
        """Share of the servers that are busy in the mean; ``None`` for an elastic function."""
        return None if self.servers is None else self.mean_in_flight / self.servers

    def percentile(self, percentile: float) -> float:
        """Percentile (0-100) of the latency of those answered, s."""
        return float(np.percentile(self.latency[self.answered], percentile))

    def estimate_percentile(self, percentile: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """Percentile (0-100) of the latency in equilibrium, s, with its confidence interval by the means of ``blocks``.

        What is not answered counts as answered never; the first block, in which the system fills, is left out.
        """
        return estimate_quantile(self.latency, percentile / 100, confidence, blocks)

    def estimate_violations(self, latency: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """Share of the requests that in equilibrium are not answered within ``latency`` seconds, in the same way."""
        return estimate_share(~(self.latency <= latency), confidence, blocks)

    def cost(self, service: ServiceTimes, prices: Prices | None = None, architecture: str = "x86_64") -> BatchCost:
        """What a request cost."""
        largest = int(self.batch_sizes.max())
        pmf = np.bincount(self.batch_sizes, minlength=largest + 1)[1:] / self.n_batches
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
        Draws the service times: one number per request is taken from it, however many batches there are, so that what is drawn
        from it next does not depend on the policy. None is taken where service times are deterministic.
    """
    return simulate_schedule(Schedule([policy], np.empty(0), np.empty(0, dtype=np.int64)), arrival_times, service, rng)


def simulate_schedule(
    schedule: Schedule, arrival_times: Array, service: ServiceTimes, rng: np.random.Generator
) -> SimulationResult:
    """As ``simulate``, with tables that are swapped on the way, as ``batching.Batcher.swap`` does."""
    times = np.ascontiguousarray(arrival_times, dtype=np.float64)
    n = len(times)
    if n == 0 or not np.isfinite(times).all() or (times[1:] < times[:-1]).any():
        raise InvalidInput("arrival_times", f"{n} times", "finite times in ascending order, at least one")
    service = service.up_to(min(schedule.max_batch_size, n))
    # There are n batches at most; the rest of these arrays is never touched and so takes no memory.
    first, sizes = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    dispatched, responses = np.empty(n), np.empty(n)
    # The rule is read at completions too: there it matters that a server is free, and that requests grew too old meanwhile. So an
    # elastic function that drops has as many servers as there can be batches.
    servers = schedule.servers or (0 if schedule.drop_after is None else n)
    n_batches = _run(
        times,
        schedule.hold,
        schedule.take,
        schedule.first,
        schedule.swap_times,
        schedule.swap_to,
        min(servers, n),
        INF if schedule.drop_after is None else schedule.drop_after,
        service.quantile_levels,
        np.ascontiguousarray(service.seconds),
        service.overhead,
        np.empty(0) if service.deterministic else rng.random(n),
        first,
        sizes,
        dispatched,
        responses,
    )
    by_batch = (first[:n_batches], sizes[:n_batches], dispatched[:n_batches], responses[:n_batches])
    return SimulationResult(times, *by_batch, schedule.servers)


@compiled
def _run(
    arrivals: Array,
    hold: Array,
    take: Indices,
    rule: int,
    swap_times: Array,
    swap_to: Indices,
    servers: int,
    drop_after: float,
    levels: Array,
    seconds: Array,
    overhead: Array,
    uniforms: Array,
    first: Indices,
    sizes: Indices,
    dispatched: Array,
    responses: Array,
) -> int:
    """Fill the last four arrays, by batch, and return the number of batches. ``servers`` 0 is elastic."""
    n, last_row = len(arrivals), hold.shape[1] - 1
    swap = 0
    held, taken = hold[rule], take[rule]
    swap_at = swap_times[0] if len(swap_times) else np.inf
    completions = np.empty(servers)  # a heap of those in flight
    in_flight = 0
    head, tail = 0, 0  # requests head to tail - 1 wait
    wake_at = swap_at
    n_batches = 0
    while True:
        arrival = arrivals[tail] if tail < n else np.inf
        if servers > 0 and in_flight == servers:
            now = completions[0]
        else:
            now = min(arrival, wake_at)
            if in_flight > 0:
                now = min(now, completions[0])
        if now == np.inf:
            return n_batches
        while in_flight > 0 and completions[0] <= now:
            in_flight -= 1
            _remove_earliest(completions, in_flight)
        while tail < n and arrivals[tail] <= now:
            tail += 1
        while swap_at <= now:
            held, taken = hold[swap_to[swap]], take[swap_to[swap]]
            swap += 1
            swap_at = swap_times[swap] if swap < len(swap_times) else np.inf
        wake_at = swap_at
        while head < tail:
            oldest = arrivals[head]
            if now > oldest + drop_after:
                head += 1
                continue
            if servers > 0 and in_flight == servers:
                break
            row = min(tail - head, last_row)
            ends = oldest + held[row]
            if now < ends:
                wake_at = min(ends, swap_at)
                break
            size = taken[row]
            response = _quantile(levels, seconds[size - 1], uniforms[n_batches] if len(uniforms) else 0.0) + overhead[size - 1]
            first[n_batches] = head
            sizes[n_batches] = size
            dispatched[n_batches] = now
            responses[n_batches] = response
            n_batches += 1
            head += size
            if servers > 0:
                _add(completions, in_flight, now + response)
                in_flight += 1


@compiled
def _quantile(levels: Array, values: Array, level: float) -> float:
    """The function linear between ``levels`` (ascending from 0 to 1; or one level alone: constant) at ``level`` < 1."""
    if len(levels) == 1:
        return float(values[0])
    above = np.searchsorted(levels, level, side="right")
    below = above - 1
    slope = (values[above] - values[below]) / (levels[above] - levels[below])
    return float(slope * (level - levels[below]) + values[below])


@compiled
def _add(heap: Array, length: int, value: float) -> None:
    """Put ``value`` into a binary heap of ``length`` values, the smallest first."""
    at = length
    while at > 0:
        parent = (at - 1) // 2
        if heap[parent] <= value:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = value


@compiled
def _remove_earliest(heap: Array, length: int) -> None:
    """Take the smallest value out of a binary heap; ``length`` values are left."""
    value = heap[length]
    at = 0
    while 2 * at + 1 < length:
        child = 2 * at + 1
        if child + 1 < length and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@compiled
def _batch_of(n: int, first: Indices, sizes: Indices) -> Indices:
    batch_of = np.full(n, -1, dtype=np.int64)
    for i in range(len(first)):
        batch_of[first[i] : first[i] + sizes[i]] = i
    return batch_of


@compiled
def _elapsed(arrivals: Array, first: Indices, sizes: Indices, dispatched: Array, beyond: Array) -> Array:
    """Seconds from each request's arrival to ``beyond`` after its batch left; ``nan`` without a batch.

    The wait comes first: who does not wait has exactly the response time, however late on the clock.
    """
    elapsed = np.full(len(arrivals), np.nan)
    for i in range(len(first)):
        for j in range(first[i], first[i] + sizes[i]):
            elapsed[j] = dispatched[i] - arrivals[j] + beyond[i]
    return elapsed
