"""Workers that can be had, and their price (docs/model.md, section 7).

A worker is paid by the hour, used or not. Where it is an environment of provisioned concurrency, what it runs is paid as well: by
the second of its mean billed duration, and by the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import PLACEHOLDER, ServiceProfile, WarmEnvironments
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import BatchCost, Billing
from sluice.optimizer.service.by_size import service_times_under
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.deployment import Adaptation, Beside, Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.schedule import Schedule


@dataclass(frozen=True, eq=False)
class WorkerOffer:
    """Identical workers that can be had, and their price.

    Parameters
    ----------
    name : str
        A machine type, or what provisions the concurrency.
    service : ServiceTimes
        Of one worker; its ``max_batch_size`` bounds the batches.
    price_per_hour : float
        USD per hour of one worker, used or not.
    max_workers : int
        How many can be had.
    price_per_second : float
        USD per second that a worker runs, as provisioned concurrency costs beside its hourly price; on the mean billed duration.
    price_per_request : float
        USD per request to a worker, that is per batch.
    granularity : float
        Seconds that a billed duration is rounded up to.
    function : str
        Where the workers are reached: a function or an ``http://`` address, as a plan names it.
    provisioned : bool
        Whether they are the provisioned environments of a function and not machines.
    energy : array, shape (>= max_batch_size,), optional
        J of a batch of 1, 2, ..., where a profile tells it.
    """

    name: str
    service: ServiceTimes
    price_per_hour: float
    max_workers: int = 1000
    price_per_second: float = 0.0
    price_per_request: float = 0.0
    granularity: float = 0.001
    function: str = ""
    provisioned: bool = False
    energy: Array | None = None

    def __post_init__(self) -> None:
        require(bool(self.name), "name", self.name, "the name of a machine or a provisioned function")
        for name in ("price_per_hour", "price_per_second", "price_per_request"):
            price = getattr(self, name)
            require(0 <= price < np.inf, name, price, "USD >= 0")
        require(self.max_workers >= 1, "max_workers", self.max_workers, "an integer >= 1")
        require(0 < self.granularity < np.inf, "granularity", self.granularity, "a number of seconds > 0")

    @property
    def billed_duration(self) -> Array:
        """Mean billed seconds by batch size, (max_batch_size,)."""
        return self.service.mean_billed(self.granularity)

    @property
    def usage(self) -> Array:
        """USD of serving a batch of 1, 2, ..., beside the hours, (max_batch_size,)."""
        return self.price_per_second * self.billed_duration + self.price_per_request

    @property
    def throughput(self) -> Array:
        """Requests/s that one worker serves at most, with batches up to each size, (max_batch_size,)."""
        sizes = np.arange(1, self.service.max_batch_size + 1)
        return np.asarray(np.maximum.accumulate(sizes / self.service.mean_response))

    def hours(self, workers: int, arrival_rate: float) -> float:
        """USD per request of the workers' hours."""
        return workers * self.price_per_hour / 3600 / arrival_rate

    def serving(self, batch_sizes: Indices, billing: Billing | None = None) -> BatchCost:
        """Of a request in batches of these sizes, beside the hours; with what stands before the workers where prices are told."""
        n = int(batch_sizes.sum())
        usage = BatchCost(
            compute=float(self.price_per_second * self.billed_duration[batch_sizes - 1].sum() / n),
            requests=self.price_per_request * len(batch_sizes) / n,
        )
        if billing is None:
            return usage
        prices = billing.prices
        return replace(  # only a function's batches are logged and leave the network
            usage,
            logs=prices.logs_per_invocation * len(batch_sizes) / n if self.provisioned else 0.0,
            cache=prices.cache_per_request(*billing.moved),
            load_balancer=prices.load_balancer_per_request(*billing.moved),
            network=prices.network_per_request(*billing.moved) if self.provisioned else 0.0,
            fixed_terms=dict(prices.fixed_terms()),
        )

    def cost(self, batch_sizes: Indices, workers: int, arrival_rate: float, billing: Billing | None = None) -> BatchCost:
        """Of a request where the workers serve all of them, in batches of these sizes: ``serving``, and the hours."""
        return replace(self.serving(batch_sizes, billing), machines=self.hours(workers, arrival_rate))

    def under(
        self,
        policy: Policy | Schedule,
        *,
        beside: Sequence[Beside] = (),
        adaptation: Adaptation | None = None,
        billing: Billing | None = None,
    ) -> Deployment:
        """The workers under tables that name their number; ``billing`` is of functions beside them and what is before all."""
        return Deployment(
            policy,
            self.service,
            function=self.function,
            beside=beside,
            adaptation=adaptation,
            price_per_worker_hour=self.price_per_hour,
            price_per_worker_second=self.price_per_second,
            price_per_batch=self.price_per_request,
            provisioned=self.provisioned,
            billing=billing or Billing(granularity=self.granularity),
        )

    def kept_warm(self, policy: Policy, provisioned: int, function: Function) -> Deployment:
        """So many environments of a ``function`` that are there from the first on, and beside them the same table on demand."""
        return self.under(replace(policy, servers=provisioned), beside=[function.beside(policy)], billing=function.billing)

    def beside(self, policy: Policy) -> Beside:
        """The workers that a table beside others names."""
        return Beside(
            policy,
            self.service,
            function=self.function,
            price_per_worker_hour=self.price_per_hour,
            price_per_worker_second=self.price_per_second,
            price_per_batch=self.price_per_request,
            provisioned=self.provisioned,
        )


def function_as_workers(function: Function) -> WorkerOffer:
    """Provisioned concurrency of a function."""
    of = function.profile, [function.memory_mb], function.billing, function.max_batch_size, function.mix
    return provisioned_offers(*of)[0]


def kept_warm(function: Function, policy: Policy, warm: WarmEnvironments, offer: WorkerOffer | None = None) -> Deployment:
    """The function of which some are pinged; or what is provisioned as servers, and the same table on demand beside them.

    ``offer`` is an environment that is provisioned, by default at its price.
    """
    if not warm.provisioned:
        return function.pinged(warm).under(policy)
    return (offer or function_as_workers(function)).kept_warm(policy, warm.provisioned, function)


def machine_offer(
    name: str, profile: ServiceProfile, price_per_hour: float, max_batch_size: int, mix: SizeMix | None = None
) -> WorkerOffer:
    """Machines whose service times a profile of one memory size has; ``mix`` as ``provisioned_offers`` has it.

    Raises
    ------
    InvalidInput
        A profile of several memory sizes, as a machine has one.
    """
    sizes = profile.memory_sizes or [1]  # a linear law holds for all
    require(len(sizes) == 1, "worker", name, f"a profile of one memory size, not of {', '.join(map(str, sizes))} MB")
    service = service_times_under(profile.without_way, sizes[0], max_batch_size, mix)
    function = profile.function.replace(PLACEHOLDER, str(sizes[0]))
    return WorkerOffer(name, service, price_per_hour, function=function, energy=measured_energy(profile, service.max_batch_size))


def measured_energy(profile: ServiceProfile, largest: int, memory_mb: int | None = None) -> Array | None:
    """J of a batch of 1 ... ``largest``, between those measured linear, at a memory size or the only one.

    ``None`` where some point has none.
    """
    points = [point for point in profile.points if memory_mb in (None, point.memory_mb)]
    told = sorted((point.batch_size, point.energy) for point in points if point.size is None and point.energy is not None)
    if not told or len(told) < len(points):
        return None
    sizes, joules = zip(*told, strict=True)
    return np.asarray(np.interp(np.arange(1, largest + 1), sizes, joules))


def provisioned_offers(
    profile: ServiceProfile, memory_sizes: Sequence[int], billing: Billing, max_batch_size: int, mix: SizeMix | None = None
) -> list[WorkerOffer]:
    """Provisioned concurrency of the function, by memory size (by default all the profile's): its environments as workers.

    ``mix`` has the sizes of the requests, where the profile tells them apart.
    """
    offers = []
    for memory_mb in sorted(set(memory_sizes)) or profile.memory_sizes:
        price = billing.prices.provisioned(memory_mb, billing.architecture)
        offers.append(
            WorkerOffer(
                name=f"provisioned, {memory_mb} MB",
                service=service_times_under(profile, memory_mb, max_batch_size, mix),
                price_per_hour=price.reserved_per_hour,
                price_per_second=price.per_second,
                price_per_request=billing.prices.function.request,
                granularity=billing.step,
                function=profile.function.replace(PLACEHOLDER, str(memory_mb)),
                provisioned=True,
            )
        )
    return offers
