"""The event loop as it is specified: a clock and a service around ``Batcher``, in plain Python."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sluice.batching import Batcher, Policy
from sluice.batching.batcher import no_slack
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.schedule import Schedule

INF = float("inf")


def run_batcher(
    policy: Policy | Schedule,
    arrival_times: Array,
    service: ServiceTimes,
    rng: np.random.Generator,
    beside: Sequence[Policy] = (),
    by_table: list[int] | None = None,
    slacks: Sequence[float] = (),
) -> list[tuple[float, float, list[int]]]:
    """(dispatch time, response time, members) of every batch, in order of dispatch; tables are swapped by ``Batcher.swap``.

    Tables ``beside`` serve as fast; the place of each batch's table is put into ``by_table``. ``slacks`` are those of the requests.
    """
    schedule = policy if isinstance(policy, Schedule) else Schedule.of(policy)
    tables = [replace(table, beside=beside) for table in schedule.tables]
    batcher: Batcher[int] = Batcher(tables[schedule.first], slacks.__getitem__ if len(slacks) else no_slack)
    completions: list[tuple[float, int]] = []
    batches = []
    arrivals, swaps = [*arrival_times.tolist(), INF], [*schedule.swap_times.tolist(), INF]
    request, swap, wake_at = 0, 0, INF
    while (now := min(arrivals[request], wake_at, swaps[swap], completions[0][0] if completions else INF)) < INF:
        while completions and completions[0][0] <= now:
            batcher.accept(now, completed=1, table=heapq.heappop(completions)[1])
        first = request
        while arrivals[request] <= now:
            request += 1
        batcher.accept(now, range(first, request))
        table = batcher.policy
        while swaps[swap] <= now:
            table = tables[schedule.swap_to[swap]]
            swap += 1
        step = batcher.swap(now, table)
        wake_at = INF if step.wake_at is None else step.wake_at
        for members, place in zip(step.batches, step.tables, strict=True):
            response = service.seconds_at(len(members), rng.random()) + float(service.overhead[len(members) - 1])
            batches.append((now, response, list(members)))
            heapq.heappush(completions, (now + response, place))
            if by_table is not None:
                by_table.append(place)
    return batches
