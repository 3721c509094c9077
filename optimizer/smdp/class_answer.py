"""All that `sluice smdp` says of two classes before one server, and what of it a buffer can follow (docs/model.md, section 4.8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import Plan, PolicyDocument, RequestClass
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.smdp.class_policy_iteration import (
    MOST_STATES,
    ClassPerformance,
    ClassSolution,
    evaluate_classes,
    solve_classes,
    urgent_first,
)
from sluice.optimizer.smdp.class_problem import ClassProblem
from sluice.optimizer.smdp.class_queue import OutOfTime
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration
from sluice.optimizer.smdp.solution import Actions, SecondsLeft, endless

IN_ORDER, URGENT_FIRST = "one queue, in order of arrival", "the same table, urgent first"
_SAME = 1e-6  # part of a mean latency


@dataclass(frozen=True, eq=False)
class ClassAnswer:
    """The best table over two classes beside what knows less of them.

    Parameters
    ----------
    solution : ClassSolution
    compared : dict of str to ClassPerformance
        The optimal table of one queue that serves in order of arrival, at the mean weight; and that table with the urgent first,
        where a grid is found that is large enough for it.
    """

    solution: ClassSolution
    compared: dict[str, ClassPerformance]

    def cost(self, performance: ClassPerformance) -> float:
        """(4.27)."""
        return self.solution.problem.cost(performance.mean_latency, performance.power)

    def saved(self, name: str) -> float:
        """The part of the cost of what is compared by that name that the best table saves."""
        return 1 - self.solution.gain / self.cost(self.compared[name])


def answer_classes(problem: ClassProblem, seconds_left: SecondsLeft = endless) -> ClassAnswer:
    """The answer; ``seconds_left`` as ``solve_classes`` has it."""
    solution = solve_classes(problem, seconds_left)
    one = solve_by_policy_iteration(problem.without_classes, seconds_left=seconds_left)
    in_order = ClassPerformance((one.mean_latency, one.mean_latency), one.power, one.performance.mean_batch_size)
    reordered = _reordered(problem, one.actions[0], in_order, len(solution.actions), seconds_left)
    return ClassAnswer(solution, {IN_ORDER: in_order} | ({} if reordered is None else {URGENT_FIRST: reordered}))


def _reordered(
    problem: ClassProblem, actions: Actions, in_order: ClassPerformance, states: int, seconds_left: SecondsLeft
) -> ClassPerformance | None:
    """The table of one queue with the urgent first; ``None`` where the grid is too small and may not be doubled, or time is over.

    The order changes nothing for all together, so that the grid is large enough once they wait as long as in order of arrival.
    """
    (together, _) = in_order.mean_latency
    while seconds_left() > 0:
        try:
            found = evaluate_classes(problem, urgent_first(problem, actions, states), seconds_left)
        except OutOfTime:
            return None
        if abs(np.dot(problem.shares, found.mean_latency) / together - 1) < _SAME:
            return replace(in_order, mean_latency=found.mean_latency)
        if states >= MOST_STATES:
            return None
        states = min(2 * states - 1, MOST_STATES)
    return None


def class_document(
    found: ClassAnswer, slack: float, model: str | None = None, function: str | None = None
) -> PolicyDocument | Plan:
    """The plan for the worker at ``function`` where it and ``model`` are given, else the table alone.

    Parameters
    ----------
    slack : float
        Of the patient class, s; the urgent one has none. A buffer takes the urgent first but for patient ones that came more
        than that before them.

    Raises
    ------
    InvalidInput
        A model without a function, or the reverse; a slack that is not above 0; names that a plan does not allow.
    """
    if (model is None) != (function is None):
        raise InvalidInput("model, function", (model, function), "both, for a plan, or neither, for a policy")
    policy = found.solution.policy()
    if model is None or function is None:
        return PolicyDocument.of(policy)
    return class_plan(found.solution.problem, policy, slack, model, function)


def class_plan(problem: ClassProblem, policy: Policy, slack: float, model: str, function: str) -> Plan:
    """The plan for the worker at ``function``; ``slack`` is that of the patient class, s.

    Raises
    ------
    InvalidInput
        A slack that is not above 0; names that a plan does not allow.
    """
    require(slack > 0, "slack", slack, "a number of seconds > 0: by it the buffer tells the patient from the urgent")
    urgent, patient = problem.classes
    classes = [RequestClass(urgent.name, slack=0.0), RequestClass(patient.name, slack=slack)]
    return Plan(model=model, function=function, policy=PolicyDocument.of(policy), classes=classes)


def full_class_document(found: ClassAnswer) -> dict[str, object]:
    """All of an answer, as ``--json`` prints it."""
    solution = found.solution
    problem = solution.problem
    tables = {"optimal": solution.performance, **found.compared}
    return {
        "version": 1,
        "arrival_rate": problem.together.arrival_rate,
        "load": problem.together.load,
        "latency_weight": problem.together.latency_weight,
        "power_weight": problem.together.power_weight,
        "classes": [{"name": each.name, "arrival_rate": each.arrival_rate, "weight": each.weight} for each in problem.classes],
        "policy": PolicyDocument.of(solution.policy()),
        "gain": solution.gain,
        "converged": solution.converged,
        "bound": solution.bound,
        "iterations": solution.iterations,
        "truncation": solution.truncation,
        "states": len(solution.actions),
        "switching_curve": solution.switching_curve,
        "monotone": solution.monotone,
        "larger_with_more": solution.larger_with_more,
        "tables": {
            name: {
                "mean_latency": {each.name: seconds for each, seconds in zip(problem.classes, told.mean_latency, strict=True)},
                "power": told.power,
                "mean_batch_size": told.mean_batch_size,
                "cost": found.cost(told),
            }
            for name, told in tables.items()
        },
    }
