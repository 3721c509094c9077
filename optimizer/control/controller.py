"""The control loop of a fleet, without a clock or I/O: facts in, instructions out (docs/model.md, section 5).

    see       how many requests came since the last look, by family, and how they lay in it
    decide    slow: the plan that is best for what was seen; changes nothing, so that it can be worked out beside the loop
    adopt     that plan comes into force, and is rolled out
    loaded    a device has loaded what it was told to
    follow    how long batches take is another thing than was known: other tables, and a plan is asked for
    died      a device is gone: its part goes to the others of its family at once, and a plan is asked for
    joined    a device is there, and hosts this or nothing
    wake      the time ``wake_at`` has come

Each but ``decide`` answers with ``Instructions``: which devices unload, which load what, the queues with their shares and tables,
and whether ``decide`` is asked for. The simulation (``control``) and whatever follows real workers tell it the same things.

It asks for a plan when a period has passed, at once when the demand of the time between two looks is more than a family's devices
carry, or will carry once those on their way have loaded, and at once when a device died or joined. Between plans the shares follow
the demand, as these cost nothing to change.

After Proteus (Ahmad et al., ASPLOS'24, sections 3 and 4), which plans by a period and at bursts in the same way, with a fixed
headroom (1.05 in its published code), and whose shares are those of the last plan (``follow_demand`` false).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings
from sluice.optimizer.control.headroom import HEADROOMS, VIOLATIONS, Choice, HeadroomChoice, Moving, Planner
from sluice.optimizer.control.rehearsal import Rehearsal
from sluice.optimizer.control.rollout import IDLE, Rollout
from sluice.optimizer.fleet.problem import FleetProblem, best_flows, capacity_of
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables

PARTS = 16  # of the shortest SLO, in which requests are counted
GUESSED = 1.0  # seconds after which what was expected before anything was seen gives way to what was
KEPT = 1.25  # times the forecast: what families should keep while devices move, where that can be


@dataclass(frozen=True)
class ControlSettings:
    """How the loop runs.

    Parameters
    ----------
    look : float
        Seconds between looks at the demand.
    period : float
        Seconds between plans when nothing happens.
    decision_time : float or None
        Seconds from asking for a plan to its coming into force; ``None``: as long as the planner took.
    load_time : float
        Seconds that a device takes to load another variant.
    headrooms : sequence of float
        Of which the best is taken; one alone is kept to.
    violations : float
        The share of each family's requests that may be late, given up or routed nowhere, where several headrooms are tried.
    bursts : bool
        Whether demand beyond what a family's devices carry asks for a plan at once.
    follow_demand : bool
        Whether the shares follow the demand between plans; else they are those of the plan until the next.
    forecast : ForecastSettings
    grouped : bool
        The devices of a type that host one variant are a group behind one queue; else every device has its own.
    """

    look: float = 0.25
    period: float = 10.0
    decision_time: float | None = 0.5
    load_time: float = 0.5
    headrooms: Sequence[float] = HEADROOMS
    violations: float = VIOLATIONS
    bursts: bool = True
    follow_demand: bool = True
    forecast: ForecastSettings = ForecastSettings()
    grouped: bool = True

    def __post_init__(self) -> None:
        for name in ("look", "period"):
            require(0 < getattr(self, name) < np.inf, name, getattr(self, name), "a number of seconds > 0")
        for name in ("decision_time", "load_time"):
            value = getattr(self, name)
            require(value is None or 0 <= value < np.inf, name, value, "a number of seconds >= 0")
        require(self.load_time is not None, "load_time", None, "a number of seconds >= 0")
        require(0 <= self.violations < 1, "violations", self.violations, "a share, below 1")
        require(len(self.headrooms) > 0, "headrooms", self.headrooms, "at least one")
        for i, headroom in enumerate(self.headrooms):
            require(0 < headroom < np.inf, f"headrooms[{i}]", headroom, "a number > 0")


class Queue(NamedTuple):
    """A queue of a family: the devices that serve it, its part of the family's requests, and its table."""

    device_type: int
    variant: int
    devices: tuple[int, ...]
    share: float
    table: Policy | AdaptiveTables


@dataclass(frozen=True)
class Instructions:
    """What is to be done now.

    Parameters
    ----------
    unload : sequence of int
        Devices that give up what they host.
    load : sequence of (int, int)
        Devices and the variants that they load, those that unload among them.
    queues : sequence of Queue
        All that there are from here on.
    plan_wanted : bool
        Whether ``decide`` is to be asked, and ``adopt`` to be told.
    """

    unload: Sequence[int]
    load: Sequence[tuple[int, int]]
    queues: Sequence[Queue]
    plan_wanted: bool = False


class FleetController:
    """Follows the demand of a fleet.

    Parameters
    ----------
    fleet : ControlledFleet
        Its ``problem.running``, counts, is not read: devices say what they host as they join.
    planner : callable
    settings : ControlSettings
    """

    def __init__(self, fleet: ControlledFleet, planner: Planner, settings: ControlSettings | None = None) -> None:
        self.settings = settings = settings or ControlSettings()
        self._fleet, problem = fleet, fleet.problem
        drain = float(fleet.slos.max())
        self._rollout = Rollout(problem.devices, len(problem.accuracy), drain)
        # A plan must do until a burst that it was not made for is answered; without the trigger, until the next plan.
        answer = settings.look + (settings.decision_time or 0.0) + drain + settings.load_time
        self._forecast = DemandForecast(
            problem.demand, answer if settings.bursts else settings.period, settings.forecast, settings.look
        )
        moving = Moving(drain + settings.load_time, KEPT, settings.forecast.memory)
        self._chooser = HeadroomChoice(planner, settings.headrooms, settings.violations, moving)
        # Bursts within an SLO are what queues cannot even out, and those within a batch what fills it.
        self.n_parts = max(1, round(PARTS * settings.look / float(fleet.slos.min())))
        self._chosen: Choice | None = None
        self._guessed = True
        self._bursts = np.zeros(problem.n_families, dtype=bool)  # those for which the last plan was asked for before its time
        self._asked_at = -np.inf
        self._answered = True
        self._tables: dict[tuple[int, int, int], Policy | AdaptiveTables] = {}

    @property
    def forecast(self) -> Array:
        """Requests/s of each family that are expected, (n_families,)."""
        return self._forecast.rate

    @property
    def settled(self) -> bool:
        """Whether every device has what the plan in force says."""
        return self._rollout.settled

    @property
    def wake_at(self) -> float:
        """When ``wake`` is to be called at the latest, s; ``inf`` for not at all."""
        return self._rollout.wake_at

    @property
    def problem(self) -> FleetProblem:
        """What a planner is asked: the devices that are there, the demand, what runs. Of a family that bursts it is that of now."""
        running = self._rollout.counts(self._rollout.committed)
        problem = replace(self._fleet.problem, devices=self._rollout.devices, running=running if running.any() else None)
        forecast = self._forecast
        return problem.with_demand(np.where(self._bursts, forecast.followed, forecast.rate))

    def follow(self, now: float, fleet: ControlledFleet) -> Instructions:
        """Of the same devices and variants something else is known: these tables hold from now on, and a plan is asked for."""
        self._fleet = fleet
        self._tables.clear()
        return self._instructions(now, self._chosen is not None and self._answered and self._ask(now))

    def see(self, now: float, counts: Array) -> Instructions:
        """Requests of each family in each of ``n_parts`` equal parts of the time since the last look, (n_parts, n_families).

        Fewer parts, or the sum alone, (n_families,), are taken too; bursts within a part are not seen.
        """
        self._forecast.see(counts)
        return self._instructions(now, self._due(now))

    def decide(self) -> Choice:
        """The plan that is best for what was seen up to now."""
        return self.deciding()()

    def deciding(self) -> Callable[[], Choice]:
        """The same, to be called elsewhere: what becomes known meanwhile does not touch it."""
        return partial(self._decide, self.problem, self._forecast.snapshot())

    def _decide(self, problem: FleetProblem, forecast: DemandForecast) -> Choice:
        chosen = self._chooser.keep_to_one(problem)
        return chosen or self._chooser.choose(problem, Rehearsal(self._fleet, forecast, problem.demand, self.n_parts))

    def adopt(self, now: float, choice: Choice) -> Instructions:
        """A plan that ``decide`` found comes into force; of devices that came or went meanwhile it knows nothing yet."""
        if self._chosen is None:
            self._asked_at = now
        self._chosen, self._answered = choice, True
        self._rollout.aim(choice.plan.counts)
        return self._instructions(now)

    def loaded(self, now: float, device: int) -> Instructions:
        """A device has loaded what it was told to."""
        self._rollout.loaded(device)
        return self._instructions(now)

    def died(self, now: float, device: int) -> Instructions:
        """A device is gone."""
        self._rollout.died(device)
        return self._instructions(now, self._ask(now))

    def joined(self, now: float, device: int, hosts: int = IDLE) -> Instructions:
        """A device is there that was not, and hosts this variant."""
        self._rollout.joined(device, hosts)
        return self._instructions(now, self._ask(now))

    def wake(self, now: float) -> Instructions:
        """The time ``wake_at`` has come."""
        return self._instructions(now)

    def _ask(self, now: float, bursts: NDArray[np.bool_] | None = None) -> bool:
        self._asked_at, self._answered = now, False
        self._bursts = np.zeros(self._fleet.problem.n_families, dtype=bool) if bursts is None else bursts
        return True

    def _due(self, now: float) -> bool:
        """Whether a plan is asked for: none is being made, or it was lost.

        Devices on their way do not put it off, where even what they are on their way to does not carry what came.
        """
        late = now >= self._asked_at + self.settings.period - self.settings.look / 2  # at the look that is next to it
        if self._chosen is None or not self._answered:
            return late and self._ask(now)
        aimed_at = self._rollout.counts(self._rollout.aimed_at)
        carried = np.maximum(capacity_of(self._fleet.problem, aimed_at), self._chosen.plan.problem.demand)
        bursts = self.settings.bursts & (self._forecast.quick > carried)
        seen = self._forecast.n_seen * self.settings.look
        if self._rollout.settled and self._guessed and seen >= GUESSED:
            bursts, self._guessed = np.full(len(bursts), self.settings.bursts), False
        return bool(late or bursts.any()) and self._ask(now, bursts)

    def _instructions(self, now: float, plan_wanted: bool = False) -> Instructions:
        unload, load = self._rollout.advance(now, self._fleet.problem, KEPT * self._forecast.rate)
        return Instructions(unload, load, self._queues(), plan_wanted)

    def _queues(self) -> list[Queue]:
        """Those that devices serve, with the shares of those that receive."""
        rollout = self._rollout
        asked = rollout.asked(self._fleet.problem.family)
        receiving = rollout.counts(asked)
        flows = self._flows(receiving)
        served = np.bincount(self._fleet.problem.family, flows.sum(axis=0), self._fleet.problem.n_families)
        devices: dict[tuple[int, int, int], list[int]] = {}
        for device in np.flatnonzero(rollout.hosts != IDLE).tolist():
            d, m = int(rollout.device_types[device]), int(rollout.hosts[device])
            if self._fleet.problem.throughput[d, m] > 0:
                devices.setdefault((d, m, -1 if self.settings.grouped else device), []).append(device)
        queues = []
        for (d, m, _), serving in devices.items():
            whole = served[self._fleet.problem.family[m]]
            part = flows[d, m] / receiving[d, m] / whole if receiving[d, m] and whole else 0.0
            share = part * sum(asked[device] != IDLE for device in serving)
            queues.append(Queue(d, m, tuple(serving), float(share), self._table(d, m, len(serving))))
        return queues

    def _flows(self, receiving: Counts) -> Array:
        """What the shares follow, requests/s, (n_types, n_variants)."""
        if self._chosen is None:
            return best_flows(self._fleet.problem, receiving)
        plan, problem = self._chosen.plan, self._fleet.problem
        if self.settings.follow_demand:
            # before anything was seen, all that is there is used
            demand = self._chosen.of_shares * self._forecast.followed if self._forecast.n_seen else capacity_of(problem, receiving)
            return best_flows(problem.with_demand(demand), receiving) if demand.any() else np.zeros(receiving.shape)
        as_planned = self._rollout.settled and np.array_equal(np.minimum(receiving, plan.counts), plan.counts)
        return plan.flows if as_planned else best_flows(problem.with_demand(plan.problem.demand), receiving)

    def _table(self, device_type: int, variant: int, servers: int) -> Policy | AdaptiveTables:
        """The table of a queue of so many devices."""
        table = self._fleet.policies[device_type, variant]
        if isinstance(table, Policy):
            key = device_type, variant, servers
            if key not in self._tables:
                self._tables[key] = replace(table, servers=servers)
            return self._tables[key]
        return table
