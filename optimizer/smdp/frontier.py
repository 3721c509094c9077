"""Latency against power: what the weights buy, and the weight that keeps an SLO (docs/model.md, section 4.4).

A weight of the power selects a table; the table has a mean latency and a power, whatever the weight. As the weight grows the power
falls and the latency grows, along the lower hull of what tables can reach. The hull has finitely many corners, and each weight but
finitely many belongs to one: between the corners of two weights another is looked for at the weight under which both cost the same,
until none is cheaper there.

The SLO of a percentile is not in the objective. Of the corners that keep it the one of the largest weight, of least power, is
taken.
Reference: Xu, Zhou, Niu, journal version, section VII-B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isclose, isfinite

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration, static
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.queue import BatchQueue
from sluice.optimizer.smdp.solution import SecondsLeft, SmdpSolution, endless

_CHEAPER = 1e-7  # part of the cost by which another corner must be cheaper


@dataclass(frozen=True, eq=False)
class Corner:
    """A table that is best for every weight of the power between two.

    Parameters
    ----------
    solution : SmdpSolution
        At a weight between the two.
    least_weight, largest_weight : float
        Of the power; ``inf`` where a larger weight changes nothing any more.
    """

    solution: SmdpSolution
    least_weight: float
    largest_weight: float

    @property
    def weights(self) -> tuple[float, float | None]:
        """The two; ``None`` where any larger weight selects it too."""
        return self.least_weight, self.largest_weight if isfinite(self.largest_weight) else None

    @property
    def inside(self) -> float:
        """A weight that selects it."""
        low, high = self.least_weight, self.largest_weight
        return (low + high) / 2 if isfinite(high) else max(2 * low, 1.0)


def solve_weights(problem: SmdpProblem, power_weights: Sequence[float] | Array) -> list[SmdpSolution]:
    """The optimal table for each weight of the power, in the order given; each starts from the one before.

    Raises
    ------
    InvalidInput
        No weights; a weight that is none; arrivals with phases.
    """
    require(len(power_weights) > 0, "power_weights", 0, "at least one")
    queue = BatchQueue(problem)
    solutions: list[SmdpSolution] = []
    for weight in power_weights:
        start = solutions[-1].actions[0] if solutions else None
        solutions.append(solve_by_policy_iteration(problem.weighted(problem.latency_weight, float(weight)), start, queue))
    return solutions


def solve_frontier(problem: SmdpProblem, seconds_left: SecondsLeft = endless) -> list[Corner]:
    """Every corner of the hull, from the weight 0 up: from the least latency to the least power.

    When there are no ``seconds_left`` corners between those found are left out.

    Raises
    ------
    InvalidInput
        Arrivals with phases; an energy of 0, for which there is nothing to weigh.
    """
    require(
        bool(problem.energy.any()),
        "energy",
        problem.energy.tolist(),
        "more than 0 for some batch size: else there is nothing to weigh",
    )
    queue = BatchQueue(problem)

    def solve(weight: float, start: SmdpSolution | None = None) -> SmdpSolution:
        weighted = problem.weighted(problem.latency_weight, weight)
        return solve_by_policy_iteration(weighted, None if start is None else start.actions[0], queue, seconds_left)

    corners = [solve(0.0)]
    # So large that no latency between the least and that of full batches outweighs a difference of power that counts.
    full = queue.performance(static(problem)).mean_latency
    slower = max(full - corners[0].mean_latency, corners[0].mean_latency)
    last = solve(problem.latency_weight * slower / (_CHEAPER * corners[0].power), corners[0])
    breaks = []
    if not _same(corners[0], last):
        for corner, crossing in _corners_between(problem, corners[0], last, solve, seconds_left):
            corners.append(corner)
            breaks.append(crossing)
    edges = [0.0, *breaks, inf]
    return [Corner(solution, low, high) for solution, low, high in zip(corners, edges[:-1], edges[1:], strict=True)]


def choose_weight(
    problem: SmdpProblem,
    slos: Sequence[Slo],
    percentile: Callable[[SmdpSolution, float], float],
    corners: Sequence[Corner] | None = None,
) -> Corner:
    """The corner of largest weight, and so of least power, that keeps every SLO.

    Parameters
    ----------
    slos : sequence of Slo
    percentile : callable
        The percentile (0 to 100) of the latency under a solution's table, s: ``percentile(solution, p)``.
    corners : sequence of Corner, optional
        Those of ``solve_frontier``, if they are there already.

    Raises
    ------
    Infeasible
        When no corner keeps the SLOs; carries the best found.
    InvalidInput
        No SLO.
    """
    require(len(slos) > 0, "slos", 0, "at least one")
    corners = solve_frontier(problem) if corners is None else corners

    def excess(corner: Corner) -> float:
        return max(percentile(corner.solution, slo.percentile) / slo.latency for slo in slos)

    for corner in reversed(corners):  # a percentile mostly grows with the weight, but not always: each is asked
        if excess(corner) <= 1:
            return corner
    best = min(corners, key=excess)
    solution = best.solution
    reached = {slo.name: percentile(solution, slo.percentile) for slo in slos}
    wanted = " and ".join(f"{slo.name} within {slo.latency:g} s" for slo in slos)
    found = ", ".join(f"{name} {seconds:.6g} s" for name, seconds in reached.items())
    raise Infeasible(
        f"no weight keeps {wanted}: the best reached is {found}",
        {"latency": reached, "power": solution.power, "power_weight": best.least_weight, "policy": solution.actions[0].tolist()},
    )


def _corners_between(
    problem: SmdpProblem,
    quick: SmdpSolution,
    frugal: SmdpSolution,
    solve: Callable[[float, SmdpSolution], SmdpSolution],
    seconds_left: SecondsLeft,
) -> Iterator[tuple[SmdpSolution, float]]:
    """The corners after ``quick`` up to ``frugal``, each with the weight from which on it is the best."""
    pending = [frugal]
    while pending:
        ahead = pending[-1]
        crossing = problem.latency_weight * (ahead.mean_latency - quick.mean_latency) / (quick.power - ahead.power)
        if seconds_left() <= 0:
            yield ahead, crossing
            quick = pending.pop()
            continue
        between = solve(crossing, quick)
        cost = problem.latency_weight * quick.mean_latency + crossing * quick.power
        if between.gain < cost * (1 - _CHEAPER) and not _same(between, quick) and not _same(between, ahead):
            pending.append(between)
        else:
            yield ahead, crossing
            quick = pending.pop()


def _same(one: SmdpSolution, other: SmdpSolution) -> bool:
    """Whether two tables come to the same latency and power."""
    return isclose(one.mean_latency, other.mean_latency, rel_tol=_CHEAPER) and isclose(one.power, other.power, rel_tol=_CHEAPER)
