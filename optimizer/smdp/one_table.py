"""One table for all phases of the arrivals, for a queue that is told of no phase (docs/model.md, section 4.5).

A buffer follows one table a queue. The best of those that do not look at the phase is not known: to choose it is to decide under
partial information, where what is best with ``s`` waiting hangs on what is done with every other number. The rule here is stated,
not proved. Candidates are the table that is optimal under Poisson arrivals of the same rate, the optimal table of each phase, and
every control limit; each is evaluated exactly under the very arrivals, and the one of least cost is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.batching import policy as policies
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.smdp.modulated import evaluate_modulated
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration
from sluice.optimizer.smdp.solution import Performance, SmdpSolution


@dataclass(frozen=True, eq=False)
class OneTable:
    """A table for every phase, and what it comes to, exactly.

    Parameters
    ----------
    origin : str
        Which candidate it is.
    policy : Policy
    performance : Performance
    cost : float
        The weighted cost (4.2).
    """

    origin: str
    policy: Policy
    performance: Performance
    cost: float


def solve_one_table(solution: SmdpSolution, queue: ModulatedQueue | None = None) -> OneTable:
    """The table of least exact cost among the candidates.

    Parameters
    ----------
    solution : SmdpSolution
        The optimal tables, one per phase.
    queue : ModulatedQueue, optional
        That of the same problem, so that its preparations are used again.
    """
    problem = solution.problem
    queue = queue or ModulatedQueue(problem)

    def evaluated(origin: str, policy: Policy) -> OneTable:
        performance = evaluate_modulated(problem, policy.take, queue)
        return OneTable(origin, policy, performance, problem.cost(performance.mean_latency, performance.power))

    return min((evaluated(origin, policy) for origin, policy in _candidates(solution)), key=lambda table: table.cost)


def _candidates(solution: SmdpSolution) -> Iterator[tuple[str, Policy]]:
    """All end in a batch of the largest throughput, so that none is unstable where the load is below 1."""
    problem = solution.problem
    mean_rate = replace(problem, arrivals=poisson(problem.arrival_rate))
    yield "optimal under Poisson arrivals of the same rate", solve_by_policy_iteration(mean_rate).policy()
    for phase in range(problem.arrivals.n_phases):
        yield f"optimal in phase {phase + 1}", solution.policy(phase)
    for limit in range(problem.min_batch_size, problem.max_batch_size + 1):
        yield f"control limit {limit}", policies.control_limit(limit, problem.max_batch_size, 1)
