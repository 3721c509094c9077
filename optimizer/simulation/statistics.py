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
from sluice.optimizer.billing.cost import BatchCost, predict_cost
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.simulation.batch_means import (
    BLOCKS,
    FEWEST_REQUESTS,
    Estimate,
    estimate_quantile_of_counts,
    estimate_ratio,
    share_of_blocks,
)
from sluice.optimizer.simulation.deployment import Deployment, Serving
from sluice.optimizer.simulation.queue_loop import COLD
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
class ServingStatistics:
    """What served the batches of one table, and how much.

    Parameters
    ----------
    serving : Serving
    batches, requests : int
    share : float
        Of the answered requests.
    cold_starts, cold_at_start : int
        Batches whose environment had to start, and those of them in the run's first block.
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
    cold_at_start: int
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
    serving : tuple of ServingStatistics
        By table, in their order; of a ``SizedDeployment`` its classes have them.
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
    serving: tuple[ServingStatistics, ...]
    series: Series | None
    _tally: Tally
    _length: int
    classes: tuple[RunStatistics, ...] = ()

    @property
    def _sides(self) -> tuple[ServingStatistics, ...]:
        return self.serving or tuple(side for of in self.classes for side in of.serving)

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
        return sum(side.cold_starts for side in self._sides)

    @property
    def cold_at_start(self) -> int:
        """Those of them in the first block, in which every environment is new; it is left out of every estimate."""
        return sum(side.cold_at_start for side in self._sides)

    @property
    def cold_share(self) -> Estimate:
        """Share of the functions' batches that start cold in equilibrium; ``nan`` where there are none."""
        runs = self.classes or (self,)
        cold, of_all = np.zeros(BLOCKS), np.zeros(BLOCKS, dtype=np.int64)
        for run in runs:
            for place, side in enumerate(run.serving):
                if side.serving.elastic:
                    cold += run._tally.batches[2 * place + COLD, 1:]
                    of_all += run._tally.batches[2 * place : 2 * place + 2, 1:].sum(axis=0)
        return estimate_ratio(cold, of_all)

    @property
    def by_function(self) -> float:
        """Share of the answered requests that functions served, and not servers."""
        return sum(side.requests for side in self._sides if side.serving.elastic) / max(1, self.answered)

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
        return sum(side.server_seconds for side in self._sides)

    @property
    def utilisation(self) -> float | None:
        """Share of the workers' time in which they were busy; ``None`` without workers."""
        busy = sum(side.billed_duration for side in self._sides if not side.serving.elastic)
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

    def surely_keeps(self, slos: Sequence[Slo]) -> bool | None:
        """Whether all SLOs are surely kept, as the intervals of the violations have it, surely not, or neither.

        What was not kept in the run itself, its beginning included, is not surely kept.
        """
        verdicts = [surely_keeps(self.violations(k), slo) for k, slo in enumerate(slos)]
        return False if False in verdicts else None if None in verdicts or not self.keeps(slos) else True

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last arrival or answer."""
        return self.end - self.start

    def _in_time(self, k: int) -> Counts:
        require(0 <= k < len(self.latencies), "k", k, f"the place of one of the {len(self.latencies)} latencies")
        return np.asarray(self._tally.in_time[k])


def surely_keeps(violations: Estimate, slo: Slo) -> bool | None:
    """Whether the share of violations is surely within what the SLO allows, surely beyond (``False``), or neither."""
    if violations.high <= slo.error_budget:
        return True
    return False if violations.low > slo.error_budget else None


def cheapest_kept(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The run of least cost that surely keeps all SLOs, by name; ``None`` where none does, or there is no SLO."""
    return _cheapest({name: run for name, run in runs.items() if slos and run.surely_keeps(slos) is True})


def cheapest_perhaps_kept(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The run of least cost that may keep all SLOs, as far as its intervals tell; ``None`` where none may, or there is no SLO."""
    return _cheapest({name: run for name, run in runs.items() if slos and run.surely_keeps(slos) is not False})


def _cheapest(runs: Mapping[str, RunStatistics]) -> str | None:
    return min(runs, key=lambda name: runs[name].cost.per_request, default=None)


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
        n_bins = 0 if edges is None else len(edges) - 1
        self._billed = np.full(deployment.n_tables, np.nan)  # seconds by table, where requests are sized
        self._tally = Tally.empty(deployment.n_tables, deployment.max_batch_size, len(latencies), n_bins)
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
        if len(progress.sizes) and isinstance(self._deployment, Deployment):
            self._billed = np.nan_to_num(self._billed) + _billed(self._deployment, progress)

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
            (),
            series,
            t,
            self._length,
        )
        if not isinstance(self._deployment, Deployment):
            return run
        serving = tuple(_of_table(place, self._deployment, t, run, billed) for place, billed in enumerate(self._billed.tolist()))
        return replace(run, serving=serving, cost=sum((side.cost for side in serving), self._cost_of_buffer(serving)))

    def _cost_of_buffer(self, serving: Sequence[ServingStatistics]) -> BatchCost:
        """USD per answered request of what stands before functions; where one serves without batching there need be nothing."""
        share = sum(side.share for side in serving if side.serving.elastic)
        if share == 0 or (len(serving) == 1 and self._deployment.max_batch_size == 1 and not self._buffered):
            return BatchCost()
        assert isinstance(self._deployment, Deployment)
        prices, moved = self._deployment.billing.prices, self._deployment.billing.moved
        return BatchCost(
            cache=share * prices.cache_per_request(*moved),
            load_balancer=share * prices.load_balancer_per_request(*moved),
            network=share * prices.network_per_request(*moved),
            fixed_terms=dict(prices.fixed_terms()),
        )


def _billed(deployment: Deployment, progress: Progress) -> Array:
    """Mean billed seconds of what each function served of it, by the members and the largest size of each batch, (n_tables,)."""
    batches, largest = progress.batches, largest_of(progress.sizes, progress.batches)
    seconds = np.zeros(len(deployment.serving))
    for place, serving in enumerate(deployment.serving):
        here = batches.marks // 2 == place
        if serving.elastic and here.any():
            assert isinstance(serving.service, MixedServiceTimes)
            of = serving.service.by_size
            seconds[place] = of.mean_billed(largest[here], batches.sizes[here], deployment.billing.step).sum()
    return seconds


def _of_table(place: int, deployment: Deployment, tally: Tally, run: RunStatistics, billed: float) -> ServingStatistics:
    """What served the batches of the table at this place; ``billed`` are seconds, ``nan`` where the size of batches tells them."""
    serving, answered = deployment.serving[place], max(1, int(tally.answered.sum()))
    by_mark = tally.sizes[2 * place : 2 * place + 2, 1:]
    by_size, cold = by_mark.sum(axis=0), int(by_mark[COLD].sum())
    batches, requests = int(by_size.sum()), int(by_size @ np.arange(1, len(by_size) + 1))
    there, cost = serving.schedule.server_seconds(run.start, run.end), BatchCost()
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
        of_its_own = predict_cost(by_size / batches, service, billing, init_duration=init, buffered=False)
        duration = float(by_size @ service.mean_billed(billing.step)[: len(by_size)])
        if not np.isnan(billed):
            of_its_own = replace(of_its_own, compute=of_its_own.compute * billed / duration)
            duration = billed
        duration += cold * init
        terms = {name: requests / answered * usd for name, usd in of_its_own.terms().items()}
        cost = BatchCost(**terms, fixed_terms=of_its_own.fixed_terms)
    at_start = int(tally.batches[2 * place + COLD, 0])
    return ServingStatistics(serving, batches, requests, requests / answered, cold, at_start, duration, there, cost)
