"""What becomes of the requests under a plan: its very queues, shares, tables and devices, simulated under its demand.

Families share no queue, so each is run for itself, over as many requests as any other, whatever their rates: a family with a
request a minute is known as well as one with a thousand a second. A request is a violation if it was late, given up, or routed
nowhere; their share is that in equilibrium, with a confidence interval by batch means. Seeded, and bounded in requests: of the same
plan the same is said every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np

from sluice.batching.documents import percentile_name, quantile_of
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.specification import Family, Fleet
from sluice.optimizer.simulation.batch_means import Estimate, estimate_quantiles, estimate_share
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule, simulate_fleet
from sluice.optimizer.simulation.fleet_run import FleetRun

REQUESTS = 1_000_000  # of all families together
FEWEST = 5_000  # of one, however many families there are
SPAN = 50  # SLOs that a run must last, so that its queues are seen in equilibrium
PERCENTILES = (50.0, 95.0, 99.0)
SEED = 1


@dataclass(frozen=True, eq=False)
class FamilyPrediction:
    """What becomes of a family's requests.

    Parameters
    ----------
    violations : Estimate
        Share that is not answered within the SLO.
    allowed : float
        The share that may be, as the SLO's percentile leaves it or as it was asked for.
    effective_accuracy : float
        Mean accuracy of those in time, percent; nan without any.
    latency : mapping
        Percentiles by name, s, of all requests, one without an answer taking for ever; those that are for ever are left out.
    mean_batch_size : float
        nan without a batch.
    n_requests : int
        That were simulated; 0 where nothing serves the family, which needs no simulation.
    """

    violations: Estimate
    allowed: float
    effective_accuracy: float
    latency: Mapping[str, float]
    mean_batch_size: float
    n_requests: int

    @property
    def kept(self) -> bool:
        """Whether there are no more than may be, with the confidence of the interval."""
        return self.violations.high <= self.allowed

    def document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "violations": self.violations._asdict(),
            "allowed": self.allowed,
            "kept": self.kept,
            "effective_accuracy": finite(self.effective_accuracy),
            "latency": dict(self.latency),
            "mean_batch_size": finite(self.mean_batch_size),
            "requests": self.n_requests,
        }


@dataclass(frozen=True, eq=False)
class FleetPrediction:
    """What becomes of all requests.

    Parameters
    ----------
    families : mapping
        By name, those with a demand.
    violations : Estimate
        Share of all requests that is not answered within its family's SLO.
    effective_accuracy : float
        Mean accuracy of those in time, percent; nan without any.
    """

    families: Mapping[str, FamilyPrediction]
    violations: Estimate
    effective_accuracy: float

    @property
    def kept(self) -> bool:
        """Whether no family has more violations than may be."""
        return all(family.kept for family in self.families.values())

    @property
    def excess(self) -> float:
        """By how much the family that is the furthest above what may be is so; negative where all are below."""
        return max(family.violations.high - family.allowed for family in self.families.values())

    def document(self) -> dict[str, Any]:
        """Of all families together, ready for JSON."""
        return {
            "violations": self.violations._asdict(),
            "kept": self.kept,
            "effective_accuracy": finite(self.effective_accuracy),
        }


def simulate_plan(
    fleet: Fleet,
    groups: Sequence[Group],
    arrivals: Mapping[str, ArrivalProcess] | None = None,
    allowed: float | None = None,
    requests: int = REQUESTS,
    seed: int = SEED,
) -> FleetPrediction | None:
    """Run the groups of a plan under the fleet's demand.

    Parameters
    ----------
    groups : sequence of Group
    arrivals : mapping, optional
        How the requests of a family come, in time that is stretched to its demand; Poisson where nothing is said.
    allowed : float, optional
        The share of violations that may be in each family, instead of what the percentile of its SLO leaves.
    requests : int
        Of all families together; each gets an equal part.

    Returns
    -------
    prediction : FleetPrediction or None
        ``None`` for a demand so large that its part of the requests come within ``SPAN`` SLOs: these say nothing of an equilibrium.
    """
    asked = {family.name: fleet.demand.get(family.name, 0.0) for family in fleet.families}
    asked = {name: rate for name, rate in asked.items() if rate}
    n = max(FEWEST, requests // len(asked))
    families: dict[str, FamilyPrediction] = {}
    for q, family in enumerate(fleet.families):
        if family.name not in asked:
            continue
        rate = asked[family.name]
        if n < SPAN * family.slo.latency * rate:
            return None
        rng = np.random.default_rng([seed, q])
        times = np.cumsum(process_of(family.name, rate, arrivals).sample(n, rng))
        serving = [group for group in groups if group.family == family.name and group.share]
        most = family.slo.error_budget if allowed is None else allowed
        families[family.name] = _predicted(family, most, run_family(fleet, serving, times, rng)) if serving else _none(most)
    return _together(families, asked)


def process_of(family: str, rate: float, arrivals: Mapping[str, ArrivalProcess] | None) -> ArrivalProcess:
    """How the requests of a family come, ``rate`` of them a second."""
    process = (arrivals or {}).get(family)
    return poisson(rate) if process is None else process.sped_up(rate / process.arrival_rate)


def run_family(fleet: Fleet, groups: Sequence[Group], arrival_times: Array, rng: np.random.Generator) -> FleetRun:
    """The queues of the groups of one family, each with its share of the arrivals (s, ascending), its table and its devices."""
    slo = next(family.slo for family in fleet.families if family.name == groups[0].family)
    queues = [
        FleetQueue(d, m, 0, group.accuracy, group.policy, fleet.profiles[group.device_type, group.variant].service)
        for group in groups
        for d, m in [(_place(fleet.devices, group.device_type), _place(fleet.variants, group.variant))]
    ]
    shares, servers = [group.share for group in groups], [len(group.devices) for group in groups]
    schedule = FleetSchedule(queues, np.empty(0), np.array([shares]), np.array([servers]))
    return simulate_fleet(schedule, [arrival_times], np.array([slo.latency]), rng)


def finite(value: float) -> float | None:
    """The number, ``None`` where there is none."""
    return float(value) if np.isfinite(value) else None


def _predicted(family: Family, allowed: float, run: FleetRun) -> FamilyPrediction:
    percentiles = sorted({*PERCENTILES, family.slo.percentile})
    reached = estimate_quantiles(run.latency, [quantile_of(p) for p in percentiles])
    latency = {percentile_name(p): of.value for p, of in zip(percentiles, reached, strict=True)}
    return FamilyPrediction(
        estimate_share(~run.in_time),
        allowed,
        run.effective_accuracy,
        {name: seconds for name, seconds in latency.items() if seconds < np.inf},
        run.mean_batch_size,
        run.n_requests,
    )


def _none(allowed: float) -> FamilyPrediction:
    """Nothing serves the family."""
    return FamilyPrediction(Estimate(1.0, 1.0, 1.0), allowed, np.nan, {}, np.nan, 0)


def _together(families: Mapping[str, FamilyPrediction], asked: Mapping[str, float]) -> FleetPrediction:
    """Families are simulated independently, so that the halves of their intervals add as deviations do."""
    total = sum(asked.values())
    weights = {name: rate / total for name, rate in asked.items()}
    value = sum(weights[name] * of.violations.value for name, of in families.items())
    below = hypot(*(weights[name] * (of.violations.value - of.violations.low) for name, of in families.items()))
    above = hypot(*(weights[name] * (of.violations.high - of.violations.value) for name, of in families.items()))
    in_time = {name: weights[name] * (1 - of.violations.value) for name, of in families.items() if of.violations.value < 1}
    earned = sum(part * families[name].effective_accuracy for name, part in in_time.items())
    accuracy = earned / sum(in_time.values()) if in_time else np.nan
    return FleetPrediction(families, Estimate(value, max(0.0, value - below), min(1.0, value + above)), accuracy)


def _place(of: Sequence[Any], name: str) -> int:
    return next(i for i, named in enumerate(of) if named.name == name)
