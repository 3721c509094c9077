"""Several deployments over the same arrivals, in one pass and in constant memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.batch_means import FEWEST_REQUESTS
from sluice.optimizer.simulation.chunks import Arrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.simulation.sized_deployment import SizedDeployment
from sluice.optimizer.simulation.sized_run import SizedRunning, SizedStatistics
from sluice.optimizer.simulation.statistics import RunStatistics, Statistics


def simulate_deployments(
    deployments: Mapping[str, Deployment | SizedDeployment],
    arrivals: Arrivals,
    latencies: Sequence[float] = (),
    seed: int = 0,
    bins: int = 0,
) -> dict[str, RunStatistics]:
    """Run every deployment on the same arrivals, with the same luck: the k-th batch of each has the k-th uniform number.

    Where the arrivals have sizes each batch takes as long as its own largest member has it. Of the queues of a ``SizedDeployment``
    the first has that luck, and the others have their own.

    Parameters
    ----------
    deployments : mapping of str to Deployment or SizedDeployment
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
        sizes and service times that do not tell them apart.
    """
    require(bool(deployments), "deployments", dict(deployments), "at least one")
    n = arrivals.n_requests
    require(n >= FEWEST_REQUESTS, "n_requests", n, f"at least {FEWEST_REQUESTS}, for confidence intervals")
    require(seed >= 0, "seed", seed, "an integer >= 0")
    require(bins >= 0, "bins", bins, "an integer >= 0")
    for k, latency in enumerate(latencies):
        require(0 < latency < np.inf, f"latencies[{k}]", latency, "a number of seconds > 0")
    edges = None
    sized = arrivals.size_chunks()
    pieces = zip(arrivals.chunks(), repeat(None) if sized is None else sized, strict=False)
    chunk, sizes = next(pieces)
    if bins:
        start = float(chunk[0])
        edges = np.linspace(start, max(arrivals.span, np.nextafter(start, np.inf)), bins + 1)
    runs = {name: _watched(deployment, arrivals, tuple(latencies), edges, seed) for name, deployment in deployments.items()}
    for following in chain(pieces, [None]):
        for run in runs.values():
            run.feed(chunk, sizes, following is None)
        if following is not None:
            chunk, sizes = following
    return {name: run.statistics.result() for name, run in runs.items()}


class _OneQueue:
    """A queue under way, and what is counted of it."""

    def __init__(self, run: QueueRun, statistics: Statistics) -> None:
        self._run, self.statistics = run, statistics

    def feed(self, times: Array, sizes: Array | None, last: bool) -> None:
        self.statistics.add(self._run.feed(times, last, sizes))


class _Classes:
    """The queues of size classes under way, and what is counted of them."""

    def __init__(self, run: SizedRunning, statistics: SizedStatistics) -> None:
        self._run, self.statistics = run, statistics

    def feed(self, times: Array, sizes: Array | None, last: bool) -> None:
        assert sizes is not None
        for found in self._run.feed(times, sizes, last):
            self.statistics.add(*found)


def _watched(
    deployment: Deployment | SizedDeployment, arrivals: Arrivals, latencies: tuple[float, ...], edges: Array | None, seed: int
) -> _OneQueue | _Classes:
    rng, sizes = np.random.default_rng(seed), arrivals.size_chunks()
    if isinstance(deployment, Deployment):
        run = QueueRun(deployment, rng, sized=sizes is not None)
        return _OneQueue(run, Statistics(deployment, arrivals.n_requests, latencies, edges))
    if sizes is None:
        raise InvalidInput("sizes", NOT_GIVEN, "those of the requests, as the queues are chosen by them")
    others = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3, k))) for k in range(1, len(deployment.queues))]
    return _Classes(SizedRunning(deployment, [rng, *others]), SizedStatistics(deployment, sizes, latencies, edges))
