"""How much more than the forecast a fleet is planned for, and its shares are made for (docs/model.md, section 5).

A planner meets the demand that it is told, and a second can bring twice what was forecast. So it is asked with the forecast times
each of some headrooms, devices that its answer leaves over are given to the families with the least to spare, and each answer is
rehearsed on what the demand did of late. Shares have a headroom of their own, family by family: they follow the demand at every
look, a placement cannot. With little of it requests go to the most accurate variants, with much to all by what they can carry.

That plan is taken, with those headrooms of its shares, that is the most accurate with no more violations of each family than may
be; where there is none, what comes nearest: a request that is late beyond what may be counts as ``MISSED`` that are not. Keeping
the placement that runs is among the answers, and moving to another is charged for the devices that are away meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.rehearsal import Outcome, Rehearsal
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, capacity_of, filled, solution_of

Planner = Callable[[FleetProblem], FleetSolution]
"""Counts and flows for ``problem.demand``; ``problem.running`` are the counts that run."""

HEADROOMS = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.5)
OF_SHARES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
VIOLATIONS = 0.005
MISSED = 3.0
MOST_PLANS = 4  # that are asked for at a time


class Choice(NamedTuple):
    """What was decided.

    Parameters
    ----------
    headroom : array, shape (n_families,)
    plan : FleetSolution
        For the forecast times the headroom.
    of_shares : array, shape (n_families,)
        The headrooms of the shares.
    seconds : float
        That the planner took, without the rehearsals.
    """

    headroom: Array
    plan: FleetSolution
    of_shares: Array
    seconds: float


class Moving(NamedTuple):
    """How a fleet gets to another placement.

    Parameters
    ----------
    seconds : float
        For which a device is away.
    kept : float
        Times the forecast that families keep meanwhile, where that can be.
    lasts : float
        Seconds for which a placement is judged, with the moves to it.
    """

    seconds: float = 0.0
    kept: float = 1.25
    lasts: float = 120.0


class HeadroomChoice:
    """Asks a planner with headrooms of each family, from the last best on: more where too much is late, less where little is.

    Parameters
    ----------
    planner : Planner
    headrooms : sequence of float
        Ascending; one alone is kept to, and its plan taken as it is.
    violations : float
        The share of each family's requests that may be late, given up or routed nowhere.
    moving : Moving
    """

    def __init__(
        self,
        planner: Planner,
        headrooms: Sequence[float] = HEADROOMS,
        violations: float = VIOLATIONS,
        moving: Moving | None = None,
    ) -> None:
        self._planner, self._headrooms, self._violations = planner, np.array(headrooms, dtype=np.float64), violations
        self._moving = moving or Moving()
        self._at: Counts | None = None  # by family

    def keep_to_one(self, problem: FleetProblem) -> Choice | None:
        """The plan for the only headroom and the demand of the problem; ``None`` where there are several."""
        if len(self._headrooms) > 1:
            return None
        headroom = np.full(problem.n_families, self._headrooms[0])
        plan = self._planner(problem.with_demand(headroom * problem.demand))
        return Choice(headroom, plan, headroom, plan.seconds)

    def choose(self, problem: FleetProblem, rehearsal: Rehearsal) -> Choice:
        """The headrooms whose plan is the best in rehearsal, and that plan.

        Parameters
        ----------
        problem : FleetProblem
            With the counts that run, and the demand that is forecast.
        rehearsal : Rehearsal
        """
        found: dict[tuple[int, ...], tuple[float, FleetSolution, _Settled]] = {}
        at = np.full(problem.n_families, len(self._headrooms) // 2) if self._at is None else self._at
        while tuple(at) not in found and len(found) < MOST_PLANS:
            plan = filled(self._planner(problem.with_demand(self._headrooms[at] * problem.demand)))
            settled = self._settled(problem, plan.counts, rehearsal)
            found[tuple(at)] = self._expected(problem, plan, settled, rehearsal), plan, settled
            step = np.where(settled.late > self._violations, 1, np.where(settled.late <= self._violations / 2, -1, 0))
            at = np.clip(at + step, 0, len(self._headrooms) - 1)
        best = max(found, key=lambda at: found[at][0])
        self._at = np.array(best)
        most, plan, settled = found[best]
        seconds = sum(plan.seconds for _, plan, _ in found.values())
        headroom = self._headrooms[self._at]
        if problem.running is not None:
            kept = filled(solution_of(problem.with_demand(headroom * problem.demand), problem.running))
            if (as_it_is := self._settled(problem, kept.counts, rehearsal)).earned >= most:
                plan, settled = kept, as_it_is
        return Choice(headroom, plan, settled.of_shares, seconds)

    def _expected(self, problem: FleetProblem, plan: FleetSolution, settled: _Settled, rehearsal: Rehearsal) -> float:
        """What a plan earns in the mean, with the way to it."""
        if problem.running is None:
            return settled.earned
        staying, waves = self._on_the_way(problem, plan.counts)
        if not waves:
            return settled.earned
        away = min(1.0, waves * self._moving.seconds / self._moving.lasts)
        return away * self._settled(problem, staying, rehearsal).earned + (1 - away) * settled.earned

    def _on_the_way(self, problem: FleetProblem, counts: Counts) -> tuple[Counts, int]:
        """What is left of the placement that runs while its devices move, and how many times over some do."""
        assert problem.running is not None
        leaving = np.maximum(problem.running - counts, 0) * (problem.throughput > 0)
        spare = capacity_of(problem, problem.running) - self._moving.kept * problem.demand
        going = np.zeros_like(leaving)
        for d, m in np.argwhere(leaving):
            q, rate = problem.family[m], problem.throughput[d, m]
            going[d, m] = min(leaving[d, m], max(0, int(spare[q] / rate)))
            spare[q] -= going[d, m] * rate
        if leaving.any() and not going.any():
            going.flat[leaving.argmax()] = 1
        return problem.running - going, ceil(leaving.sum() / going.sum()) if leaving.any() else 0

    def _settled(self, problem: FleetProblem, counts: Counts, rehearsal: Rehearsal) -> _Settled:
        """What a placement earns with the best headrooms of its shares."""
        n = problem.n_families
        earned, late, headrooms = np.zeros(n), np.zeros(n), np.ones(n)
        for q in range(n):
            outcomes = {}
            for headroom in OF_SHARES:
                outcomes[headroom] = rehearsal.of_family(q, counts, headroom)
                if outcomes[headroom].late <= self._violations:
                    break  # with more of it requests go to less accurate variants
            headrooms[q] = max(outcomes, key=lambda headroom: self._worth(outcomes[headroom]))
            best = outcomes[headrooms[q]]
            earned[q], late[q] = self._worth(best), best.late
        return _Settled(float(earned @ problem.demand / problem.demand.sum()), late, headrooms)

    def _worth(self, outcome: Outcome) -> float:
        """Percent."""
        answered = 0.0 if np.isnan(outcome.accuracy) else (1 - outcome.late) * outcome.accuracy
        return answered - 100 * MISSED * max(0.0, outcome.late - self._violations)


class _Settled(NamedTuple):
    """What a placement earns, percent; and by family, what is late of it and the headrooms of its shares, (n_families,)."""

    earned: float
    late: Array
    of_shares: Array
