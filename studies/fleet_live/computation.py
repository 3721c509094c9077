"""The live run, and the same control loop on the same requests in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.control import ControlledFleet, run_control
from sluice.optimizer.fleet import solve_fleet
from sluice.optimizer.simulation.fleet_queues import FleetSchedule, simulate_fleet

from .demand import SETTINGS, calm, day, fleet, length
from .live import Answered, InForce, Live, run_live
from .results import LIVE, SIMULATED, SLOWER, Facts, Study, Window

WINDOW = 24.0  # s: two hours of the day
DECISION_TIME = 0.3  # s that a decision takes while the machine serves the fleet too


def compute() -> Study:
    """Live, then simulated."""
    live = run_live(day(), calm(), length())
    slos = np.array([family.slo.latency for family in fleet().families])
    windows = [*_live_windows(live, slos)]
    changed = {LIVE: _changes(live.placements)}
    for name, overhead in ((SIMULATED, 0.0), (SLOWER, live.overhead)):
        found, changed[name] = simulated(name, round(live.idle, 2), overhead)
        windows += found
    return Study(windows, _facts(live, slos, changed))


def simulated(name: str, idle: float, overhead: float) -> tuple[list[Window], int]:
    """The day in the simulator after so many seconds without requests, every batch taking so much longer than its profile says."""
    known = ControlledFleet.of(fleet())
    arrivals = [idle + times for times in day()]
    operation = run_control(known, arrivals, solve_fleet, replace(SETTINGS, decision_time=DECISION_TIME))
    longer = [
        replace(queue, service=replace(queue.service, overhead=queue.service.overhead + overhead))
        for queue in operation.schedule.queues
    ]
    run = simulate_fleet(replace(operation.schedule, queues=longer), arrivals, known.slos, np.random.default_rng(1))
    placements = _placements(operation.schedule, idle)
    columns = (run.family, run.arrival_times - idle, run.latency, run.accuracy)
    answered = [Answered(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return _windows(name, answered, placements, known.slos), _changes(placements)


def _placements(schedule: FleetSchedule, idle: float) -> list[InForce]:
    """Which variants get requests, on how many devices, from when on."""
    names = [variant.name for variant in fleet().variants]
    placements: list[InForce] = []
    times = np.concatenate([[0.0], schedule.times]) - idle
    for since, shares, servers in zip(times, schedule.shares, schedule.servers, strict=True):
        of = zip(schedule.queues, shares, servers, strict=True)
        hosts = {names[queue.variant]: int(n) for queue, share, n in of if share > 0 and n}
        if not placements or placements[-1].hosts != hosts:
            placements.append(InForce(float(since), hosts))
    return placements


def _live_windows(live: Live, slos: Array) -> list[Window]:
    of_day = [each for each in live.answered if each.came < length()]
    return _windows(LIVE, of_day, live.placements, slos)


def _windows(run: str, answered: Sequence[Answered], placements: Sequence[InForce], slos: Array) -> list[Window]:
    came = np.array([each.came for each in answered])
    accuracy = np.array([each.accuracy for each in answered])
    in_time = _in_time(answered, slos)
    windows = []
    for begin in np.arange(0.0, length(), WINDOW):
        within = (came >= begin) & (came < begin + WINDOW)
        mean = float(accuracy[within & in_time].mean())
        hosts = next(each.hosts for each in reversed(placements) if each.since <= begin + WINDOW / 2)
        words = ", ".join(f"{hosts[variant.name]} {variant.name}" for variant in fleet().variants if variant.name in hosts)
        windows.append(Window(run, float(begin), int(within.sum()), int((within & in_time).sum()), mean, words))
    return windows


def _in_time(answered: Sequence[Answered], slos: Array) -> NDArray[np.bool_]:
    return np.array([each.latency <= slos[each.family] for each in answered], dtype=bool)


def _changes(placements: Sequence[InForce]) -> int:
    """How often other variants were served, or by other numbers of workers, within the day."""
    return sum(0 <= each.since < length() for each in placements[1:])


def _facts(live: Live, slos: Array, changed: dict[str, int]) -> Facts:
    came = np.array([each.came for each in live.answered])
    failed = np.isnan([each.latency for each in live.answered])
    in_time = _in_time(live.answered, slos)
    calm_before, after = (came >= length()) & (came < live.killed), came >= live.killed
    near = (came >= live.killed - float(slos.max())) & (came < live.moved + 1.0)
    return Facts(
        idle=round(live.idle, 2),
        overhead=round(live.overhead, 4),
        lag=round(live.lag, 4),
        controller=round(live.controller, 4),
        decisions=live.decisions,
        decision_time=DECISION_TIME,
        hosts_changed=changed,
        killed=round(live.killed, 2),
        moved=round(live.moved, 2),
        workers=live.workers,
        failed=int((failed & near).sum()),
        failed_all=int(failed.sum()),
        requests=len(live.answered),
        near=int(near.sum()),
        late_before=round(100 * float((~in_time[calm_before]).mean()), 3),
        late_after=round(100 * float((~in_time[after]).mean()), 3),
        after=int(after.sum()),
    )
