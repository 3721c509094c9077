"""The best queue of several applications, and the best grouping of them: into neighbours by promise, and into any groups at all.

A group shares a table that waits to the last moment for its strictest promise; each request may wait so much longer as its own
promise is longer. Its cost is exact for Poisson arrivals (docs/model.md, 2.9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.function.class_holds import shared_holds_law

from .functions import Function, functions
from .merging import Application
from .queues import ROUNDING, Queue

SAME = 1e-9  # of a cost


class Sharing:
    """Queues of some applications, each group asked for once."""

    def __init__(self, applications: Sequence[Application], bill: str) -> None:
        self.applications, self.bill = tuple(sorted(applications)), bill
        self._found: dict[tuple[int, ...], Queue] = {}

    def together(self, members: tuple[int, ...]) -> Queue:
        """The cheapest queue of the applications at these places, ascending."""
        if members not in self._found:
            self._found[members] = together([self.applications[k] for k in members], self.bill)
        return self._found[members]

    def neighbours(self) -> list[Queue]:
        """The cheapest grouping in which every group has neighbours by promise: a dynamic programme over where groups end."""
        n = len(self.applications)
        best: list[tuple[float, list[Queue]]] = [(0.0, [])]
        for end in range(1, n + 1):
            options = ((best[start], self.together(tuple(range(start, end)))) for start in range(end))
            best.append(min(((cost + of.rate * of.cost, [*some, of]) for (cost, some), of in options), key=lambda found: found[0]))
        return best[n][1]

    def any_groups(self) -> list[Queue]:
        """The cheapest of all partitions."""
        found = ([self.together(group) for group in some] for some in partitions(len(self.applications)))
        return min(found, key=lambda some: sum(of.rate * of.cost for of in some))


def together(applications: Sequence[Application], bill: str) -> Queue:
    """The cheapest queue that all of them share, those of the strictest promise first; of equals the smaller batch.

    Raises
    ------
    InvalidInput
        No function is quick enough for the strictest promise.
    """
    tightest = applications[0].slo
    slacks = [of.slo - tightest for of in applications]
    arrivals = [poisson(of.rate) for of in applications]
    in_time = [(function, _spare(function, tightest)) for function in functions(bill)]
    order = sorted((float(_each(function)[: len(spare)].min()), k) for k, (function, spare) in enumerate(in_time) if len(spare))
    best: Queue | None = None
    for least, k in order:
        if best is not None and least >= best.cost:
            break
        function, spare = in_time[k]
        law = shared_holds_law(arrivals, slacks, spare[1:])
        cost = law.batch_size_pmf @ function.invocation[: len(spare)] / law.mean_batch_size
        b = int(np.argmax(cost <= cost.min() * (1 + SAME))) + 1
        if best is None or cost[b - 1] < best.cost:
            table = policies.deadline(tightest, (tightest - spare[:b]).tolist(), servers=None)
            best = Queue(tuple(applications), function.up_to(b), table, tuple(slacks), float(cost[b - 1]))
    if best is None:
        raise InvalidInput("slo", tightest, "seconds that some function takes at most")
    return best


def partitions(n: int) -> Iterator[list[tuple[int, ...]]]:
    """All partitions of 0, 1, ..., n - 1 into groups, each ascending."""
    if n == 0:
        yield []
        return
    for some in partitions(n - 1):
        yield [*some, (n - 1,)]
        for k, group in enumerate(some):
            yield [*some[:k], (*group, n - 1), *some[k + 1 :]]


def _spare(function: Function, tightest: float) -> Array:
    """Seconds that the first of a batch of 1, 2, ... may have waited, up to the last that is in time."""
    spare = tightest * (1 - ROUNDING) - function.service.seconds[:, 0]
    return spare[spare >= 0]


def _each(function: Function) -> Array:
    """CNY per request in a batch of 1, 2, ..."""
    return function.invocation / np.arange(1, len(function.invocation) + 1)
