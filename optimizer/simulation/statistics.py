"""What a simulated deployment did: latency with its confidence intervals, violations, drops, cost, energy, and all that over time.

Nothing is kept by request; what is counted, and how exactly, stands in ``tally``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import Slo, quantile_of
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Counts, Indices
from sluice.optimizer.billing.cost import BatchCost, Billing, predict_cost
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import (
    BLOCKS,
    FEWEST_REQUESTS,
    Estimate,
    estimate_quantile_of_counts,
    estimate_ratio,
    share_of_blocks,
)
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.queue_loop import COLD, FUNCTION
from sluice.optimizer.simulation.queue_run import Progress
from sluice.optimizer.simulation.sized_deployment import SizedDeployment
from sluice.optimizer.simulation.tally import Tally, count, largest_of, upper_edges


@dataclass(frozen=True, eq=False)
class Series:
    """How it went over time, by bins of arrival times; shape (n_bins,) each, edges (n_bins + 1,), s.

    ``in_time`` counts those answered within the first of the latencies asked for, ``mean_latency`` is ``nan`` without answers. What
    came after the last edge is in the last bin.
    """

    edges: Array
    arrivals: Counts
    answered: Counts
    in_time: Counts
    mean_latency: Array


@dataclass(frozen=True, eq=False)
class RunStatistics:
    """What a deployment did with ``n_requests`` arrivals.

    Parameters
    ----------
    deployment : Deployment or SizedDeployment
    latencies : tuple of float
        The latencies within which answers were counted, s.
    dropped : int
        Requests that grew too old.
    unanswered : int
        Requests that waited still when no event was left to release them.
    end : float
        The last arrival or answer, s.
    cost : BatchCost
        USD per answered request.
    series : Series or None
    classes : tuple of RunStatistics
        Of the queues of a ``SizedDeployment``, in their order, over the same span of time; else empty.
    """

    deployment: Deployment | SizedDeployment
    n_requests: int
    latencies: tuple[float, ...]
    dropped: int
    unanswered: int
    start: float
    end: float
    cost: BatchCost
    series: Series | None
    _tally: Tally
    _length: int
    classes: tuple[RunStatistics, ...] = ()

    @property
    def estimates(self) -> bool:
        """Whether there are enough requests for estimates with their intervals; of a class there may not be."""
        return self.n_requests >= FEWEST_REQUESTS

    @property
    def answered(self) -> int:
        """Requests that were answered, however late."""
        return self.n_requests - self.dropped - self.unanswered

    @property
    def n_batches(self) -> int:
        """Batches that left."""
        return int(self._tally.sizes.sum())

    @property
    def cold_starts(self) -> int:
        """Batches whose environment had to start."""
        return int(self._tally.sizes[COLD:].sum())

    @property
    def by_function(self) -> float:
        """Share of the answered requests that a function served."""
        served = self._tally.sizes @ np.arange(self._tally.sizes.shape[1])
        return float(served[FUNCTION:].sum() / max(1, served.sum()))

    @property
    def batch_size_pmf(self) -> Array:
        """Probability of a batch of 1, 2, ..., (max_batch_size,)."""
        sizes = self._tally.sizes.sum(axis=0)[1:]
        return np.asarray(sizes / max(1, sizes.sum()))

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.answered / max(1, self.n_batches)

    @property
    def worker_seconds(self) -> float:
        """Seconds of workers that were there, from the first arrival to the end."""
        if isinstance(self.deployment, Deployment):
            return self.deployment.schedule.server_seconds(self.start, self.end)
        return sum(of.worker_seconds for of in self.classes)

    @property
    def utilisation(self) -> float | None:
        """Share of the workers' time in which they were busy; ``None`` without workers."""
        return float(self._tally.seconds[0]) / self.worker_seconds if self.worker_seconds > 0 else None

    @property
    def energy_per_request(self) -> float | None:
        """J per answered request; ``None`` where no energies are known."""
        if self.deployment.energy is None:
            return None
        sizes = self._tally.sizes.sum(axis=0)[1:]
        return float(sizes @ self.deployment.energy[: len(sizes)]) / max(1, self.answered)

    @property
    def mean_latency(self) -> Estimate:
        """Mean latency of the answered requests in equilibrium, s; ``nan`` where none was."""
        return estimate_ratio(self._tally.latency_sums[1:], self._tally.answered[1:])

    def percentile(self, percentile: float) -> Estimate:
        """Percentile (0-100) of the latency in equilibrium, s; what is not answered counts as answered never."""
        quantile = quantile_of(percentile)
        unanswered = self._length - self._tally.answered[1:]
        seen = np.flatnonzero(self._tally.latencies[1:].any(axis=0))  # some hundreds of the bins
        counts = np.column_stack([self._tally.latencies[1:, seen], unanswered])
        return estimate_quantile_of_counts(counts, np.append(upper_edges()[seen], np.inf), quantile)

    def share_within(self, latencies: Array) -> Array:
        """Share of all arrivals that were answered within these seconds, to the width of a bin."""
        answered = np.append(0, np.cumsum(self._tally.latencies.sum(axis=0)))
        return np.asarray(answered[np.searchsorted(upper_edges(), latencies, side="right")] / self.n_requests)

    def violations(self, k: int = 0) -> Estimate:
        """Share of the requests that in equilibrium are not answered within ``latencies[k]``."""
        return share_of_blocks(self._length - self._in_time(k)[1:], self._length)

    def violation_ratio(self, k: int = 0) -> float:
        """Share of all arrivals that were not answered within ``latencies[k]``."""
        return (self.n_requests - int(self._in_time(k).sum())) / self.n_requests

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether of all arrivals no more were late than the SLOs allow; their latencies are those asked for, in their order."""
        return all(self.violation_ratio(k) <= slo.error_budget for k, slo in enumerate(slos))

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last arrival or answer."""
        return self.end - self.start

    def _in_time(self, k: int) -> Counts:
        require(0 <= k < len(self.latencies), "k", k, f"the place of one of the {len(self.latencies)} latencies")
        return np.asarray(self._tally.in_time[k])


def cheapest_kept(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The run of least cost that keeps all SLOs, by name; ``None`` where none does, or there is no SLO."""
    kept = [name for name, run in runs.items() if slos and run.keeps(slos)]
    return min(kept, key=lambda name: runs[name].cost.per_request, default=None)


class Statistics:
    """Collects what a queue's progress says.

    ``buffered``: the requests pass the buffer also where they go one by one, as it parts them into several queues.
    """

    def __init__(
        self,
        deployment: Deployment | SizedDeployment,
        n_requests: int,
        latencies: tuple[float, ...],
        edges: Array | None,
        buffered: bool = False,
    ) -> None:
        self._deployment, self._buffered = deployment, buffered
        self._n_requests, self._latencies, self._edges = n_requests, latencies, edges
        self._length = max(1, n_requests // (BLOCKS + 1))
        self._billed: float | None = None
        n_bins = 0 if edges is None else len(edges) - 1
        self._tally = Tally.empty(deployment.max_batch_size, len(latencies), n_bins)
        self._fed = 0  # requests that came
        self._seen = 0  # those of them that left or were dropped
        self._start = self._end = np.nan

    def add(self, progress: Progress, places: Indices | None = None) -> None:
        """What another chunk led to; ``places`` are those of its arrivals among all, unless no others came in between."""
        arrivals = progress.arrivals
        most = self._n_requests - self._seen
        require(len(arrivals) <= most, "arrivals", len(arrivals), f"at most {most}, as {self._n_requests} requests were announced")
        if np.isnan(self._start):
            self._start = self._end = float(arrivals[0])
        counted_from = self._n_requests - BLOCKS * self._length
        edges = np.empty(0) if self._edges is None else self._edges
        ended = count(
            arrivals,
            progress.n_waited,
            progress.batches,
            np.arange(self._seen, self._seen + len(arrivals)) if places is None else places,
            counted_from,
            self._length,
            np.array(self._latencies),
            edges,
            self._tally,
        )
        self._seen += progress.n_left
        self._fed += len(arrivals) - progress.n_waited
        self._start = min(self._start, float(arrivals[0]))
        self._end = max(self._end, ended, float(arrivals[-1]))
        if len(progress.sizes) and isinstance(self._deployment, Deployment) and self._deployment.function is not None:
            self._billed = (self._billed or 0.0) + _billed(self._deployment.function, self._deployment.billing, progress)

    @property
    def span(self) -> tuple[float, float]:
        """The first arrival and the last arrival or answer so far, s."""
        return self._start, self._end

    def result(self, span: tuple[float, float] | None = None) -> RunStatistics:
        """When all is added; ``span`` (s) is that of the run, where it is longer than from the first arrival to the last answer."""
        t = self._tally
        require(self._fed == self._n_requests, "arrivals", self._fed, f"the {self._n_requests} requests that were announced")
        series = None
        if self._edges is not None:
            mean = np.divide(t.latency_at, t.answered_at, out=np.full(len(t.latency_at), np.nan), where=t.answered_at > 0)
            series = Series(self._edges, t.arrivals_at, t.answered_at, t.in_time_at, mean)
        run = RunStatistics(
            self._deployment,
            self._n_requests,
            self._latencies,
            self._seen - int(t.answered.sum()),
            self._n_requests - self._seen,
            *(self.span if span is None else span),
            BatchCost(),
            series,
            t,
            self._length,
        )
        if not isinstance(self._deployment, Deployment):
            return run
        return replace(run, cost=_cost(self._deployment, t, run.worker_seconds, self._billed, self._buffered))


def _billed(function: ServiceTimes, billing: Billing, progress: Progress) -> float:
    """Mean billed seconds of all that the function served of it, by the members and the largest size of each batch."""
    assert isinstance(function, MixedServiceTimes)
    batches = progress.batches
    here = batches.marks >= FUNCTION
    largest = largest_of(progress.sizes, batches)[here]
    return float(function.by_size.mean_billed(largest, batches.sizes[here], billing.step).sum())


def _cost(deployment: Deployment, tally: Tally, worker_seconds: float, billed: float | None, buffered: bool) -> BatchCost:
    """USD per answered request; ``billed`` are the function's seconds, where they are known better than by the size of batches."""
    sizes = np.arange(1, tally.sizes.shape[1])
    answered = max(1, int(tally.answered.sum()))
    by_workers = tally.sizes[0, 1:]
    machines = (
        deployment.price_per_worker_hour / 3600 * worker_seconds
        + deployment.price_per_worker_second * float(tally.seconds[0])
        + deployment.price_per_batch * float(by_workers.sum())
    ) / answered
    by_function = tally.sizes[FUNCTION:, 1:].sum(axis=0)
    if deployment.function is None or not by_function.any():
        return BatchCost(machines=machines)
    environments = deployment.function_environments
    function = predict_cost(
        np.trim_zeros(by_function, "b") / by_function.sum(),
        deployment.function,
        replace(deployment.billing, cold_start_probability=float(tally.sizes[COLD:].sum() / by_function.sum())),
        init_duration=0.0 if environments is None else environments.init_duration,
        buffered=buffered or not (len(sizes) == 1 and not by_workers.any()),
    )
    if billed is not None:
        gb_seconds = billed * deployment.function.memory_mb / 1024 / float(by_function @ sizes)
        function = replace(function, compute=gb_seconds * deployment.billing.prices.gb_second(deployment.billing.architecture))
    part = float(by_function @ sizes) / answered
    terms = {name: part * usd for name, usd in function.terms().items()}
    return BatchCost(**{**terms, "machines": machines}, fixed_terms=function.fixed_terms)
