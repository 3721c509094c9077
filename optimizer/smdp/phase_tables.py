"""A table for each phase of the arrivals, and what they cost where the phase must be guessed (docs/model.md, section 4.5).

The phase is not seen where the tables run. ``phase_filter`` follows it from the arrivals alone, and the table of the likeliest
phase is in force. What that costs has no closed form: it is simulated, beside one table for all phases on the same arrivals. The
cost of that one is known exactly, so that only the difference has the error of a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.simulation.batch_means import Estimate, estimate_mean
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate, simulate_schedule
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp.one_table import OneTable
from sluice.optimizer.smdp.phase_filter import filter_phases
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import SmdpSolution

N_REQUESTS = 1 << 18
FEWEST_REQUESTS = 1 << 12
MOST_JUMPS = 1 << 29  # of the phases and arrivals together: some ten seconds of sampling


@dataclass(frozen=True, eq=False)
class PhaseTables:
    """A table for each phase of the arrivals, and the arrivals, from which the phase is told.

    Parameters
    ----------
    arrivals : ArrivalProcess
    tables : tuple of Policy
        One for each phase, in the order of the phases, all of as many servers.

    Raises
    ------
    InvalidInput
        Another number of tables than of phases; a table of a function, or of other servers than the first.
    """

    arrivals: ArrivalProcess
    tables: tuple[Policy, ...]

    def __post_init__(self) -> None:
        n = self.arrivals.n_phases
        require(len(self.tables) == n, "tables", len(self.tables), f"{n}, one for each phase of the arrivals")
        servers = self.tables[0].servers
        require(servers is not None, "tables[0].servers", servers, "an integer >= 1: it is a server that the tables are for")
        for i, table in enumerate(self.tables):
            if table.servers != servers:
                raise InvalidInput(f"tables[{i}].servers", table.servers, f"{servers}, as tables[0] has them")

    @classmethod
    def of(cls, solution: SmdpSolution) -> PhaseTables:
        """Those of a solution."""
        phases = range(len(solution.actions))
        return cls(solution.problem.arrivals, tuple(solution.policy(phase) for phase in phases))

    def schedule(self, times: Array) -> Schedule:
        """The tables that are in force where requests come at ``times`` (s, ascending), each by what came before alone.

        Raises
        ------
        InvalidInput
            No times, or some that do not ascend; an arrival that the process says cannot happen.
        """
        followed = filter_phases(self.arrivals, times)
        return Schedule(self.tables, followed.change_times, followed.change_to, followed.first)


@dataclass(frozen=True, eq=False)
class FilteredTables:
    """What tables per phase come to under the filter.

    Parameters
    ----------
    tables : PhaseTables
    mean_latency : Estimate
        s, with its confidence interval.
    power : float
        W.
    mean_batch_size : float
    cost : float
        The weighted cost (4.2) at the estimates.
    run, run_of_one : SimulationResult
        Of the tables, and of the one table on the same arrivals.
    """

    tables: PhaseTables
    mean_latency: Estimate
    power: float
    mean_batch_size: float
    cost: float
    run: SimulationResult
    run_of_one: SimulationResult


def simulate_filtered(problem: SmdpProblem, tables: PhaseTables, one: OneTable, seed: int = 0) -> FilteredTables:
    """What ``tables`` cost where the filter tells the phase: the exact cost of ``one``, and the simulated difference from it.

    Raises
    ------
    InvalidInput
        Phases that shift so often between two arrivals that too few of these can be sampled.
    """
    rng = np.random.default_rng(seed)
    times = np.cumsum(problem.arrivals.sample(_n_requests(problem.arrivals), rng))
    luck = int(rng.integers(2**63))
    service = problem.service.service_times()
    run = simulate_schedule(tables.schedule(times), times, service, np.random.default_rng(luck))
    run_of_one = simulate(one.policy, times, service, np.random.default_rng(luck))
    both = run.answered & run_of_one.answered
    saved = estimate_mean(run.latency[both] - run_of_one.latency[both])
    latency = Estimate(*(one.performance.mean_latency + seconds for seconds in saved))
    joules = (float(problem.energy[of.batch_sizes - 1].sum()) for of in (run, run_of_one))
    power = one.performance.power + (next(joules) - next(joules)) / float(times[-1] - times[0])
    return FilteredTables(tables, latency, power, run.mean_batch_size, problem.cost(latency.value, power), run, run_of_one)


def _n_requests(arrivals: ArrivalProcess) -> int:
    """How many arrivals are sampled, each after the jumps of the phases before it."""
    jumps = float(arrivals.stationary @ -arrivals.D0.diagonal()) / arrivals.arrival_rate
    most = MOST_JUMPS // FEWEST_REQUESTS
    require(
        jumps <= most, "arrivals", f"{jumps:.4g} shifts of the phase for each arrival", f"at most {most}: more are all but Poisson"
    )
    return min(N_REQUESTS, int(MOST_JUMPS / jumps))
