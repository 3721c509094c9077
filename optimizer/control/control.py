"""The control loop of a fleet on recorded arrivals (docs/model.md, section 5).

``FleetController`` looks at the demand four times a second. It is told of its plans after the time that they take, of devices that
have loaded what they were told to, and of those that die and join. It sees counts and no queue, so it runs first, over the whole
day, and what it instructs becomes a schedule; the queues are simulated once, after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.controller import ControlSettings, FleetController, Instructions, Queue
from sluice.optimizer.control.demand import count_arrivals
from sluice.optimizer.control.headroom import Choice, Planner
from sluice.optimizer.control.overhead import OverheadWatch
from sluice.optimizer.fleet.problem import FleetSolution
from sluice.optimizer.fleet.specification import Fleet
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule

MEASURE = 1.0  # s between two times that the loop is told what batches took


@dataclass(frozen=True, eq=False)
class Decision:
    """A plan that was made.

    Parameters
    ----------
    asked, in_force, settled : float
        When it was asked for, when its rollout began, and when that had ended, s; ``inf`` where it had not at the end.
    burst : bool
        Whether it was asked for before its time.
    forecast : array, shape (n_families,)
        Requests/s.
    headroom : array, shape (n_families,)
    solution : FleetSolution
        For the forecast times the headroom.
    seconds : float
        That the planner took for this decision, all headrooms that were tried, without the rehearsals.
    """

    asked: float
    in_force: float
    settled: float
    burst: bool
    forecast: Array
    headroom: Array
    solution: FleetSolution
    seconds: float


@dataclass(frozen=True, eq=False)
class Operation:
    """What the loop decided over a day: the plans, and the schedule they came to."""

    decisions: Sequence[Decision]
    schedule: FleetSchedule


@dataclass(frozen=True, eq=False)
class Truth:
    """What batches truly take, where that is not what is planned with: measured as the live controller measures it.

    Parameters
    ----------
    known : Fleet
        As it is planned with at the beginning: that of which the ``ControlledFleet`` is.
    takes : Fleet
        The same with the profiles that batches truly have.
    """

    known: Fleet
    takes: Fleet


class Fault(NamedTuple):
    """A device, by its number, is gone from one time to another, s, and comes back with nothing loaded."""

    device: int
    begins: float
    ends: float = np.inf


def run_control(
    fleet: ControlledFleet,
    arrivals: Sequence[Array],
    planner: Planner,
    settings: ControlSettings | None = None,
    faults: Sequence[Fault] = (),
    noticed_after: float = 0.0,
    truth: Truth | None = None,
) -> Operation:
    """Run the control loop over the arrivals of each family (s, ascending).

    What is decided at a time depends on nothing that arrives after it.

    Parameters
    ----------
    faults : sequence of Fault
    noticed_after : float
        Seconds until the loop is told that a device is gone: its queue has lost it, and gets its requests still.
    truth : Truth, optional
        Where batches take another time than is planned with: once a second the loop is told what the devices took for about as
        many batches as came. Queues have other tables from then on, and who waits in a queue of before is given up there.

    Raises
    ------
    InvalidInput
        Arrivals of more or fewer families than the fleet has; a fault of a device that there is none of, or that ends before it
        begins.
    """
    problem = fleet.problem
    require(len(arrivals) == problem.n_families, "arrivals", len(arrivals), f"one array for each of {problem.n_families} families")
    n_devices = int(problem.devices.sum())
    for i, fault in enumerate(faults):
        require(0 <= fault.device < n_devices, f"faults[{i}].device", fault.device, f"an integer from 0 to {n_devices - 1}")
        if not 0 <= fault.begins < fault.ends:
            raise InvalidInput(f"faults[{i}]", (fault.begins, fault.ends), "a time >= 0, and a later one")
    return _Day(fleet, planner, settings or ControlSettings(), truth).run(arrivals, faults, noticed_after)


class _Day:
    """A controller, the devices that do what it says, and what is recorded of both."""

    def __init__(self, fleet: ControlledFleet, planner: Planner, settings: ControlSettings, truth: Truth | None) -> None:
        self._fleet, self._settings, self._truth = fleet, settings, truth
        self._watch = None if truth is None else OverheadWatch(truth.known)
        self._measured_at = 0.0
        self._controller = FleetController(fleet, planner, settings)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = count()
        self._dead: set[int] = set()
        self._loading: dict[int, int] = {}  # device -> which of its loads
        self._moments: list[tuple[float, Sequence[Queue], frozenset[int], ControlledFleet]] = []
        self._decisions: list[Decision] = []

    def run(self, arrivals: Sequence[Array], faults: Sequence[Fault], noticed_after: float) -> Operation:
        """The whole of it."""
        controller = self._controller
        chosen = controller.decide()
        self._begin(chosen)
        parts, look = controller.n_parts, self._settings.look
        n_looks = ceil(max((float(times[-1]) for times in arrivals if len(times)), default=0.0) / look)
        counted = count_arrivals(arrivals, n_looks * parts, look / parts).reshape(-1, parts, len(arrivals))
        for fault in faults:
            self._at(fault.begins, lambda now, fault=fault: self._break(now, fault, noticed_after))  # type: ignore[misc]
        for i, within in enumerate(counted, 1):
            self._until(i * look)
            self._do(i * look, controller.see(i * look, within))
            self._measure(i * look, within.sum(axis=0) / look)
        self._until(np.inf)
        return Operation(tuple(self._decisions), self._schedule())

    def _begin(self, chosen: Choice) -> None:
        """The first placement is loaded before the first request."""
        told = self._controller.adopt(0.0, chosen)
        for device, _ in told.load:
            told = self._controller.loaded(0.0, device)
        self._record(0.0, told.queues)
        self._decisions.append(
            Decision(0.0, 0.0, 0.0, False, self._controller.forecast, chosen.headroom, chosen.plan, chosen.seconds)
        )

    def _at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._serial), what))

    def _until(self, time: float) -> None:
        """All that happens before this time, and at it."""
        while (due := min(self._events[0][0] if self._events else np.inf, self._controller.wake_at)) <= time and due < np.inf:
            if self._events and self._events[0][0] <= due:
                now, _, what = heapq.heappop(self._events)
                what(now)
            else:
                self._do(due, self._controller.wake(due))

    def _do(self, now: float, told: Instructions) -> None:
        """What the controller says: devices load, and a plan is made."""
        for device, _ in told.load:
            self._loading[device] = self._loading.get(device, 0) + 1
            this = self._loading[device]
            self._at(now + self._settings.load_time, lambda at, device=device, this=this: self._has_loaded(at, device, this))  # type: ignore[misc]
        self._record(now, told.queues)
        if told.plan_wanted:
            usual = not self._decisions or now >= self._decisions[-1].asked + self._settings.period
            forecast, chosen = self._controller.forecast, self._controller.decide()
            takes = chosen.seconds if self._settings.decision_time is None else self._settings.decision_time
            decision = _decision(now, now + takes, np.inf, not usual, forecast, chosen)
            self._at(now + takes, lambda at: self._adopt(at, decision, chosen))
        self._note_settled(now)

    def _adopt(self, now: float, decision: Decision, chosen: Choice) -> None:
        self._decisions.append(decision)
        self._do(now, self._controller.adopt(now, chosen))

    def _note_settled(self, now: float) -> None:
        last = self._decisions[-1]
        if last.settled == np.inf and self._controller.settled:
            self._decisions[-1] = replace(last, settled=now)

    def _has_loaded(self, now: float, device: int, which: int) -> None:
        if device not in self._dead and self._loading[device] == which:
            self._do(now, self._controller.loaded(now, device))

    def _break(self, now: float, fault: Fault, noticed_after: float) -> None:
        """A device is gone, which the controller learns later; and may come back."""
        self._dead.add(fault.device)
        self._loading[fault.device] = self._loading.get(fault.device, 0) + 1  # what it was loading it will not have loaded
        self._record(now, self._moments[-1][1])

        def noticed(at: float) -> None:
            self._do(at, self._controller.died(at, fault.device))

        def back(at: float) -> None:
            self._dead.discard(fault.device)
            self._do(at, self._controller.joined(at, fault.device))

        self._at(now + noticed_after, noticed)
        if fault.ends < np.inf:
            self._at(max(fault.ends, now + noticed_after), back)

    def _record(self, now: float, queues: Sequence[Queue]) -> None:
        """What holds from now on; of one moment the last."""
        if self._moments and self._moments[-1][0] == now:
            self._moments.pop()
        self._moments.append((now, queues, frozenset(self._dead), self._fleet))

    def _measure(self, now: float, rates: Array) -> None:
        """The loop learns what batches took, of so many requests/s of each family since the last time."""
        if self._truth is None or self._watch is None or now < self._measured_at + MEASURE:
            return
        seconds, self._measured_at = now - self._measured_at, now
        takes = self._truth.takes
        for queue in self._moments[-1][1]:
            q, variant, device = (
                int(self._fleet.problem.family[queue.variant]),
                takes.variants[queue.variant].name,
                takes.devices[queue.device_type].name,
            )
            mean, rate = takes.profiles[device, variant].service.mean_response, queue.share * float(rates[q]) / len(queue.devices)
            size = min(max(1, round(rate * float(mean[0]))), len(mean))
            took = MeasuredBatch(now, f"{variant}.{device}", 0, "", "", size, float(mean[size - 1]), np.nan, np.nan, False, 0, ())
            self._watch.see(takes.family_names[q], [took] * round(rate * len(queue.devices) * seconds / size))
        if self._watch.settle(now):
            self._fleet = ControlledFleet.of(self._watch.fleet)
            self._do(now, self._controller.follow(now, self._fleet))

    def _schedule(self) -> FleetSchedule:
        """The moments by queues: one for each (type, variant), or for each (device, variant), that ever serves."""
        places: dict[tuple[int, int, int], int] = {}  # (type or device, variant, what is known of the fleet) -> place
        made: list[FleetQueue] = []
        rows: list[list[tuple[int, float, int]]] = []
        for _, queues, dead, fleet in self._moments:
            row = []
            for queue in queues:
                d, m = queue.device_type, queue.variant
                key = d if self._settings.grouped else queue.devices[0], m, id(fleet)
                if key not in places:
                    places[key] = len(places)
                    family, accuracy = int(fleet.problem.family[m]), float(fleet.problem.accuracy[m])
                    made.append(FleetQueue(d, m, family, accuracy, fleet.policies[d, m], self._service(fleet, d, m)))
                row.append((places[key], queue.share, sum(device not in dead for device in queue.devices)))
            rows.append(row)
        shares, servers = np.zeros((len(rows), len(made))), np.zeros((len(rows), len(made)), dtype=np.int64)
        for i, row in enumerate(rows):
            for place, share, serving in row:
                shares[i, place], servers[i, place] = share, serving
        changes = [0, *(1 + np.flatnonzero(((shares[1:] != shares[:-1]) | (servers[1:] != servers[:-1])).any(axis=1)))]
        times = np.array([self._moments[i][0] for i in changes[1:]])
        return FleetSchedule(made, times, shares[changes], servers[changes])

    def _service(self, fleet: ControlledFleet, device_type: int, variant: int) -> ServiceTimes:
        """What batches truly take."""
        if self._truth is None:
            return fleet.services[device_type, variant]
        takes = self._truth.takes
        return takes.profiles[takes.devices[device_type].name, takes.variants[variant].name].service


def _decision(asked: float, in_force: float, settled: float, burst: bool, forecast: Array, chosen: Choice) -> Decision:
    return Decision(asked, in_force, settled, burst, forecast, chosen.headroom, chosen.plan, chosen.seconds)
