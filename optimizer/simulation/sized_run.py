"""Requests of different size, run: a queue for each size class, and each batch as long as its own largest member has it.

What a batch costs is what a batch of as many members with that largest size does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.batch_means import Estimate, estimate_quantile
from sluice.optimizer.simulation.queue_run import checked_times
from sluice.optimizer.simulation.running_queues import QueuesStatistics, RunningQueues
from sluice.optimizer.simulation.sized_deployment import SizedDeployment
from sluice.optimizer.simulation.statistics import RunStatistics


@dataclass(frozen=True, eq=False)
class SizedRun:
    """What happened to every request.

    Parameters
    ----------
    latency : array, shape (n_requests,)
        Seconds from arrival to answer, in order of arrival; ``nan`` without one.
    class_of : array of int, shape (n_requests,)
        The place of a request's queue.
    statistics : RunStatistics
        Of all, and of each class.
    """

    latency: Array
    class_of: Indices
    statistics: RunStatistics

    @property
    def cost_per_request(self) -> float:
        """USD."""
        return self.statistics.cost.per_request

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch, of any class."""
        return self.statistics.mean_batch_size

    def percentile(self, percentile: float) -> Estimate:
        """Percentile (0-100) of the latency of all requests in equilibrium, s."""
        return estimate_quantile(self.latency, quantile_of(percentile))

    def percentile_of_class(self, k: int, percentile: float) -> float | None:
        """That of the requests of one class, all of them, s; ``None`` where there were none."""
        here = self.latency[self.class_of == k]
        return float(np.percentile(here, percentile, method="inverted_cdf")) if len(here) else None


def simulate_sizes(deployment: SizedDeployment, arrival_times: Array, sizes: Array, rng: np.random.Generator) -> SizedRun:
    """Run the queues of size classes over requests that arrive at ``arrival_times`` (s) with their own ``sizes``, and keep each.

    Raises
    ------
    InvalidInput
        Service times that do not tell sizes apart; a size beyond those they speak of.
    """
    times = checked_times(arrival_times)
    running = RunningQueues(deployment, [rng] * len(deployment.queues), sized=True)
    statistics = QueuesStatistics(deployment, [(sizes, None)], ())
    latency = np.full(len(times), np.nan)
    for k, progress in running.feed(times, sizes, None, last=True):
        batches, requests = progress.batches, progress.requests
        members = np.repeat(batches.first - np.cumsum(batches.sizes) + batches.sizes, batches.sizes) + np.arange(
            batches.sizes.sum()
        )
        latency[requests.among_all[members]] = np.repeat(batches.dispatched, batches.sizes) - requests.times[members]
        latency[requests.among_all[members]] += np.repeat(batches.responses, batches.sizes)
        statistics.add(k, progress)
    return SizedRun(latency, deployment.queue_of(sizes), statistics.result())
