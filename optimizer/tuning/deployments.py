"""What a plan would do, as the simulator runs it."""

from __future__ import annotations

from dataclasses import replace

from sluice.batching.documents import Route, ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.optimizer.recommend.offers import WorkerOffer, function_as_workers
from sluice.optimizer.service.times import service_times_up_to
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.tuning.setup import TuningSetup


def deployment_of(route: Route, setup: TuningSetup, profile: ServiceProfile) -> Deployment:
    """The queue of a route with these service times, and with what is kept warm for its function.

    What is provisioned is there at no price by the hour, as it is paid whatever serves.

    Before fixed servers a table that names no number of them has all there are, as no more serve at once.

    Raises
    ------
    InvalidInput
        A function that is neither that of the setup, at one of its memory sizes, nor one of its offers.
    """
    first, *others = (_serving(name, setup, profile) for name in route.functions)
    others = [other.there_first(route) if isinstance(other, Function) else other for other in others]
    own, *tables = [route.policy.policy(), *(beside.policy.policy() for beside in route.beside)]
    own = replace(own, servers=own.servers or setup.servers)
    beside = [other.beside(table) for other, table in zip(others, tables, strict=True)]
    if isinstance(first, WorkerOffer):
        return replace(first.under(own, beside=beside, billing=setup.billing), energy=first.energy)
    if (warm := setup.warm_of(route.functions)) is not None:
        return replace(function_as_workers(first), price_per_hour=0.0).kept_warm(own, warm.provisioned, first)
    return first.there_first(route).under(own, beside)


def can_be_started(route: Route, setup: TuningSetup) -> bool:
    """Whether a buffer can start environments for it before it comes into force: of Lambda functions that have none provisioned."""
    fixed = any(table.servers is not None for table in route.rule().tables)
    return not fixed and not any("://" in function for function in route.functions) and setup.warm_of(route.functions) is None


def usd_of_pings(route: Route, setup: TuningSetup) -> float:
    """USD per second of the pings that keep environments of its functions."""
    if (warm := route.pinged) is None:
        return 0.0
    sizes, of = (setup.memory_of(function) for function in route.functions), setup.billing
    return sum(of.prices.pings(warm.pinged, mb, of.architecture) for mb in sizes if mb is not None) / warm.pinged_every


def way_to_servers(setup: TuningSetup, profile: ServiceProfile) -> float:
    """s that requests are on their way to fixed servers and back, which is in no time of these; 0 before a function."""
    return 0.0 if setup.servers is None or profile.way is None else profile.way.mean


def _serving(name: str, setup: TuningSetup, profile: ServiceProfile) -> Function | WorkerOffer:
    memory_mb = setup.memory_of(name)
    if memory_mb is not None:
        return Function(profile, memory_mb, setup.billing, setup.environments, setup.max_batch_size)
    for offer in setup.offers:
        if offer.function == name:
            if setup.servers is None:
                return offer
            alone = service_times_up_to(profile.without_way, setup.memory_sizes[0], offer.service.max_batch_size)
            return replace(offer, service=alone)
    known = [*(setup.function_at(mb) for mb in setup.memory_sizes), *(offer.function for offer in setup.offers)]
    raise InvalidInput("plan.function", name, "one of " + ", ".join(known))
