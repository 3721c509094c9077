"""What a baseline runs on: an elastic function, or workers that are paid by the hour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sluice.batching.documents import ServiceProfile, Slo
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cost import Billing, invocation_costs
from sluice.optimizer.recommend.workers import WorkerOffer
from sluice.optimizer.service.times import ServiceTimes, service_times_up_to
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.schedule import Schedule

LARGEST_BATCH = 128
CYCLES = 2  # batches that fit into an SLO: who just missed one is still in time with the next


@dataclass(frozen=True, eq=False)
class Function:
    """A function at one memory size, as a platform runs and bills it.

    Parameters
    ----------
    profile : ServiceProfile
    memory_mb : int
    billing : Billing
    environments : Environments or None
        ``None``: one for every batch, warm. A cold start takes the INIT of the profile where that was measured at the memory size.
    max_batch_size : int
        Cut to what the profile speaks of.
    """

    profile: ServiceProfile
    memory_mb: int
    billing: Billing
    environments: Environments | None = None
    max_batch_size: int = LARGEST_BATCH

    @cached_property
    def service(self) -> ServiceTimes:
        """Its service times."""
        return service_times_up_to(self.profile, self.memory_mb, self.max_batch_size)

    @property
    def cost_by_batch(self) -> Array:
        """USD of an invocation with a batch of 1, 2, ..., (max_batch_size,)."""
        compute, fee = invocation_costs(self.service, self.billing)
        return compute + fee

    def at(self, memory_mb: int) -> Function:
        """The same function with another memory size."""
        return replace(self, memory_mb=memory_mb)

    @property
    def platform(self) -> Environments | None:
        """How its environments run, with the INIT of its memory size."""
        init = self.profile.init.get(self.memory_mb)
        if self.environments is None or init is None:
            return self.environments
        return replace(self.environments, init_duration=init.mean)

    def under(self, policy: Policy | Schedule) -> Deployment:
        """The function behind a buffer with elastic tables."""
        return Deployment(policy, self.service, environments=self.platform, billing=self.billing)


def on_workers(offer: WorkerOffer, policy: Policy | Schedule, **further: Any) -> Deployment:
    """Workers under tables that name their number; ``further`` is what else the deployment has."""
    return Deployment(
        policy,
        offer.service,
        price_per_worker_hour=offer.price_per_hour,
        price_per_worker_second=offer.price_per_second,
        price_per_batch=offer.price_per_request,
        **further,
    )


def seconds_in_time(service: ServiceTimes, slo: Slo, cycles: float = CYCLES) -> Array:
    """Seconds of a batch of 1, 2, ... at the SLO's percentile, as far as ``cycles`` of them fit into the SLO; of 1 at least."""
    seconds = service.quantile(slo.quantile)
    fitting = int(np.searchsorted(cycles * seconds, slo.latency * (1 + 1e-12), side="right"))
    return seconds[: max(fitting, 1)]


def largest_throughput(service: ServiceTimes, slo: Slo) -> float:
    """Requests/s that a worker serves at most in batches of which two fit into the SLO."""
    sizes = len(seconds_in_time(service, slo))
    return float((np.arange(1, sizes + 1) / service.mean_response[:sizes]).max())
