"""Planners other than the optimum: the systems that Proteus was compared with, and Proteus without one of its parts.

A planner answers a ``FleetProblem`` (the demand that is forecast, the placement that runs) with a ``FleetSolution``: counts and
flows, whose shares route the requests. It keeps nothing between calls but what it was made with. Proteus itself is ``solve_fleet``.

What static planners are made with is a *design*: a problem whose demand is what an operator expects. None of the originals is
given here in full; each docstring says what is kept. That Clipper limits batches by AIMD, and Proteus without batching none at all,
is a matter of the tables and of the capacities (``control``), not of the plan.

References
----------
Ahmad et al., Proteus, ASPLOS'24, section 6; Crankshaw et al., Clipper, NSDI'17; Guo et al., Sommelier, SIGMOD'22. INFaaS is in
``infaas``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.headroom import Planner
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, filled, solution_of

DOUBLINGS, HALVINGS = 20, 8  # of the search for the largest multiple of a demand


@dataclass(frozen=True, eq=False)
class Static:
    """The same placement whatever is asked of it; only the shares follow the demand.

    Parameters
    ----------
    counts : array of int, shape (n_types, n_variants)
    """

    counts: Counts

    def __call__(self, problem: FleetProblem) -> FleetSolution:
        """The placement with its best flows under the demand of now."""
        return solution_of(problem, self.counts)


def clipper_high_throughput(design: FleetProblem) -> Static:
    """Clipper-HT: each family's quickest variant, placed once.

    Clipper serves the models that it is given: it selects none and moves none. Kept: that the placement is static, and the choice
    of the least accurate variant that Proteus's authors made for it. Left out: its ensembles and its cache. Clipper leaves open
    which devices a model gets; here the devices are divided so that the largest multiple of the design's demand is served, which
    is more than an operator could know who has not this solver.
    """
    return Static(divide(extreme(design, -1)).counts)


def clipper_high_accuracy(design: FleetProblem) -> Static:
    """Clipper-HA: as Clipper-HT, with each family's most accurate variant that any device can serve within the SLO."""
    return Static(divide(extreme(design, 1)).counts)


@dataclass(frozen=True, eq=False)
class Sommelier:
    """Each device keeps its family and its part of the family's requests, and takes the variant of the family that bears them.

    Sommelier finds for one server an equivalent model that meets its throughput; it knows no cluster. Kept: the decision of each
    device by itself: the most accurate variant of its family that sustains its part of the demand, else the quickest. Left out:
    how Sommelier finds which models are equivalent; here the variants of a family are. As in Proteus's comparison the first
    placement is the optimum, for the demand of the design, and batches form as Proteus's do.

    Parameters
    ----------
    design : FleetSolution
    """

    design: FleetSolution

    def __call__(self, problem: FleetProblem) -> FleetSolution:
        """The variants that the devices take under the demand of now, each with its part as ever."""
        counts, flows = np.zeros_like(self.design.counts), np.zeros_like(self.design.flows)
        shares = whole_shares(self.design)
        for d, m in np.argwhere(self.design.counts):
            load = shares[d, m] * problem.demand[problem.family[m]]
            n = self.design.counts[d, m]
            variant = sustaining(problem, int(d), int(problem.family[m]), load / n)
            counts[d, variant] += n
            flows[d, variant] += load
        return FleetSolution(problem, counts, flows, np.nan, True, 0.0)


def sommelier(design: FleetProblem) -> Sommelier:
    """Sommelier on the best placement for the design; see ``Sommelier``."""
    return Sommelier(filled(solve_fleet(design)))


@dataclass(frozen=True, eq=False)
class WithinFamilies:
    """Proteus without model placement: each device keeps its family, and the optimum is found within that.

    Parameters
    ----------
    hosted : array of int, shape (n_types, n_families)
        Devices of each type that host some variant of the family.
    """

    hosted: Counts

    def __call__(self, problem: FleetProblem) -> FleetSolution:
        """The optimum of the fleet whose devices of one type and one family are a type of their own."""
        types, families = np.nonzero(self.hosted)
        its_own = problem.family == families[:, None]
        running = None if problem.running is None else problem.running[types] * its_own
        if running is not None and (running.sum(axis=1) > self.hosted[types, families]).any():  # what runs is of another placement
            running = None
        parts = replace(
            problem, devices=self.hosted[types, families], throughput=problem.throughput[types] * its_own, running=running
        )
        found = filled(solve_fleet(parts))  # a device without a variant would be free for any family
        counts, flows = np.zeros_like(self.hosted, shape=problem.throughput.shape), np.zeros_like(problem.throughput)
        np.add.at(counts, types, found.counts)
        np.add.at(flows, types, found.flows)
        return replace(found, problem=problem, counts=counts, flows=flows)


def without_placement(design: FleetProblem) -> WithinFamilies:
    """Proteus without model placement (w/o MP): the families' devices are those of the optimum for the design."""
    return WithinFamilies(by_family(filled(solve_fleet(design))))


def without_model_selection(problem: FleetProblem) -> FleetSolution:
    """Proteus without model selection (w/o MS): the optimum with each family's most accurate variant that can be served alone."""
    found = solve_fleet(extreme(problem, 1))
    return replace(found, problem=problem)


@dataclass(frozen=True, eq=False)
class EqualShares:
    """Proteus without query assignment (w/o QA): the devices of a family get equal parts of its requests, whatever they bear.

    Parameters
    ----------
    planner : Planner
        Who places the variants.
    """

    planner: Planner

    def __call__(self, problem: FleetProblem) -> FleetSolution:
        """The planner's placement; the flows may be more than a device can serve."""
        found = self.planner(problem)
        hosts = np.where(problem.throughput > 0, found.counts, 0)
        by_variant = np.bincount(problem.family, hosts.sum(axis=0), problem.n_families)[problem.family]
        part = np.divide(hosts, by_variant, out=np.zeros_like(problem.throughput), where=by_variant > 0)
        return replace(found, flows=part * problem.demand_of_variant)


def without_query_assignment(problem: FleetProblem) -> FleetSolution:
    """The optimum's placement with equal shares; see ``EqualShares``."""
    return EqualShares(solve_fleet)(problem)


# --- what they are made of


def extreme(problem: FleetProblem, sign: int) -> FleetProblem:
    """The same problem with one variant a family: the most (``sign`` 1) or least (-1) accurate that some device can serve.

    Of equally accurate ones the quicker; a variant that is left out keeps its column, with throughput 0. A family that no device
    can serve has none.
    """
    best = problem.throughput.max(axis=0)
    chosen = np.zeros(len(best), dtype=bool)
    for q in range(problem.n_families):
        members = np.flatnonzero((problem.family == q) & (best > 0))
        if len(members):
            chosen[max(members, key=lambda m: (sign * problem.accuracy[m], best[m]))] = True
    return replace(problem, throughput=np.where(chosen, problem.throughput, 0.0), running=None)


def divide(problem: FleetProblem) -> FleetSolution:
    """The placement that serves the largest multiple of the demand, and so keeps the families' proportions.

    The demand of a family that no device can serve is left out.
    """
    able = np.isin(np.arange(problem.n_families), problem.family[problem.throughput.any(axis=0)])
    low, high, best = 0.0, 1.0, solution_of(problem, np.zeros_like(problem.throughput, dtype=np.int64))
    if not (problem.demand * able).any():
        return best
    problem = problem.with_demand(problem.demand * able)
    for _ in range(DOUBLINGS):
        found = solve_fleet(problem.with_demand(problem.demand * high))
        if not serves_all(found):
            break
        low, high, best = high, 2 * high, found
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = solve_fleet(problem.with_demand(problem.demand * middle))
        if serves_all(found):
            low, best = middle, found
        else:
            high = middle
    return filled(best)


def serves_all(solution: FleetSolution) -> bool:
    """Whether nothing is missing, but for what a solver's tolerance leaves."""
    return bool((solution.missing <= 1e-6 * solution.problem.demand).all())


def by_family(solution: FleetSolution) -> Counts:
    """Devices of each type that host some variant of each family, (n_types, n_families)."""
    member: NDArray[np.int64] = (solution.problem.family[:, None] == np.arange(solution.problem.n_families)).astype(np.int64)
    return solution.counts @ member


def whole_shares(solution: FleetSolution) -> Array:
    """The shares, made to sum to one in each family that is hosted; by capacity where nothing flows."""
    problem = solution.problem
    reach = problem.throughput * solution.counts

    def total(flows: Array) -> Array:
        return np.asarray(np.bincount(problem.family, flows.sum(axis=0), problem.n_families), dtype=np.float64)[problem.family]

    weights = np.where(total(solution.flows) > 0, solution.flows, reach)
    sums = total(weights)
    return np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)


def sustaining(problem: FleetProblem, device_type: int, family: int, load: float) -> int:
    """The most accurate variant of the family that a device of this type serves at ``load`` requests/s; else the quickest."""
    members = np.flatnonzero((problem.family == family) & (problem.throughput[device_type] > 0))
    able = members[problem.throughput[device_type, members] >= load]
    if len(able):
        return int(max(able, key=lambda m: (problem.accuracy[m], problem.throughput[device_type, m])))
    return int(max(members, key=lambda m: problem.throughput[device_type, m]))
