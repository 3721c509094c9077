"""One device and one variant: how batching policies compare by load and by how arrivals come, over all published profiles.

The rate is a part of the capacity that Proteus gives the device, the largest profiled batch within half the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sluice.batching.policy import Policy
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import queue_table
from sluice.optimizer.fleet.throughput import Profile
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables
from sluice.optimizer.simulation.fleet_run import ROUNDING
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.simulation.streaming import simulate_deployments

from .results import Cell
from .systems import SEED, additive_increase, additive_increase_within_half

LOADS = (0.1, 0.3, 0.5, 0.8, 0.95)
SCVS = {"uniform": 0.0, "Poisson": 1.0, "gamma, SCV 4": 4.0, "gamma, SCV 10": 10.0}
REQUESTS = 4000


def compare_tables(fleet: Fleet, loads: Sequence[float] = LOADS, requests: int = REQUESTS) -> Iterator[Cell]:
    """Violations of each policy, the mean over every device type and variant that can serve at all."""
    rng = np.random.default_rng(SEED)
    gaps = {name: rng.gamma(1 / scv, scv, requests) if scv else np.ones(requests) for name, scv in SCVS.items()}
    pairs = [(d, m) for d, m in np.ndindex(len(fleet.devices), len(fleet.variants)) if fleet.capacity(d, m, "largest")]
    for load in loads:
        for name, of_mean_one in gaps.items():
            found: dict[str, list[float]] = {}
            for d, m in pairs:
                capacity = fleet.capacity(d, m, "largest")
                assert capacity is not None
                profile = fleet.profiles[fleet.devices[d].name, fleet.variants[m].name]
                slo = fleet.families[int(fleet.family_of_variant[m])].slo.latency
                rate = load * capacity.throughput
                arrivals = TraceArrivals(np.cumsum(of_mean_one) / rate)
                deployments = policies(profile, slo, capacity.batch_size, rate)
                for policy, statistics in simulate_deployments(deployments, arrivals, (slo * ROUNDING,)).items():
                    found.setdefault(policy, []).append(statistics.violations(0).value)
            for policy, violations in found.items():
                yield Cell(load, name, policy, float(np.mean(violations)), len(violations))


def policies(profile: Profile, slo: float, largest: int, rate: float) -> dict[str, Deployment]:
    """The policies on one device, at this rate of arrivals (requests/s)."""
    seconds = np.maximum.accumulate(profile.service.mean_response)
    planned = max(b for b in range(1, largest + 1) if b == 1 or b / rate + seconds[b - 1] <= slo)
    every = range(1, len(seconds) + 1)
    tables = {
        "AIMD (Clipper)": additive_increase(slo, seconds, largest, every),
        "AIMD within half the deadline": additive_increase_within_half(slo, seconds, largest, every),
        "deadline (Proteus)": queue_table("deadline", seconds, slo, largest),
        "the same, nobody given up": queue_table("published", seconds, slo, largest),
        "early drop (Nexus), batch for the mean rate": queue_table("early_drop", seconds, slo, planned),
        "early drop, any batch": queue_table("early_drop", seconds, slo, largest),
        "ours": queue_table("brief_hold", seconds, slo, largest),
    }
    return {name: deployed(table, profile) for name, table in tables.items()}


def deployed(table: Policy | AdaptiveTables, profile: Profile) -> Deployment:
    """A table on one device, or tables that follow each other."""
    if isinstance(table, Policy):
        return Deployment(table, profile.service)
    schedule = Schedule(table.tables, np.empty(0), np.empty(0, dtype=np.int64))
    return Deployment(schedule, profile.service, adaptation=table.adaptation)
