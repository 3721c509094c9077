"""Several queues, run: each alone, exactly, and its requests are counted at their places among all.

Each queue has environments of its own, also where another's function has the same memory: cold starts are counted a little too
often.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import cost_of_parts
from sluice.optimizer.simulation.queue_run import Progress, QueueRun
from sluice.optimizer.simulation.several_queues import SeveralQueues
from sluice.optimizer.simulation.statistics import RunStatistics, Statistics


class RunningQueues:
    """Queues under way.

    Parameters
    ----------
    deployment : SeveralQueues
    rngs : sequence of Generator
        Of the service times of each queue.
    sized : bool
        Whether a batch takes as long as its members' own sizes have it.
    """

    def __init__(self, deployment: SeveralQueues, rngs: Sequence[np.random.Generator], sized: bool) -> None:
        self._deployment = deployment
        self._runs = [QueueRun(queue, rng, sized) for queue, rng in zip(deployment.deployments, rngs, strict=True)]
        self._fed = 0

    def feed(
        self, arrival_times: Array, sizes: Array | None, classes: Indices | None, last: bool
    ) -> Iterator[tuple[int, Progress]]:
        """Go on as ``QueueRun.feed`` does: what it led to in each queue."""
        queue_of = self._deployment.queue_of(sizes, classes)
        within = None if classes is None else self._deployment.within_queue(classes)
        places = self._fed + np.arange(len(arrival_times))
        self._fed += len(arrival_times)
        for k, run in enumerate(self._runs):
            here = queue_of == k
            if here.any() or (last and run.n_waiting):
                own_sizes = None if sizes is None else sizes[here]
                own_classes = None if within is None else within[here]
                yield k, run.feed(arrival_times[here], last, own_sizes, own_classes, places[here])


class QueuesStatistics:
    """Collects what happens in several queues: of all requests, and of each queue.

    Parameters
    ----------
    requests : iterable of sizes and classes
        Of all requests that will come, piece by piece: how many are of each queue, and of each of its classes.
    """

    def __init__(
        self,
        deployment: SeveralQueues,
        requests: Iterable[tuple[Array | None, Indices | None]],
        latencies: tuple[float, ...],
        edges: Array | None = None,
    ) -> None:
        queues = deployment.deployments
        counts = np.zeros(len(queues), dtype=np.int64)
        by_class = np.zeros((len(queues), max(len(queue.classes) for queue in queues)), dtype=np.int64)
        for sizes, classes in requests:
            queue_of = deployment.queue_of(sizes, classes)
            counts += np.bincount(queue_of, minlength=len(queues))
            if classes is not None:
                np.add.at(by_class, (queue_of, deployment.within_queue(classes)), 1)
        self._deployment = deployment
        self._all = Statistics(deployment, int(counts.sum()), latencies, edges)
        self._queues = [
            Statistics(queue, int(n), latencies, edges, len(queues) > 1, of_classes[: len(queue.classes)].tolist())
            for queue, n, of_classes in zip(queues, counts, by_class, strict=True)
        ]

    def add(self, k: int, progress: Progress) -> None:
        """What another chunk led to in the queue ``k``."""
        self._queues[k].add(progress)
        self._all.add(progress, progress.requests.among_all)

    def result(self) -> RunStatistics:
        """When all is added."""
        run = self._all.result()
        queues = tuple(of.result((run.start, run.end)) for of in self._queues)
        memory = self._deployment.memory_sizes
        shares = [of.answered / max(1, run.answered) for of in queues]
        cost = cost_of_parts([(share, mb, of.cost) for share, mb, of in zip(shares, memory, queues, strict=True)])
        classes = tuple(of_class for of in queues for of_class in of.classes)
        return replace(run, queues=queues, cost=cost, classes=classes)
