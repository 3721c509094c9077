"""The best table of a fixed server at the rate that is seen: solved again, band of rates by band (docs/smdp.md).

The table of section 4 of docs/model.md is optimal at one arrival rate. To solve for another takes milliseconds, so none is made
beforehand: rates are taken together in bands of a constant ratio, the middle of each is solved when it is first seen, and what was
solved is kept. So a rate that wanders within its band changes no table.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np

from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.smdp import SmdpProblem, solve

BAND = 1.1  # ratio of the middles of neighbouring bands
MOST_LOAD = 0.98  # beyond, the table is that of this load: near its capacity a server takes all that it can
MOST_KEPT = 256  # tables; the one that was asked for first is then forgotten


class RateTables:
    """The optimal table of one server at any rate of Poisson arrivals.

    Parameters
    ----------
    problem : SmdpProblem
        The server, its energy and the weights; its own arrivals, which have one phase, say nothing here.
    band : float
        Ratio of the middles of neighbouring bands of rates, > 1.

    Raises
    ------
    InvalidInput
        Arrivals with phases, which have a table for each; a ratio that is none.
    """

    def __init__(self, problem: SmdpProblem, band: float = BAND) -> None:
        phases = problem.arrivals.n_phases
        require(phases == 1, "arrivals.n_phases", phases, "1: where arrivals have phases each has a table of its own")
        require(1 < band < np.inf, "band", band, "a ratio > 1")
        self.problem, self.band = problem, band
        self._tables: dict[int, Policy] = {}

    def middle(self, arrival_rate: float) -> float:
        """Requests/s for which the table at ``arrival_rate`` is solved: the middle of its band, at most ``MOST_LOAD``."""
        most = MOST_LOAD * float(self.problem.throughput[-1])
        return min(float(self.band ** self._band_of(arrival_rate)), most)

    def at(self, arrival_rate: float) -> Policy:
        """The table at a rate (requests/s), which may be beyond what the server serves.

        Raises
        ------
        InvalidInput
            No rate > 0.
        NotConverged
            As ``smdp.solve``.
        """
        band = self._band_of(arrival_rate)
        if band not in self._tables:
            self._tables[band] = solve(replace(self.problem, arrivals=poisson(self.middle(arrival_rate)))).policy()
            if len(self._tables) > MOST_KEPT:
                del self._tables[next(iter(self._tables))]
        return self._tables[band]

    def _band_of(self, arrival_rate: float) -> int:
        require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "requests/s > 0")
        return round(log(arrival_rate) / log(self.band))
