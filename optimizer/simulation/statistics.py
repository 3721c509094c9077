"""What a simulated deployment did: latency with its confidence intervals, violations, drops, cost, energy, and all that over time.

Nothing is kept by request; what is counted, and how exactly, stands in ``tally``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import Slo, quantile_of
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.billing.cost import BatchCost, predict_cost
from sluice.optimizer.simulation.batch_means import BLOCKS, Estimate, estimate_quantile_of_counts, estimate_ratio, share_of_blocks
from sluice.optimizer.simulation.deployment import Deployment, Serving
from sluice.optimizer.simulation.queue_loop import COLD
from sluice.optimizer.simulation.queue_run import Progress
from sluice.optimizer.simulation.tally import Tally, count, upper_edges


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
class ServingStatistics:
    """What served the batches of one table, and how much.

    Parameters
    ----------
    serving : Serving
    batches, requests : int
    share : float
        Of the answered requests.
    cold_starts : int
        Batches whose environment had to start.
    billed_duration : float
        Seconds: of a function's invocations, as they are billed, INIT included; those in which servers were busy.
    server_seconds : float
        Seconds of servers that were there; 0 for a function.
    cost : BatchCost
        USD per answered request of the run, whoever served it, and per month, without the buffer before them all.
    """

    serving: Serving
    batches: int
    requests: int
    share: float
    cold_starts: int
    billed_duration: float
    server_seconds: float
    cost: BatchCost

    @property
    def utilisation(self) -> float | None:
        """Share of the servers' time in which they were busy; ``None`` without servers."""
        return self.billed_duration / self.server_seconds if self.server_seconds > 0 else None


@dataclass(frozen=True, eq=False)
class RunStatistics:
    """What a deployment did with ``n_requests`` arrivals.

    Parameters
    ----------
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
    serving : tuple of ServingStatistics
        By table, in their order.
    series : Series or None
    """

    deployment: Deployment
    n_requests: int
    latencies: tuple[float, ...]
    dropped: int
    unanswered: int
    start: float
    end: float
    cost: BatchCost
    serving: tuple[ServingStatistics, ...]
    series: Series | None
    _tally: Tally
    _length: int

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
        return sum(side.cold_starts for side in self.serving)

    @property
    def by_function(self) -> float:
        """Share of the answered requests that functions served, and not servers."""
        return sum(side.share for side in self.serving if side.serving.elastic)

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
        return sum(side.server_seconds for side in self.serving)

    @property
    def utilisation(self) -> float | None:
        """Share of the workers' time in which they were busy; ``None`` without workers."""
        busy = sum(side.billed_duration for side in self.serving if not side.serving.elastic)
        return busy / self.worker_seconds if self.worker_seconds > 0 else None

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
    """Collects what a queue's progress says."""

    def __init__(self, deployment: Deployment, n_requests: int, latencies: tuple[float, ...], edges: Array | None) -> None:
        self._deployment = deployment
        self._n_requests, self._latencies, self._edges = n_requests, latencies, edges
        self._length = n_requests // (BLOCKS + 1)
        n_bins = 0 if edges is None else len(edges) - 1
        self._tally = Tally.empty(len(deployment.serving), deployment.max_batch_size, len(latencies), n_bins)
        self._fed = 0  # requests that came
        self._seen = 0  # those of them that left or were dropped
        self._start = self._end = np.nan

    def add(self, progress: Progress) -> None:
        """What another chunk led to."""
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
            self._seen,
            counted_from,
            self._length,
            np.array(self._latencies),
            edges,
            self._tally,
        )
        self._seen += progress.n_left
        self._fed += len(arrivals) - progress.n_waited
        self._end = max(self._end, ended, float(arrivals[-1]))

    def result(self) -> RunStatistics:
        """When all is added."""
        t = self._tally
        require(self._fed == self._n_requests, "arrivals", self._fed, f"the {self._n_requests} requests that were announced")
        series = None
        if self._edges is not None:
            mean = np.divide(t.latency_at, t.answered_at, out=np.full(len(t.latency_at), np.nan), where=t.answered_at > 0)
            series = Series(self._edges, t.arrivals_at, t.answered_at, t.in_time_at, mean)
        places = range(len(self._deployment.serving))
        serving = tuple(_of_table(place, self._deployment, t, self._start, self._end) for place in places)
        return RunStatistics(
            self._deployment,
            self._n_requests,
            self._latencies,
            self._seen - int(t.answered.sum()),
            self._n_requests - self._seen,
            self._start,
            self._end,
            sum((side.cost for side in serving), _cost_of_buffer(self._deployment, serving)),
            serving,
            series,
            t,
            self._length,
        )


def _of_table(place: int, deployment: Deployment, tally: Tally, start: float, end: float) -> ServingStatistics:
    """What served the batches of the table at this place."""
    serving, answered = deployment.serving[place], max(1, int(tally.answered.sum()))
    by_mark = tally.sizes[2 * place : 2 * place + 2, 1:]
    by_size, cold = by_mark.sum(axis=0), int(by_mark[COLD].sum())
    batches, requests = int(by_size.sum()), int(by_size @ np.arange(1, len(by_size) + 1))
    there, cost = serving.schedule.server_seconds(start, end), BatchCost()
    if not serving.elastic:
        duration = float(tally.seconds[2 * place])
        usd = serving.price_per_worker_hour / 3600 * there + serving.price_per_worker_second * duration
        cost = BatchCost(machines=(usd + serving.price_per_batch * batches) / answered)
    elif batches == 0:
        duration = 0.0
    else:
        billing = replace(deployment.billing, cold_start_probability=cold / batches)
        service, init = serving.service, 0.0 if serving.environments is None else serving.environments.init_duration
        by_size = np.trim_zeros(by_size, "b")
        duration = float(by_size @ service.mean_billed(billing.step)[: len(by_size)]) + cold * init
        of_its_own = predict_cost(by_size / batches, service, billing, init_duration=init, buffered=False)
        terms = {name: requests / answered * usd for name, usd in of_its_own.terms().items()}
        cost = BatchCost(**terms, fixed_terms=of_its_own.fixed_terms)
    return ServingStatistics(serving, batches, requests, requests / answered, cold, duration, there, cost)


def _cost_of_buffer(deployment: Deployment, serving: Sequence[ServingStatistics]) -> BatchCost:
    """USD per answered request of what stands before functions; where one alone serves without batching there need be nothing."""
    share = sum(side.share for side in serving if side.serving.elastic)
    if share == 0 or (len(serving) == 1 and deployment.max_batch_size == 1):
        return BatchCost()
    prices, moved = deployment.billing.prices, deployment.billing.moved
    return BatchCost(
        cache=share * prices.cache_per_request(*moved),
        load_balancer=share * prices.load_balancer_per_request(*moved),
        network=share * prices.network_per_request(*moved),
        fixed_terms=dict(prices.fixed_terms()),
    )
