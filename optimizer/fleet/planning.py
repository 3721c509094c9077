"""Planning a fleet: the placement for its demand and some headroom, and the headroom by what the plan is predicted to do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT, devices_wanted, largest_headroom, solve_fleet
from sluice.optimizer.fleet.placement import place
from sluice.optimizer.fleet.plan import FamilyService, FleetPlan
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, filled
from sluice.optimizer.fleet.specification import MOST_REQUESTS, Fleet
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable, queue_table
from sluice.optimizer.fleet.throughput import Rule

HEADROOMS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0, 2.5, 3.0)  # of which one is chosen where none is given


def plan_fleet(
    fleet: Fleet,
    *,
    headroom: float | None = None,
    violations: float | None = None,
    rule: Rule = "best",
    batching: Deployable = "brief_hold",
    arrivals: Mapping[str, ArrivalProcess] | None = None,
    time_limit: float = TIME_LIMIT,
    gap: float = GAP,
    tell: Callable[[str], None] | None = None,
) -> FleetPlan:
    """The plan of a fleet under its demand; devices that would be idle are given to the families with the least to spare.

    Parameters
    ----------
    headroom : float, optional
        The demand times this is planned for, so that no queue is full all the time; less of it where the devices do not allow
        as much, as the demand itself comes first. By default the least of ``HEADROOMS`` with which no family is predicted more
        violations than may be: more of it costs accuracy. Where none does, the one that comes nearest.
    violations : float, optional
        The share of each family's requests that may be late or given up, instead of what the percentile of its SLO leaves.
    rule : {"best", "largest"}
        How the batch size of a pair is chosen (``throughput.py``).
    batching : str
        The table of each queue, one of ``tables.DEPLOYABLE``.
    arrivals : mapping, optional
        How the requests of a family come, by name, for what is predicted; sped up or slowed down to its demand. Poisson where
        nothing is said.
    time_limit, gap : float
        Of ``solve_fleet``, which is asked again for other headrooms; no other is begun after ``time_limit`` seconds.
    tell : callable, optional
        Told what is being done.

    Raises
    ------
    InvalidInput
        No demand; a headroom below 1, or that makes the demand too large; a batching that no plan can carry out; violations
        that are no share; arrivals of an unknown family.
    """
    enough = "a factor of the demand, at least 1, as the demand comes first"
    meant = "" if headroom is None or not 0 < headroom < 0.5 else f"; did you mean {1 + headroom:g}?"
    require(headroom is None or 1 <= headroom < math.inf, "headroom", headroom, enough + meant)
    require(violations is None or 0 < violations < 1, "violations", violations, "a share strictly between 0 and 1")
    require(batching in DEPLOYABLE, "batching", batching, ", ".join(DEPLOYABLE))
    for name in arrivals or {}:
        require(name in fleet.family_names, "arrivals", name, "one of the families: " + ", ".join(fleet.family_names))
    asked = fleet.problem(rule)
    most = MOST_REQUESTS / float(asked.demand.max())
    allowed = f"at most {most:.4g}, which makes a demand of {MOST_REQUESTS:g} requests/s"
    require(headroom is None or headroom <= most, "headroom", headroom, allowed)

    def planned(factor: float, seconds: float) -> FleetPlan:
        if tell:
            tell(f"searching, for {factor:g} times the demand ...")
        solution, room = _with_headroom(asked, factor, seconds, gap)
        solution = _with_slack(solution)
        placement = _placement(fleet, solution)
        groups = _groups(fleet, asked, solution, placement, rule, batching)
        families = _families(fleet, asked, solution)
        wanted: dict[str, int | None] = {}
        if solution.missing.any() or (headroom is not None and room < headroom):
            more = devices_wanted(asked.with_demand(asked.demand * factor), seconds)
            wanted = dict(zip((device.name for device in fleet.devices), more, strict=True))
        return FleetPlan(
            fleet, solution, placement, groups, families, wanted, room, headroom, batching, dict(arrivals or {}), violations
        )

    if headroom is not None:
        return planned(headroom, time_limit)
    return _with_the_least_headroom(planned, [factor for factor in HEADROOMS if factor <= most], time_limit, tell)


def _with_the_least_headroom(
    planned: Callable[[float, float], FleetPlan], factors: Sequence[float], time_limit: float, tell: Callable[[str], None] | None
) -> FleetPlan:
    """The plan for the least factor that is predicted to keep the SLOs; of none does, the plan that comes nearest.

    A plan for more of the demand is no more accurate: sent the demand itself, it is among those for less of it.
    """
    start = time.perf_counter()
    nearest: FleetPlan | None = None
    for factor in factors:
        left = time_limit if nearest is None else start + time_limit - time.perf_counter()
        if nearest is not None and left <= 0:
            break
        plan = planned(factor, left)
        if tell:
            tell(f"simulating what {factor:g} times the demand was planned for ...")
        if nearest is None or _excess(plan) < _excess(nearest):
            nearest = plan
        if not plan.feasible or plan.headroom < factor or _excess(plan) <= 0:
            break
    assert nearest is not None  # 1 is among the factors
    return nearest


def _excess(plan: FleetPlan) -> float:
    """Of a demand too large to simulate nothing is known, and the demand itself is planned for."""
    return plan.predicted.excess if plan.predicted else 0.0


def _with_headroom(asked: FleetProblem, headroom: float, time_limit: float, gap: float) -> tuple[FleetSolution, float]:
    """The solution with as much of the headroom as can be had without missing what is asked, and how much that is."""

    def with_(room: float) -> FleetSolution:
        return solve_fleet(asked.with_demand(asked.demand * room), time_limit, gap)

    solution = with_(headroom)
    if headroom <= 1 or not solution.missing.any():
        return solution, headroom
    room = largest_headroom(asked, headroom, time_limit)
    if room > 1:
        solution = with_(room)
        if not solution.missing.any():
            return solution, room
    return with_(1.0), 1.0


def _with_slack(solution: FleetSolution) -> FleetSolution:
    """The same with the idle devices used, and nothing loaded that would get no requests."""
    return _without_unused(filled(_without_unused(solution)))


def _without_unused(solution: FleetSolution) -> FleetSolution:
    """Devices whose variant gets no requests keep it where it runs, and load nothing."""
    running = np.zeros_like(solution.counts) if solution.problem.running is None else solution.problem.running
    return replace(solution, counts=np.where(solution.flows > 0, solution.counts, np.minimum(solution.counts, running)))


def _placement(fleet: Fleet, solution: FleetSolution) -> dict[str, str | None]:
    """What each device is to host."""
    placement: dict[str, str | None] = {}
    for device, row in zip(fleet.devices, solution.counts, strict=True):
        counts = {variant.name: int(n) for variant, n in zip(fleet.variants, row, strict=True) if n}
        placement |= place(device.device_names, counts, fleet.running)
    return placement


def _groups(
    fleet: Fleet,
    asked: FleetProblem,
    solution: FleetSolution,
    placement: Mapping[str, str | None],
    rule: Rule,
    batching: Deployable,
) -> tuple[Group, ...]:
    """The devices of each type by the variant that they host, with the tables of their queues."""
    served = solution.served
    of_the_demand = np.minimum(served, asked.demand)
    groups = []
    for d, m in np.argwhere(solution.counts).tolist():
        device, variant, q = fleet.devices[d], fleet.variants[m], fleet.family_of_variant[m]
        found = fleet.capacity(d, m, rule)
        if found is None:  # it keeps a variant that is of no use here
            continue
        slo = fleet.families[q].slo
        devices = tuple(name for name in device.device_names if placement[name] == variant.name)
        seconds = fleet.profiles[device.name, variant.name].promised(slo)
        share = float(solution.flows[d, m] / served[q]) if served[q] else 0.0
        groups.append(
            Group(
                device.name,
                variant.name,
                fleet.families[q].name,
                variant.accuracy,
                devices,
                share,
                share * float(of_the_demand[q]),
                found.throughput * len(devices),
                queue_table(batching, seconds, slo.latency, found.batch_size, len(devices)),
            )
        )
    return tuple(groups)


def _families(fleet: Fleet, asked: FleetProblem, solution: FleetSolution) -> dict[str, FamilyService]:
    """What each family gets of its demand itself."""
    served, accuracies = np.minimum(solution.served, asked.demand), solution.accuracy_by_family
    return {
        name: FamilyService(float(asked.demand[q]), float(served[q]), float(accuracies[q]))
        for q, name in enumerate(fleet.family_names)
    }
