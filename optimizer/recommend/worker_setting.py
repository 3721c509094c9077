"""Workers under a table, as simulated (docs/model.md, section 7).

``k`` identical workers serve one queue: a policy table with ``servers = k``. The workers are all there is: where they are
provisioned concurrency, nothing overflows to environments on demand (``overflow_setting`` has a function beside them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.recommend.candidate import several
from sluice.optimizer.recommend.demand import Demand
from sluice.optimizer.recommend.horizon import Horizon, load_of
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.simulated_setting import SimulatedSetting, estimates
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkerSetting(SimulatedSetting):
    """Workers under a policy: a ``Candidate``.

    ``load`` is the arrival rate over what the workers serve at most, with batches of the best size; from 1 on the queue grows. The
    cost is the workers' hours, and usage where it is paid; what stands before them where its prices were told.
    """

    memory_mb = None  # it is nobody's to choose
    beside = ()
    for_any_arrivals = False  # they were simulated for some
    rests_on_fit = True  # their number does
    load: float

    @property
    def name(self) -> str:
        """That of the offer."""
        return self.offer.name

    @property
    def runs_on(self) -> str:
        """How many of what."""
        return f"{self.workers} × {self.name}"

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        return f"{self.by_workers}."

    def deployment(self, function: Function) -> Deployment:
        """The workers under their table; there is no function beside them."""
        return self.offer.under(self.policy)


def simulate_workers(
    arrivals: ArrivalProcess,
    offer: WorkerOffer,
    policy: Policy,
    slos: Slo | Sequence[Slo],
    *,
    billing: Billing | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> WorkerSetting:
    """Latency and cost of the workers that ``policy`` names as its servers.

    Workers that cannot keep up are simulated too: their queue grows for as long as the run lasts.

    Parameters
    ----------
    billing : Billing, optional
        What the buffer before the workers costs; without it the workers' own cost is all there is.

    Raises
    ------
    InvalidInput
        No SLO; a policy without servers or with larger batches than the worker takes.
    """
    demand = Demand(arrivals, several(slos))
    return simulate_demand(demand, offer, policy, (), billing=billing, confidence=confidence, seed=seed)


def simulate_demand(
    demand: Demand,
    offer: WorkerOffer,
    policy: Policy,
    slacks: Sequence[float],
    *,
    billing: Billing | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> WorkerSetting:
    """The same of any demand; ``slacks`` are those of its classes, s."""
    if policy.servers is None:
        raise InvalidInput("policy.servers", None, "the number of workers")
    arrivals = demand.arrivals
    horizon = Horizon.of(arrivals, offer, policy)
    n = (demand.stages(horizon) or horizon.stages)[-1]
    rng = np.random.default_rng(seed)
    drawn = demand.drawn(horizon, n, rng)
    run = demand.run(offer.under(policy), drawn, slacks, rng)
    return WorkerSetting(
        offer=offer,
        policy=policy,
        load=load_of(arrivals, offer, policy),
        settled=n >= horizon.settled,
        cost=offer.cost(run.batch_sizes, policy.servers, arrivals.arrival_rate, billing),
        arrival_rate=arrivals.arrival_rate,
        seed=seed,
        slacks=tuple(slacks),
        **estimates(run, demand, drawn, confidence, horizon.blocks(n)),
    )
