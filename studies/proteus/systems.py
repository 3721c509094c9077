"""Who is compared: each system as a planner, settings of the control loop, and a table for every variant on every device.

What a batching policy may know here are the service times of the profiled sizes and the deadline; each is a ``Policy``, so it runs
on the same event loop as every other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.control.control import run_control
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.controller import ControlSettings
from sluice.optimizer.control.headroom import Planner
from sluice.optimizer.control.infaas import infaas_accuracy
from sluice.optimizer.control.planners import (
    clipper_high_accuracy,
    clipper_high_throughput,
    sommelier,
    without_model_selection,
    without_placement,
    without_query_assignment,
)
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.fleet.tables import aimd_tables, deadline_in_sizes, queue_table
from sluice.optimizer.fleet.throughput import Rule
from sluice.optimizer.simulation.fleet_queues import AdaptiveTables, simulate_fleet
from sluice.optimizer.simulation.fleet_run import FleetRun

PUBLISHED_HEADROOM = 1.05
TIME_LIMIT, GAP = 60.0, 0.02  # of one plan: s, far off, so that no plan depends on the machine; percentage points of mean accuracy
FIRST_GUESS = 1.0  # requests/s of each family: what everybody expects before the first second
SEED = 20240427  # ASPLOS'24

Tabled = Callable[[float, Array, int, Sequence[int]], Policy | AdaptiveTables]
"""A table from the deadline (s), the seconds of batches of 1, 2, ..., the largest batch, and the sizes a batch may have."""


def optimum(problem: FleetProblem) -> FleetSolution:
    """The planner of Proteus: the most served in sum, whoever goes without."""
    return solve_fleet(problem, time_limit=TIME_LIMIT, gap=GAP, least=0.0)


def ours(problem: FleetProblem) -> FleetSolution:
    """Our planner: the same, and a part for every family."""
    return solve_fleet(problem, time_limit=TIME_LIMIT, gap=GAP)


# --- tables


def deadline_in_all_sizes(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy:
    """Proteus with batches of every size, as the paper's text has it."""
    return deadline_in_sizes(deadline, seconds, largest, range(1, largest + 1))


def late_too(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy:
    """Proteus where nobody is given up: who is late is served late."""
    return replace(deadline_in_sizes(deadline, seconds, largest, sizes), drop_after=None)


def additive_increase(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> AdaptiveTables:
    """Clipper: all that wait, under a limit that grows by one after a batch in time and shrinks by a tenth after one that is not.

    The limit is no larger than what was profiled. Nobody is given up.
    """
    return aimd_tables(deadline, len(seconds))


def additive_increase_within_half(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy | AdaptiveTables:
    """Clipper that knows of Nexus: its batches are to take half the deadline, and are no larger than what does."""
    return queue_table("aimd", seconds, deadline, largest)


def early(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy:
    """Nexus, with batches as large as may be: all that wait; who would be late even in the next full batch is given up."""
    return queue_table("early_drop", seconds, deadline, largest)


def alone(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy:
    """No batching; who could not be in time is given up."""
    return queue_table("greedy", seconds, deadline, 1)


def brief(deadline: float, seconds: Array, largest: int, sizes: Sequence[int]) -> Policy:
    """Ours: efficient batches, a tenth of the slack to fill them, early drop."""
    return queue_table("brief_hold", seconds, deadline, largest)


# --- systems


@dataclass(frozen=True)
class System:
    """A system: who plans for which design, how the loop runs, and by which tables.

    Parameters
    ----------
    planner : callable
        Of the design, the problem whose demand is the peak of the trace, to the planner.
    table : callable
    rule : str
        How the capacity of a device is found (``throughput.capacity``).
    max_batch : float
    settings : mapping
        Of ``ControlSettings``.
    """

    planner: Callable[[FleetProblem], Planner]
    table: Tabled
    rule: Rule = "largest"
    max_batch: float = np.inf
    settings: Mapping[str, Any] = field(default_factory=dict)


AS_PUBLISHED: Mapping[str, Any] = {"headrooms": (PUBLISHED_HEADROOM,), "grouped": False, "follow_demand": False, "look": 1.0}
AT_ONCE: Mapping[str, Any] = {**AS_PUBLISHED, "period": 1.0, "decision_time": 0.0}


def always(planner: Planner) -> Callable[[FleetProblem], Planner]:
    """A planner that needs no design."""
    return lambda design: planner


OURS, PROTEUS = "ours", "Proteus, as published"
SYSTEMS: Mapping[str, System] = {
    OURS: System(always(ours), brief, "best"),
    PROTEUS: System(always(optimum), deadline_in_sizes, settings=AS_PUBLISHED),
    "Sommelier": System(sommelier, deadline_in_sizes, settings=AS_PUBLISHED),
    "INFaaS-accuracy": System(always(infaas_accuracy), deadline_in_sizes, settings=AT_ONCE),
    "Clipper-HA": System(clipper_high_accuracy, additive_increase, settings=AS_PUBLISHED),
    "Clipper-HT": System(clipper_high_throughput, additive_increase, settings=AS_PUBLISHED),
}
ABLATIONS: Mapping[str, System] = {
    "without model selection": replace(SYSTEMS[PROTEUS], planner=always(without_model_selection)),
    "without model placement": replace(SYSTEMS[PROTEUS], planner=without_placement),
    "without adaptive batching": replace(SYSTEMS[PROTEUS], table=alone, max_batch=1),
    "without query assignment": replace(SYSTEMS[PROTEUS], planner=always(without_query_assignment)),
}
WITHIN_HALF = "Clipper-HA, batches within half the deadline"
MILDER: Mapping[str, System] = {WITHIN_HALF: replace(SYSTEMS["Clipper-HA"], table=additive_increase_within_half)}
# From Proteus as published to ours, one change after the other.
STEPS: Mapping[str, System] = {
    "the same, nobody given up": replace(SYSTEMS[PROTEUS], table=late_too),
    "batches of every size": replace(SYSTEMS[PROTEUS], table=deadline_in_all_sizes, rule="best"),
    "and our table": replace(SYSTEMS[PROTEUS], table=brief, rule="best"),
    "and one queue for like devices": System(
        always(optimum), brief, "best", settings={"headrooms": (PUBLISHED_HEADROOM,), "follow_demand": False, "look": 1.0}
    ),
}
BATCHING: Mapping[str, Tabled] = {
    "deadline (Proteus)": deadline_in_sizes,
    "deadline, every size": deadline_in_all_sizes,
    "AIMD (Clipper)": additive_increase,
    "early drop (Nexus)": early,
    "ours": brief,
}


class Counted:
    """A planner, and how often it was asked."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.asked = 0

    def __call__(self, problem: FleetProblem) -> FleetSolution:
        """The planner's answer."""
        self.asked += 1
        return self._planner(problem)


def controlled(system: System, fleet: Fleet, expected: Array) -> ControlledFleet:
    """What the control loop gets to know: the capacities and tables of this system, and the demand to begin with, requests/s."""
    problem = fleet.problem(system.rule, system.max_batch).with_demand(expected)
    services, policies = {}, {}
    for d, m in np.argwhere(problem.throughput > 0).tolist():
        device, variant = fleet.devices[d].name, fleet.variants[m].name
        profile = fleet.profiles[device, variant]
        found = fleet.capacity(d, m, system.rule, system.max_batch)
        assert found is not None
        services[d, m] = profile.service
        deadline = fleet.families[int(problem.family[m])].slo.latency
        policies[d, m] = system.table(deadline, profile.service.mean_response, found.batch_size, profile.measured)
    return ControlledFleet(problem, np.array([family.slo.latency for family in fleet.families]), services, policies)


@dataclass(frozen=True, eq=False)
class Ran:
    """What a system did.

    Parameters
    ----------
    run : FleetRun
    plans, asked, swaps : int
        Plans that came into force, plans that the planner was asked for, and devices that loaded another variant.
    seconds : sequence of float
        That each decision took, of one or more plans.
    """

    run: FleetRun
    plans: int
    asked: int
    swaps: int
    seconds: Sequence[float]


def run_system(
    system: System, fleet: Fleet, arrivals: Sequence[Array], peak: Array, expected: float | Array = FIRST_GUESS, **changes: Any
) -> Ran:
    """Run a system over the arrivals of each family.

    Parameters
    ----------
    peak : array, shape (n_families,)
        Requests/s, for which those systems are designed that have a design.
    expected : float or array, shape (n_families,)
        Requests/s of each family that all expect before the first second.
    changes
        Of the settings of the control loop.
    """
    known = controlled(system, fleet, np.full(len(arrivals), expected))
    planner = Counted(system.planner(known.problem.with_demand(np.maximum(peak, 1e-3))))
    operation = run_control(known, arrivals, planner, ControlSettings(**{**system.settings, **changes}))
    run = simulate_fleet(operation.schedule, arrivals, known.slos, np.random.default_rng(SEED))
    swaps = sum(decision.solution.swaps for decision in operation.decisions[1:])
    return Ran(run, len(operation.decisions), planner.asked, swaps, [decision.seconds for decision in operation.decisions])
