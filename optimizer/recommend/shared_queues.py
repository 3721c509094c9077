"""Which applications share a queue and a function, so that all together cost least (docs/model.md, 3.7).

A group has one function and one table that waits to the last moment: with ``n`` waiting a batch leaves while one of ``n + 1`` would
still be in time for everybody in it, and a request may wait so much longer as its own promise leaves it,

    hold[n] = min_c left_c(n + 1),     slack_c = min_n left_c(n + 1) - hold[n],     left_c(n) = SLO_c - S_n at SLO_c's percentile.

What that costs is known for every largest batch at once (``shared_holds_law``). Of up to ``MOST_IN_ANY_GROUPS`` applications with
Poisson arrivals all groupings are compared; else those into neighbours by promise, which with c(i, j), the cost per second of the
applications from i on and before j in one queue, is

    C(j) = min_i C(i) + c(i, j).

A group is asked for only once it is in a grouping that would be cheapest if every group not yet asked for cost what it cannot go
below: with a mean batch of m, what the lower convex hull of an invocation's cost over its batch has at m; and a batch of mean m
holds no more than its first request and those that come while that may wait. Where workers can be had a group is asked of the
function first, and they are simulated once the grouping would be cheapest if they cost what they cannot go below. Whether a
function beside them is cheaper still is asked of the queues of the cheapest grouping, of one for all, and of a queue for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sluice.batching.policy import Policy, no_batching
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.function.batching_law import SEARCH
from sluice.optimizer.function.class_holds import SharedHoldsLaw, shared_holds_law
from sluice.optimizer.recommend.application import Application, by_promise
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.shared_workers import SharedWorkers
from sluice.optimizer.recommend.waits import LONGEST_WAIT, rounded
from sluice.optimizer.recommend.worker_queue import WorkerQueue
from sluice.optimizer.service.times import ServiceTimes

KIND = "last_moment"
MOST_IN_ANY_GROUPS = 8
_SAME = 1e-9  # of a cost
_Group = tuple[int, ...]
ColdStartCosts = Callable[[int, Array, tuple[Application, ...]], Array]


@dataclass(frozen=True, eq=False)
class SharedQueue:
    """A queue that some applications share.

    Parameters
    ----------
    applications : tuple of Application
        The strictest promise first.
    service : int
        Which of the functions serves it.
    policy : Policy
    slacks : tuple of float
        Seconds that a request of each application may wait longer than the table says.
    batch_size_pmf : array, shape (max_batch_size,)
    usd : float
        Per request.
    """

    applications: tuple[Application, ...]
    service: int
    policy: Policy
    slacks: tuple[float, ...]
    batch_size_pmf: Array
    usd: float

    @property
    def arrival_rate(self) -> float:
        """Requests/s of all of them."""
        return sum(of.arrivals.arrival_rate for of in self.applications)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_size_pmf @ np.arange(1, len(self.batch_size_pmf) + 1))

    @cached_property
    def law(self) -> SharedHoldsLaw:
        """Of its batches, and of the latency of each application."""
        return shared_holds_law([of.arrivals for of in self.applications], self.slacks, np.array(self.policy.hold[1:-1]))

    def of(self, applications: Mapping[str, Application]) -> SharedQueue:
        """The same queue of the applications that have these names."""
        return replace(self, applications=tuple(applications[of.name] for of in self.applications))


Shared = SharedQueue | WorkerQueue


class SharedQueues:
    """The queues that some applications may share, each group asked for once.

    Parameters
    ----------
    applications : sequence of Application
    services : sequence of ServiceTimes
        Of the functions.
    usd : sequence of array, shape (max_batch_size,) each
        What an invocation of each function costs with a batch of 1, 2, ...
    cold_starts : callable, optional
        USD that cold starts add to an invocation, (max_batch_size,): of a function, by its mean batch under each largest batch,
        (max_batch_size,), and a group; infinite where they make more late than a promise allows.
    workers : SharedWorkers, optional
        Those that compete with the functions, of the same applications by promise.
    """

    def __init__(
        self,
        applications: Sequence[Application],
        services: Sequence[ServiceTimes],
        usd: Sequence[Array],
        cold_starts: ColdStartCosts | None = None,
        workers: SharedWorkers | None = None,
    ) -> None:
        self.applications, self._workers = by_promise(applications), workers
        self._services, self._usd, self._cold_starts = services, usd, cold_starts
        self._rates = np.array([of.arrivals.arrival_rate for of in self.applications])
        # by function, (n_applications, max_batch_size)
        self._left = [
            np.minimum([seconds_left(service, [of.slo]) for of in self.applications], LONGEST_WAIT) for service in services
        ]
        self._poisson = all(of.arrivals.n_phases == 1 for of in self.applications)
        self._floors: dict[tuple[int, int], _Floor] = {}
        self._found: dict[tuple[_Group, bool], SharedQueue | None] = {}

    def cheapest(self) -> tuple[Shared, ...] | None:
        """The cheapest grouping, the strictest promise first; ``None`` where nothing is in time for an application."""
        few = self._poisson and len(self.applications) <= MOST_IN_ANY_GROUPS
        found = self.any_groups() if few else self.neighbours()
        if found is None:
            return None
        if self._workers is not None:
            together = self.best(tuple(range(len(self.applications))))
            ways = [found] if together is None or len(found) == 1 else [found, [together]]
            found = min(([self.beside(queue) for queue in way] for way in ways), key=_per_second)
        return tuple(sorted(found, key=lambda queue: self.applications.index(queue.applications[0])))

    def beside(self, queue: Shared) -> Shared:
        """Its applications before workers with a function beside them, where that is cheaper or rests on no fit; else the queue."""
        if self._workers is None:
            return queue
        premium = self._workers.premium if isinstance(queue, WorkerQueue) else 0.0
        group = tuple(self.applications.index(of) for of in queue.applications)
        return self._workers.beside(group, queue.usd * (1 + premium)) or queue

    def neighbours(self) -> list[Shared] | None:
        """The cheapest of those groupings in which every group has neighbours by promise."""

        def cheapest(cost: Array) -> list[_Group] | None:
            ends = _cheapest_ends(cost)
            return None if ends is None else [tuple(range(*part)) for part in zip([0, *ends[:-1]], ends, strict=True)]

        least = self._least_costs if self._workers is None else np.minimum(self._least_costs, self._workers.least_of_neighbours())
        return self._settled(least.copy(), cheapest, lambda group: (group[0], group[-1] + 1))

    def any_groups(self) -> list[Shared] | None:
        """The cheapest of all groupings; their number makes it a matter of a few applications."""
        n = len(self.applications)
        groups = [tuple(k for k in range(n) if of >> k & 1) for of in range(1 << n)]
        least = [np.inf] + [self._least(group) * self._rate(group) for group in groups[1:]]

        def cheapest(cost: Array) -> list[_Group] | None:
            parts = _cheapest_sets(cost)
            return None if parts is None else [groups[part] for part in parts]

        return self._settled(np.array(least), cheapest, lambda group: (sum(1 << k for k in group),))

    def _settled(
        self, cost: Array, cheapest: Callable[[Array], list[_Group] | None], at: Callable[[_Group], tuple[int, ...]]
    ) -> list[Shared] | None:
        """The queues of the cheapest grouping, where ``cost`` has what no group goes below, at the place that it has there."""
        asked: dict[_Group, Shared | None] = {}
        while True:
            groups = cheapest(cost)
            if groups is None:
                return None
            new = [group for group in groups if group not in asked]
            if not new:
                return [queue for group in groups if (queue := asked[group]) is not None]
            for group in new:
                least = min(_usd(self.together(group)), self._least_of_workers(group)) * self._rate(group)
                if not least > cost[at(group)] * (1 + _SAME):
                    asked[group] = self.best(group)
                    least = _usd(asked[group]) * self._rate(group)
                cost[at(group)] = least

    def separate(self) -> tuple[Shared | None, ...]:
        """A queue for each application; ``None`` where nothing is in time for it."""
        found = [self.best((k,)) for k in range(len(self.applications))]
        if len(found) > MOST_IN_ANY_GROUPS:
            return tuple(found)
        return tuple(None if queue is None else self.beside(queue) for queue in found)

    def best(self, group: _Group) -> Shared | None:
        """The cheapest queue of the applications at these places, ascending, whatever serves it; ``None`` where nothing does."""
        queue = self.together(group)
        if self._workers is None:
            return queue
        limit = _usd(queue) / (1 + self._workers.premium)
        return self._workers.cheapest(group, limit) or queue if self._least_of_workers(group) < limit else queue

    def at_the_strictest(self) -> SharedQueue | None:
        """One queue for all in which nobody may wait longer than the strictest promise allows."""
        return self.together(tuple(range(len(self.applications))), own_slack=False)

    def unbatched(self) -> tuple[SharedQueue | None, ...]:
        """Every application by itself, one request at a time; ``None`` where no function is in time for it."""
        alone, found = np.ones(1), []
        for k, of in enumerate(self.applications):
            each = []
            for j in (j for j, left in enumerate(self._left) if left[k, 0] >= 0):
                cold = 0.0 if self._cold_starts is None else float(self._cold_starts(j, alone, (of,))[0])
                each.append((float(self._usd[j][0]) + cold, j))
            usd, j = min(each, default=(np.inf, -1))
            found.append(SharedQueue((of,), j, no_batching(), (0.0,), np.ones(1), usd) if np.isfinite(usd) else None)
        return tuple(found)

    def together(self, group: _Group, own_slack: bool = True) -> SharedQueue | None:
        """The same of the functions alone.

        Of batch sizes that cost the same the smallest is taken.
        """
        if (group, own_slack) not in self._found:
            self._found[group, own_slack] = self._cheapest(group, own_slack)
        return self._found[group, own_slack]

    def table(self, group: _Group, service: int, own_slack: bool = True) -> tuple[Array, Array]:
        """Seconds that 1, 2, ... wait for one more, (max_batch_size - 1,), up to the largest in time; and by class the slack."""
        left = self._left[service][list(group)]
        left = left[:, : int((left.min(axis=0) >= 0).sum())]
        holds = rounded(left[:, 1:].min(axis=0))
        if not own_slack or not len(holds):
            return holds, np.zeros(len(group))
        return holds, rounded((left[:, 1:] - holds).min(axis=1))

    def _cheapest(self, group: _Group, own_slack: bool) -> SharedQueue | None:
        applications = tuple(self.applications[k] for k in group)
        arrivals = [of.arrivals for of in applications]
        best: SharedQueue | None = None
        for least, j in sorted(self._least_by_function(group)):
            if least == np.inf or (best is not None and least >= best.usd * (1 - _SAME)):
                break
            holds, slacks = self.table(group, j, own_slack)
            law = shared_holds_law(arrivals, slacks.tolist(), holds, SEARCH)
            invocation = law.batch_size_pmf @ self._usd[j][: len(holds) + 1]
            if self._cold_starts is not None:
                invocation = invocation + self._cold_starts(j, law.mean_batch_size, applications)
            usd = invocation / law.mean_batch_size
            if not np.isfinite(usd).any():
                continue
            b = int(np.argmax(usd <= usd.min() * (1 + _SAME))) + 1
            if best is None or usd[b - 1] < best.usd * (1 - _SAME):
                policy = _policy(holds[: b - 1], min(of.slo.latency for of in applications))
                pmf = law.batch_size_pmf[b - 1, :b]
                best = SharedQueue(applications, j, policy, tuple(slacks.tolist()), pmf, float(usd[b - 1]))
        return best

    def _rate(self, group: _Group) -> float:
        return float(self._rates[list(group)].sum())

    def _least(self, group: _Group) -> float:
        """What a request of the group costs at the least, whatever serves it."""
        return min(min(self._least_by_function(group))[0], self._least_of_workers(group))

    def _least_of_workers(self, group: _Group) -> float:
        return np.inf if self._workers is None else self._workers.least(group)

    def _least_by_function(self, group: _Group) -> list[tuple[float, int]]:
        """By function what a request of the group costs at the least; inf where it is not in time."""
        found = []
        for j in range(len(self._services)):
            left = self._left[j][list(group)]
            in_time = int((left.min(axis=0) >= 0).sum())
            fill = 1 + float(self._rates[list(group)] @ np.maximum(left[:, min(1, left.shape[1] - 1)], 0.0))
            found.append((float(self._floor(j, in_time).least(np.array(fill if self._poisson else np.inf))), j))
        return found

    @cached_property
    def _least_costs(self) -> Array:
        """What neighbours from ``i`` on and before ``j`` cost per second at the least, (n + 1, n + 1)."""
        n = len(self.applications)
        least = np.full((n + 1, n + 1), np.inf)
        for j, of in enumerate(self._left):
            may_come = self._rates * np.maximum(of[:, min(1, of.shape[1] - 1)], 0.0)
            in_time = (of >= 0).sum(axis=1)
            for i in range(n):
                sizes = np.minimum.accumulate(in_time[i:])
                fill = 1 + np.cumsum(may_come[i:]) if self._poisson else np.full(n - i, np.inf)
                for size in np.unique(sizes).tolist():
                    there = np.flatnonzero(sizes == size)
                    least[i, i + 1 + there] = np.minimum(least[i, i + 1 + there], self._floor(j, size).least(fill[there]))
        rates = np.concatenate([[0.0], np.cumsum(self._rates)])
        return np.where(np.isfinite(least), least, np.inf) * np.where(np.isfinite(least), rates[None, :] - rates[:, None], 1.0)

    def _floor(self, service: int, in_time: int) -> _Floor:
        if (service, in_time) not in self._floors:
            self._floors[service, in_time] = _Floor(self._usd[service][:in_time])
        return self._floors[service, in_time]


def _per_second(queues: Sequence[Shared]) -> float:
    return sum(queue.usd * queue.arrival_rate for queue in queues)


def _usd(queue: Shared | None) -> float:
    return np.inf if queue is None else queue.usd


class _Floor:
    """What a request costs at the least under batches of a mean size, where one of 1, 2, ... costs ``usd``."""

    def __init__(self, usd: Array) -> None:
        self._hull = np.interp(np.arange(1, len(usd) + 1), *_lower_hull(usd)) if len(usd) else usd
        self._least = np.minimum.accumulate(self._hull / np.arange(1, len(usd) + 1))

    def least(self, most: Array) -> Array:
        """USD per request with batches of mean size ``most`` or less; inf where there is no batch."""
        largest = len(self._hull)
        if not largest:
            return np.full(np.shape(most), np.inf)
        mean = np.clip(most, 1.0, largest)
        return np.asarray(
            np.minimum(self._least[mean.astype(int) - 1], np.interp(mean, np.arange(1, largest + 1), self._hull) / mean)
        )


def _lower_hull(usd: Array) -> tuple[Indices, Array]:
    """The sizes, from 1 on, at which the lower convex hull bends, and its values there."""
    bends: list[int] = []
    for n in range(len(usd)):
        while len(bends) > 1:
            (first, last) = bends[-2:]
            if (usd[last] - usd[first]) * (n - last) < (usd[n] - usd[last]) * (last - first):
                break
            bends.pop()
        bends.append(n)
    return np.array(bends) + 1, np.asarray(usd[bends])


def _cheapest_ends(cost: Array) -> list[int] | None:
    """Where the parts of the cheapest partition end; ``cost[i, j]`` is that of the part from ``i`` on and before ``j``."""
    n = len(cost) - 1
    best, before = np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64)
    for end in range(1, n + 1):
        through = best[:end] + cost[:end, end]
        before[end] = int(np.argmin(through))
        best[end] = through[before[end]]
    if not np.isfinite(best[n]):
        return None
    ends = [n]
    while before[ends[0]] > 0:
        ends.insert(0, int(before[ends[0]]))
    return ends


def _cheapest_sets(cost: Array) -> list[int] | None:
    """The sets, as bits, of the cheapest partition of all; ``cost`` is that of every set, (2^n,)."""
    whole = len(cost) - 1
    best, part_of = [0.0] * (whole + 1), [0] * (whole + 1)
    each = cost.tolist()
    for of in range(1, whole + 1):
        lowest, least, taken = of & -of, np.inf, of
        rest = of ^ lowest
        others = rest
        while True:  # the set of the lowest, with all others of which it may be one
            part = lowest | others
            if each[part] + best[of ^ part] < least:
                least, taken = each[part] + best[of ^ part], part
            if not others:
                break
            others = (others - 1) & rest
        best[of], part_of[of] = least, taken
    if not np.isfinite(best[whole]):
        return None
    found, left = [], whole
    while left:
        found.append(part_of[left])
        left ^= part_of[left]
    return found


def _policy(holds: Array, tightest: float) -> Policy:
    """The table of these holds, whose largest batch leaves at once."""
    hold = (np.inf, *holds.tolist(), 0.0)
    largest = len(holds) + 1
    return Policy(hold, range(largest + 1), kind=KIND, parameters={"slo": tightest, "max_batch_size": largest})
