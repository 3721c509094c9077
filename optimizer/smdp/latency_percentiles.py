"""Percentiles of the latency under a solved table: exact where the service law allows it, else simulated.

Deterministic and phase-type service have an exact law (``sluice.optimizer.server.latency``). Any other service law is simulated,
and so are tables from the first on whose law cannot be followed: the load is next to 1, or partial batches lead to too many sums of
service times. ``exact`` says so, and what counts of a percentile is then the upper end of its confidence interval, so that an SLO
said to be kept is kept.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import NotConverged
from sluice.batching.policy import smdp
from sluice.optimizer.server.fixed_outcomes import BeyondTheExactLaw
from sluice.optimizer.server.latency import ServerLatency, server_latency
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Actions, SecondsLeft, SmdpSolution, endless

N_REQUESTS = 1 << 20
_SECONDS = 6.0  # of CPU that the exact laws of some tables take with batches of ``_OF_SIZE``, as measured
_OF_SIZE = 512


def exact_seconds(problem: SmdpProblem) -> float:
    """About how many seconds of CPU the exact laws of the tables compared take: the work goes with the square of the batch."""
    return float(_SECONDS * (problem.max_batch_size / _OF_SIZE) ** 2)


class LatencyPercentiles:
    """Percentiles of the latency under tables for one server with Poisson arrivals; each table is worked out once.

    Where that is by simulation, all tables meet the same arrivals and the same luck.

    Parameters
    ----------
    problem : SmdpProblem
        Its weights do not matter.
    seconds_left : callable
        Where so many are not left as the exact laws of some tables would take, it is simulated from then on.
    """

    def __init__(self, problem: SmdpProblem, seconds_left: SecondsLeft = endless) -> None:
        self.problem, self._seconds_left = problem, seconds_left
        self.exact = problem.service.fixed or problem.service.phases is not None
        """Whether every table so far had an exact law."""
        self._known: dict[bytes, ServerLatency | SimulationResult] = {}

    def __call__(self, solution: SmdpSolution, percentile: float) -> float:
        """The percentile (0 to 100), s, or the upper end of its confidence interval."""
        return self.estimate(solution.actions[0], percentile).high

    def estimate(self, actions: Actions, percentile: float) -> Estimate:
        """The percentile under a table, s, and its confidence interval: a point where it is exact."""
        law = self._law(actions)
        if isinstance(law, SimulationResult):
            return law.percentile(percentile)
        exact = law.percentile(percentile)
        return Estimate(exact, exact, exact)

    def _law(self, actions: Actions) -> ServerLatency | SimulationResult:
        key = actions.tobytes()
        if key not in self._known:
            self._known[key] = self._work_out(actions)
        return self._known[key]

    def _work_out(self, actions: Actions) -> ServerLatency | SimulationResult:
        if self._seconds_left() < exact_seconds(self.problem):
            self.exact = False
        if self.exact:
            try:
                return server_latency(self.problem.arrival_rate, self.problem.service, actions.tolist())
            except (NotConverged, BeyondTheExactLaw):
                self.exact = False
        return self._run(actions)

    def _run(self, actions: Actions) -> SimulationResult:
        rng = np.random.default_rng(0)
        times = np.cumsum(self.problem.arrivals.sample(N_REQUESTS, rng))
        return simulate(smdp(actions.tolist()), times, self.problem.service.service_times(), rng)
