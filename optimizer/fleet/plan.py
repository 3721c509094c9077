"""A fleet's plan: what each device hosts, who serves which part of the demand by which table, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sluice.batching.documents import Plan, PolicyDocument, Prediction, Route
from sluice.batching.errors import NOT_GIVEN, InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.prediction import FleetPrediction, finite, simulate_plan
from sluice.optimizer.fleet.problem import NEGLIGIBLE, FleetSolution
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import Deployable

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
                if not workers[group.device_type]:
                    needed = (
                        f"the addresses of its devices, to which a plan routes: add workers: to {group.device_type}, or no --plans"
                    )
                    raise InvalidInput(f"devices.{group.device_type}.workers", NOT_GIVEN, needed)
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
            "unservable": [
                {
                    "variant": of.variant,
                    "family": of.family,
                    "seconds": of.seconds,
                    "promised": of.promised,
                    "memory_mb": of.memory_mb,
                    "largest_mb": finite(of.largest_mb),
                }
                for of in self.fleet.unservable
            ],
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
