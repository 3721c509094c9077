"""Environments of a function that are kept warm: by a ping, or as provisioned concurrency, and how much of it (docs/model.md, 3.6).

So many environments are always there and paid by the hour; what they run is cheaper than on demand. A batch that finds as many
under way goes to another, on demand, which may start cold. So with ``n`` of them the share that is served on demand is Erlang's
loss, and those start cold that do so finding ``n`` or more under way (3.0). The setting is the best as if nothing started cold;
``n`` is the cheapest with which the SLOs are kept.

So many pings at the same time, each of which holds its environment for a moment, keep ``n`` as well, where they come again before
an environment is given up: whoever finds fewer under way starts warm, and those start cold that do so finding ``n`` or more. The
buffer sends them (``WarmEnvironments``). Where nothing is batched and there is none, a schedule keeps one. That costs some
thousandths of what is provisioned, which Lambda promises to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Self

import numpy as np

from sluice.batching.documents import MAX_PING, MAX_STARTED, WarmEnvironments
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cold_starts import ColdStarts, Share, Shares
from sluice.optimizer.billing.cost import BatchCost, Billing
from sluice.optimizer.function.latency import LatencyPrediction, with_cold_starts
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings, Predicted
from sluice.optimizer.recommend.offers import WorkerOffer, kept_warm, provisioned_offers
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function

HARM = 1e-3  # of the batches that start cold, from which on what is kept warm competes


@dataclass(frozen=True, eq=False)
class Provisioning:
    """What becomes of the batches of a table where 0, 1, ... environments of its function are provisioned.

    Parameters
    ----------
    offer : WorkerOffer
        An environment that is provisioned.
    batch_size_pmf : array, shape (max_batch_size,)
    on_demand : array, shape (n,)
        Share of the batches that find all of them busy; the last speaks for more as well, as it does of the next.
    cold : Shares, of shape (n,)
        Who starts cold.
    """

    offer: WorkerOffer
    batch_size_pmf: Array
    on_demand: Array
    cold: Shares

    @classmethod
    def of(cls, offer: WorkerOffer, starts: ColdStarts, batch_size_pmf: Array, holds: Array, init: float) -> Provisioning:
        """That of a table, of which ``holds`` are those of 1, 2, ... requests (s); ``init`` is what a cold start takes (s)."""
        busy = offer.service.mean_response[: len(batch_size_pmf)]
        return cls(offer, batch_size_pmf, *starts.beyond_provisioned(batch_size_pmf, holds, busy, init))

    @property
    def most(self) -> int:
        """Of how many it speaks at most; 0 where more may be under way than there is an estimate for."""
        return len(self.on_demand) - 1

    def beyond(self, warm: WarmEnvironments) -> tuple[float, Share]:
        """Share of the batches that find all that are kept warm busy, and who starts cold."""
        at = min(warm.number, self.most)
        return float(self.on_demand[at]), Share(*(float(of[at]) for of in self.cold))

    def cost(self, warm: WarmEnvironments, bill: BatchCost, billing: Billing, arrival_rate: float) -> BatchCost:
        """Of a request, where ``bill`` is what it costs were all of them on demand and so large a share of them cold."""
        if not warm.provisioned:
            at, by_buffer = self.offer.service.memory_mb, warm.pinged > 1 or bool(bill.fixed_terms)
            pings = billing.prices.pings(warm.pinged, at, billing.architecture, by_buffer)
            return replace(bill, pings=pings / warm.pinged_every / arrival_rate)
        sizes, at = np.arange(1, len(self.batch_size_pmf) + 1), min(warm.provisioned, self.most)
        duration = float(self.batch_size_pmf @ self.offer.billed_duration[: len(sizes)]) / float(self.batch_size_pmf @ sizes)
        on_demand = float(self.on_demand[at])
        compute = on_demand * bill.compute + (1 - on_demand) * self.offer.price_per_second * duration
        return replace(bill, compute=compute, machines=self.offer.hours(warm.provisioned, arrival_rate))


def ping_interval(keep_alive: float, init: float) -> float | None:
    """The longest time in whole minutes, as s, that is shorter than an unused environment is kept; ``None`` where there is none."""
    seconds = 60.0 * (ceil(min(keep_alive, MAX_PING) / 60) - 1)
    return seconds if seconds > init else None


def ways_to_keep(every: float | None, most: int, by_buffer: bool, concurrency: int | None = None) -> list[WarmEnvironments]:
    """What may be kept warm of up to ``most``: by pings every so many seconds, where these can keep some, or provisioned."""
    pinged = range(1, min(most, MAX_STARTED if by_buffer else 1, concurrency or most) + 1) if every else ()
    return [
        *(WarmEnvironments(pinged_every=every or 0.0, pinged=n) for n in pinged),
        *(WarmEnvironments(n) for n in range(1, most + 1)),
    ]


def how_kept(warm: WarmEnvironments) -> str:
    """What is kept, and how, in words."""
    environments = "1 environment" if warm.number == 1 else f"{warm.number} environments"
    every = warm.pinged_every / 60
    minutes = "minute" if every == 1 else f"{every:g} minutes"
    return f"{environments} provisioned" if warm.provisioned else f"{environments} warm by pings every {minutes}"


@dataclass(frozen=True, eq=False)
class KeptWarm(Predicted):
    """A setting of the function with environments that are always there: a ``Candidate``.

    Parameters
    ----------
    setting : FunctionSetting
        Its memory and table, as if nothing started cold.
    offer : WorkerOffer
        An environment that is provisioned.
    warm : WarmEnvironments
        How they are kept, as a plan has it.
    on_demand : float
        Share of the batches that find all of them busy.
    cold : Share
        Who starts cold.
    fitted : BatchCost or None
        The predicted cost, where ``cost`` is that on arrivals that were recorded.
    """

    name = "function kept warm"
    for_any_arrivals = False  # more at once than are provisioned may start cold
    setting: FunctionSetting
    offer: WorkerOffer
    warm: WarmEnvironments
    on_demand: float
    cold: Share
    latency: LatencyPrediction
    cost: BatchCost
    fitted: BatchCost | None = None

    @property
    def cold_starts(self) -> float:
        """Share of the batches that start cold."""
        return self.cold.batches

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
    def rests_on_fit(self) -> bool:
        """As the setting."""
        return self.setting.rests_on_fit

    @property
    def runs_on(self) -> str:
        """Memory, and how many are kept warm."""
        return f"{self.setting.runs_on}, {self.warm.number} warm"

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long."""
        return self.setting.leaves

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        first = self.setting.instruction.removesuffix(".")
        if self.warm.pinged_every and self.policy.max_batch_size > 1:
            return f"{first}; the buffer keeps {how_kept(self.warm)}."
        if self.warm.pinged_every:
            told = f"PingMemory={self.memory_mb}, PingMinutes={self.warm.pinged_every / 60:g}"
            return f"{first}, and keep {how_kept(self.warm)} ({told})."
        told = f"ProvisionedMemory={self.memory_mb}, ProvisionedConcurrency={self.warm.provisioned}"
        return f"{first}, and keep {how_kept(self.warm)} ({told})."

    def billed(self, cost: BatchCost) -> Self:
        """The same with its cost on arrivals that were recorded."""
        return replace(self, cost=cost, fitted=self.cost)

    def deployment(self, function: Function) -> Deployment:
        """The function of which some are pinged; or what is provisioned as servers, and the same table on demand beside them."""
        return kept_warm(function.at(self.memory_mb), self.policy, self.warm, self.offer)


def cheapest_kept_warm(settings: FunctionSettings, warm: FunctionSetting) -> KeptWarm | None:
    """The cheapest number of environments, pinged or provisioned, with which a setting keeps the SLOs; ``None`` where none does.

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
    pmf, init, rate = warm.latency.batch_size_pmf, float(starts.seconds[j]), question.arrivals.arrival_rate
    of = Provisioning.of(offer, starts.of(question.arrivals), pmf, np.array(warm.policy.hold[1:-1]), init)
    every = ping_interval(question.environments.keep_alive, init) if of.most else None
    found = []
    for way in ways_to_keep(every, of.most, len(pmf) > 1, question.environments.concurrency):
        on_demand, cold = of.beyond(way)
        cost = of.cost(way, settings.bill(pmf, service, cold.batches), question.billing, rate)
        found.append(KeptWarm(warm, offer, way, on_demand, cold, with_cold_starts(warm.latency, cold.requests, init), cost))
    kept = [candidate for candidate in found if candidate.keeps(question.promised)]
    return min(kept, key=lambda candidate: candidate.cost.per_request, default=None)
