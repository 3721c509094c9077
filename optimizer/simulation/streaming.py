"""Several deployments over the same arrivals, in one pass and in constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.batch_means import FEWEST_REQUESTS
from sluice.optimizer.simulation.chunks import Arrivals
from sluice.optimizer.simulation.deployment import Deployment, require_classes
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.simulation.running_queues import QueuesStatistics, RunningQueues
from sluice.optimizer.simulation.several_queues import SeveralQueues
from sluice.optimizer.simulation.statistics import RunStatistics, Statistics


def simulate_deployments(
    deployments: Mapping[str, Deployment | SeveralQueues],
    arrivals: Arrivals,
    latencies: Sequence[float] = (),
    seed: int = 0,
    bins: int = 0,
) -> dict[str, RunStatistics]:
    """Run every deployment on the same arrivals, with the same luck: the k-th batch of each has the k-th uniform number.

    Where the arrivals have sizes each batch takes as long as its own largest member has it, and where they have classes each serves
    them as its own, if it has some. Of ``SeveralQueues`` the first has that luck, and the others have their own.

    Parameters
    ----------
    deployments : mapping of str to Deployment or SeveralQueues
    arrivals : Arrivals
        ``TraceArrivals`` or ``SampledArrivals``.
    latencies : sequence of float
        Seconds within which answers are counted.
    seed : int
        Of the service times.
    bins : int
        Bins of the time series; 0: none.

    Raises
    ------
    InvalidInput
        No deployment, a latency that is none, fewer requests than confidence intervals need; queues of sizes and no sizes, or
        sizes and service times that do not tell them apart; classes and no classes of the requests.
    """
    require(bool(deployments), "deployments", dict(deployments), "at least one")
    n = arrivals.n_requests
    require(n >= FEWEST_REQUESTS, "n_requests", n, f"at least {FEWEST_REQUESTS}, for confidence intervals")
    require(seed >= 0, "seed", seed, "an integer >= 0")
    require(bins >= 0, "bins", bins, "an integer >= 0")
    for k, latency in enumerate(latencies):
        require(0 < latency < np.inf, f"latencies[{k}]", latency, "a number of seconds > 0")
    edges = None
    pieces = _pieces(arrivals)
    chunk = next(pieces)
    if bins:
        start = float(chunk[0][0])
        edges = np.linspace(start, max(arrivals.span, np.nextafter(start, np.inf)), bins + 1)
    runs = {name: _watched(deployment, arrivals, tuple(latencies), edges, seed) for name, deployment in deployments.items()}
    for following in chain(pieces, [None]):
        for run in runs.values():
            run.feed(*chunk, last=following is None)
        if following is not None:
            chunk = following
    return {name: run.statistics.result() for name, run in runs.items()}


def _pieces(arrivals: Arrivals) -> Iterator[tuple[Array, Array | None, Indices | None]]:
    """Times, sizes and classes, piece by piece."""
    none: Iterator[None] = repeat(None)
    sizes, classes = arrivals.size_chunks(), arrivals.class_chunks()
    return zip(arrivals.chunks(), none if sizes is None else sizes, none if classes is None else classes, strict=False)


class _OneQueue:
    """A queue under way, and what is counted of it."""

    def __init__(self, run: QueueRun, statistics: Statistics, classed: bool) -> None:
        self._run, self.statistics, self._classed = run, statistics, classed

    def feed(self, times: Array, sizes: Array | None, classes: Indices | None, last: bool) -> None:
        self.statistics.add(self._run.feed(times, last, sizes, classes if self._classed else None))


class _Queues:
    """Several queues under way, and what is counted of them."""

    def __init__(self, run: RunningQueues, statistics: QueuesStatistics) -> None:
        self._run, self.statistics = run, statistics

    def feed(self, times: Array, sizes: Array | None, classes: Indices | None, last: bool) -> None:
        for found in self._run.feed(times, sizes, classes, last):
            self.statistics.add(*found)


def _watched(
    deployment: Deployment | SeveralQueues, arrivals: Arrivals, latencies: tuple[float, ...], edges: Array | None, seed: int
) -> _OneQueue | _Queues:
    rng, sized = np.random.default_rng(seed), arrivals.size_chunks() is not None
    if isinstance(deployment, Deployment):
        n_by_class = _counted(deployment, arrivals) if deployment.classes else []
        run = QueueRun(deployment, rng, sized)
        return _OneQueue(
            run, Statistics(deployment, arrivals.n_requests, latencies, edges, n_by_class=n_by_class), bool(n_by_class)
        )
    others = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3, k))) for k in range(1, len(deployment.deployments))]
    requests = ((sizes, classes) for _, sizes, classes in _pieces(arrivals))
    return _Queues(RunningQueues(deployment, [rng, *others], sized), QueuesStatistics(deployment, requests, latencies, edges))


def _counted(deployment: Deployment, arrivals: Arrivals) -> list[int]:
    """How many requests are of each class of the deployment."""
    if (pieces := arrivals.class_chunks()) is None:
        raise InvalidInput("classes", NOT_GIVEN, "those of the requests, as the deployment has some")
    counts = np.zeros(len(deployment.classes), dtype=np.int64)
    for classes in pieces:
        require_classes(classes, len(counts))
        counts += np.bincount(classes, minlength=len(counts))
    return [int(n) for n in counts]
