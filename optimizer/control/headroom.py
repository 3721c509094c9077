"""How much more than the forecast a fleet is planned for, and its shares are made for (docs/model.md, section 5).

A planner meets the demand that it is told, and a second can bring twice what was forecast. So it is asked with the forecast times
each of some headrooms, devices that its answer leaves over are given to the families with the least to spare, and each answer is
rehearsed on what the demand did of late. Shares have a headroom of their own, family by family: they follow the demand at every
look, a placement cannot. With little of it requests go to the most accurate variants, with much to all by what they can carry.

Single devices of the best answer are then exchanged for as long as rehearsal says that it helps (``exchange``).

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
from sluice.optimizer.control.exchange import improve
from sluice.optimizer.control.rehearsal import Outcome, Rehearsal
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, capacity_of, filled, solution_of

Planner = Callable[[FleetProblem], FleetSolution]
"""Counts and flows for ``problem.demand``; ``problem.running`` are the counts that run."""

HEADROOMS = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.5)
OF_SHARES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
VIOLATIONS = 0.005
MISSED = 2.0
MOST_PLANS = 2  # that are asked for at a time
EXCHANGE = 0.1  # percent of what all earn, that loading one device must be worth
MOST_LOOKED_AT = 150  # placements of a family, of a decision


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

    What is best of that and of what runs is then improved.

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
        if (good := self._as_it_is(problem, rehearsal)) is not None:
            return good
        found: dict[tuple[int, ...], tuple[float, FleetSolution, _Settled]] = {}
        at = self._places(problem)
        while tuple(at) not in found and len(found) < MOST_PLANS:
            plan = filled(self._planner(problem.with_demand(self._headrooms[at] * problem.demand)))
            settled = self._settled(problem, plan.counts, rehearsal)
            found[tuple(at)] = self._expected(problem, plan, settled, rehearsal), plan, settled
            step = np.where(settled.late > self._violations, 1, np.where(settled.late <= self._violations / 2, -1, 0))
            at = np.clip(at + step, 0, len(self._headrooms) - 1)
        best = max(found, key=lambda at: found[at][0])
        self._at = np.array(best)
        most, plan, _ = found[best]
        seconds = sum(plan.seconds for _, plan, _ in found.values())
        headroom = self._headrooms[self._at]
        asked = problem.with_demand(headroom * problem.demand)
        kept = None if problem.running is None else filled(solution_of(asked, problem.running))
        if kept is not None and (as_it_is := self._settled(problem, kept.counts, rehearsal).earned) >= most:
            most, plan = as_it_is, kept
        better = solution_of(asked, self._improved(problem, plan.counts, rehearsal))
        if self._expected(problem, better, self._settled(problem, better.counts, rehearsal), rehearsal) > most:
            plan = better
        return Choice(headroom, plan, self._settled(problem, plan.counts, rehearsal).of_shares, seconds)

    def _places(self, problem: FleetProblem) -> Counts:
        """Which headroom each family had last; the middle one at first."""
        return np.full(problem.n_families, len(self._headrooms) // 2) if self._at is None else self._at

    def _as_it_is(self, problem: FleetProblem, rehearsal: Rehearsal) -> Choice | None:
        """The placement that runs, where no other could earn as much more as loading one device must be worth."""
        if problem.running is None or problem.running.sum() < problem.devices.sum():
            return None
        settled = self._settled(problem, problem.running, rehearsal)
        if settled.earned + EXCHANGE < self._most(problem, rehearsal).sum():
            return None
        headroom = self._headrooms[self._places(problem)]
        return Choice(
            headroom, solution_of(problem.with_demand(headroom * problem.demand), problem.running), settled.of_shares, 0.0
        )

    def _most(self, problem: FleetProblem, rehearsal: Rehearsal) -> Array:
        """What each family's part of the requests can earn at most, percent, (n_families,)."""
        able = problem.throughput.any(axis=0)
        accurate = [problem.accuracy[able & (problem.family == q)].max(initial=0.0) for q in range(problem.n_families)]
        return np.asarray(accurate * rehearsal.part_of)

    def _improved(self, problem: FleetProblem, counts: Counts, rehearsal: Rehearsal) -> Counts:
        """The same placement, after exchanges that are worth more than the device that is away for them."""

        def worth(family: int, counts: Counts) -> float:
            return float(rehearsal.part_of[family] * self._of_family(family, counts, rehearsal)[1])

        return improve(problem, counts, worth, self._most(problem, rehearsal), EXCHANGE, MOST_LOOKED_AT)

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
            headrooms[q], earned[q], late[q] = self._of_family(q, counts, rehearsal)
        return _Settled(float(earned @ rehearsal.part_of), late, headrooms)

    def _of_family(self, family: int, counts: Counts, rehearsal: Rehearsal) -> tuple[float, float, float]:
        """The best headroom of its shares, what it earns with it, percent, and the share that is late."""
        best, most, late = 1.0, -np.inf, 1.0
        for headroom in OF_SHARES:
            outcome = rehearsal.of_family(family, counts, headroom)
            if (worth := self._worth(outcome)) < most:
                break
            if worth > most:
                best, most, late = headroom, worth, outcome.late
            if late <= self._violations:
                break  # with more of it requests go to less accurate variants
        return best, most, late

    def _worth(self, outcome: Outcome) -> float:
        """Percent."""
        answered = 0.0 if np.isnan(outcome.accuracy) else (1 - outcome.late) * outcome.accuracy
        return answered - 100 * MISSED * max(0.0, outcome.late - self._violations)


class _Settled(NamedTuple):
    """What a placement earns, percent; and by family, what is late of it and the headrooms of its shares, (n_families,)."""

    earned: float
    late: Array
    of_shares: Array
