"""The tables that are tried for workers, and what each comes to (docs/model.md, section 7).

The candidates are greedy tables, for several largest batches, and tables that hold a free worker back until a batch is full or a
timeout is over. Those can do with fewer workers, as greedy ones bunch: the worker that ends first takes all that came meanwhile, so
the others start almost empty and end almost together.

A run in which it is open whether an SLO is kept is repeated with more requests; what stays open counts as not kept. Workers so
close to saturation that no run of ``horizon.MOST_REQUESTS`` would show their equilibrium are not tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.errors import Infeasible
from sluice.batching.policy import Policy
from sluice.optimizer.recommend.demand import Demand, Drawn
from sluice.optimizer.recommend.horizon import Horizon, load_of
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.simulation.latency_statistics import surely_keeps

HOLDS = 9  # timeouts tried


@dataclass(frozen=True)
class Trial:
    """What a candidate came to in the search.

    ``excess`` is the share of violations over what is allowed, of the SLO where it is largest; ``latency`` (s) is at the first
    SLO's percentile, inf where the SLOs are not kept.
    """

    policy: Policy
    keeps_slos: bool
    excess: float
    latency: float
    cost_per_request: float


class WorkerTrials:
    """The candidates for every number of workers, each tried once and when it is asked for.

    Raises
    ------
    Infeasible
        When a single request takes too long by itself.
    """

    def __init__(self, demand: Demand, offer: WorkerOffer, confidence: float = 0.95, seed: int = 0) -> None:
        self.demand, self.arrivals, self.slos = demand, demand.arrivals, demand.slos
        self.offer, self.confidence, self.seed = offer, confidence, seed
        self.simulated = 0  # requests
        self._drawn: dict[tuple[int, int], Drawn] = {}
        self._tables: dict[int, list[Policy]] = {}
        self._trials: dict[int, list[Trial]] = {}
        self._refuse_slow()
        # Seconds of each SLO that are left when a batch of each size takes what it does at the SLO's own percentile.
        left = np.array([slo.latency - offer.service.quantile(slo.quantile) for slo in self.slos])
        self.max_batch_size = int(np.flatnonzero(left.min(axis=0) >= 0)[-1]) + 1
        left = np.minimum(left[:, : self.max_batch_size], demand.longest_wait)
        self.slacks, self._slack = demand.slacks(left), left.min(axis=0)

    def tables(self, workers: int) -> list[Policy]:
        """Tables that keep up with room enough to be simulated, the likeliest to keep the SLOs first.

        A batch so large that its service alone would break an SLO is never taken. A timeout goes with the largest batch that can
        still be served in time after it.
        """
        if workers not in self._tables:
            candidates = self.candidates(workers)
            self._tables[workers] = [table for table in candidates if self.demand.stages(self._horizon(table))]
        return self._tables[workers]

    def candidates(self, workers: int) -> list[Policy]:
        """All tables, whether they keep up or not."""
        return [*self._greedy(workers), *self._held_back(workers)]

    def unseen(self, workers: int) -> bool:
        """Whether some candidate keeps up, but no run shows what it does, for the phases of the arrivals last too long."""
        return any(
            load_of(self.arrivals, self.offer, table) < 1 and self._horizon(table).dealt for table in self.candidates(workers)
        )

    def some_keeps(self, workers: int) -> bool:
        """Whether some candidate keeps the SLOs."""
        return any(self._first(workers, i + 1)[-1].keeps_slos for i in range(len(self.tables(workers))))

    def tried(self, workers: int) -> list[Trial]:
        """Of every candidate."""
        return self._first(workers, len(self.tables(workers)))

    def _refuse_slow(self) -> None:
        name = self.offer.name
        for slo in self.slos:
            alone = float(self.offer.service.quantile(slo.quantile)[0])
            if alone > slo.latency:
                raise Infeasible(
                    f"no number of workers ({name}) keeps {slo.name} within {slo.latency:g} s: a request alone takes {alone:.4g} s",
                    {"name": name, "latency": alone, "max_batch_size": 1},
                )

    def _greedy(self, workers: int) -> list[Policy]:
        caps = {min(1 << power, self.max_batch_size) for power in range(self.max_batch_size.bit_length() + 1)}
        return [policies.greedy(cap, workers) for cap in sorted(caps, reverse=True)]

    def _held_back(self, workers: int) -> list[Policy]:
        if self.max_batch_size == 1:
            return []
        tables = []
        for timeout in self._slack[1] * np.arange(1, HOLDS + 1) / (HOLDS + 1):
            cap = int(np.flatnonzero(self._slack >= timeout)[-1]) + 1
            tables.append(replace(policies.size_or_timeout(cap, float(timeout)), servers=workers))
        return tables

    def _horizon(self, policy: Policy) -> Horizon:
        return Horizon.of(self.arrivals, self.offer, policy)

    def _first(self, workers: int, count: int) -> list[Trial]:
        """The first ``count`` candidates."""
        trials = self._trials.setdefault(workers, [])
        for policy in self.tables(workers)[len(trials) : count]:
            trials.append(self._try(policy, workers))
        return trials[:count]

    def _try(self, policy: Policy, workers: int) -> Trial:
        horizon, demand = self._horizon(policy), self.demand
        for n in demand.stages(horizon):
            dealt = n, horizon.pieces(n)
            if dealt not in self._drawn:
                self._drawn[dealt] = demand.drawn(horizon, n, np.random.default_rng([self.seed, n]))
            drawn, rng = self._drawn[dealt], np.random.default_rng([self.seed, n, 1])
            run = demand.run(self.offer.under(policy), drawn, self.slacks, rng)
            self.simulated += n
            violations = demand.violations(run, drawn, self.confidence, horizon.blocks(n))
            verdicts = [surely_keeps(*judged) for judged in zip(violations, self.slos, strict=True)]
            # a queue that starts empty may prove too long before it has settled, but not short enough
            if False in verdicts or (None not in verdicts and n >= horizon.settled):
                break
        kept = all(verdict is True for verdict in verdicts)
        excess = max(v.value / slo.error_budget for v, slo in zip(violations, self.slos, strict=True))
        latency = run.percentile_of_answered(self.slos[0].percentile) if kept else np.inf
        cost = self.offer.cost(run.batch_sizes, workers, self.arrivals.arrival_rate)
        return Trial(policy, kept, excess, latency, cost.per_request)
