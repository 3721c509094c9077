"""Queues of applications as Sluice's policies: one for each application, or for a group, with slacks where promises differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import poisson

from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy

from .functions import STEP, Function, cpu_function, functions
from .merging import Application, Group

ROUNDING = 1e-9  # of a latency: kept free, so that the rounding of times makes nobody late


@dataclass(frozen=True, eq=False)
class Queue:
    """One queue before one function.

    ``slacks`` (s) are what each application may wait beyond the holds of the policy; ``cost`` is CNY per request as it is
    predicted.
    """

    applications: tuple[Application, ...]
    function: Function
    policy: Policy
    slacks: tuple[float, ...]
    cost: float

    @property
    def rate(self) -> float:
        """Requests/s."""
        return sum(of.rate for of in self.applications)


def merged(group: Group) -> Queue:
    """A group of HarmonyBatch: a request's timeout is the hold and its slack; vCPU in the steps in which they can be had."""
    function = group.function
    if group.vcpu is not None:
        function = cpu_function(STEP * math.ceil(group.vcpu / STEP - ROUNDING), group.batch_size)
    hold = max(group.timeouts[0], 0.0)
    cost = float(function.invocation[group.batch_size - 1]) / group.batch_size
    slacks = tuple(timeout - hold for timeout in group.timeouts)
    return Queue(group.applications, function, policies.size_or_timeout(group.batch_size, hold), slacks, cost)


def size_or_timeout(application: Application, bill: str) -> Queue:
    """The cheapest size-or-timeout for one application, exactly, each with the longest timeout that is surely in time: BATCH.

    Poisson arrivals: beside the first, a batch has the arrivals of the timeout, and at most ``batch_size - 1``.

    Raises
    ------
    InvalidInput
        No function is quick enough.
    """
    best: Queue | None = None
    for function in functions(bill):
        for b in range(1, function.service.max_batch_size + 1):
            timeout = application.slo * (1 - ROUNDING) - float(function.service.seconds[b - 1, 0])
            if timeout < 0:
                break
            if best is not None and (function.invocation[:b] / np.arange(1, b + 1)).min() >= best.cost:
                continue
            fewer = poisson.pmf(np.arange(b - 1), application.rate * timeout)
            sizes = np.append(fewer, 1 - fewer.sum())
            cost = float(sizes @ function.invocation[:b] / (sizes @ np.arange(1, b + 1)))
            if best is None or cost < best.cost:
                best = Queue((application,), function.up_to(b), policies.size_or_timeout(b, timeout), (0.0,), cost)
    if best is None:
        raise InvalidInput("slo", application.slo, "seconds that some function takes at most")
    return best


def mean_cost(queues: Sequence[Queue]) -> float:
    """CNY per request of any of them, as predicted."""
    return sum(of.rate * of.cost for of in queues) / sum(of.rate for of in queues)
