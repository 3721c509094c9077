"""Requests of different size, run: a queue for each size class, and each batch as long as its own largest member has it.

The class of a request looks at no queue, so each class is simulated alone, exactly, and the requests are put back in order of
arrival.
What a batch costs is what a batch of as many members with that largest size does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import invocation_costs
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.simulation.batch_means import Estimate, estimate_quantile
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment
from sluice.optimizer.simulation.queue_run import checked_times


@dataclass(frozen=True, eq=False)
class SizedQueue:
    """The queue of the requests up to a size (inf: of all that are larger), and what serves it: a function, elastic."""

    up_to: float
    deployment: Deployment


@dataclass(frozen=True, eq=False)
class SizedRun:
    """What happened.

    Parameters
    ----------
    latency : array, shape (n_requests,)
        Seconds from arrival to answer, in order of arrival.
    class_of : array of int, shape (n_requests,)
        The place of a request's queue.
    runs : sequence of SimulationResult
        Of each queue; ``None`` where nobody came.
    usd : float
        Of all invocations.
    """

    latency: Array
    class_of: Indices
    runs: Sequence[SimulationResult | None]
    usd: float

    @property
    def cost_per_request(self) -> float:
        """USD."""
        return self.usd / len(self.latency)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch, of any class."""
        return len(self.latency) / sum(run.n_batches for run in self.runs if run is not None)

    def percentile(self, percentile: float) -> Estimate:
        """Percentile (0-100) of the latency of all requests in equilibrium, s."""
        return estimate_quantile(self.latency, quantile_of(percentile))

    def percentile_of_class(self, k: int, percentile: float) -> float | None:
        """That of the requests of one class, all of them, s; ``None`` where there were none."""
        here = self.latency[self.class_of == k]
        return float(np.percentile(here, percentile, method="inverted_cdf")) if len(here) else None


def simulate_sizes(queues: Sequence[SizedQueue], arrival_times: Array, sizes: Array, rng: np.random.Generator) -> SizedRun:
    """Run the queues of size classes over requests that arrive at ``arrival_times`` (s) with their own ``sizes``.

    Parameters
    ----------
    queues : sequence of SizedQueue
        By size, ascending; the last one for all sizes. One alone is a queue without regard to size.

    Raises
    ------
    InvalidInput
        Queues out of order; servers; service times that do not tell sizes apart; a size beyond those they speak of.
    """
    times, ends = checked_times(arrival_times), [queue.up_to for queue in queues]
    require(bool(ends) and ends[-1] == np.inf and bool((np.diff(ends) > 0).all()), "queues", ends, "sizes, ascending, the last inf")
    class_of = np.searchsorted(ends, sizes)
    latency, usd = np.empty(len(times)), 0.0
    runs: list[SimulationResult | None] = []
    for k, queue in enumerate(queues):
        here = class_of == k
        if not here.any():
            runs.append(None)
            continue
        run = simulate_deployment(queue.deployment, times[here], rng, sizes[here])
        latency[here] = run.latency
        usd += _bill(queue.deployment, run, sizes[here])
        runs.append(run)
    return SizedRun(latency, class_of, runs, usd)


def _bill(deployment: Deployment, run: SimulationResult, sizes: Array) -> float:
    """USD of the invocations of a run."""
    service, billing = deployment.service, deployment.billing
    if not deployment.schedule.elastic or not isinstance(service, MixedServiceTimes):
        raise InvalidInput("queues", "servers", "functions whose service times tell sizes apart")
    largest, at = np.unique(np.maximum.reduceat(sizes, run.first_of_batch), return_inverse=True)
    seconds = service.by_size.mean_billed(largest, billing.step)[at, run.batch_sizes - 1]
    gb_second = billing.prices.gb_second(billing.architecture)
    _, fee = invocation_costs(service, billing)
    return float(seconds.sum() * service.memory_mb / 1024 * gb_second + fee * run.n_batches)
