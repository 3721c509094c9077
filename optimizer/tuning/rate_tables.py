"""The best table of fixed servers at the rate that is seen: solved again, band of rates by band (docs/control.md, docs/smdp.md).

The table of section 4 of docs/model.md is optimal at one arrival rate. To solve for another takes milliseconds, or some tenths of a
second where the weights are to be found that keep an SLO, so none is made beforehand: rates are taken together in bands of a
constant ratio, the middle of each is solved when it is first seen, and what was solved is kept. So a rate that wanders within its
band changes no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible, InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, choose_weight, solve, solve_frontier
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles

BAND = 1.1  # ratio of the middles of neighbouring bands
MOST_LOAD = 0.98  # beyond, the table is that of this load: near its capacity a server takes all that it can
BUDGETS = (1.0, 0.5, 0.25)
IN_TIME = 0.98  # of an SLO's latency, in which whoever waits for others is answered, if the server is idle
MOST_KEPT = 256  # bands; the one that was asked for first is then forgotten
LARGEST = 64  # batches; of larger ones it takes seconds to find the weights that keep an SLO


class RateTables:
    """The optimal table of identical servers at any rate of Poisson arrivals; of several, that of one with its share of them.

    Parameters
    ----------
    problem : SmdpProblem
        The server, its energy and the weights; its own arrivals, which have one phase, say nothing here.
    slos : sequence of Slo
        Where there are some, and energy, the table of least power is taken that keeps them; where none does, that of least latency.
        Under either nobody waits at an idle server until he is late, as he might where fewer come than the table is solved for.
    budgets : sequence of float
        Of what the SLOs allow to be late, what the tables may use: one for each, as ``all_at`` has them.
    servers : int
        How many take batches from one queue; the problem is that of one.
    band : float
        Ratio of the middles of neighbouring bands of rates, > 1.

    Raises
    ------
    InvalidInput
        Arrivals with phases, which have a table for each; a ratio that is none.
    """

    def __init__(
        self,
        problem: SmdpProblem,
        slos: Sequence[Slo] = (),
        servers: int = 1,
        budgets: Sequence[float] = (1.0,),
        band: float = BAND,
    ) -> None:
        phases = problem.arrivals.n_phases
        require(phases == 1, "arrivals.n_phases", phases, "1: where arrivals have phases each has a table of its own")
        require(1 < band < np.inf, "band", band, "a ratio > 1")
        require(servers >= 1, "servers", servers, "an integer >= 1")
        self.problem, self.servers, self.budgets, self.band = problem, servers, tuple(budgets), band
        self._promises = [[Slo(slo.latency, 100 - part * (100 - slo.percentile)) for slo in slos] for part in budgets]
        self._tables: dict[int, list[Policy]] = {}

    def middle(self, arrival_rate: float) -> float:
        """Requests/s for which the table at ``arrival_rate`` is solved: the middle of its band, at most ``MOST_LOAD``."""
        most = MOST_LOAD * self.servers * float(self.problem.throughput[-1])
        return min(float(self.band ** self._band_of(arrival_rate)), most)

    def at(self, arrival_rate: float) -> Policy:
        """The table at a rate (requests/s), which may be beyond what the servers serve; of several budgets that of the first.

        Raises
        ------
        InvalidInput
            No rate > 0.
        NotConverged
            As ``smdp.solve``.
        """
        return self.all_at(arrival_rate)[0]

    def all_at(self, arrival_rate: float) -> list[Policy]:
        """The tables at a rate, one for each budget."""
        band = self._band_of(arrival_rate)
        if band not in self._tables:
            self._tables[band] = self.solved(self.middle(arrival_rate))
            if len(self._tables) > MOST_KEPT:
                del self._tables[next(iter(self._tables))]
        return self._tables[band]

    def solved(self, arrival_rate: float) -> list[Policy]:
        """Those at just this rate (requests/s), which the servers must be able to serve; they are not kept."""
        problem = replace(self.problem, arrivals=poisson(arrival_rate / self.servers))
        if not self._promises[0] or not problem.energy.any():
            return [self._in_time(solve(problem).policy(servers=self.servers))] * len(self._promises)
        corners, percentiles, found = solve_frontier(problem), LatencyPercentiles(problem), []
        for slos in self._promises:
            try:
                corner = choose_weight(problem, slos, percentiles, corners)
            except Infeasible:
                corner = corners[0]
            found.append(self._in_time(corner.solution.policy(servers=self.servers)))
        return found

    def _in_time(self, policy: Policy) -> Policy:
        """The table, in which whoever would wait for more leaves in time for every SLO."""
        if not self._promises[0]:
            return policy
        latency = IN_TIME * min(slo.latency for slo in self._promises[0])
        last = [0.0, *np.maximum(latency - self.problem.service.mean, 0.0).tolist()]
        hold, take = list(policy.hold), list(policy.take)
        for waiting in range(1, min(len(hold), len(last))):
            if hold[waiting] > last[waiting]:
                hold[waiting], take[waiting] = last[waiting], waiting
        return replace(policy, hold=hold, take=take)

    def _band_of(self, arrival_rate: float) -> int:
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
        return round(log(arrival_rate) / log(self.band))


def tables_of(offer: WorkerOffer, slos: Sequence[Slo], servers: int, max_batch_size: int) -> RateTables | None:
    """Those of workers, each taking the mean of what its batches are measured to take, and the energy where a profile tells it.

    ``None`` where they take batches of more than ``LARGEST``, or have times or energies for which no table is known to be optimal.
    """
    largest = min(offer.service.max_batch_size, max_batch_size)
    if largest > LARGEST:
        return None
    mean = offer.service.mean_response[:largest]
    energy = np.zeros(largest) if offer.energy is None else offer.energy[:largest]
    try:
        return RateTables(SmdpProblem(poisson(0.5 * largest / mean[-1]), deterministic(mean), energy), slos, servers, BUDGETS)
    except InvalidInput:
        return None
