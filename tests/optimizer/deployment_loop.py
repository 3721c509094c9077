"""A deployment as it is specified: the rule read by ``decide`` at every event, for all of its tables at once.

What ``decide`` does not know is the environments of a function: a table whose function has none to give is passed over, as that of
busy servers is.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sluice.batching import Policy
from sluice.batching.policy import decide
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.schedule import KEEP

INF = float("inf")
Served = tuple[float, float, list[int], int, bool]


@dataclass
class Platform:
    """The environments of a function, or that there are any number."""

    told: Environments | None
    running: int = 0
    idle: list[float] = field(default_factory=list)
    tokens: float = 0.0
    counted_at: float = 0.0
    pings: int = 0

    def __post_init__(self) -> None:
        self.tokens = float(self.told.burst) if self.told else 0.0

    def ping(self, now: float) -> list[float]:
        """Every ping until now, one by one; when environments that had to start for one will be there."""
        starting: list[float] = []
        while self.told is not None and (self.pings + 1) * self.told.pinged_every <= now:
            self.pings += 1
            at = self.pings * self.told.pinged_every
            self.idle = [since for since in self.idle if since + self.told.keep_alive >= at]
            rest, kept = self.idle[: -self.told.pinged], self.idle[-self.told.pinged :]
            self.idle = rest + [max(since, at) for since in kept]
            allowed = INF if self.told.concurrency is None else self.told.concurrency - self.running
            for _ in range(int(min(self.told.pinged, allowed)) - len(kept)):
                if at + self.told.init_duration <= now:
                    self.idle.append(at + self.told.init_duration)
                else:
                    self.running += 1
                    starting.append(at + self.told.init_duration)
        return starting

    def grant(self, now: float) -> tuple[bool, bool, float]:
        """Whether there is an environment, whether cold, and when else tokens may give one."""
        if self.told is None:
            return True, False, INF
        filled = self.tokens + self.told.scaling_rate * (now - self.counted_at) if now > self.counted_at else self.tokens
        self.tokens, self.counted_at = min(self.told.burst, filled), now
        self.idle = [since for since in self.idle if since + self.told.keep_alive >= now]
        if self.idle:
            self.idle.pop()
            return True, False, INF
        if self.told.concurrency is not None and self.running >= self.told.concurrency:
            return False, False, INF
        if self.tokens >= 1:
            self.tokens -= 1
            return True, True, INF
        return False, False, now + (1 - self.tokens) / self.told.scaling_rate


def run_deployment(
    deployment: Deployment, arrival_times: Array, rng: np.random.Generator, classes: Sequence[int] = ()
) -> list[Served]:
    """(dispatch time, response time, members, place of the table, whether cold) of every batch, in order of dispatch."""
    slacks = [deployment.classes[k].slack or 0.0 for k in classes] or [0.0] * len(arrival_times)
    schedule, serving = deployment.schedule, deployment.serving
    beside = [side.policy for side in deployment.beside]
    platforms = [Platform(side.environments) for side in serving]
    servers = schedule.servers_in_force
    swaps = [*schedule.swap_times.tolist(), INF]
    arrivals = [*arrival_times.tolist(), INF]
    random = not all(side.service.deterministic for side in serving)
    rule, swap, request, wake_at = schedule.first, 0, 0, INF
    waiting: list[int] = []
    ends: list[tuple[float, bool, int]] = []
    batches: list[Served] = []
    while (now := min(arrivals[request], wake_at, swaps[swap], ends[0][0] if ends else INF)) < INF:
        while ends and ends[0][0] <= now:
            ended, late, place = heapq.heappop(ends)
            for starts in platforms[place].ping(ended):
                heapq.heappush(ends, (starts, False, place))
            platforms[place].running -= 1
            platforms[place].idle.append(ended)
            if deployment.adaptation is not None and place == 0:
                rule = int((deployment.adaptation.down if late else deployment.adaptation.up)[rule])
        while arrivals[request] <= now:
            insort(waiting, request, key=lambda r: (arrivals[r] + slacks[r], slacks[r] != 0, r))
            request += 1
        while swaps[swap] <= now:
            rule = rule if schedule.swap_to[swap] == KEEP else int(schedule.swap_to[swap])
            swap += 1
        wake_at, again_at = INF, INF
        own = schedule.tables[rule]
        passed_over = set[int]()
        if servers is not None:
            own = replace(own, servers=max(1, int(servers[swap])))
            passed_over = {0} if servers[swap] == 0 else passed_over
        while waiting:
            first, *others = [_busy(table) if place in passed_over else table for place, table in enumerate([own, *beside])]
            in_flight = [1 if place in passed_over else platform.running for place, platform in enumerate(platforms)]
            begins = arrivals[waiting[0]] + slacks[waiting[0]]
            patient = sum(slacks[member] > 0 for member in waiting)
            decision = decide(replace(first, beside=others), len(waiting), begins, now, *in_flight, patient=patient)
            if decision.drop:
                waiting.pop(0)
                continue
            if not decision.take:
                wake_at = min(INF if decision.wake_at is None else decision.wake_at, again_at)
                break
            place = decision.table
            for starts in platforms[place].ping(now):
                heapq.heappush(ends, (starts, False, place))
            granted, cold, tokens_at = platforms[place].grant(now)
            if not granted:  # the next completion is an event anyway
                passed_over.add(place)
                again_at = min(again_at, tokens_at)
                continue
            members, waiting = waiting[: decision.take], waiting[decision.take :]
            level = rng.random() if random else 0.0
            service, told = serving[place].service, platforms[place].told
            row = len(members) - 1
            response = float(np.interp(level, service.quantile_levels, service.seconds[row]) + service.overhead[row])
            response += told.init_duration if cold and told else 0.0
            batches.append((now, response, members, place, cold))
            platforms[place].running += 1
            late = deployment.adaptation is not None and place == 0 and response > deployment.adaptation.latency
            heapq.heappush(ends, (now + response, late, place))
    return batches


def _busy(table: Policy) -> Policy:
    """The table with one server, which is busy where one batch is in flight."""
    return replace(table, servers=1)
