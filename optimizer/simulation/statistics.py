"""What a simulated deployment did: latency with its confidence intervals, violations, drops, cost, energy, and all that over time.

Nothing is kept by request; what is counted, and how exactly, stands in ``tally``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import RequestClass, Slo
from sluice.optimizer.arrays import Array, Counts, Indices
from sluice.optimizer.billing.cost import BatchCost, predict_cost
from sluice.optimizer.service.by_size import MixedServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS, Estimate, estimate_ratio
from sluice.optimizer.simulation.deployment import Deployment, Serving
from sluice.optimizer.simulation.latency_statistics import ClassStatistics, LatencyCounter, LatencyStatistics
from sluice.optimizer.simulation.queue_loop import COLD
from sluice.optimizer.simulation.queue_run import NONE, Progress
from sluice.optimizer.simulation.several_queues import SeveralQueues
from sluice.optimizer.simulation.tally import Tally, largest_of


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
class RunStatistics(LatencyStatistics):
    """What a deployment did with ``n_requests`` arrivals.

    Parameters
    ----------
    deployment : Deployment or SeveralQueues
    end : float
        The last arrival or answer, s.
    cost : BatchCost
        USD per answered request.
    serving : tuple of ServingStatistics
        By table, in their order; of ``SeveralQueues`` these have them.
    series : Series or None
    queues : tuple of RunStatistics
        Of the queues of ``SeveralQueues``, in their order, over the same span of time; else empty.
    classes : tuple of ClassStatistics
        By class, in their order; of queues by class in that of the queues.
    """

    deployment: Deployment | SeveralQueues
    start: float
    end: float
    cost: BatchCost
    serving: tuple[ServingStatistics, ...] = ()
    series: Series | None = None
    queues: tuple[RunStatistics, ...] = ()
    classes: tuple[ClassStatistics, ...] = ()

    @property
    def _sides(self) -> tuple[ServingStatistics, ...]:
        return self.serving or tuple(side for of in self.queues for side in of.serving)

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
        """Share of the functions' batches, provisioned ones too, that start cold in equilibrium; ``nan`` where there are none."""
        runs = self.queues or (self,)
        cold, of_all = np.zeros(BLOCKS), np.zeros(BLOCKS, dtype=np.int64)
        for run in runs:
            for place, side in enumerate(run.serving):
                if side.serving.elastic or side.serving.provisioned:
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

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """As of any requests, and whether each class kept its promise."""
        return super().keeps(slos) and all(of.keeps(of.slos) for of in self.classes)

    def surely_keeps(self, slos: Sequence[Slo]) -> bool | None:
        """As of any requests, and whether each class surely kept its promise."""
        verdicts = [super().surely_keeps(slos), *(of.kept for of in self.classes)]
        return False if False in verdicts else None if None in verdicts else True

    @property
    def promises(self) -> bool:
        """Whether a class has a promise."""
        return any(of.slos for of in self.classes)

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last arrival or answer."""
        return self.end - self.start


def cheapest_kept(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The run of least cost by the request, bytes moved included, that surely keeps all SLOs, by name; ``None`` where none does."""
    return _cheapest({name: run for name, run in runs.items() if (slos or run.promises) and run.surely_keeps(slos) is True})


def cheapest_perhaps_kept(runs: Mapping[str, RunStatistics], slos: Sequence[Slo]) -> str | None:
    """The run of least cost that may keep all SLOs, as its intervals tell; ``None`` where none may, or nothing is promised."""
    return _cheapest({name: run for name, run in runs.items() if (slos or run.promises) and run.surely_keeps(slos) is not False})


def _cheapest(runs: Mapping[str, RunStatistics]) -> str | None:
    return min(runs, key=lambda name: runs[name].cost.by_request, default=None)


class Statistics:
    """Collects what a queue's progress says.

    ``buffered``: the requests pass the buffer also where they go one by one, as it parts them into several queues. ``n_by_class``:
    how many requests are of each class of the deployment, where it has some.
    """

    def __init__(
        self,
        deployment: Deployment | SeveralQueues,
        n_requests: int,
        latencies: tuple[float, ...],
        edges: Array | None,
        buffered: bool = False,
        n_by_class: Sequence[int] = (),
    ) -> None:
        self._deployment, self._buffered, self._edges = deployment, buffered, edges
        sizes = deployment.n_tables, deployment.max_batch_size
        self._all = LatencyCounter(n_requests, latencies, *sizes, edges)
        self._by_class: list[tuple[RequestClass, LatencyCounter]] = []
        if isinstance(deployment, Deployment):
            for each, n in zip(deployment.classes, n_by_class, strict=True):
                promise = () if each.slo is None else (each.slo.latency,)
                self._by_class.append((each, LatencyCounter(int(n), promise, *sizes)))
        self._billed = np.full(deployment.n_tables, np.nan)  # seconds by table, where requests are sized
        self._start = self._end = np.nan

    def add(self, progress: Progress, places: Indices = NONE) -> None:
        """What another chunk led to; ``places`` are those of its requests among all, where others came in between."""
        if len(progress.requests.times) == 0:
            return
        ended, came = self._all.add(progress, places), progress.came.times
        for k, (_, counter) in enumerate(self._by_class):
            counter.add(progress.of_class(k))
        self._start = float(np.nanmin([self._start, *came[:1]]))
        self._end = float(np.nanmax([self._end, ended, *came[-1:]]))
        if len(progress.requests.sizes) and isinstance(self._deployment, Deployment):
            self._billed = np.nan_to_num(self._billed) + _billed(self._deployment, progress)

    @property
    def span(self) -> tuple[float, float]:
        """The first arrival and the last arrival or answer so far, s."""
        return self._start, self._end

    def result(self, span: tuple[float, float] | None = None) -> RunStatistics:
        """When all is added; ``span`` (s) is that of the run, where it is longer than from the first arrival to the last answer."""
        counted, t, series = self._all.counted(), self._all.tally, None
        if self._edges is not None:
            mean = np.divide(t.latency_at, t.answered_at, out=np.full(len(t.latency_at), np.nan), where=t.answered_at > 0)
            series = Series(self._edges, t.arrivals_at, t.answered_at, t.in_time_at, mean)
        classes = tuple(ClassStatistics(each, **counter.counted()) for each, counter in self._by_class)
        start, end = self.span if span is None else span
        run = RunStatistics(self._deployment, start, end, BatchCost(), series=series, classes=classes, **counted)
        if not isinstance(self._deployment, Deployment):
            return run
        serving = tuple(_of_table(place, self._deployment, t, run, billed) for place, billed in enumerate(self._billed.tolist()))
        return replace(run, serving=serving, cost=sum((side.cost for side in serving), self._cost_of_buffer(serving)))

    def _cost_of_buffer(self, serving: Sequence[ServingStatistics]) -> BatchCost:
        """USD per answered request of what stands before all; where one function serves without batching that is nothing.

        Also where some of its environments are provisioned: its platform goes to others by itself.
        """
        sides = [side.serving for side in serving]
        of_one_function = len({side.function for side in sides}) == 1 and all(side.elastic or side.provisioned for side in sides)
        alone = of_one_function and any(side.elastic for side in sides) and self._deployment.max_batch_size == 1
        if alone and not self._buffered:
            return BatchCost()
        assert isinstance(self._deployment, Deployment)
        prices, moved = self._deployment.billing.prices, self._deployment.billing.moved
        share = sum(side.share for side in serving)
        invoked = sum(side.share for side in serving if side.serving.elastic or side.serving.provisioned)
        return BatchCost(
            cache=share * prices.cache_per_request(*moved),
            load_balancer=share * prices.load_balancer_per_request(*moved),
            network=invoked * prices.network_per_request(*moved),
            fixed_terms=dict(prices.fixed_terms()),
        )


def _billed(deployment: Deployment, progress: Progress) -> Array:
    """Mean billed seconds of what each function served of it, by the members and the largest size of each batch, (n_tables,)."""
    batches, largest = progress.batches, largest_of(progress.requests.sizes, progress.batches)
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
    by_size = np.trim_zeros(by_size, "b")  # others may take larger batches
    if not serving.elastic:
        duration = float(tally.seconds[2 * place])
        paid = float(by_size @ serving.service.mean_billed(deployment.billing.step)[: len(by_size)])
        usd = serving.price_per_worker_hour / 3600 * there + serving.price_per_worker_second * paid
        logs = deployment.billing.prices.logs_per_invocation * batches if serving.provisioned else 0.0
        cost = BatchCost(machines=(usd + serving.price_per_batch * batches) / answered, logs=logs / answered)
    elif batches == 0:
        duration = 0.0
    else:
        billing = replace(deployment.billing, cold_start_probability=cold / batches)
        service, init = serving.service, 0.0 if serving.environments is None else serving.environments.init_duration
        of_its_own = predict_cost(by_size / batches, service, billing, init_duration=init, buffered=False)
        duration = float(by_size @ service.mean_billed(billing.step)[: len(by_size)])
        if not np.isnan(billed):
            of_its_own = replace(of_its_own, compute=of_its_own.compute * billed / duration)
            duration = billed
        duration += cold * init
        terms = {name: requests / answered * usd for name, usd in of_its_own.terms().items()}
        cost = BatchCost(**terms, fixed_terms=of_its_own.fixed_terms)
    if serving.environments is not None and np.isfinite(serving.environments.pinged_every):
        times, number = (run.end - run.start) / serving.environments.pinged_every, serving.environments.pinged
        at, of = serving.service.memory_mb, deployment.billing
        by_buffer = number > 1 or deployment.max_batch_size > 1  # who batches nothing has none, and a schedule pings one
        price = of.prices.pings(number, at, of.architecture, by_buffer)
        cost = replace(cost, pings=times * price / answered)
    if serving.environments is not None and serving.environments.started:
        surely = replace(deployment.billing, cold_start_probability=1.0)
        seconds, n = serving.environments.init_duration, serving.environments.there_first
        start = predict_cost(np.ones(1), serving.service, surely, init_duration=seconds, buffered=False)
        price = surely.prices.pings(n, serving.service.memory_mb, surely.architecture)
        init, restore = (n * start.init + price) / answered, n * start.restore / answered
        cost = replace(cost, init=cost.init + init, restore=cost.restore + restore)
    at_start = int(tally.batches[2 * place + COLD, 0])
    return ServingStatistics(serving, batches, requests, requests / answered, cold, at_start, duration, there, cost)
