"""What was found of workers by simulation, with or without a function beside them (docs/model.md, section 7).

They keep an SLO when the upper end of the confidence interval of the share of requests beyond it is at most what the SLO allows, in
a run long enough to show the equilibrium (``horizon``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.recommend.candidate import shown_percentiles
from sluice.optimizer.recommend.demand import ClassSeen, Demand, Drawn
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.event_loop import SimulationResult
from sluice.optimizer.simulation.latency_statistics import surely_keeps


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedSetting:
    """Workers of an offer under a table, as simulated.

    Parameters
    ----------
    offer : WorkerOffer
    policy : Policy
        Its ``servers`` are the workers.
    slos : tuple of Slo
        What they were simulated for; of several applications that of each.
    latency : mapping of str to Estimate
        Percentiles by name (``"p95"``), s: those of the SLOs and 50, 90, 95, 99.
    violations : tuple of Estimate
        Share of the requests beyond each SLO, of those that it is promised to.
    utilisation : float
        Share of the workers that are busy in the mean; near 1 for greedy ones whatever they could still take.
    settled : bool
        Whether the run was long enough to show the equilibrium; not so where the load is 1 or all but 1.
    cost : BatchCost
        USD per request of all that serves it; of what stands before it where its prices were told.
    arrival_rate : float
        Requests per second.
    in_doubt : tuple of float
        What the fit may be wrong by, as a part of the requests for each SLO, which is in the ends of ``violations``; empty where
        that is not known.
    slacks, by_class : tuple of float, and of ClassSeen
        Of several applications the seconds that requests of each may wait longer than the tables say, and what these met; empty
        where requests are alike.
    fitted : BatchCost or None
        The cost in arrivals of the process, where ``cost`` is that on arrivals that were recorded.
    n_requests, confidence, seed
        What the estimates rest on: requests simulated; confidence of the two-sided intervals.
    """

    offer: WorkerOffer
    policy: Policy
    slos: tuple[Slo, ...]
    latency: Mapping[str, Estimate]
    violations: tuple[Estimate, ...]
    utilisation: float
    settled: bool
    mean_batch_size: float
    cost: BatchCost
    arrival_rate: float
    n_requests: int
    confidence: float
    seed: int
    in_doubt: tuple[float, ...] = ()
    slacks: tuple[float, ...] = ()
    by_class: tuple[ClassSeen, ...] = ()
    fitted: BatchCost | None = None

    @property
    def function(self) -> str:
        """Where the workers are reached."""
        return self.offer.function

    @property
    def workers(self) -> int:
        """How many."""
        return self.policy.servers or 0

    @property
    def max_batch_size(self) -> int:
        """The largest batch that a worker takes."""
        return self.policy.max_batch_size

    @property
    def keeps_slos(self) -> bool:
        """Whether the run was long enough and the upper end of every share of violations is at most what its SLO allows."""
        return self.settled and all(surely_keeps(v, slo) is True for v, slo in zip(self.violations, self.slos, strict=True))

    @property
    def usd_per_month(self) -> float:
        """USD per month of all that serves."""
        return self.cost.per_request * self.arrival_rate * SECONDS_PER_MONTH

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long, a batch leaves for a worker."""
        return leaves(self.policy)

    @property
    def by_workers(self) -> str:
        """What the workers do, in a sentence without its end."""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''} ({self.offer.name})"
        held = self.leaves
        if self.max_batch_size == 1:
            return f"Serve with {workers}, {held}"
        if held.endswith("at once"):
            return f"Serve with {workers}; a free one takes all that wait, up to {self.max_batch_size}"
        waited = held.replace(" or ", " requests, or fewer when the oldest has waited ")
        return f"Serve with {workers}; a free one takes {waited}"

    def billed(self, cost: BatchCost) -> Self:
        """The same with its cost on arrivals that were recorded."""
        return replace(self, cost=cost, fitted=self.cost)

    def percentile(self, percentile: float) -> Estimate:
        """One of those that were estimated, s."""
        name = percentile_name(percentile)
        require(name in self.latency, "percentile", percentile, "one of those estimated: " + ", ".join(self.latency))
        return self.latency[name]

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether every SLO is surely kept, since one as tight of those simulated is."""
        kept = [slo for v, slo in zip(self.violations, self.slos, strict=True) if self.settled and surely_keeps(v, slo)]
        return all(any(k.latency <= slo.latency and k.percentile >= slo.percentile for k in kept) for slo in slos)


def estimates(run: SimulationResult, demand: Demand, drawn: Drawn, confidence: float, blocks: int) -> dict[str, Any]:
    """What a run says of a setting that is its own: latency, violations, utilisation, mean batch."""
    reached = run.percentiles(shown_percentiles(demand.slos), confidence, blocks)
    return {
        "slos": demand.slos,
        "latency": {percentile_name(percentile): latency for percentile, latency in reached.items()},
        "violations": demand.violations(run, drawn, confidence, blocks),
        "by_class": demand.by_class(run, drawn, confidence, blocks),
        "utilisation": run.utilisation or 0.0,
        "mean_batch_size": run.mean_batch_size,
        "n_requests": len(run.arrival_times),
        "confidence": confidence,
    }
