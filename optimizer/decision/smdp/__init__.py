"""When one server should serve, and how many at a time: the semi-Markov decision process of batching (docs/model.md, section 4).

``SmdpProblem`` is the question, ``solve`` answers it by the method wanted, and every method answers with an ``SmdpSolution``.
"""

from __future__ import annotations

from optimizer.decision.smdp.policy_iteration import evaluate, solve_by_policy_iteration
from optimizer.decision.smdp.problem import SmdpProblem, affine
from optimizer.decision.smdp.solution import Performance, SmdpSolution

__all__ = ["Performance", "SmdpProblem", "SmdpSolution", "affine", "evaluate", "solve"]


def solve(problem: SmdpProblem) -> SmdpSolution:
    """The optimal table, by policy iteration with an exact tail."""
    return solve_by_policy_iteration(problem)
