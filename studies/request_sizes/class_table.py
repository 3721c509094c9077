"""A table that sees classes: one queue, whose batches are each of one class, and may take smaller requests along.

The table of a class is read with the number of its own that wait, and the age of its oldest. Where it releases a batch that has
room, smaller requests fill it, of the class next below first and oldest first, as long as the batch with one more is still in time
for the oldest of the class. The classes are asked in turn, smallest first; without filling they are the queues of size classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.billing import Billing
from sluice.optimizer.compiled import compiled
from sluice.optimizer.recommend import SizedAnswer
from sluice.optimizer.recommend.last_moment import seconds_to_spare
from sluice.optimizer.service import MixedServiceTimes, ServiceBySize, SizeMix


class Tables(NamedTuple):
    """Of every class: hold and take, (n_classes, rows); the largest batch, (n_classes,); and the age at which 1, 2, ... must leave.

    ``spare``, (n_classes, rows), is -inf for batches that are never in time.
    """

    hold: Array
    take: Indices
    most: Indices
    spare: Array


@dataclass(frozen=True, eq=False)
class ClassRun:
    """Latencies (s) and classes of the requests in order of arrival, batches, and USD per request."""

    latency: Array
    class_of: Indices
    n_batches: int
    cost_per_request: float


def simulate_class_table(answer: SizedAnswer, times: Array, sizes: Array, rng: np.random.Generator, fills: bool = True) -> ClassRun:
    """Run the classes of an answer as one table that sees them; each batch takes as long as its largest member has it."""
    ends = [of.up_to for of in answer.classes[:-1]]
    class_of = np.searchsorted(ends, sizes)
    deployments = [queue.deployment for queue in answer.deployment(SizeMix.of(sizes)).queues]
    policies = [deployment.schedule.tables[0] for deployment in deployments]
    rows = 1 + max(len(policy.hold) for policy in policies)
    hold = np.array([[*policy.hold, *[policy.hold[-1]] * (rows - len(policy.hold))] for policy in policies])
    take = np.array([[*policy.take, *[policy.take[-1]] * (rows - len(policy.take))] for policy in policies], dtype=np.int64)
    spare = np.full((len(policies), rows), -np.inf)
    for k, of in enumerate(answer.classes):
        planned = next(times for times in of.question.services if times.memory_mb == of.best.memory_mb)
        found = seconds_to_spare(planned, answer.question.promised)
        spare[k, 1 : 1 + len(found)] = found[: rows - 1]
    tables = Tables(hold, take, np.array([policy.max_batch_size for policy in policies]), spare)
    members = [np.flatnonzero(class_of == k) for k in range(len(policies))]
    first = np.cumsum([0, *map(len, members)])
    batch_of, left, of_class = _run(times, class_of, np.concatenate(members), first, tables, fills)
    usd, largest = 0.0, np.zeros(len(left))
    np.maximum.at(largest, batch_of, sizes)
    count = np.bincount(batch_of, minlength=len(left))
    responses = np.empty(len(left))
    for k, deployment in enumerate(deployments):
        here = of_class == k
        service = deployment.service
        assert isinstance(service, MixedServiceTimes)
        responses[here] = drawn_responses(service.by_size, largest[here], count[here], rng)
        usd += bill(service.by_size, largest[here], count[here], deployment.billing)
    latency = left[batch_of] - times + responses[batch_of]
    return ClassRun(latency, class_of, len(left), usd / len(times))


def drawn_responses(by_size: ServiceBySize, largest: Array, count: Indices, rng: np.random.Generator) -> Array:
    """Seconds to the answer of batches by their largest size and number of members, with luck of their own, (n_batches,)."""
    kinds, at = np.unique(largest, return_inverse=True)
    rows, levels = by_size.seconds(kinds)[at, count - 1], by_size.quantile_levels
    overhead = by_size.overhead(kinds)[at, count - 1]
    if len(levels) == 1:
        return np.asarray(rows[:, 0] + overhead)
    luck = rng.random(len(rows))
    above = np.clip(np.searchsorted(levels, luck, side="right"), 1, len(levels) - 1)
    part = (luck - levels[above - 1]) / (levels[above] - levels[above - 1])
    each = np.arange(len(rows))
    return np.asarray(rows[each, above - 1] * (1 - part) + rows[each, above] * part + overhead)


def bill(by_size: ServiceBySize, largest: Array, count: Indices, billing: Billing) -> float:
    """USD of the invocations of these batches."""
    seconds = by_size.mean_billed(largest, count, billing.step).sum()
    gigabytes, prices = by_size.memory_mb / 1024, billing.prices
    return float(seconds * gigabytes * prices.gb_second(billing.architecture) + prices.function.request * len(count))


@compiled
def _run(
    times: Array, class_of: Indices, members: Indices, first: Indices, tables: Tables, fills: bool
) -> tuple[Indices, Array, Indices]:
    """The batch of every request; when a batch left, and its class, (n_batches,).

    ``members`` are the requests of class 0, 1, ... in order of arrival, those of class ``k`` from ``first[k]`` on.
    """
    hold, take, most, spare = tables
    n, n_classes, last_row = len(times), len(most), hold.shape[1] - 1
    head, tail = first[:-1].copy(), first[:-1].copy()
    batch_of = np.full(n, -1)
    left, of_class = np.empty(n), np.empty(n, dtype=np.int64)
    n_batches, coming = 0, 0
    while True:
        now = times[coming] if coming < n else np.inf
        for k in range(n_classes):
            if head[k] < tail[k]:
                now = min(now, times[members[head[k]]] + hold[k, min(tail[k] - head[k], last_row)])
        if now == np.inf:
            break
        while coming < n and times[coming] <= now:
            tail[class_of[coming]] += 1
            coming += 1
        for k in range(n_classes):
            while head[k] < tail[k]:
                oldest, row = times[members[head[k]]], min(tail[k] - head[k], last_row)
                if now < oldest + hold[k, row]:
                    break
                size = take[k, row]
                for i in range(head[k], head[k] + size):
                    batch_of[members[i]] = n_batches
                head[k] += size
                below = k - 1
                while fills and below >= 0 and size < most[k] and now - oldest <= spare[k, size + 1]:
                    if head[below] == tail[below]:
                        below -= 1
                        continue
                    batch_of[members[head[below]]] = n_batches
                    head[below] += 1
                    size += 1
                left[n_batches], of_class[n_batches] = now, k
                n_batches += 1
    return batch_of, left[:n_batches], of_class[:n_batches]
