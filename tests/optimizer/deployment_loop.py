"""A deployment as it is specified: the rule read by ``decide`` at every event, for the servers and then for the function."""

from __future__ import annotations

import heapq

import numpy as np

from sluice.batching import Policy
from sluice.batching.policy import decide
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.schedule import KEEP

INF = float("inf")
Served = tuple[float, float, list[int], bool, bool]


def run_deployment(deployment: Deployment, arrival_times: Array, rng: np.random.Generator) -> list[Served]:
    """(dispatch time, response time, members, whether by the function, whether cold) of every batch, in order of dispatch."""
    schedule, overflow = deployment.schedule, deployment.overflow
    environments = deployment.function_environments or Environments(burst=10**9)
    servers = schedule.servers_in_force
    swaps = [*schedule.swap_times.tolist(), INF]
    arrivals = [*arrival_times.tolist(), INF]
    table, swap, request = schedule.first, 0, 0
    waiting: list[int] = []
    busy: list[tuple[float, bool]] = []
    running: list[float] = []
    idle: list[float] = []
    tokens, counted_at, wake_at = float(environments.burst), 0.0, INF
    batches: list[Served] = []
    while (now := min(arrivals[request], wake_at, swaps[swap], busy[0][0] if busy else INF, running[0] if running else INF)) < INF:
        while busy and busy[0][0] <= now:
            _, late = heapq.heappop(busy)
            if deployment.adaptation is not None:
                table = int((deployment.adaptation.down if late else deployment.adaptation.up)[table])
        while running and running[0] <= now:
            idle.append(heapq.heappop(running))
        while arrivals[request] <= now:
            waiting.append(request)
            request += 1
        while swaps[swap] <= now:
            table = table if schedule.swap_to[swap] == KEEP else int(schedule.swap_to[swap])
            swap += 1
        wake_at = INF
        while waiting:
            policy = schedule.tables[table]
            oldest = arrivals[waiting[0]]
            in_force = None if servers is None else int(servers[swap])
            decision = decide(_with(policy, in_force), len(waiting), oldest, now, len(busy) if in_force != 0 else 1)
            if decision.drop:
                waiting.pop(0)
                continue
            elastic = servers is None
            of_servers = INF if decision.wake_at is None else decision.wake_at
            if overflow is not None and not decision.take:
                second = decide(overflow.policy, len(waiting), oldest, now, 0)
                wakes = [wake for wake in (decision.wake_at, second.wake_at) if wake is not None]
                decision = second._replace(wake_at=min(wakes, default=None))
                elastic = bool(second.take)
            if not decision.take:
                wake_at = INF if decision.wake_at is None else decision.wake_at
                break
            cold = False
            if elastic:
                tokens = (
                    min(environments.burst, tokens + environments.scaling_rate * (now - counted_at)) if now > counted_at else tokens
                )
                counted_at = now
                idle = [since for since in idle if since + environments.keep_alive >= now]
                may_start = environments.concurrency is None or len(running) < environments.concurrency
                if idle:
                    idle.pop()
                elif may_start and tokens >= 1:
                    tokens -= 1
                    cold = deployment.function_environments is not None
                else:  # the next completion is an event anyway
                    wake_at = min(of_servers, now + (1 - tokens) / environments.scaling_rate if may_start else INF)
                    break
            members, waiting = waiting[: decision.take], waiting[decision.take :]
            service = overflow.service if overflow is not None and elastic else deployment.service
            response = service.draw(len(members), rng) + (environments.init_duration if cold else 0.0)
            batches.append((now, response, members, elastic, cold))
            if elastic:
                heapq.heappush(running, now + response)
            else:
                late = deployment.adaptation is not None and response > deployment.adaptation.latency
                heapq.heappush(busy, (now + response, late))
    return batches


def _with(policy: Policy, servers: int | None) -> Policy:
    return Policy(policy.hold, policy.take, None if servers is None else max(1, servers), policy.drop_after)
