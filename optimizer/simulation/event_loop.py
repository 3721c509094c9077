"""A policy table, run over given arrivals: every batch and every request (docs/model.md, section 6).

``queue_loop`` is the loop itself. Service times are drawn by inverse transform, the k-th batch to leave having the k-th uniform
number: two policies run with the same seed meet the same luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import quantile_of
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import BatchCost, Billing, predict_cost
from sluice.optimizer.compiled import compiled
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS, Estimate, estimate_late, estimate_quantile, estimate_quantiles
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.queue_loop import COLD
from sluice.optimizer.simulation.queue_run import QueueRun, Scalar, checked_times
from sluice.optimizer.simulation.schedule import Schedule


@dataclass(frozen=True, eq=False)
class ClassResult:
    """What happened to the requests of one class, in order of arrival, (n_requests,) each: s, ``nan`` where none was answered."""

    arrival_times: Array
    waiting_time: Array
    latency: Array

    def percentile(self, percentile: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """As that of all requests."""
        return estimate_quantile(self.latency, quantile_of(percentile), confidence, blocks)

    def estimate_violations(self, latency: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """As that of all requests."""
        return estimate_late(self.latency, latency, confidence, blocks)


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
    marks : array of uint8, shape (n_batches,)
        Which table released it, and whether an environment had to start (``queue_loop``).
    elastic : array of bool, shape (n_tables,)
        Which tables a function serves, and not servers.
    servers : int or None
        Those of the policy's own table; ``None`` for a function, and where their number changed.
    order, classes : array of int, shape (n_requests,), or None
        Where requests are of several classes: those that left or were dropped in the order in which they did, then the others, and
        batch ``i`` holds the requests in these places of it; and the class of each request, in order of arrival.
    """

    arrival_times: Array
    first_of_batch: Indices
    batch_sizes: Indices
    dispatch_times: Array
    response_times: Array
    marks: NDArray[np.uint8]
    elastic: NDArray[np.bool_]
    servers: int | None
    order: Indices | None = None
    classes: Indices | None = None

    @property
    def n_batches(self) -> int:
        """How many batches left."""
        return len(self.batch_sizes)

    @cached_property
    def batch_of(self) -> Indices:
        """Which batch a request was in; -1 where it was dropped, or waited still when no event was left to release it."""
        return self._in_order_of_arrival(_batch_of(len(self.arrival_times), self.first_of_batch, self.batch_sizes))

    @cached_property
    def waiting_time(self) -> Array:
        """Seconds from arrival to dispatch; ``nan`` for a request without an answer."""
        return self._elapsed(np.zeros(self.n_batches))

    @cached_property
    def latency(self) -> Array:
        """Seconds from arrival to answer; ``nan`` for a request without one."""
        return self._elapsed(self.response_times)

    def _elapsed(self, beyond: Array) -> Array:
        arrivals = self.arrival_times if self.order is None else self.arrival_times[self.order]
        by_batch = self.first_of_batch, self.batch_sizes, self.dispatch_times
        return self._in_order_of_arrival(_elapsed(arrivals, *by_batch, beyond))

    def _in_order_of_arrival(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values by request, in the order in which they left."""
        if self.order is None:
            return values
        arranged = np.empty_like(values)
        arranged[self.order] = values
        return arranged

    def of_class(self, k: int) -> ClassResult:
        """What happened to the requests of one class, of a run with ``classes``."""
        mine = self.classes == k
        return ClassResult(self.arrival_times[mine], self.waiting_time[mine], self.latency[mine])

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered."""
        return ~np.isnan(self.latency)

    @property
    def tables(self) -> NDArray[np.uint8]:
        """The place of the table that released each batch, (n_batches,): 0 the policy's own, 1 the first beside it."""
        return self.marks // 2

    @property
    def by_function(self) -> NDArray[np.bool_]:
        """Which batches a function served, (n_batches,)."""
        return np.asarray(self.elastic[self.tables])

    @property
    def cold(self) -> NDArray[np.bool_]:
        """Which batches waited for an environment to start, (n_batches,)."""
        return np.asarray(self.marks % 2 == COLD)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_sizes.mean())

    @property
    def mean_in_flight(self) -> float:
        """Mean number of batches in service, from the first arrival to the last answer."""
        return float(self.response_times.sum()) / self._span if self.n_batches else 0.0

    @property
    def utilisation(self) -> float | None:
        """Share of the policy's own servers that are busy in the mean; ``None`` for an elastic function."""
        if self.servers is None:
            return None
        seconds = float(self.response_times[self.tables == 0].sum())
        return seconds / self._span / self.servers if self.n_batches else 0.0

    @property
    def _span(self) -> float:
        """Seconds from the first arrival to the last answer, of at least one batch."""
        end = float((self.dispatch_times + self.response_times).max())
        return max(end - float(self.arrival_times[0]), np.finfo(float).tiny)

    def percentile_of_answered(self, percentile: float) -> float:
        """Percentile (0-100) of the latency of those answered alone, s; the first block counts, and who was dropped does not."""
        return float(np.percentile(self.latency[self.answered], percentile))

    def percentile(self, percentile: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """Percentile (0-100) of the latency in equilibrium, s, with its confidence interval by the means of ``blocks``.

        What is not answered counts as answered never; the first block, in which the system fills, is left out.
        """
        return estimate_quantile(self.latency, quantile_of(percentile), confidence, blocks)

    def percentiles(self, percentiles: Sequence[float], confidence: float = 0.95, blocks: int = BLOCKS) -> dict[float, Estimate]:
        """Several of these, at little more than the cost of one."""
        estimates = estimate_quantiles(self.latency, [quantile_of(each) for each in percentiles], confidence, blocks)
        return dict(zip(percentiles, estimates, strict=True))

    def estimate_violations(self, latency: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
        """Share of the requests that in equilibrium are not answered within ``latency`` seconds, in the same way."""
        return estimate_late(self.latency, latency, confidence, blocks)

    def cost(self, service: ServiceTimes, billing: Billing | None = None) -> BatchCost:
        """What a request cost."""
        largest = int(self.batch_sizes.max())
        pmf = np.bincount(self.batch_sizes, minlength=largest + 1)[1:] / self.n_batches
        return predict_cost(pmf, service, billing)


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
    return simulate_schedule(Schedule.of(policy), arrival_times, service, rng)


def simulate_schedule(
    schedule: Schedule, arrival_times: Array, service: ServiceTimes, rng: np.random.Generator
) -> SimulationResult:
    """As ``simulate``, with tables that are swapped on the way, as ``batching.Batcher.swap`` does."""
    return simulate_deployment(Deployment(schedule, service), arrival_times, rng)


def simulate_deployment(
    deployment: Deployment,
    arrival_times: Array,
    rng: np.random.Generator,
    sizes: Array | None = None,
    classes: Indices | None = None,
) -> SimulationResult:
    """As ``simulate``, with all that a deployment may have.

    Parameters
    ----------
    sizes : array, shape (n_requests,), optional
        Those of the requests: a batch takes as long as its largest member has it. Its service times must tell sizes apart
        (``MixedServiceTimes``), and without ``sizes`` are those of their mix.
    classes : array of int, shape (n_requests,), optional
        Those of the requests, by their places among the deployment's, which must have some.
    """
    schedule, times = deployment.schedule, checked_times(arrival_times)
    progress = QueueRun(deployment, rng, sizes is not None).feed(times, True, sizes, classes)
    batches = progress.batches
    servers = schedule.servers_in_force
    constant = servers is not None and bool((servers == servers[0]).all())
    by_batch = (batches.first, batches.sizes, batches.dispatched, batches.responses, batches.marks)
    elastic = np.array([side.elastic for side in deployment.serving])
    n_servers = int(servers[0]) if servers is not None and constant else None
    order = progress.requests.places if deployment.classes else None
    return SimulationResult(times, *by_batch, elastic, n_servers, order, classes)


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
