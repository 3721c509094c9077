"""A setting of the function: memory size and table, with its prediction (docs/model.md, 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Self

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo, quantile_of
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import NONE_COLD, Share
from sluice.optimizer.billing.cost import BatchCost, invocation_costs
from sluice.optimizer.function.batching_law import SETTING, basis_of
from sluice.optimizer.function.latency import LatencyPrediction, predict_falling_holds, predict_latency, with_cold_starts
from sluice.optimizer.function.sampled_batches import ArrivalSample
from sluice.optimizer.recommend.function_starts import FunctionStarts
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.search import ROUNDING, Search
from sluice.optimizer.recommend.words import holds_by_number, leaves, milliseconds
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function

N_KEPT = 16  # settings whose laws without each block are kept: the best is asked for its own more than once


class Predicted:
    """What settings of the function have in common, as their latency is predicted."""

    beside = ()  # what is provisioned and what is not have one name
    latency: LatencyPrediction

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.latency.mean_batch_size

    @property
    def confidence(self) -> float | None:
        """That of the latency's interval where it is from drawn arrivals, else ``None``."""
        return self.latency.confidence

    def percentile(self, percentile: float) -> Estimate:
        """In s; a point where the law is exact."""
        value = self.latency.percentile(percentile)
        if self.latency.confidence is None:
            return Estimate(value, value, value)
        return Estimate(value, *self.latency.quantile_interval(quantile_of(percentile)))

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether it keeps every SLO, surely where its latency has an interval."""
        return all(self.latency.surely_within(slo.latency) >= slo.quantile - 2 * ROUNDING for slo in slos)


@dataclass(frozen=True, eq=False)
class FunctionSetting(Predicted):
    """One point of the search with its prediction: a ``Candidate``; ``batch_size`` 1 is no batching.

    ``table`` waits to the last moment (``last_moment``), its longest hold being ``timeout``; without it, it is size-or-timeout.
    ``starts`` tells which share starts cold, and ``with_starts`` whether latency and cost are with them.
    ``fitted`` is the predicted cost where ``cost`` is that on arrivals that were recorded.
    """

    name = "function"
    function: str
    memory_mb: int
    batch_size: int
    timeout: float
    latency: LatencyPrediction
    cost: BatchCost
    starts: Callable[[], Share]
    with_starts: bool = False
    table: Policy | None = None
    fitted: BatchCost | None = None

    @cached_property
    def cold(self) -> Share:
        """Which share starts cold."""
        return self.starts()

    @property
    def cold_starts(self) -> float:
        """Share of the batches that start cold."""
        return self.cold.batches

    @property
    def policy(self) -> Policy:
        """The table that carries it out."""
        if self.table is not None:
            return self.table
        if self.batch_size == 1:
            return policies.no_batching()
        return policies.size_or_timeout(self.batch_size, self.timeout)

    @property
    def for_any_arrivals(self) -> bool:
        """A table that waits to the last moment rests on no fit."""
        return self.table is not None

    @property
    def rests_on_fit(self) -> bool:
        """Not so of a table that waits to the last moment."""
        return self.table is None

    @property
    def runs_on(self) -> str:
        """Its memory."""
        return f"{self.memory_mb} MB"

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long."""
        return leaves(self.policy)

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        if self.batch_size == 1:
            return f"Call the function directly, with {self.memory_mb} MB and no buffer."
        if self.table is not None:
            return (
                f"Hold requests until {self.batch_size} are there or waiting for one more would make the oldest late: "
                f"{holds_by_number(self.table)}. Run the function with {self.memory_mb} MB."
            )
        return (
            f"Hold requests until {self.batch_size} are there or the oldest has waited {milliseconds(self.timeout)}, "
            f"and run the function with {self.memory_mb} MB."
        )

    def billed(self, cost: BatchCost) -> Self:
        """The same with its cost on arrivals that were recorded."""
        return replace(self, cost=cost, fitted=self.cost)

    def deployment(self, function: Function) -> Deployment:
        """The function with this memory behind this table."""
        return function.at(self.memory_mb).under(self.policy)


class FunctionSettings:
    """The settings that a question allows: the search over them, and the prediction of each."""

    def __init__(self, question: Question) -> None:
        self.question, self.services = question, question.services
        largest = max(service.max_batch_size for service in self.services)
        compute = np.zeros((len(self.services), largest))
        per_invocation = np.zeros(len(self.services))
        for j, service in enumerate(self.services):
            compute[j, : service.max_batch_size], _ = invocation_costs(service, question.billing)
            alone = self.bill(np.ones(1), service, 0.0)
            per_invocation[j] = alone.per_request - alone.compute  # fee and log
        self.starts = FunctionStarts(question)
        longest = question.longest_timeout
        self.search = Search(question.arrivals, self.services, compute, per_invocation, longest, self.starts)
        self._without = lru_cache(maxsize=N_KEPT)(self._laws_without)

    def bill(self, batch_size_pmf: Array, service: ServiceTimes, cold_starts: float) -> BatchCost:
        """Of a request whose batch has the sizes of ``batch_size_pmf``, where so large a share of the batches starts cold."""
        billing = replace(self.question.billing, cold_start_probability=cold_starts)
        return billing.cost(batch_size_pmf, service, self.question.profile)

    def service_of(self, setting: FunctionSetting) -> ServiceTimes:
        """The service times at its memory size."""
        return self.services[self.index(setting)]

    def unbatched(self) -> list[FunctionSetting]:
        """No batching, by memory size."""
        return [self.size_or_timeout(j, 1, 0.0) for j in range(len(self.services))]

    def size_or_timeout(self, j: int, batch_size: int, timeout: float, arrivals: ArrivalProcess | None = None) -> FunctionSetting:
        """At the ``j``-th memory size."""
        service = self.services[j]
        latency = predict_latency(arrivals or self.question.arrivals, service, batch_size, timeout, effort=SETTING)
        return self._setting(j, batch_size, timeout, latency, arrivals)

    def held(self, j: int, table: Policy, arrivals: ArrivalProcess | None = None) -> FunctionSetting:
        """A table that waits to the last moment, at the ``j``-th memory size."""
        service = self.services[j]
        basis = self.search.basis
        if arrivals is not None or isinstance(basis, ArrivalSample):  # what was drawn for the search is little
            basis = basis_of(arrivals or self.question.arrivals, table.max_batch_size, table.hold[1], SETTING)
        latency = predict_falling_holds(basis, service, table)
        return self._setting(j, latency.batch_size, latency.timeout, latency, arrivals, table)

    def under(self, setting: FunctionSetting, arrivals: ArrivalProcess) -> FunctionSetting:
        """The same setting under other arrivals."""
        j = self.index(setting)
        if setting.table is not None:
            return self.held(j, setting.table, arrivals)
        return self.size_or_timeout(j, setting.batch_size, setting.timeout, arrivals)

    def without_each_block(self, setting: FunctionSetting) -> tuple[LatencyPrediction, ...]:
        """The latency of a size-or-timeout under the fit without each block of the trace."""
        return self._without(self.index(setting), setting.batch_size, setting.timeout)

    def _laws_without(self, j: int, batch_size: int, timeout: float) -> tuple[LatencyPrediction, ...]:
        return tuple(self.size_or_timeout(j, batch_size, timeout, arrivals).latency for arrivals in self.question.without)

    def _setting(
        self,
        j: int,
        batch_size: int,
        timeout: float,
        latency: LatencyPrediction,
        arrivals: ArrivalProcess | None,
        table: Policy | None = None,
    ) -> FunctionSetting:
        service, starts = self.services[j], self.starts
        holds = np.full(batch_size - 1, timeout) if table is None else np.array(table.hold[1:-1])

        @cache
        def share() -> Share:
            return starts.share(j, latency.batch_size_pmf, holds, arrivals)

        cold = share() if starts.matter else NONE_COLD
        cost = self.bill(latency.batch_size_pmf, service, cold.batches)
        with_cold = with_cold_starts(latency, cold.requests, float(starts.seconds[j]))
        function = self.question.function_at(service.memory_mb)
        return FunctionSetting(function, service.memory_mb, batch_size, timeout, with_cold, cost, share, starts.matter, table)

    def index(self, setting: FunctionSetting) -> int:
        """Of the function that it runs on."""
        return [service.memory_mb for service in self.services].index(setting.memory_mb)
