"""Queues run with Poisson arrivals: what a request cost, and the share of each application that was late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.simulation.batch_means import Estimate, estimate_mean

from .queues import Queue

SAME = 1e-9  # s: rounding makes nobody late


class Ran(NamedTuple):
    """CNY per request with half its 95 % interval, and the largest share of an application's requests that was late."""

    cost: float
    half: float
    late: float


def run(queues: Sequence[Queue], n_requests: int, rng: np.random.Generator) -> Ran:
    """Each queue with so many requests of its own; every batch takes as long as it may at longest, and is billed as in the mean."""
    total = sum(of.rate for of in queues)
    cost, variance, late = 0.0, 0.0, 0.0
    for queue in queues:
        share = queue.rate / total
        paid, of_application = run_queue(queue, n_requests, rng)
        cost += share * paid.value
        variance += (share * (paid.high - paid.low) / 2) ** 2
        late = max(late, *of_application)
    return Ran(cost, math.sqrt(variance), late)


def run_queue(queue: Queue, n_requests: int, rng: np.random.Generator) -> tuple[Estimate, list[float]]:
    """CNY per request, and the share of each application's requests that was late."""
    rates = np.array([of.rate for of in queue.applications])
    times = np.cumsum(rng.exponential(1 / queue.rate, n_requests))
    of = rng.choice(len(rates), n_requests, p=rates / rates.sum())
    batch_of, left = batches(times, np.array(queue.slacks)[of], np.array(queue.policy.hold))
    size = np.bincount(batch_of, minlength=len(left))
    latency = left[batch_of] - times + queue.function.service.seconds[size - 1, 0][batch_of]
    late = latency > np.array([each.slo for each in queue.applications])[of] + SAME
    paid = (queue.function.invocation[size - 1] / size)[batch_of]
    return estimate_mean(paid), [float(late[of == k].mean()) for k in range(len(rates))]


@compiled
def batches(times: Array, slack: Array, hold: Array) -> tuple[Indices, Array]:
    """The batch of every request, and when each batch left, under an elastic table that takes all who wait.

    Parameters
    ----------
    times, slack : array, shape (n_requests,)
        Arrivals, ascending, and what each may wait beyond the holds (s).
    hold : array, shape (max_batch_size + 1,)
        By the number waiting; 0 in the last row, which is over for everybody.
    """
    batch_of, left = np.empty(len(times), dtype=np.int64), np.empty(len(times))
    n_batches, waiting, urgent = 0, 0, np.inf
    for i in range(len(times)):
        if waiting and urgent + hold[waiting] < times[i]:
            left[n_batches] = urgent + hold[waiting]
            n_batches, waiting, urgent = n_batches + 1, 0, np.inf
        batch_of[i] = n_batches
        waiting, urgent = waiting + 1, min(urgent, times[i] + slack[i])
        if hold[waiting] == 0 or urgent + hold[waiting] <= times[i]:
            left[n_batches] = times[i]
            n_batches, waiting, urgent = n_batches + 1, 0, np.inf
    if waiting:
        left[n_batches] = urgent + hold[waiting]
        n_batches += 1
    return batch_of, left[:n_batches]
