"""Queues run with Poisson arrivals: what a request cost, and the share of each application that was late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.batching.documents import RequestClass
from sluice.optimizer.simulation import Deployment, Estimate, simulate_deployment
from sluice.optimizer.simulation.batch_means import estimate_mean

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
    ran = simulate_deployment(deployment(queue), times, rng, classes=of)
    late = ran.latency > np.array([each.slo for each in queue.applications])[of] + SAME
    paid = (queue.function.invocation[ran.batch_sizes - 1] / ran.batch_sizes)[ran.batch_of]
    return estimate_mean(paid), [float(late[of == k].mean()) for k in range(len(rates))]


def deployment(queue: Queue) -> Deployment:
    """The queue as it is run."""
    classes = [RequestClass(f"{k}", slack=slack) for k, slack in enumerate(queue.slacks)]
    return Deployment(queue.policy, queue.function.service, classes=classes)
