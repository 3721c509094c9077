"""A fleet's plan: what each device hosts, who serves which part of the demand by which table, and what is missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from sluice.batching.documents import Plan, PolicyDocument, Prediction, Route
from sluice.batching.errors import require
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT, devices_wanted, largest_headroom, solve_fleet
from sluice.optimizer.fleet.placement import place
from sluice.optimizer.fleet.prediction import FleetPrediction, finite, simulate_plan
from sluice.optimizer.fleet.problem import NEGLIGIBLE, FleetProblem, FleetSolution
from sluice.optimizer.fleet.specification import MOST_REQUESTS, Fleet
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable, queue_table
from sluice.optimizer.fleet.throughput import Rule

BUSY = 0.95
HEADROOMS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0, 2.5, 3.0)  # of which one is chosen where none is given


@dataclass(frozen=True, eq=False)
class FamilyService:
    """What a family is asked and gets: requests/s, and the mean accuracy (percent) of what is served; nan where nothing is."""

    asked: float
    served: float
    accuracy: float

    @property
    def missing(self) -> float:
        """Requests/s that are not served; less than a millionth of what is asked is none."""
        return self.asked - self.served if self.asked - self.served > NEGLIGIBLE * self.asked else 0.0


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """What a fleet is to do.

    Parameters
    ----------
    fleet : Fleet
    solution : FleetSolution
        Of the demand times the headroom.
    placement : mapping
        The variant of each device; ``None``: idle.
    groups : tuple of Group
    families : mapping
        By name, under the demand itself.
    devices_wanted : mapping
        Of each type alone, how many more devices would serve all with the headroom asked for, ``None`` where no number would;
        empty where nothing is missing of it.
    headroom : float
        What is planned for is the demand times this.
    headroom_asked : float or None
        The headroom is less where the devices do not allow as much: the largest that all families can have, 1 at least. ``None``
        where it was chosen.
    batching : str
        Whose tables the groups have.
    arrivals : mapping
        How the requests of a family are taken to come, by name; Poisson where nothing is said.
    violations : float or None
        The share that may be late or given up in each family; ``None``: what the percentile of its SLO leaves.
    """

    fleet: Fleet
    solution: FleetSolution
    placement: Mapping[str, str | None]
    groups: tuple[Group, ...]
    families: Mapping[str, FamilyService]
    devices_wanted: Mapping[str, int | None]
    headroom: float
    headroom_asked: float | None
    batching: Deployable = "brief_hold"
    arrivals: Mapping[str, ArrivalProcess] = field(default_factory=dict)
    violations: float | None = None

    @cached_property
    def predicted(self) -> FleetPrediction | None:
        """What becomes of the requests, simulated; ``None`` where the demand is too large for it."""
        return simulate_plan(self.fleet, self.groups, self.arrivals, self.violations)

    @property
    def full(self) -> tuple[Group, ...]:
        """The groups whose devices are to be busy nearly all the time (``BUSY``): their queues grow without bound, or nearly."""
        return tuple(group for group in self.groups if group.rate > BUSY * group.throughput)

    @property
    def feasible(self) -> bool:
        """Whether all the demand is served, if perhaps without its headroom."""
        return not any(service.missing for service in self.families.values())

    @property
    def kept(self) -> bool:
        """Whether it is served within the SLOs, as far as that could be predicted."""
        return self.feasible and (self.predicted is None or self.predicted.kept)

    @cached_property
    def accuracy(self) -> float:
        """Mean accuracy of what is served, percent."""
        served = sum(group.rate for group in self.groups)
        return sum(group.rate * group.accuracy for group in self.groups) / served if served else math.nan

    @cached_property
    def changes(self) -> dict[str, tuple[str | None, str | None]]:
        """The devices that host another variant than they run: what they run, and what they are to host."""
        running = self.fleet.running or {}
        pairs = {device: (running.get(device), hosted) for device, hosted in self.placement.items()}
        return {device: pair for device, pair in pairs.items() if pair[0] != pair[1]}

    def plans(self, made_at: datetime | None = None) -> list[Plan]:
        """What the buffer is to do, a document for each family that is served: a route for each of its groups.

        What cannot be served of a family is routed by the same shares, and is late or dropped there.

        Raises
        ------
        InvalidInput
            A type without the addresses of its workers; a name that the buffer does not take.
        """
        workers = {device.name: device.workers for device in self.fleet.devices}
        slos = {family.name: family.slo for family in self.fleet.families}
        plans = []
        for name in self.families:
            routes = []
            for group in self.groups:
                if group.family != name or not group.share:
                    continue
                where = f"devices.{group.device_type}.workers"
                require(bool(workers[group.device_type]), where, None, "the addresses of its devices, to which a plan routes")
                route = f"{group.variant}.{group.device_type}"
                function = ",".join(group.devices)
                routes.append(Route(route, function, PolicyDocument.of(group.policy), group.share, group.variant, group.accuracy))
            if routes:
                stamp = (made_at or datetime.now(UTC)).isoformat(timespec="seconds")
                predicted = self._prediction(name)
                plans.append(Plan(model=name, routes=routes, slo=slos[name], predicted=predicted, made_at=stamp))
        return plans

    def _prediction(self, family: str) -> Prediction | None:
        """What the plan of a family carries; it says no cost, as the devices are there anyway."""
        of = self.predicted.families.get(family) if self.predicted else None
        return Prediction(dict(of.latency), None, of.mean_batch_size, of.violations.value) if of else None

    def document(self) -> dict[str, Any]:
        """All of it, ready for JSON; `sluice fleet --running` reads its ``placement``."""
        solution, predicted = self.solution, self.predicted
        by_family = predicted.families if predicted else {}
        return {
            "version": 1,
            "feasible": self.feasible,
            "predicted": predicted.document() if predicted else None,
            "batching": self.batching,
            "accuracy": finite(self.accuracy),
            "bound": finite(solution.bound),
            "gap": finite(solution.gap),
            "converged": solution.converged,
            "seconds": solution.seconds,
            "headroom": self.headroom,
            "headroom_asked": self.headroom_asked,
            "placement": dict(self.placement),
            "changes": {device: list(pair) for device, pair in self.changes.items()},
            "families": {
                name: {
                    "asked": of.asked,
                    "served": of.served,
                    "missing": of.missing,
                    "accuracy": finite(of.accuracy),
                    "predicted": by_family[name].document() if name in by_family else None,
                }
                for name, of in self.families.items()
            },
            "devices_wanted": dict(self.devices_wanted),
            "groups": [
                {
                    "device_type": group.device_type,
                    "variant": group.variant,
                    "family": group.family,
                    "accuracy": group.accuracy,
                    "devices": list(group.devices),
                    "share": group.share,
                    "rate": group.rate,
                    "throughput": group.throughput,
                    "policy": PolicyDocument.of(group.policy),
                }
                for group in self.groups
            ],
        }


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
    """The plan of a fleet under its demand.

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
        No demand; a headroom that is not above 0, or makes the demand too large; a batching that no plan can carry out; violations
        that are no share; arrivals of an unknown family.
    """
    require(headroom is None or 0 < headroom < math.inf, "headroom", headroom, "a factor > 0")
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
