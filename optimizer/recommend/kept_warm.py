"""Environments of a function that are kept warm: provisioned concurrency, and how much of it (docs/model.md, 3.6).

So many environments are always there and paid by the hour; what they run is cheaper than on demand. A batch that finds as many
under way goes to another, on demand, which may start cold. So with ``n`` of them the share that is served on demand is Erlang's
loss, and those start cold that do so finding ``n`` or more under way (3.0). The setting is the best as if nothing started cold;
``n`` is the cheapest with which the SLOs are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import Slo, quantile_of
from sluice.batching.policy import Policy
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.function.latency import LatencyPrediction, with_cold_starts
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.offers import WorkerOffer, provisioned_offers
from sluice.optimizer.recommend.search import ROUNDING
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function

HARM = 1e-3  # of the batches that start cold, from which on what is kept warm competes


@dataclass(frozen=True, eq=False)
class KeptWarm:
    """A setting of the function with environments that are always there: a ``Candidate``.

    Parameters
    ----------
    setting : FunctionSetting
        Its memory and table, as if nothing started cold.
    offer : WorkerOffer
        An environment that is provisioned.
    provisioned : int
        How many of them.
    on_demand, cold_starts : float
        Share of the batches that find all of them busy, and of those that start cold.
    """

    setting: FunctionSetting
    offer: WorkerOffer
    provisioned: int
    on_demand: float
    cold_starts: float
    latency: LatencyPrediction
    cost: BatchCost

    @property
    def name(self) -> str:
        """What serves."""
        return "function kept warm"

    @property
    def function(self) -> str:
        """As a plan names it."""
        return self.setting.function

    @property
    def memory_mb(self) -> int:
        """Of the function."""
        return self.setting.memory_mb

    @property
    def policy(self) -> Policy:
        """The function's table."""
        return self.setting.policy

    @property
    def beside(self) -> Sequence[tuple[str, Policy]]:
        """Nothing: what is provisioned and what is not have one name."""
        return ()

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.latency.mean_batch_size

    @property
    def confidence(self) -> float | None:
        """As the setting's."""
        return self.latency.confidence

    @property
    def for_any_arrivals(self) -> bool:
        """Not so: more at once than are provisioned may start cold."""
        return False

    @property
    def rests_on_fit(self) -> bool:
        """As the setting."""
        return self.setting.rests_on_fit

    @property
    def runs_on(self) -> str:
        """Memory, and how many are provisioned."""
        return f"{self.setting.runs_on}, {self.provisioned} warm"

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long."""
        return self.setting.leaves

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        environments = "1 environment" if self.provisioned == 1 else f"{self.provisioned} environments"
        return (
            f"{self.setting.instruction.removesuffix('.')}, and keep {environments} of it provisioned "
            f"(ProvisionedConcurrency={self.provisioned})."
        )

    def percentile(self, percentile: float) -> Estimate:
        """In s; a point where the law is exact."""
        value = self.latency.percentile(percentile)
        if self.latency.confidence is None:
            return Estimate(value, value, value)
        return Estimate(value, *self.latency.quantile_interval(quantile_of(percentile)))

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether it keeps every SLO, surely where its latency has an interval."""
        return all(self.latency.surely_within(slo.latency) >= slo.quantile - 2 * ROUNDING for slo in slos)

    def deployment(self, function: Function) -> Deployment:
        """What is provisioned as servers that are there from the first on, and the same table on demand beside them."""
        beside = function.at(self.memory_mb).beside(self.policy)
        return self.offer.under(replace(self.policy, servers=self.provisioned), beside=[beside], billing=function.billing)


def cheapest_kept_warm(settings: FunctionSettings, warm: FunctionSetting) -> KeptWarm | None:
    """The cheapest number of environments with which a setting keeps the SLOs, at least one; ``None`` where no number does.

    Parameters
    ----------
    settings : FunctionSettings
        Those of the question, with its cold starts.
    warm : FunctionSetting
        As if nothing started cold.
    """
    question, j = settings.question, settings.index(warm)
    service, starts = settings.services[j], settings.starts
    offer, *_ = provisioned_offers(question.profile, [warm.memory_mb], question.billing, service.max_batch_size, question.mix)
    pmf, init = warm.latency.batch_size_pmf, float(starts.seconds[j])
    holds, busy = np.array(warm.policy.hold[1:-1]), service.mean_response[: len(pmf)]
    on_demand, cold = starts.of(question.arrivals).beyond_provisioned(pmf, holds, busy, init)
    provisioned = offer.price_per_second * float(pmf @ offer.billed_duration[: len(pmf)]) / warm.mean_batch_size
    found = []
    for n in range(1, len(cold)):
        bill = settings.bill(pmf, service, float(cold[n]))
        compute = on_demand[n] * bill.compute + (1 - on_demand[n]) * provisioned
        cost = replace(bill, compute=float(compute), machines=offer.hours(n, question.arrivals.arrival_rate))
        latency = with_cold_starts(warm.latency, float(cold[n]), init)
        found.append(KeptWarm(warm, offer, n, float(on_demand[n]), float(cold[n]), latency, cost))
    kept = [candidate for candidate in found if candidate.keeps(question.promised)]
    return min(kept, key=lambda candidate: candidate.cost.per_request, default=None)
