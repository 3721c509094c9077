"""The optimal placement of a fleet, by integer programs one after the other (docs/model.md, section 5, M6).

1. The most demand served. Where that is not all, each family is served at least a part of what all could be served alike
   (``least``), as the most in sum may leave a family of slow models nothing. Only the fastest variant of each family on each type
   matters here, so the program has one count per
   type and family.
2. The greatest accuracy at that amount. With y[m] the part of the demand of its family that variant m serves, on whatever types,

        max sum_m A_m s_m y[m]   s.t.   sum_m n[d, m] <= N_d,   y[m] <= sum_d min(1, P[d, m] / s_m) n[d, m],
                                        sum_{m of q} y[m] <= 1,   sum_m s_m y[m] >= the most

   and with equality in the third where all the demand can be served. s_m is the demand of the family of m. The minimum leaves
   out no whole number of devices, and many fractions of one.
3. With a placement that runs, r, the fewest devices that load another variant, sum_{d, m} max(0, n[d, m] - r[d, m]), no less
   accurate than the bound of 2 by more than the gap.

A demand beyond what all devices together could serve of its family is cut to that first: no optimum changes, and the tolerances
of the solver, which are parts of the whole demand, stay small. Only the counts are taken from the solver; the flows are then
worked out from them (``best_flows``), so that no rounding of the solver reaches the answer. Pairs that no optimum needs are left
out (``pareto.py``), in the third program but for those that run. Proteus (Ahmad et al., ASPLOS'24, section 4) has one boolean per
device instead, and lowers the demand step by step where it cannot be served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.fleet.pareto import worth_hosting
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, keep_running, solution_of
from sluice.optimizer.when_asked import module_when_asked

optimize, sparse = module_when_asked("scipy.optimize"), module_when_asked("scipy.sparse")

TIME_LIMIT = 10.0  # s
GAP = 0.01  # percentage points
LEAST = 0.5  # of the largest part that all families could be served alike, for each
_WHOLE = 1e-9  # what is nearer to a whole number of devices is one
_AMOUNT = 1e-7  # of the demand: by how much an amount may be missed that another stage has found
_SCALE = 1e3  # of what is maximised or kept, as the solver's own tolerances are absolute: 1e-6
_INFEASIBLE = 2  # scipy's status
_LARGE = 200  # pairs; for larger programs
_PATIENCE = 0.75  # s is what each search for fewer swaps gets
_LEAST = 0.1  # s; what a later stage gets even where the earlier ones took all


def solve_fleet(problem: FleetProblem, time_limit: float = TIME_LIMIT, gap: float = GAP, least: float = LEAST) -> FleetSolution:
    """The placement that serves the most, then most accurately, then with the fewest devices that load another variant.

    Parameters
    ----------
    time_limit : float
        Seconds for all stages together; the best placement found by then is returned, with its bound.
    gap : float
        Percentage points of mean accuracy within which placements count as equal: the accuracy that fewer swaps may cost, and how
        far a search that converged may end from the bound, are together no more than this.
    least : float
        Where not all can be served, each family that can be is served at least ``least`` times the largest part that all of them
        could be served of their demand alike. 0: what serves the most, though a family of slow models may get nothing.

    Returns
    -------
    solution : FleetSolution
        ``converged`` says whether every stage was proven.

    Raises
    ------
    InvalidInput
        A time limit or a gap that is not above 0; a ``least`` that is no share.
    """
    require(0 <= least <= 1, "least", least, "a share, 0 to 1")
    require(0 < time_limit < np.inf, "time_limit", time_limit, "a number of seconds > 0")
    require(0 < gap < 100, "gap", gap, "percentage points above 0 and below 100")
    start = time.perf_counter()

    def left() -> float:
        return max(_LEAST, start + time_limit - time.perf_counter())

    within = np.minimum(problem.demand, _most_by_family(problem))
    if not within.any():
        return solution_of(problem, keep_running(problem, np.zeros(problem.throughput.shape, dtype=np.int64)))
    asked, problem = problem, problem.with_demand(within)
    most = _serve_the_most(problem, left())
    floor = np.zeros(problem.n_families)
    if least and _misses(problem, most):
        floor = _floor(asked, problem, least, left())
        most = _serve_the_most(problem, left(), floor)
    accurate = _be_accurate(problem, most.counts, gap, left(), floor)
    counts, converged = accurate.counts, most.proven and accurate.proven
    if problem.running is not None:
        fewest = _swap_the_fewest(problem, counts, accurate.bound - gap, left, floor)
        counts, converged = fewest.counts, converged and fewest.proven
    found = solution_of(asked, keep_running(problem, counts))
    # the solver's bound is as exact as its tolerances, and may be none
    bound = max(min(accurate.bound, float(problem.accuracy.max())), found.accuracy)
    return replace(found, bound=bound, converged=converged, seconds=time.perf_counter() - start)


def largest_headroom(problem: FleetProblem, most: float, time_limit: float = TIME_LIMIT) -> float:
    """The largest factor, at most ``most``, by which all the demand could be multiplied and still be served.

    Within a thousandth, or the best that was found in the time. With h the factor, one integer program:

        max h   s.t.   sum_m n[d, m] <= N_d,   h <= sum_d min(most, P[d, m] / s_m) n[d, m]   for each family's fastest variants m
    """
    types, hosted = np.nonzero(_fastest(problem))
    asked = np.flatnonzero(problem.demand)
    n, every = len(types), np.arange(len(types))
    if set(problem.family[hosted]) != set(asked):
        return 0.0
    reach = np.minimum(most, problem.throughput[types, hosted] / problem.demand_of_variant[hosted])
    hosting = sparse.coo_array((np.ones(n), (types, every)), shape=(len(problem.devices), n + 1))
    reached = sparse.coo_array((-reach, (np.searchsorted(asked, problem.family[hosted]), every)), shape=(len(asked), n + 1))
    factor = sparse.coo_array((np.ones(len(asked)), (np.arange(len(asked)), np.full(len(asked), n))), shape=reached.shape)
    upper = np.append(problem.devices, np.zeros(len(asked)))
    found = optimize.milp(
        np.append(np.zeros(n), -1.0),
        integrality=np.append(np.ones(n), 0),
        bounds=optimize.Bounds(0, np.append(problem.devices[types], most)),
        constraints=optimize.LinearConstraint(sparse.vstack([hosting, reached + factor]).tocsc(), -np.inf, upper),
        options={"time_limit": time_limit, "mip_rel_gap": 1e-3},
    )
    if found.x is None:
        return 0.0
    sums = np.zeros(problem.n_families)
    np.add.at(sums, problem.family[hosted], reach * np.round(found.x[:n]))
    return float(sums[asked].min(initial=most) * (1 - _WHOLE))


def devices_wanted(problem: FleetProblem, time_limit: float = TIME_LIMIT) -> list[int | None]:
    """How many more devices of each type alone would serve all the demand; ``None`` where no number would, or none was found.

    The number is the least unless the time ran out, and 0 for each type where nothing is missing.
    """
    wanted: list[int | None] = []
    fastest = _fastest(problem)
    for d in range(len(problem.devices)):
        devices = problem.devices.copy()
        part = np.divide(problem.demand_of_variant, problem.throughput[d], out=np.zeros(len(problem.accuracy)), where=fastest[d])
        devices[d] += int(np.ceil(part).sum())
        program = _Program(replace(problem, devices=devices, running=None), fastest)
        program.serve(problem.demand)
        found = program.use_the_fewest(d, time_limit / len(problem.devices))
        wanted.append(max(0, int(found.counts[d].sum() - problem.devices[d])) if found.counts.any() else None)
    return wanted


class _Stage(NamedTuple):
    counts: Counts
    bound: float  # on the objective of the stage
    proven: bool


def _most_by_family(problem: FleetProblem) -> Array:
    """Requests/s that all devices together could serve of each family alone, (n_families,)."""
    fastest = np.zeros((len(problem.devices), problem.n_families))
    np.maximum.at(fastest.T, problem.family, problem.throughput.T)
    return np.asarray(problem.devices @ fastest)


def _misses(problem: FleetProblem, most: _Stage) -> bool:
    return bool(solution_of(problem, most.counts).missing.any())


def _floor(asked: FleetProblem, problem: FleetProblem, least: float, seconds: float) -> Array:
    """The part of ``problem.demand`` that each family is served at least, (n_families,)."""
    able = np.where(problem.demand > 0, asked.demand, 0.0)
    alike = largest_headroom(asked.with_demand(able), 1.0, seconds)
    part = np.divide(able, problem.demand, out=np.zeros(len(able)), where=problem.demand > 0)
    return np.asarray(np.minimum(1.0, least * alike * part * (1 - _AMOUNT)))


def _serve_the_most(problem: FleetProblem, seconds: float, floor: Array | None = None) -> _Stage:
    """Counts of the fastest variants that serve the most; the bound is on the part of the demand.

    Where only a part as small as the solver's tolerance is missing, all is tried.
    """
    fastest, value = _fastest(problem), np.ones(len(problem.accuracy))
    most = _Program(problem, fastest, floor).maximise(value, _AMOUNT, seconds)
    missing = solution_of(problem, most.counts).missing
    if not 0 < missing.sum() <= 10 * _AMOUNT * problem.demand.sum():
        return most
    program = _Program(problem, fastest)
    program.serve(problem.demand)
    return program.maximise(value, _AMOUNT, seconds, otherwise=most.counts)


def _fastest(problem: FleetProblem) -> NDArray[np.bool_]:
    """The fastest variant of each family that is asked for, on each type, (n_types, n_variants)."""
    fastest = np.zeros(problem.throughput.shape, dtype=bool)
    for q in np.flatnonzero(problem.demand):
        members = np.flatnonzero(problem.family == q)
        if len(members):
            best = members[problem.throughput[:, members].argmax(axis=1)]
            fastest[np.arange(len(best)), best] = True
    return np.asarray(fastest & (problem.throughput > 0))


def _be_accurate(problem: FleetProblem, start: Counts, gap: float, seconds: float, floor: Array) -> _Stage:
    """Counts of the greatest mean accuracy that serve as much as those given; the bound is on that mean, percent."""
    served = solution_of(problem, start).served
    program = _Program(problem, worth_hosting(problem), floor)
    program.serve(served)
    found = program.maximise(problem.accuracy / 100, gap / 100, seconds, otherwise=start)
    return found._replace(bound=float(100 * found.bound * problem.demand.sum() / served.sum()) if served.any() else np.nan)


def _swap_the_fewest(problem: FleetProblem, start: Counts, accuracy: float, left: Callable[[], float], floor: Array) -> _Stage:
    """Counts with the fewest swaps that serve as much as those given, as accurately or with a mean accuracy, percent.

    In a large program first among the pairs that are used or run, which is quick, then for fewer among all, each for a while.
    """
    assert problem.running is not None
    given = solution_of(problem, start)
    served, enough = given.served, min(accuracy, given.accuracy)
    of_use = (problem.throughput > 0) & (problem.demand_of_variant > 0)
    near = of_use & ((start > 0) | (problem.running > 0))
    every = worth_hosting(problem) | (of_use & (problem.running > 0))
    best = _Stage(start, 0.0, False)
    large = every.sum() > _LARGE
    for pairs in (near, every) if large else (every,):
        swaps = int(np.maximum(best.counts - problem.running, 0).sum())
        if swaps == 0:
            return best._replace(proven=True)
        program = _Program(problem, pairs, floor)
        program.serve(served)
        if served.any():
            program.earn(enough * float(served.sum()))
        seconds = min(left(), _PATIENCE) if large else left()
        best = program.swap_the_fewest(problem.running, swaps - 1, seconds, otherwise=best.counts)
    return best


class _Program:
    """Columns: counts n of the pairs kept, idle devices of each type, parts y of the variants. Amounts are of the whole demand.

    That idle devices are counted, and that the counts of a family cover its demand, follows from the rest; written down, the
    solver finds cuts in it.
    """

    def __init__(self, problem: FleetProblem, pairs: NDArray[np.bool_], floor: Array | None = None) -> None:
        self.problem = problem
        self.types, self.hosted = np.nonzero(pairs)
        self.variants = np.unique(self.hosted)
        asked = problem.demand_of_variant
        self.weight = asked[self.variants] / problem.demand.sum()
        n_types, n, k = len(problem.devices), len(self.types), len(self.variants)
        part = problem.throughput[pairs] / asked[self.hosted]
        self.reach = np.minimum(part, 1.0)
        every = np.arange(n)
        hosting = sparse.coo_array((np.ones(n), (self.types, every)), shape=(n_types, n))
        reached = sparse.coo_array((-self.reach, (np.searchsorted(self.variants, self.hosted), every)), shape=(k, n))
        of_family = (problem.family[self.variants], np.arange(k))
        families = sparse.coo_array((np.ones(k), of_family), shape=(problem.n_families, k))
        self.rows = sparse.block_array(
            [[hosting, sparse.eye_array(n_types), None], [reached, None, sparse.eye_array(k)], [None, None, families]]
        )
        devices = problem.devices.astype(np.float64)
        self.lower = np.concatenate([devices, np.full(k, -np.inf), np.zeros(problem.n_families) if floor is None else floor])
        self.upper = np.concatenate([devices, np.zeros(k), np.ones(problem.n_families)])
        # a demand that is a whole number of devices needs no device more
        needed = np.minimum(devices[self.types], np.ceil(np.maximum(1 / part, 1) - _WHOLE)) if n else np.zeros(0)
        self.most = np.concatenate([needed, devices, np.ones(k)])

    def serve(self, served: Array) -> None:
        """Serve at least as much as those requests/s by family in sum, (n_families,); all where they are the demand."""
        problem, n = self.problem, len(self.types)
        if (served < problem.demand * (1 - 1e-12)).any():
            self._at_least(self.weight, float(served.sum() / problem.demand.sum()) - _AMOUNT)
            return
        all_of_it = (problem.demand > 0).astype(np.float64)
        self.lower[-problem.n_families :] = all_of_it
        cover = sparse.coo_array(
            (self.reach, (problem.family[self.hosted], np.arange(n))), shape=(problem.n_families, len(self.most))
        )
        self._add(cover, all_of_it, np.full(problem.n_families, np.inf))

    def earn(self, amount: float) -> None:
        """Serve with an accuracy that sums to at least this, percent times requests/s."""
        self._at_least(self.weight * self.problem.accuracy[self.variants] / 100, amount / 100 / self.problem.demand.sum())

    def _at_least(self, weights: Array, amount: float) -> None:
        k = len(self.variants)
        parts = len(self.most) - k + np.arange(k)
        row = sparse.coo_array((weights, (np.zeros(k, dtype=np.int64), parts)), shape=(1, len(self.most)))
        self._add(_SCALE * row, np.array([_SCALE * amount]), np.array([np.inf]))

    def _add(self, rows: Any, lower: Array, upper: Array) -> None:
        self.rows = sparse.vstack([self.rows, rows])
        self.lower, self.upper = np.concatenate([self.lower, lower]), np.concatenate([self.upper, upper])

    def maximise(self, value: Array, gap: float, seconds: float, otherwise: Counts | None = None) -> _Stage:
        """Counts of the greatest sum of ``value``, (n_variants,), over what is served."""
        cost = np.zeros(len(self.most))
        cost[len(cost) - len(self.variants) :] = -_SCALE * self.weight * value[self.variants]
        found = self._solve(cost, gap, seconds, otherwise)
        return found._replace(bound=found.bound / _SCALE)

    def use_the_fewest(self, device: int, seconds: float) -> _Stage:
        """Counts with the fewest devices of one type."""
        cost = np.zeros(len(self.most))
        cost[: len(self.types)] = self.types == device
        return self._solve(cost, 0.5 / max(1, self.problem.devices[device]), seconds, None)  # less than one device is none

    def swap_the_fewest(self, running: Counts, most: int, seconds: float, otherwise: Counts) -> _Stage:
        """Counts with the fewest devices beyond those that run, and at most some; those otherwise where there are none."""
        n, width = len(self.types), len(self.most)
        runs = running[self.types, self.hosted].astype(np.float64)
        some = np.flatnonzero(runs)
        # as many more columns as pairs run: by how much their counts are beyond
        beyond = sparse.coo_array((np.ones(len(some)), (np.arange(len(some)), some)), shape=(len(some), width))
        self.rows = sparse.block_array([[self.rows, None], [beyond, -sparse.eye_array(len(some))]])
        self.lower = np.concatenate([self.lower, np.full(len(some), -np.inf)])
        self.upper = np.concatenate([self.upper, runs[some]])
        self.most = np.concatenate([self.most, np.full(len(some), np.inf)])
        cost = np.zeros(width + len(some))
        cost[:n], cost[width:] = runs == 0, 1.0
        self._add(sparse.coo_array(cost[None, :]), np.array([-np.inf]), np.array([float(most)]))
        return self._solve(cost, 0.5 / max(1, self.problem.devices.sum()), seconds, otherwise)  # less than one swap is none

    def _solve(self, cost: Array, gap: float, seconds: float, otherwise: Counts | None) -> _Stage:
        counts = np.zeros(self.problem.throughput.shape, dtype=np.int64)
        n = len(self.types)
        if n == 0:
            return _Stage(counts, 0.0, True)
        whole = np.zeros(len(cost))
        whole[: n + len(self.problem.devices)] = 1
        found = optimize.milp(
            cost,
            integrality=whole,
            bounds=optimize.Bounds(0, self.most),
            constraints=optimize.LinearConstraint(self.rows.tocsc(), self.lower, self.upper),
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )
        bound = -found.mip_dual_bound if found.mip_dual_bound is not None else np.inf
        if found.x is None:
            return _Stage(counts if otherwise is None else otherwise, bound, found.status == _INFEASIBLE)
        counts[self.types, self.hosted] = np.round(found.x[:n])
        return _Stage(counts, bound, found.status == 0)
