"""A fleet's plan: what each device hosts, who serves which part of the demand by which table, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from sluice.batching.documents import Plan, PolicyDocument, Route
from sluice.batching.errors import require
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.milp import GAP, TIME_LIMIT, devices_wanted, largest_headroom, solve_fleet
from sluice.optimizer.fleet.placement import place
from sluice.optimizer.fleet.problem import NEGLIGIBLE, FleetProblem, FleetSolution
from sluice.optimizer.fleet.specification import MOST_REQUESTS, Fleet
from sluice.optimizer.fleet.tables import DEPLOYABLE, Deployable, queue_table
from sluice.optimizer.fleet.throughput import Rule

BUSY = 0.95


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
    headroom_asked : float
        The headroom is less where the devices do not allow as much: the largest that all families can have, 1 at least.
    """

    fleet: Fleet
    solution: FleetSolution
    placement: Mapping[str, str | None]
    groups: tuple[Group, ...]
    families: Mapping[str, FamilyService]
    devices_wanted: Mapping[str, int | None]
    headroom: float
    headroom_asked: float

    @property
    def full(self) -> tuple[Group, ...]:
        """The groups whose devices are to be busy nearly all the time (``BUSY``): their queues grow without bound, or nearly."""
        return tuple(group for group in self.groups if group.rate > BUSY * group.throughput)

    @property
    def feasible(self) -> bool:
        """Whether all the demand is served, if perhaps without its headroom."""
        return not any(service.missing for service in self.families.values())

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
                plans.append(Plan(model=name, routes=routes, slo=slos[name], made_at=stamp))
        return plans

    def document(self) -> dict[str, Any]:
        """All of it, ready for JSON; `sluice fleet --running` reads its ``placement``."""
        solution = self.solution
        return {
            "version": 1,
            "feasible": self.feasible,
            "accuracy": _finite(self.accuracy),
            "bound": _finite(solution.bound),
            "gap": _finite(solution.gap),
            "converged": solution.converged,
            "seconds": solution.seconds,
            "headroom": self.headroom,
            "headroom_asked": self.headroom_asked,
            "placement": dict(self.placement),
            "changes": {device: list(pair) for device, pair in self.changes.items()},
            "families": {
                name: {"asked": of.asked, "served": of.served, "missing": of.missing, "accuracy": _finite(of.accuracy)}
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
    headroom: float = 1.0,
    rule: Rule = "best",
    batching: Deployable = "brief_hold",
    time_limit: float = TIME_LIMIT,
    gap: float = GAP,
) -> FleetPlan:
    """The plan of a fleet under its demand.

    Parameters
    ----------
    headroom : float
        The demand times this is planned for, so that no queue is full all the time; less of it where the devices do not allow
        as much, as the demand itself comes first.
    rule : {"best", "largest"}
        How the batch size of a pair is chosen (``throughput.py``).
    batching : str
        The table of each queue, one of ``tables.DEPLOYABLE``.
    time_limit, gap : float
        Of ``solve_fleet``, which is asked again where the headroom is less.

    Raises
    ------
    InvalidInput
        No demand; a headroom that is not above 0, or makes the demand too large; a batching that no plan can carry out.
    """
    require(0 < headroom < math.inf, "headroom", headroom, "a factor > 0")
    require(batching in DEPLOYABLE, "batching", batching, ", ".join(DEPLOYABLE))
    asked = fleet.problem(rule)
    most = MOST_REQUESTS / float(asked.demand.max())
    require(headroom <= most, "headroom", headroom, f"at most {most:.4g}, which makes a demand of {MOST_REQUESTS:g} requests/s")
    solution, room = _with_headroom(asked, headroom, time_limit, gap)
    placement: dict[str, str | None] = {}
    groups: list[Group] = []
    served = solution.served
    families_served = np.minimum(served, asked.demand)
    for d, device in enumerate(fleet.devices):
        counts = {variant.name: int(n) for variant, n in zip(fleet.variants, solution.counts[d], strict=True) if n}
        placed = place(device.device_names, counts, fleet.running)
        placement |= placed
        for m, variant in enumerate(fleet.variants):
            if variant.name not in counts:
                continue
            q = fleet.family_of_variant[m]
            family = fleet.families[q]
            found = fleet.capacity(d, m, rule)
            if found is None:  # it keeps a variant that is of no use here
                continue
            share = float(solution.flows[d, m] / served[q]) if served[q] else 0.0
            seconds = fleet.profiles[device.name, variant.name].promised(family.slo)
            groups.append(
                Group(
                    device.name,
                    variant.name,
                    family.name,
                    variant.accuracy,
                    tuple(name for name, hosted in placed.items() if hosted == variant.name),
                    share,
                    share * float(families_served[q]),
                    found.throughput * counts[variant.name],
                    queue_table(batching, seconds, family.slo.latency, found.batch_size, counts[variant.name]),
                )
            )
    accuracies = solution.accuracy_by_family
    families = {
        family.name: FamilyService(float(asked.demand[q]), float(families_served[q]), float(accuracies[q]))
        for q, family in enumerate(fleet.families)
    }
    wanted: dict[str, int | None] = {}
    if room < headroom or solution.missing.any():
        more = devices_wanted(asked.with_demand(asked.demand * headroom), time_limit)
        wanted = dict(zip((device.name for device in fleet.devices), more, strict=True))
    return FleetPlan(fleet, solution, placement, tuple(groups), families, wanted, room, headroom)


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
