"""Requests of different size, run: a queue for each size class, and each batch as long as its own largest member has it.

The class of a request looks at no queue, so each class is simulated alone, exactly, and its requests are counted at their places
among all. What a batch costs is what a batch of as many members with that largest size does. Each class has environments of its
own, also where another's function has the same memory: cold starts are counted a little too often.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import cost_of_parts
from sluice.optimizer.simulation.batch_means import Estimate, estimate_quantile
from sluice.optimizer.simulation.queue_run import Progress, QueueRun, checked_times
from sluice.optimizer.simulation.sized_deployment import SizedDeployment
from sluice.optimizer.simulation.statistics import RunStatistics, Statistics


class SizedRunning:
    """The queues of size classes under way.

    Parameters
    ----------
    deployment : SizedDeployment
    rngs : sequence of Generator
        Of the service times of each queue.
    """

    def __init__(self, deployment: SizedDeployment, rngs: Sequence[np.random.Generator]) -> None:
        self._deployment = deployment
        self._runs = [QueueRun(queue.deployment, rng, sized=True) for queue, rng in zip(deployment.queues, rngs, strict=True)]
        self._fed = 0

    def feed(self, arrival_times: Array, sizes: Array, last: bool) -> Iterator[tuple[int, Progress]]:
        """Go on as ``QueueRun.feed`` does: what it led to in each class."""
        class_of = self._deployment.class_of(sizes)
        places = self._fed + np.arange(len(sizes))
        self._fed += len(sizes)
        for k, run in enumerate(self._runs):
            here = class_of == k
            if here.any() or (last and run.n_waiting):
                yield k, run.feed(arrival_times[here], last, sizes[here], among_all=places[here])


class SizedStatistics:
    """Collects what happens in the queues of size classes: of all requests, and of each class.

    Parameters
    ----------
    sizes : iterable of array
        Of all requests that will come, piece by piece: how many are of each class.
    """

    def __init__(
        self, deployment: SizedDeployment, sizes: Iterable[Array], latencies: tuple[float, ...], edges: Array | None = None
    ) -> None:
        n_queues = len(deployment.queues)
        counts = sum((np.bincount(deployment.class_of(piece), minlength=n_queues) for piece in sizes), np.zeros(n_queues, np.int64))
        self._deployment = deployment
        self._all = Statistics(deployment, int(counts.sum()), latencies, edges)
        self._classes = [
            Statistics(queue.deployment, int(n), latencies, edges, buffered=n_queues > 1)
            for queue, n in zip(deployment.queues, counts, strict=True)
        ]

    def add(self, k: int, progress: Progress) -> None:
        """What another chunk led to in the queue ``k``."""
        self._classes[k].add(progress)
        self._all.add(progress, progress.requests.among_all)

    def result(self) -> RunStatistics:
        """When all is added."""
        run = self._all.result()
        classes = tuple(of.result((run.start, run.end)) for of in self._classes)
        memory = self._deployment.memory_sizes
        shares = [of.answered / max(1, run.answered) for of in classes]
        cost = cost_of_parts([(share, mb, of.cost) for share, mb, of in zip(shares, memory, classes, strict=True)])
        return replace(run, classes=classes, cost=cost)


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
    running = SizedRunning(deployment, [rng] * len(deployment.queues))
    statistics = SizedStatistics(deployment, [sizes], ())
    latency = np.full(len(times), np.nan)
    for k, progress in running.feed(times, sizes, last=True):
        batches, requests = progress.batches, progress.requests
        members = np.repeat(batches.first - np.cumsum(batches.sizes) + batches.sizes, batches.sizes) + np.arange(
            batches.sizes.sum()
        )
        latency[requests.among_all[members]] = np.repeat(batches.dispatched, batches.sizes) - requests.times[members]
        latency[requests.among_all[members]] += np.repeat(batches.responses, batches.sizes)
        statistics.add(k, progress)
    return SizedRun(latency, deployment.class_of(sizes), statistics.result())
