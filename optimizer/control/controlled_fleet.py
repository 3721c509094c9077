"""What a control loop knows of a fleet: who can serve what how fast, and by which tables (docs/model.md, section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.fleet.problem import FleetProblem
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import Batching, queue_table
from sluice.optimizer.fleet.throughput import Rule
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables


@dataclass(frozen=True, eq=False)
class ControlledFleet:
    """What the loop knows of a fleet.

    Parameters
    ----------
    problem : FleetProblem
        Its demand is what is expected before anything was seen.
    slos : array, shape (n_families,)
        s.
    services, policies : mapping (device type, variant) -> ServiceTimes, Policy or AdaptiveTables
        For every pair with a throughput: service times on one device, and the table of a queue. How many devices serve the queue
        is the loop's to say, whatever the ``servers`` of the table are.
    """

    problem: FleetProblem
    slos: Array
    services: Mapping[tuple[int, int], ServiceTimes]
    policies: Mapping[tuple[int, int], Policy | AdaptiveTables]

    def __post_init__(self) -> None:
        object.__setattr__(self, "slos", np.array(self.slos, dtype=np.float64))
        require(len(self.slos) == self.problem.n_families, "slos", len(self.slos), f"{self.problem.n_families}, one a family")
        for d, m in np.argwhere(self.problem.throughput > 0):
            for name in ("services", "policies"):
                if (d, m) not in getattr(self, name):
                    raise InvalidInput(f"{name}[{d}, {m}]", None, "one for each pair with a throughput")

    @classmethod
    def of(cls, fleet: Fleet, batching: Batching = "brief_hold", rule: Rule = "best", max_batch: float = np.inf) -> ControlledFleet:
        """A fleet as its owner describes it; its demand is what is expected before anything was seen."""
        problem = fleet.problem(rule, max_batch)
        services: dict[tuple[int, int], ServiceTimes] = {}
        policies: dict[tuple[int, int], Policy | AdaptiveTables] = {}
        for d, m in np.argwhere(problem.throughput > 0).tolist():
            capacity = fleet.capacity(d, m, rule, max_batch)
            assert capacity is not None  # it has a throughput
            profile = fleet.profiles[fleet.devices[d].name, fleet.variants[m].name]
            slo = fleet.families[int(problem.family[m])].slo
            services[d, m] = profile.service
            policies[d, m] = queue_table(batching, profile.promised(slo), slo.latency, capacity.batch_size)
        slos = np.array([family.slo.latency for family in fleet.families])
        return cls(problem, slos, services, policies)
