"""A function that batches are sent to, as a platform runs and bills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sluice.batching.documents import PLACEHOLDER, Route, ServiceProfile, WarmEnvironments, memory_named
from sluice.batching.errors import NOT_GIVEN, InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cost import Billing, invocation_costs
from sluice.optimizer.service.by_size import service_times_under
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.deployment import Beside, Deployment, Environments
from sluice.optimizer.simulation.schedule import Schedule

LARGEST_BATCH = 128


@dataclass(frozen=True, eq=False)
class Function:
    """A function at one memory size.

    Parameters
    ----------
    profile : ServiceProfile
    memory_mb : int
    billing : Billing
    environments : Environments or None
        ``None``: one for every batch, warm. A cold start takes the INIT of the profile where that was measured at the memory size.
    max_batch_size : int
        Cut to what the profile speaks of.
    mix : SizeMix or None
        The sizes of the requests, drawn independently, where the profile tells them apart.
    """

    profile: ServiceProfile
    memory_mb: int
    billing: Billing = field(default_factory=Billing)
    environments: Environments | None = None
    max_batch_size: int = LARGEST_BATCH
    mix: SizeMix | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "billing", self.billing.of_profile(self.profile))

    @cached_property
    def service(self) -> ServiceTimes:
        """Its service times."""
        return service_times_under(self.profile, self.memory_mb, self.max_batch_size, self.mix)

    @property
    def cost_by_batch(self) -> Array:
        """USD of an invocation with a batch of 1, 2, ..., (max_batch_size,)."""
        compute, fee = invocation_costs(self.service, self.billing)
        return compute + fee

    def at(self, memory_mb: int) -> Function:
        """The same function with another memory size."""
        return replace(self, memory_mb=memory_mb)

    def between(self, above: float, up_to: float) -> Function:
        """The same function for the requests alone that are larger than ``above`` and at most ``up_to``."""
        mix = self.mix
        if mix is None:
            raise InvalidInput("sizes", NOT_GIVEN, "those of the requests (--sizes, --size-column), as queues are chosen by them")
        if not mix.share(above, up_to):  # nobody comes, and something must stand there
            return replace(self, mix=SizeMix(np.array([min(up_to, mix.largest)]), np.ones(1)))
        return replace(self, mix=mix.between(above, up_to))

    @property
    def name(self) -> str:
        """As a plan names it."""
        return self.profile.function.replace(PLACEHOLDER, str(self.memory_mb))

    def pinged(self, warm: WarmEnvironments) -> Function:
        """The same function with what a buffer keeps by pings, from the beginning of a run on."""
        of = replace(self.environments or Environments(), pinged_every=warm.pinged_every, pinged=warm.pinged, started=warm.pinged)
        return replace(self, environments=of)

    def starting(self, environments: int) -> Function:
        """The same function with so many environments that are there when a run begins; where all always are, itself."""
        if self.environments is None:
            return self
        return replace(self, environments=replace(self.environments, started=environments))

    def there_first(self, route: Route) -> Function:
        """The same function with what a buffer keeps or starts of it, as a route says."""
        return self.starting(route.there_first) if route.pinged is None else self.pinged(route.pinged)

    def called(self, name: str) -> Function | None:
        """The same function at the memory size that the name tells; ``None`` where it is called so at none."""
        if PLACEHOLDER not in self.profile.function:
            return self if name == self.profile.function else None
        memory_mb = memory_named(self.profile.function, name)
        return None if memory_mb is None else self.at(memory_mb)

    @property
    def platform(self) -> Environments | None:
        """How its environments run, with the INIT of its memory size."""
        init = self.profile.init.get(self.memory_mb)
        if self.environments is None or init is None:
            return self.environments
        return replace(self.environments, init_duration=init.mean)

    def under(self, policy: Policy | Schedule, beside: Sequence[Beside] = ()) -> Deployment:
        """The function behind a buffer with elastic tables, and what stands beside it."""
        return Deployment(policy, self.service, self.platform, function=self.name, beside=beside, billing=self.billing)

    def beside(self, policy: Policy) -> Beside:
        """The function behind an elastic table beside others."""
        return Beside(policy, self.service, self.platform, function=self.name)
