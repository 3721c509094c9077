"""What a plan would do, as the simulator runs it, and what its batches are billed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import Route, ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing.cost import invocation_costs, predict_cost
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.service.times import service_times_up_to
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.tuning.setup import TuningSetup


def deployment_of(route: Route, setup: TuningSetup, profile: ServiceProfile) -> Deployment:
    """The queue of a route with these service times.

    Raises
    ------
    InvalidInput
        A function that is neither that of the setup, at one of its memory sizes, nor one of its offers.
    """
    first, *others = (_serving(name, setup, profile) for name in route.functions)
    own, *tables = [route.policy.policy(), *(beside.policy.policy() for beside in route.beside)]
    beside = [other.beside(table) for other, table in zip(others, tables, strict=True)]
    if isinstance(first, WorkerOffer):
        return replace(first.under(own, beside=beside, billing=setup.billing), energy=first.energy)
    return first.under(own, beside)


def _serving(name: str, setup: TuningSetup, profile: ServiceProfile) -> Function | WorkerOffer:
    memory_mb = setup.memory_of(name)
    if memory_mb is not None:
        return Function(profile, memory_mb, setup.billing, setup.environments, setup.max_batch_size)
    for offer in setup.offers:
        if offer.function == name:
            if setup.servers is None:
                return offer
            return replace(offer, service=service_times_up_to(profile, setup.memory_sizes[0], offer.service.max_batch_size))
    known = [*(setup.function_at(mb) for mb in setup.memory_sizes), *(offer.function for offer in setup.offers)]
    raise InvalidInput("plan.function", name, "one of " + ", ".join(known))


@dataclass(frozen=True, eq=False)
class Bill:
    """What the batches of a deployment cost, by table.

    Parameters
    ----------
    by_size : array, shape (n_tables, max_batch_size)
        USD of a warm batch of 1, 2, ...
    cold : array, shape (n_tables,)
        USD more where the environment had to start.
    per_second : float
        USD for the workers that are there, whether or not they serve.
    """

    by_size: Array
    cold: Array
    per_second: float

    @classmethod
    def of(cls, deployment: Deployment) -> Bill:
        """Of the function's GB-seconds and fees, or of workers."""
        by_size = np.zeros((deployment.n_tables, deployment.max_batch_size))
        cold, per_second = np.zeros(deployment.n_tables), 0.0
        for place, side in enumerate(deployment.serving):
            if side.elastic:
                init = 0.0 if side.environments is None else side.environments.init_duration
                compute, fee = invocation_costs(side.service.up_to(side.schedule.max_batch_size), deployment.billing)
                by_size[place, : len(compute)] = compute + fee
                shares = (replace(deployment.billing, cold_start_probability=share) for share in (0.0, 1.0))
                warm, new = (predict_cost(np.ones(1), side.service, billing, init_duration=init) for billing in shares)
                cold[place] = new.per_request - warm.per_request
            else:
                run = side.service.up_to(side.schedule.max_batch_size).mean_response
                by_size[place, : len(run)] = side.price_per_worker_second * run + side.price_per_batch
                per_second += side.price_per_worker_hour / 3600 * float(side.schedule.tables[0].servers or 0)
        return cls(by_size, cold, per_second)

    def usd(self, sizes: Indices, tables: Indices, cold: Indices) -> Array:
        """Of batches, (n_batches,)."""
        return np.asarray(self.by_size[tables, sizes - 1] + cold * self.cold[tables])
