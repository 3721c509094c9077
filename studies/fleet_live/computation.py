"""The live run, and the same control loop on the same requests in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.control import ControlledFleet, run_control
from sluice.optimizer.fleet import solve_fleet
from sluice.optimizer.simulation.fleet_queues import FleetQueue, FleetSchedule, simulate_fleet

from .demand import SETTINGS, calm, day, fleet, length
from .live import Answered, InForce, Live, run_live
from .results import LIVE, REPLAYED, SIMULATED, SLOWER, Facts, Study, Window

WINDOW = 24.0  # s: two hours of the day
DECISION_TIME = 0.1  # s that a decision takes while the machine serves the fleet too
STARTS = 8  # moments within two looks from which the day is simulated


def compute() -> Study:
    """Live, then simulated."""
    live = run_live(day(), calm(), length())
    slos = np.array([family.slo.latency for family in fleet().families])
    windows = [*_live_windows(live, slos)]
    changed = {LIVE: _changes(live.placements)}
    idle, overhead, longest = round(live.idle, 2), round(live.overhead, 4), round(live.longest, 4)
    for name, real, told in ((SIMULATED, 0.0, 0.0), (SLOWER, overhead, longest)):
        found, changed[name] = simulated(name, idle, real, told)
        windows += found
    windows += replayed(live.placements, overhead, longest)
    looks = 2 * SETTINGS.look * np.arange(STARTS) / STARTS
    starts = [round(_late(simulated(SIMULATED, idle + later)[0]), 3) for later in looks.tolist()]
    return Study(windows, _facts(live, slos, changed, starts))


def simulated(name: str, idle: float, overhead: float = 0.0, told: float = 0.0) -> tuple[list[Window], int]:
    """The day in the simulator after so many seconds without requests.

    Every batch takes ``overhead`` s longer than its profile says, of which plans know ``told``.
    """
    known = ControlledFleet.of(fleet().behind(told))
    arrivals = [idle + times for times in day()]
    schedule = run_control(known, arrivals, solve_fleet, replace(SETTINGS, decision_time=DECISION_TIME)).schedule
    placements = _placements(schedule, idle)
    return _run(name, schedule, placements, idle, overhead), _changes(placements)


def replayed(placements: Sequence[InForce], overhead: float, told: float) -> list[Window]:
    """The day in the simulator under the plans that were in force live; ``overhead`` and ``told`` as in ``simulated``."""
    known = ControlledFleet.of(fleet().behind(told))
    problem, names = known.problem, [variant.name for variant in fleet().variants]
    queues = [
        FleetQueue(0, m, int(problem.family[m]), float(problem.accuracy[m]), known.policies[0, m], known.services[0, m])
        for m in range(len(names))
    ]
    shares = np.array([[each.shares.get(name, 0.0) for name in names] for each in placements])
    servers = np.array([[each.hosts.get(name, 0) for name in names] for each in placements])
    schedule = FleetSchedule(queues, np.array([max(0.0, each.since) for each in placements[1:]]), shares, servers)
    return _run(REPLAYED, schedule, placements, 0.0, overhead)


def _run(name: str, schedule: FleetSchedule, placements: Sequence[InForce], idle: float, overhead: float) -> list[Window]:
    """The windows of the day, ``idle`` s after the schedule begins, every batch taking so much longer than its profile says."""
    real = ControlledFleet.of(fleet().behind(overhead))
    longer = [replace(queue, service=real.services[queue.device_type, queue.variant]) for queue in schedule.queues]
    arrivals = [idle + times for times in day()]
    run = simulate_fleet(replace(schedule, queues=longer), arrivals, real.slos, np.random.default_rng(1))
    columns = (run.family, run.arrival_times - idle, run.latency, run.accuracy)
    answered = [Answered(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return _windows(name, answered, placements, real.slos)


def _placements(schedule: FleetSchedule, idle: float) -> list[InForce]:
    """Which variants get requests, on how many devices, from when on."""
    names = [variant.name for variant in fleet().variants]
    placements: list[InForce] = []
    times = np.concatenate([[0.0], schedule.times]) - idle
    for since, shares, servers in zip(times, schedule.shares, schedule.servers, strict=True):
        of = [(names[queue.variant], share, n) for queue, share, n in zip(schedule.queues, shares, servers, strict=True)]
        served = [(name, float(share), int(n)) for name, share, n in of if share > 0 and n]
        hosts, parts = {name: n for name, _, n in served}, {name: share for name, share, _ in served}
        placements.append(InForce(float(since), hosts, parts))
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


def _late(windows: Sequence[Window]) -> float:
    """Percent of all requests."""
    return 100.0 * (1.0 - sum(window.in_time for window in windows) / sum(window.arrivals for window in windows))


def _in_time(answered: Sequence[Answered], slos: Array) -> NDArray[np.bool_]:
    return np.array([each.latency <= slos[each.family] for each in answered], dtype=bool)


def _changes(placements: Sequence[InForce]) -> int:
    """How often other variants were served, or by other numbers of workers, within the day."""
    return sum(0 <= after.since < length() and before.hosts != after.hosts for before, after in pairwise(placements))


def _facts(live: Live, slos: Array, changed: dict[str, int], starts: list[float]) -> Facts:
    came = np.array([each.came for each in live.answered])
    failed = np.isnan([each.latency for each in live.answered])
    in_time = _in_time(live.answered, slos)
    calm_before, after = (came >= length()) & (came < live.killed), came >= live.killed
    near = (came >= live.killed - float(slos.max())) & (came < live.moved + 1.0)
    return Facts(
        idle=round(live.idle, 2),
        overhead=round(live.overhead, 4),
        longest=round(live.longest, 4),
        lag=round(live.lag, 4),
        controller=round(live.controller, 4),
        decisions=live.decisions,
        decision_time=DECISION_TIME,
        starts=starts,
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
