"""Several deployments over the same arrivals, in one pass and in constant memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.simulation.batch_means import BLOCKS
from sluice.optimizer.simulation.chunks import Arrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.simulation.statistics import RunStatistics, Statistics

FEWEST_REQUESTS = 2 * (BLOCKS + 1)


def simulate_deployments(
    deployments: Mapping[str, Deployment], arrivals: Arrivals, latencies: Sequence[float] = (), seed: int = 0, bins: int = 0
) -> dict[str, RunStatistics]:
    """Run every deployment on the same arrivals, with the same luck: the k-th batch of each has the k-th uniform number.

    Parameters
    ----------
    deployments : mapping of str to Deployment
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
        No deployment, a latency that is none, fewer requests than confidence intervals need.
    """
    require(bool(deployments), "deployments", dict(deployments), "at least one")
    n = arrivals.n_requests
    require(n >= FEWEST_REQUESTS, "n_requests", n, f"at least {FEWEST_REQUESTS}, for confidence intervals")
    require(seed >= 0, "seed", seed, "an integer >= 0")
    require(bins >= 0, "bins", bins, "an integer >= 0")
    for k, latency in enumerate(latencies):
        require(0 < latency < np.inf, f"latencies[{k}]", latency, "a number of seconds > 0")
    edges = None
    chunks = arrivals.chunks()
    chunk = next(chunks)
    if bins:
        start = float(chunk[0])
        edges = np.linspace(start, max(arrivals.span, np.nextafter(start, np.inf)), bins + 1)
    runs = {name: QueueRun(deployment, np.random.default_rng(seed)) for name, deployment in deployments.items()}
    statistics = {name: Statistics(deployment, n, tuple(latencies), edges) for name, deployment in deployments.items()}
    for following in chain(chunks, [None]):
        for name, run in runs.items():
            statistics[name].add(run.feed(chunk, last=following is None))
        if following is not None:
            chunk = following
    return {name: collected.result() for name, collected in statistics.items()}
