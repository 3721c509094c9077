"""The cheapest of every kind in each cell, and MArk beside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible
from sluice.optimizer.baselines.overflow import with_overflow
from sluice.optimizer.billing import Billing
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend import (
    FunctionSetting,
    OverflowSetting,
    Question,
    WorkerSetting,
    choose_overflow,
    choose_workers,
    recommend,
)
from sluice.optimizer.simulation import Function, RunStatistics, TraceArrivals, simulate_deployments

from .results import KINDS, MARK, Row
from .settings import ARRIVALS, NETWORKS, PERCENTILE, RATES

N_REQUESTS = 1 << 18  # of a run of MArk, which lasts half an hour at least
DURATION = 1800.0


def compute() -> Iterator[Row]:
    """Every cell."""
    for name, network in NETWORKS.items():
        for arrivals, slo, rate in product(ARRIVALS, network.slos, RATES):
            yield from Cell(name, arrivals, slo, rate).rows()
            print("ran", name, arrivals, slo, rate, flush=True)


class Cell:
    """A network, arrivals at a rate, an SLO."""

    def __init__(self, network: str, arrivals: str, latency: float, rate: float) -> None:
        self.key = network, arrivals, latency, rate
        self.slo = Slo(latency, PERCENTILE)
        process = ARRIVALS[arrivals](rate)
        self.question = Question(process, NETWORKS[network].profile, (self.slo,), offers=NETWORKS[network].offers())

    def rows(self) -> Iterator[Row]:
        """Of the function, workers, both, and MArk."""
        function = self.function()
        alone = self.workers()
        yield self._function(function)
        yield self._simulated("workers", min(alone, key=lambda setting: by_the_request(setting.cost), default=None))
        try:
            both = choose_overflow(self.question, {setting.name: setting.workers for setting in alone})
        except Infeasible:
            both = None
        yield self._simulated("both", both)
        yield min((self._mark(i, function.memory_mb) for i in range(len(self.question.offers))), key=lambda row: row.cost)

    def function(self) -> FunctionSetting:
        """The best setting of the function, where every environment is warm."""
        question, warm = self.question, Billing(cold_start_probability=0.0)
        return recommend(Question(question.arrivals, question.profile, question.slos, warm)).best

    def workers(self) -> list[WorkerSetting]:
        """The cheapest of every offer that keep the SLO."""
        found = []
        for offer in self.question.offers:
            try:
                found.append(choose_workers(self.question.arrivals, offer, self.slo, billing=self.question.billing))
            except Infeasible:
                continue
        return found

    def _function(self, setting: FunctionSetting) -> Row:
        late = round(1 - setting.latency.probability_within(self.slo.latency), 12)
        cost = by_the_request(setting.cost)
        return Row(*self.key, KINDS[0], None, 0.0, setting.memory_mb, setting.mean_batch_size, 1.0, late, cost)

    def _simulated(self, kind: str, setting: WorkerSetting | OverflowSetting | None) -> Row:
        if setting is None:
            return Row(*self.key, kind, None, np.nan, 0, *[np.nan] * 4)
        share = setting.by_function.value if isinstance(setting, OverflowSetting) else 0.0
        late, cost = setting.violations[0].value, by_the_request(setting.cost)
        memory_mb, machine = setting.memory_mb or 0, setting.offer.name
        return Row(*self.key, kind, machine, setting.workers, memory_mb, setting.mean_batch_size, share, late, cost)

    def _mark(self, offer: int, memory_mb: int) -> Row:
        """MArk with the function at the memory size that is best alone."""
        question = self.question
        rate, workers = question.arrivals.arrival_rate, question.offers[offer]
        function = Function(question.profile, memory_mb, question.billing, question.environments)
        n = max(N_REQUESTS, int(DURATION * rate))
        times = np.cumsum(question.arrivals.sample(n, np.random.default_rng(0)))
        deployment = with_overflow(workers, function, self.slo, times, first_rate=rate)
        run: RunStatistics = simulate_deployments({MARK: deployment}, TraceArrivals(times), [self.slo.latency])[MARK]
        number, late, cost = run.worker_seconds / run.span, run.violation_ratio(), by_the_request(run.cost)
        return Row(*self.key, MARK, workers.name, number, memory_mb, run.mean_batch_size, run.by_function, late, cost)


def by_the_request(cost: BatchCost) -> float:
    """USD per million requests, without the fixed cost of what stands before all kinds alike."""
    return 1e6 * cost.by_request
