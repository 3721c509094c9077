"""How much more than the forecast a fleet is planned for (docs/model.md, section 5).

A planner meets the demand that it is told, and a second can bring twice what was forecast. So it is asked with the forecast times
each of some headrooms, and of its answers that one is taken which, over the ratios of demand to forecast seen so far, earns the
most: the mean over all requests of the accuracy of those that the plan carries. At moderate load a headroom of two costs next to
no accuracy, at high load it would cost much, and the same rule finds both. It also finds when to leave things as they are: keeping
the placement that runs is among the answers, and moving to another is charged for the devices that are away meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, solution_of

Planner = Callable[[FleetProblem], FleetSolution]
"""Counts and flows for ``problem.demand``; ``problem.running`` are the counts that run."""

HEADROOMS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.5)


class Choice(NamedTuple):
    """A headroom, the plan for the forecast times it, and the seconds that all the planning took."""

    headroom: float
    plan: FleetSolution
    seconds: float


class HeadroomChoice:
    """Asks a planner with several headrooms, walking from the one that was best last time, since the next is most likely near.

    Parameters
    ----------
    planner : Planner
    headrooms : sequence of float
        Ascending; one alone is kept to, and its plan taken as it is.
    away : float
        Part of the time until the next plan for which a device that is to load another variant serves nobody.
    """

    def __init__(self, planner: Planner, headrooms: Sequence[float] = HEADROOMS, away: float = 0.0) -> None:
        self._planner, self._headrooms, self._away = planner, tuple(headrooms), away
        self._at = len(headrooms) // 2

    def choose(self, problem: FleetProblem, rate: Array, ratios: Array) -> Choice:
        """The headroom whose plan is expected to earn the most, and that plan.

        Parameters
        ----------
        problem : FleetProblem
            With the counts that run; its demand is not read.
        rate : array, shape (n_families,)
            Requests/s that are forecast.
        ratios : array, shape (n, n_families)
            Equally likely ratios of the demand to come to ``rate``.
        """
        if len(self._headrooms) == 1:
            plan = self._planner(problem.with_demand(self._headrooms[0] * rate))
            return Choice(self._headrooms[0], plan, plan.seconds)
        found: dict[int, tuple[float, FleetSolution]] = {}

        def earned(i: int) -> float:
            if not 0 <= i < len(self._headrooms):
                return -np.inf
            if i not in found:
                plan = self._planner(problem.with_demand(self._headrooms[i] * rate))
                found[i] = (self._expected(plan, rate * ratios), plan)
            return found[i][0]

        while True:
            best = max((self._at, self._at - 1, self._at + 1), key=earned)
            if best == self._at:
                break
            self._at = best
        most, plan = found[self._at]
        headroom = self._headrooms[self._at]
        if problem.running is not None:
            for other in self._headrooms:
                kept = solution_of(problem.with_demand(other * rate), problem.running)
                if (expected := expected_accuracy(kept, rate * ratios)) >= most:
                    most, headroom, plan = expected, other, kept
        return Choice(headroom, plan, sum(plan.seconds for _, plan in found.values()))

    def _expected(self, plan: FleetSolution, demands: Array) -> float:
        """What a plan earns in the mean, devices that are to load another variant being ``away`` for a part of the time."""
        settled = expected_accuracy(plan, demands)
        if plan.problem.running is None or plan.swaps == 0:
            return settled
        staying = solution_of(plan.problem, np.minimum(plan.counts, plan.problem.running))
        return self._away * expected_accuracy(staying, demands) + (1 - self._away) * settled


def expected_accuracy(solution: FleetSolution, demands: Array) -> float:
    """Mean accuracy over all requests, percent, one that is not carried counting 0, over equally likely ``demands``.

    Parameters
    ----------
    demands : array, shape (n, n_families)
        Requests/s. Each (type, variant) is sent its share and carries it up to its throughput.
    """
    problem = solution.problem
    served = solution.served[problem.family]
    shares = np.divide(solution.flows, served, out=np.zeros_like(solution.flows), where=served > 0)
    sent = shares * demands[:, problem.family][:, None, :]  # (n, n_types, n_variants)
    carried = np.minimum(sent, problem.throughput * solution.counts)
    total = float(demands.sum())
    return float(carried.sum(axis=(0, 1)) @ problem.accuracy) / total if total else np.nan
