"""A queue that applications share before a function: its cost, and what each of them may expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sluice.batching.documents import WarmEnvironments, quantile_of
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cold_starts import Share
from sluice.optimizer.billing.cost import BatchCost, cost_of_parts
from sluice.optimizer.function.latency import LatencyPrediction, with_cold_starts
from sluice.optimizer.recommend.application import Application, named
from sluice.optimizer.recommend.every_load import FunctionOfSizes
from sluice.optimizer.recommend.offers import provisioned_offers
from sluice.optimizer.recommend.search import ROUNDING
from sluice.optimizer.recommend.shared_queues import SharedQueue
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.recommend.worker_queue import WorkerQueue
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function

N_POINTS = 400  # of a curve


class QueueAtLoad(NamedTuple):
    """What a request costs (USD) when requests come ``factor`` times as fast: as planned, and by the table of one function."""

    factor: float
    usd: float
    usd_of_one_function: float


@dataclass(frozen=True, eq=False)
class ServedQueue:
    """A queue that applications share, with the function that serves it.

    Parameters
    ----------
    queue : SharedQueue
    service : ServiceTimes
    function : str
        As a plan names it.
    cost : BatchCost
        Of a request.
    cold : Share
        Which share starts cold.
    init : float
        Seconds that this takes.
    warm : WarmEnvironments or None
        Environments that are kept warm for it, and for as many queues of its function as ``warm_queues`` says.
    functions : tuple of FunctionOfSizes
        Where the size of a batch chooses its function, all of them in the order in which their tables are read; ``function`` is the
        first, and ``service`` has the times of all as of one. Else empty.
    loads : tuple of QueueAtLoad
        What that comes to from the slowest to the fastest arrivals.
    one_function : str
        Where the size of a batch could choose its function and does not: why, in a sentence.
    bill : callable
        What a request costs when requests come so many times as fast, in the same pattern.
    recorded_rate : float or None
        Requests/s of those that were recorded, where ``cost`` is that of a run over these.
    """

    queue: SharedQueue
    service: ServiceTimes
    function: str
    cost: BatchCost
    cold: Share
    init: float
    bill: Callable[[float], BatchCost]
    warm: WarmEnvironments | None = None
    warm_queues: int = 1
    functions: tuple[FunctionOfSizes, ...] = ()
    loads: tuple[QueueAtLoad, ...] = ()
    one_function: str = ""
    recorded_rate: float | None = None

    @property
    def cold_starts(self) -> float:
        """Share of the batches that start cold."""
        return self.cold.batches

    @property
    def provisioned(self) -> int:
        """Environments that are provisioned for it, and for others of its function."""
        return self.warm.provisioned if self.warm else 0

    @property
    def largest(self) -> int:
        """Requests in its largest batch."""
        return len(self.queue.batch_size_pmf)

    @property
    def applications(self) -> tuple[Application, ...]:
        """The strictest promise first."""
        return self.queue.applications

    @property
    def slacks(self) -> tuple[float, ...]:
        """Seconds that a request of each application may wait longer than the table says."""
        return self.queue.slacks

    @property
    def arrival_rate(self) -> float:
        """Requests/s of all of them."""
        return self.queue.arrival_rate if self.recorded_rate is None else self.recorded_rate

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.queue.mean_batch_size

    @property
    def policy(self) -> Policy:
        """The table that carries it out; where the size of a batch chooses its function, the rows of all of them."""
        return self.queue.policy

    @property
    def tables(self) -> list[tuple[str, Policy]]:
        """The functions with their tables, as a plan has them: the first, and those beside it."""
        return [(of.called, of.policy) for of in self.functions] or [(self.function, self.policy)]

    @property
    def memory_sizes(self) -> list[int]:
        """Of its functions, MB."""
        return sorted({of.service.memory_mb for of in self.functions} or {self.memory_mb})

    @property
    def by_size(self) -> str:
        """Which sizes go where, in words; ``""`` where one function serves all."""
        each = sorted(self.functions, key=lambda of: of.stretches[0])
        return "; ".join(f"{of.said} with {of.service.memory_mb} MB" for of in each)

    @property
    def memory_mb(self) -> int:
        """Of the function."""
        return self.service.memory_mb

    @property
    def runs_on(self) -> str:
        """Memory, and how many environments are kept warm."""
        sizes = ", ".join(map(str, self.memory_sizes))
        return f"{sizes} MB" + (f", {self.warm.number} warm" if self.warm else "")

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long, a batch leaves."""
        return leaves(self.policy)

    @property
    def named(self) -> str:
        """The applications, in words."""
        return named(self.applications)

    @cached_property
    def latencies(self) -> tuple[LatencyPrediction, ...]:
        """Of a request of each application, cold starts among them."""
        each = (self.queue.law.latency(k, self.service) for k in range(len(self.applications)))
        return tuple(with_cold_starts(of, self.cold.requests, self.init) for of in each)

    def reached(self, k: int) -> Estimate:
        """The percentile of an application's promise, s; a point where its law is exact."""
        law, slo = self.latencies[k], self.applications[k].slo
        value = law.percentile(slo.percentile)
        if law.confidence is None:
            return Estimate(value, value, value)
        return Estimate(value, *law.quantile_interval(quantile_of(slo.percentile)))

    def exact(self, k: int) -> bool:
        """Whether the law of an application's latency is."""
        return self.latencies[k].confidence is None

    def curve(self, k: int) -> tuple[Array, Array]:
        """Latencies (s), and the share of an application's requests that are answered within each."""
        law = self.latencies[k]
        times = np.linspace(0, law.longest, N_POINTS)
        return times, law.cdf(times)

    @property
    def method(self) -> str:
        """How its latencies were found."""
        return self.latencies[0].method

    def keeps(self, k: int) -> bool:
        """Whether the promise of an application is kept, cold starts included: by the table where these are few enough."""
        slo = self.applications[k].slo
        return self.latencies[k].surely_within(slo.latency) >= slo.quantile - 2 * ROUNDING

    @property
    def missed(self) -> int:
        """Applications whose promise is not kept."""
        return sum(not self.keeps(k) for k in range(len(self.applications)))

    def deployment(self, function: Function) -> Deployment:
        """What serves behind its tables, with what is kept warm."""
        if self.functions:
            first, *others = (function.at(of.service.memory_mb) for of in self.functions)
            beside = [at.beside(of.policy) for at, of in zip(others, self.functions[1:], strict=True)]
            return first.under(self.functions[0].policy, beside)
        of = function.at(self.memory_mb)
        if not self.warm:
            return of.under(self.policy)
        if not self.provisioned:
            return of.pinged(self.warm).under(self.policy)
        (offer,) = provisioned_offers(of.profile, [of.memory_mb], of.billing, of.max_batch_size)
        return offer.kept_warm(self.policy, self.provisioned, of)

    def billed(self, cost: BatchCost, rate: float) -> ServedQueue:
        """The same with its cost on arrivals that were recorded, of which so many came per second."""
        return replace(self, cost=cost, recorded_rate=rate)


Served = ServedQueue | WorkerQueue


def cost_of_queues(queues: Sequence[Served]) -> BatchCost:
    """Of a request of any of the queues; what the buffer costs per month is paid once."""
    rate = sum(of.arrival_rate for of in queues)
    return cost_of_parts([(of.arrival_rate / rate, of.memory_mb, of.cost) for of in queues])
