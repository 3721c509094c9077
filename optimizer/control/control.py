"""The control loop of a fleet: statistics, forecast, plan, rollout (docs/model.md, section 5).

Every second the loop sees how many requests of each family came, and how they lay within it. It plans anew when a period has
passed, and at once when a second brought a family more than its devices can carry and were planned to. A plan that is asked for
comes into force ``decision_time`` later, off the path of the requests, and is then rolled out. The loop sees counts and no queue,
so it runs first, over the whole day, and gives a schedule; the queues are simulated once, after it.

After Proteus (Ahmad et al., ASPLOS'24, sections 3 and 4), which plans by a period and at bursts in the same way, with a fixed
headroom (1.05 in its published code).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings, count_arrivals
from sluice.optimizer.control.headroom import HEADROOMS, HeadroomChoice, Planner
from sluice.optimizer.control.rollout import IDLE, Rollout
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import Batching, queue_table
from sluice.optimizer.fleet.throughput import Rule
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables, FleetQueue, FleetSchedule

KEPT = 1.25  # times the forecast: what families should keep while devices move, where that can be


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
        is the schedule's to say, whatever the ``servers`` of the table are.
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


@dataclass(frozen=True)
class ControlSettings:
    """How the loop runs.

    Parameters
    ----------
    period : float
        Seconds between plans when nothing happens.
    decision_time : float or None
        Seconds from asking for a plan to its coming into force; ``None``: as long as the planner took.
    load_time : float
        Seconds that a device takes to load another variant.
    headrooms : sequence of float
        Of which the best is taken; one alone is kept to.
    bursts : bool
        Whether a second beyond what a family's devices carry asks for a plan at once.
    forecast : ForecastSettings
    grouped : bool
        The devices of a type that host one variant are a group behind one queue; else every device has its own.
    """

    period: float = 10.0
    decision_time: float | None = 0.5
    load_time: float = 0.5
    headrooms: Sequence[float] = HEADROOMS
    bursts: bool = True
    forecast: ForecastSettings = ForecastSettings()
    grouped: bool = True

    def __post_init__(self) -> None:
        require(0 < self.period < np.inf, "period", self.period, "a number of seconds > 0")
        for name in ("decision_time", "load_time"):
            value = getattr(self, name)
            require(value is None or 0 <= value < np.inf, name, value, "a number of seconds >= 0")
        require(self.load_time is not None, "load_time", None, "a number of seconds >= 0")
        require(len(self.headrooms) > 0, "headrooms", self.headrooms, "at least one")
        for i, headroom in enumerate(self.headrooms):
            require(0 < headroom < np.inf, f"headrooms[{i}]", headroom, "a number > 0")


@dataclass(frozen=True, eq=False)
class Decision:
    """A plan that was made.

    Parameters
    ----------
    asked, in_force, settled : float
        When it was asked for, when its rollout began, and when that had ended, s.
    burst : bool
        Whether a burst asked for it.
    forecast : array, shape (n_families,)
        Requests/s.
    headroom : float
    solution : FleetSolution
        For the forecast times the headroom.
    seconds : float
        That all the planning for this decision took, every headroom that was tried.
    """

    asked: float
    in_force: float
    settled: float
    burst: bool
    forecast: Array
    headroom: float
    solution: FleetSolution
    seconds: float


@dataclass(frozen=True, eq=False)
class Operation:
    """What the loop decided over a day: the plans, and the schedule they came to."""

    decisions: Sequence[Decision]
    schedule: FleetSchedule


def run_control(
    fleet: ControlledFleet, arrivals: Sequence[Array], planner: Planner, settings: ControlSettings | None = None
) -> Operation:
    """Run the control loop over the arrivals of each family (s, ascending).

    What is decided at a time depends on nothing that arrives after it.

    Raises
    ------
    InvalidInput
        Arrivals of more or fewer families than the fleet has.
    """
    settings = settings or ControlSettings()
    problem = fleet.problem
    require(len(arrivals) == problem.n_families, "arrivals", len(arrivals), f"one array for each of {problem.n_families} families")
    end = max((float(times[-1]) for times in arrivals if len(times)), default=0.0)
    drain = float(fleet.slos.max())
    # A plan must do until a burst that it was not made for is answered; without the trigger, until the next plan.
    answer = 1.0 + (settings.decision_time or 0.0) + drain + settings.load_time
    forecast = DemandForecast(problem.demand, answer if settings.bursts else settings.period, settings.forecast)
    rollout = Rollout(problem.devices, len(problem.accuracy))
    away = min(1.0, (drain + settings.load_time) / settings.period)
    chooser = HeadroomChoice(planner, settings.headrooms, away)
    chosen = chooser.choose(problem, forecast.rate, forecast.ratios())
    rollout.start(0.0, chosen.plan)
    decisions = [Decision(0.0, 0.0, 0.0, False, forecast.rate, *chosen)]
    # Bursts as long as an SLO are what queues cannot even out: a second is counted in so many parts.
    parts = max(1, round(1 / float(fleet.slos.min())))
    counted = count_arrivals(arrivals, ceil(end) * parts, 1 / parts).reshape(-1, parts, problem.n_families)
    for second, within in enumerate(counted, 1):
        forecast.see(within)
        counts = within.sum(axis=0)
        now = float(second)
        if now < rollout.settled_at:
            continue
        running = rollout.counts()
        carried = np.maximum(_reach(problem, running), decisions[-1].solution.problem.demand)
        burst = settings.bursts and bool((counts > carried).any())
        if not burst and now < decisions[-1].asked + settings.period:
            continue
        rate = forecast.rate
        chosen = chooser.choose(problem.with_running(running), rate, forecast.ratios())
        in_force = now + (chosen.seconds if settings.decision_time is None else settings.decision_time)
        rollout.move(in_force, chosen.plan, KEPT * rate, drain, settings.load_time)
        decisions.append(Decision(now, in_force, rollout.settled_at, burst, rate, *chosen))
    return Operation(tuple(decisions), _schedule(fleet, rollout, settings.grouped))


def _reach(problem: FleetProblem, counts: Counts) -> Array:
    """Requests/s of each family that a placement can serve, (n_families,)."""
    return np.bincount(problem.family, (problem.throughput * counts).sum(axis=0), problem.n_families).astype(np.float64)


def _schedule(fleet: ControlledFleet, rollout: Rollout, grouped: bool) -> FleetSchedule:
    """The rollout by queues: one for each (type, variant), or for each (device, variant), that ever serves."""
    problem, types = fleet.problem, rollout.device_types
    places: dict[tuple[int, int], int] = {}  # (type or device, variant) -> queue
    for moment in rollout.moments:
        for device in np.flatnonzero(moment.hosts != IDLE):
            variant = int(moment.hosts[device])
            if problem.throughput[types[device], variant] > 0:
                places.setdefault((int(types[device]) if grouped else int(device), variant), len(places))
    n = len(rollout.moments)
    shares, servers = np.zeros((n, len(places))), np.zeros((n, len(places)), dtype=np.int64)
    for i, moment in enumerate(rollout.moments):
        receiving = rollout.counts(moment.receives)
        for device in np.flatnonzero(moment.hosts != IDLE):
            d, variant = int(types[device]), int(moment.hosts[device])
            place = places.get((d if grouped else int(device), variant))
            if place is not None:
                servers[i, place] += 1
                if moment.receives[device] != IDLE:
                    shares[i, place] += moment.flows[d, variant] / receiving[d, variant]
    queues = []
    for place, variant in places:
        d = place if grouped else int(types[place])
        family = int(problem.family[variant])
        accuracy = float(problem.accuracy[variant])
        queues.append(FleetQueue(d, variant, family, accuracy, fleet.policies[d, variant], fleet.services[d, variant]))
    times = np.array([moment.time for moment in rollout.moments[1:]])
    return FleetSchedule(queues, times, shares, servers)
