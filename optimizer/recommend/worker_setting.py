"""Workers under a table, as simulated (docs/model.md, section 7).

``k`` identical workers serve one queue: a policy table with ``servers = k``. They keep an SLO when the upper end of the confidence
interval of the share of requests beyond it is at most what the SLO allows, in a run long enough to show the equilibrium
(``horizon``). The workers are all there is: where they are provisioned concurrency, nothing overflows to environments on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost, Billing
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend.candidate import several, shown_percentiles
from sluice.optimizer.recommend.horizon import Horizon, load_of
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.function import Function


@dataclass(frozen=True, eq=False)
class WorkerSetting:
    """Workers under a policy: a ``Candidate``.

    Parameters
    ----------
    offer : WorkerOffer
    policy : Policy
        Its ``servers`` are the workers.
    slos : tuple of Slo
        What they were simulated for.
    latency : mapping of str to Estimate
        Percentiles by name (``"p95"``), s: those of the SLOs and 50, 90, 95, 99.
    violations : tuple of Estimate
        Share of the requests beyond each SLO.
    utilisation : float
        Share of the workers that are busy in the mean; near 1 for greedy ones whatever they could still take.
    load : float
        The arrival rate over what the workers serve at most, with batches of the best size; from 1 on the queue grows.
    settled : bool
        Whether the run was long enough to show the equilibrium; not so where the load is 1 or all but 1.
    cost : BatchCost
        The workers' hours, and usage where it is paid; what stands before them where its prices were told.
    arrival_rate : float
        Requests per second.
    n_requests, confidence, seed
        What the estimates rest on: requests simulated; confidence of the two-sided intervals.
    """

    offer: WorkerOffer
    policy: Policy
    slos: tuple[Slo, ...]
    latency: Mapping[str, Estimate]
    violations: tuple[Estimate, ...]
    utilisation: float
    load: float
    settled: bool
    mean_batch_size: float
    cost: BatchCost
    arrival_rate: float
    n_requests: int
    confidence: float
    seed: int

    @property
    def name(self) -> str:
        """That of the offer."""
        return self.offer.name

    @property
    def function(self) -> str:
        """Where the workers are reached."""
        return self.offer.function

    @property
    def memory_mb(self) -> int | None:
        """Nobody's to choose."""
        return None

    @property
    def workers(self) -> int:
        """How many."""
        return self.policy.servers or 0

    @property
    def max_batch_size(self) -> int:
        """The largest batch the policy releases."""
        return self.policy.max_batch_size

    @property
    def for_any_arrivals(self) -> bool:
        """They were simulated for some."""
        return False

    @property
    def keeps_slos(self) -> bool:
        """Whether the run was long enough and the upper end of every share of violations is at most what its SLO allows."""
        return self.settled and all(surely_keeps(v, slo) is True for v, slo in zip(self.violations, self.slos, strict=True))

    @property
    def usd_per_month(self) -> float:
        """USD per month of the workers and their usage."""
        return self.cost.per_request * self.arrival_rate * SECONDS_PER_MONTH

    @property
    def runs_on(self) -> str:
        """How many of what."""
        return f"{self.workers} × {self.name}"

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''} ({self.name})"
        held = leaves(self.policy)
        if self.max_batch_size == 1:
            return f"Serve with {workers}, {held}."
        if held.endswith("at once"):
            return f"Serve with {workers}; a free one takes all that wait, up to {self.max_batch_size}."
        waited = held.replace(" or ", " requests, or fewer when the oldest has waited ")
        return f"Serve with {workers}; a free one takes {waited}."

    def percentile(self, percentile: float) -> Estimate:
        """One of those that were estimated, s."""
        name = percentile_name(percentile)
        require(name in self.latency, "percentile", percentile, "one of those estimated: " + ", ".join(self.latency))
        return self.latency[name]

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether every SLO is surely kept, since one as tight of those simulated is."""
        kept = [slo for v, slo in zip(self.violations, self.slos, strict=True) if self.settled and surely_keeps(v, slo)]
        return all(any(k.latency <= slo.latency and k.percentile >= slo.percentile for k in kept) for slo in slos)

    def deployment(self, function: Function) -> Deployment:
        """The workers under their table; there is no function beside them."""
        return self.offer.under(self.policy)


def surely_keeps(violations: Estimate, slo: Slo) -> bool | None:
    """Whether the share of violations is surely within what the SLO allows, surely beyond (``False``), or neither."""
    if violations.high <= slo.error_budget:
        return True
    return False if violations.low > slo.error_budget else None


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
    promised = several(slos)
    if policy.servers is None:
        raise InvalidInput("policy.servers", None, "the number of workers")
    horizon = Horizon.of(arrivals, offer, policy)
    n = horizon.stages[-1]
    rng = np.random.default_rng(seed)
    run = simulate(policy, np.cumsum(arrivals.sample(n, rng)), offer.service, rng)
    blocks = horizon.blocks(n)
    return WorkerSetting(
        offer=offer,
        policy=policy,
        slos=promised,
        latency={percentile_name(p): run.percentile(p, confidence, blocks) for p in shown_percentiles(promised)},
        violations=tuple(run.estimate_violations(slo.latency, confidence, blocks) for slo in promised),
        utilisation=run.utilisation or 0.0,
        load=load_of(arrivals, offer, policy),
        settled=n >= horizon.settled,
        mean_batch_size=run.mean_batch_size,
        cost=offer.cost(run, policy.servers, arrivals.arrival_rate, billing),
        arrival_rate=arrivals.arrival_rate,
        n_requests=n,
        confidence=confidence,
        seed=seed,
    )
