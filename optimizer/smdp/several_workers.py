"""A table for several identical workers behind one queue (docs/model.md, section 4.7).

With k workers the number waiting no longer says all: how long the busy ones still have does too, and no optimal table is known. The
rule here is stated, not proved. Candidates are the optimal table of one worker that gets its share, 1/k of the arrivals, read with
the number waiting in the common queue; and every control limit. All meet the same simulated arrivals, and the one of least weighted
cost is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.simulation.batch_means import Estimate, estimate_mean
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration
from sluice.optimizer.smdp.problem import SmdpProblem

N_REQUESTS = 1 << 19


@dataclass(frozen=True, eq=False)
class WorkersSolution:
    """A table for several workers, as simulated.

    Parameters
    ----------
    problem : SmdpProblem
        That of one worker with its share of the arrivals.
    policy : Policy
        Its ``servers`` are the workers.
    cost : float
        latency_weight * mean latency + power_weight * power of all workers together.
    mean_latency : Estimate
        s, with its confidence interval.
    power : float
        Of all workers together, W.
    mean_batch_size : float
    run : SimulationResult
        Of the policy chosen.
    """

    problem: SmdpProblem
    policy: Policy
    cost: float
    mean_latency: Estimate
    power: float
    mean_batch_size: float
    run: SimulationResult


def solve_workers(problem: SmdpProblem, workers: int, seed: int = 0) -> WorkersSolution:
    """The table of least simulated cost among the candidates, for ``workers`` workers.

    Parameters
    ----------
    problem : SmdpProblem
        Of one worker with its share of the arrivals; ``power_weight`` is that of the power of all workers together.
    workers : int
    seed : int
        Of the simulation: the same one for every candidate.

    Raises
    ------
    InvalidInput
        No workers; arrivals with phases.
    """
    require(isinstance(workers, int) and workers >= 1, "workers", workers, "an integer >= 1")
    # The power of all is that of one times their number, and so is what it weighs.
    share = solve_by_policy_iteration(problem.weighted(problem.latency_weight, problem.power_weight * workers))
    rng = np.random.default_rng(seed)
    times = np.cumsum(poisson(problem.arrival_rate * workers).sample(N_REQUESTS, rng))
    luck = int(rng.integers(2**63))
    service = problem.service.service_times()

    def simulated(policy: Policy) -> WorkersSolution:
        run = simulate(policy, times, service, np.random.default_rng(luck))
        latency = estimate_mean(run.latency[run.answered])
        power = float(problem.energy[run.batch_sizes - 1].sum()) / float(times[-1] - times[0])
        return WorkersSolution(problem, policy, problem.cost(latency.value, power), latency, power, run.mean_batch_size, run)

    largest = problem.max_batch_size
    limits = (policies.control_limit(limit, largest, workers) for limit in range(problem.min_batch_size, largest + 1))
    return min((simulated(policy) for policy in (share.policy(servers=workers), *limits)), key=lambda solution: solution.cost)
