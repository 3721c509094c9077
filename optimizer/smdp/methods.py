"""The methods by name: one problem, one kind of solution (docs/model.md, section 4)."""

from __future__ import annotations

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import MAX_ROWS
from sluice.optimizer.smdp.linear_program import solve_by_linear_program
from sluice.optimizer.smdp.modulated import solve_modulated
from sluice.optimizer.smdp.policy_iteration import evaluate, greedy, solve_by_policy_iteration
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import SecondsLeft, SmdpSolution, endless
from sluice.optimizer.smdp.value_iteration import solve_by_value_iteration

METHODS = ("policy-iteration", "value-iteration", "linear-program")
_STATES = 8  # of a cut queue, in largest batches
_EPSILON = 0.01


def solve(
    problem: SmdpProblem,
    method: str = METHODS[0],
    *,
    max_state: int | None = None,
    overflow_cost: float | None = None,
    epsilon: float | None = None,
    seconds_left: SecondsLeft = endless,
) -> SmdpSolution:
    """The optimal table; for arrivals with phases one for each.

    Parameters
    ----------
    method : {"policy-iteration", "value-iteration", "linear-program"}
        Policy iteration has an exact tail; the other two cut the queue.
    max_state : int, optional
        Where they cut it; by default at eight of the largest batch.
    overflow_cost, epsilon : float, optional
        Of value iteration: the papers' c_o, in the unit of the gain, by default twice the cost of the greedy table; and the span
        at which it stops, by default 0.01 as in the papers.
    seconds_left : callable
        Of policy iteration, as ``solve_by_policy_iteration`` has it.

    Raises
    ------
    InvalidInput
        An option that the method does not have; arrivals with phases where the method knows none.
    """
    require_options(method, max_state=max_state, overflow_cost=overflow_cost, epsilon=epsilon)
    most = f"an integer from 1 to {MAX_ROWS}, the rows of a policy"
    require(max_state is None or 1 <= max_state <= MAX_ROWS, "max_state", max_state, most)
    if method == METHODS[0]:
        if problem.arrivals.n_phases > 1:
            return solve_modulated(problem, seconds_left=seconds_left)
        return solve_by_policy_iteration(problem, seconds_left=seconds_left)
    cut = _STATES * problem.max_batch_size if max_state is None else max_state
    if method == METHODS[2]:
        return solve_by_linear_program(problem, cut)
    if overflow_cost is None:
        performance = evaluate(problem, greedy(problem))
        overflow_cost = 2 * problem.cost(performance.mean_latency, performance.power)
    span = _EPSILON if epsilon is None else epsilon
    return solve_by_value_iteration(problem, max_state=cut, overflow_cost=overflow_cost, epsilon=span)


def require_options(method: str, **given: float | None) -> None:
    """Raise ``InvalidInput`` unless there is such a method and it has the options that are given, those not ``None``."""
    require(method in METHODS, "method", method, ", ".join(METHODS))
    allowed = {METHODS[0]: "", METHODS[1]: "max_state overflow_cost epsilon", METHODS[2]: "max_state"}[method].split()
    for name, value in given.items():
        if value is not None and name not in allowed:
            raise InvalidInput(name, value, f"none with {method}")
