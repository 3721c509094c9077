"""Which function serves a batch of which size, so that one plan is cheap at every load (docs/model.md, 3.4).

A batch's size when it leaves chooses its function. With ``left_n`` the age of the oldest at which a batch of ``n`` must leave to be
in time by its own function, ``n`` requests wait for one more until ``min(left_n, left_{n+1})``: then a batch of ``n`` is just in
time, or one of ``n + 1`` would be. So every promise is kept whatever the arrivals do, by every choice of functions, and the choice
is about cost alone: of all rows, up to the size that costs least a request when it is full.

Loads are the arrivals sped up, two to a tenfold of the rate. The cost at each is divided by that of the cheapest table at that rate
that waits to the last moment, over memory sizes and largest batches: the table of one who knew the rate. Minimised is the mean of
these, where at the rate of the arrivals themselves no more than ``HERE`` is lost, and another function must save ``WORTH`` of it.
Cold starts of every function are in both costs (``cold_starts``). From the best function alone on, the search gives stretches of
sizes to another function, then moves the ends of stretches, until nothing is better; for arrivals with phases the first is done
for Poisson arrivals, whose cost is known a hundred times as quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from sluice.batching.policy import MAX_BESIDE, Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cold_starts import ColdStarts, Invocations, Share, finds_none, shares
from sluice.optimizer.billing.cost import invocation_costs
from sluice.optimizer.function.any_holds import AnyHolds
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import seconds_left

LOADS_A_TENFOLD = 2
HERE = 0.005  # of the cost, lost at most at the rate of the arrivals
WORTH = 0.001  # of the mean cost, that each function beyond the first must save
MOST_JUMPS = 4000.0  # of the phases within a hold; a faster process is taken to fill batches as this one does
KIND = "last_moment"
_SAME = 1e-9
_STEP = 1e-6  # s that holds are a multiple of, the next smaller: a parameter of 4 KB holds few rows of seventeen digits
_NEVER = 1e-12  # of the batches: a function that gets no more is not asked for
_MUCH = 100.0  # what is lost beyond ``HERE`` counts as so many times as much

T = TypeVar("T")
Assignment = tuple[int, ...]
"""The place of the function of a batch of 1, 2, ... among the question's memory sizes."""


class FunctionsBySize:
    """The assignments of functions to batch sizes that a question allows, and what they cost at each load.

    Parameters
    ----------
    loads : tuple of float
        The least and the largest multiple of the arrival rate.
    arrivals : ArrivalProcess, optional
        At whose cost they are compared; by default the question's.
    """

    def __init__(self, settings: FunctionSettings, loads: tuple[float, float], arrivals: ArrivalProcess | None = None) -> None:
        question, services = settings.question, settings.services
        self.settings, self.question, self.loads, self.factors = settings, question, loads, _factors(*loads)
        self.arrivals = arrivals or question.arrivals
        shape = (len(services), max(service.max_batch_size for service in services))
        self.cost, self.left, self._busy = np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros(shape)
        for j, service in enumerate(services):
            compute, spare = invocation_costs(service, question.billing)[0], seconds_left(service, question.promised)
            self.cost[j, : len(compute)] = compute + settings.search.per_invocation[j]
            held = np.floor(np.minimum(spare, question.longest_timeout) / _STEP) * _STEP
            self.left[j, : len(spare)] = np.where(spare >= 0, np.round(held, 6), -np.inf)
            self._busy[j, : len(spare)] = service.mean_response
        self._starts: Callable[[float], ColdStarts] = cache(
            lambda factor: settings.starts.of(self.arrivals.sped_up(factor) if factor != 1 else self.arrivals)
        )
        self._law = AnyHolds(self.arrivals)
        jumps = float(-self.arrivals.D0.diagonal().min()) * float(self.left.max())
        self._fullest = max(1.0, MOST_JUMPS / jumps) if jumps > 0 else np.inf
        self.objective, self._sizes = cache(self._objective), cache(self._sizes_of_batches)
        self._by_largest: Callable[[Assignment, float], Array] = cache(
            lambda alone, filling: self._law.by_largest(self.holds(alone), filling)
        )
        self.least = np.array([self.cheapest_table(factor)[1] for factor in self.factors])

    def best(self) -> Assignment:
        """The assignment of least objective; where one name stands for every memory size, of one function."""
        found = [self._alone(j) for j in self._in_time]
        names = {self.question.function_at(service.memory_mb) for service in self.question.services}
        if len(found) > 1 and len(names) == len(self.cost):
            found.append(self._searched())
        return self._best_of(found)

    def _searched(self) -> Assignment:
        """The end of the search, for arrivals with phases from the best for Poisson arrivals on, whose cost is quickly known."""
        if self.arrivals.n_phases == 1:
            return self._improved(self._best_of(map(self._filled, self._in_time)), _stretches)
        quickly = FunctionsBySize(self.settings, self.loads, poisson(self.arrivals.arrival_rate))
        return self._improved(self._best_of([quickly.best(), *map(self._filled, self._in_time)]))

    def _best_of(self, assignments: Iterable[Assignment]) -> Assignment:
        """That of the least objective."""
        return _least(assignments, self._at_least, self.objective)[0]

    def relative(self, assignment: Assignment) -> Array:
        """Cost at each load over the least there, (n_factors,)."""
        return np.asarray([self.usd(assignment, factor) for factor in self.factors] / self.least)

    def usd(self, assignment: Assignment, factor: float) -> float:
        """USD per request, with cold starts, at this multiple of the arrival rate."""
        return self._usd(self.batch_size_pmf(assignment, factor), assignment, factor)

    def cheapest_table(self, factor: float) -> tuple[Assignment, float]:
        """The cheapest table at a load, over functions and largest batches, and its USD per request."""
        found = []
        for j in self._in_time:
            alone: Assignment = (j,) * int((self.left[j] >= 0).sum())
            by_largest = self._by_largest(alone, self._filling(factor))
            usd = by_largest @ self.cost[j, : len(alone)] / (by_largest @ np.arange(1, len(alone) + 1))
            b = int(np.argmax(usd <= usd.min() * (1 + _SAME))) + 1
            found.append((alone[:b], by_largest[b - 1, :b]))
        (table, _), usd = _least(found, lambda of: self._usd_warm(of[1], of[0]), lambda of: self._usd(of[1], of[0], factor))
        return table, usd

    def batch_size_pmf(self, assignment: Assignment, factor: float) -> Array:
        """Batch sizes at this multiple of the arrival rate, (max_batch_size,)."""
        return self._sizes(assignment, self._filling(factor))

    def holds(self, assignment: Assignment) -> Array:
        """Seconds that 1, 2, ... wait for one more, (max_batch_size - 1,)."""
        left = self.left[list(assignment), np.arange(len(assignment))]
        return np.asarray(np.minimum(left[:-1], left[1:]))

    def cold_starts(self, pmf: Array, assignment: Assignment, factor: float) -> dict[int, Share]:
        """Which share starts cold, by function, where batches have these sizes.

        As ``ColdStarts.of_batches`` has it: a batch that was held for longer than the one before takes finds none under way.
        """
        starts, functions = self.settings.starts, np.array(assignment)
        by_function = {j: np.where(functions == j, pmf, 0.0) for j in sorted(set(assignment))}
        serving = {j: batches for j, batches in by_function.items() if batches.sum() > _NEVER}
        if starts.told is not None:
            return dict.fromkeys(serving, Share(starts.told, starts.told))
        of, asked = self._starts(factor), []
        largest, invocations = np.array([len(pmf)]), 1 / _mean(pmf)
        holds, busy = self.holds(assignment), self._busy[functions, np.arange(len(pmf))]
        none = finds_none(pmf, holds, busy)[None]
        for j, batches in serving.items():
            share, apart = float(batches.sum()), shares(batches, none)
            mean = float(batches @ self._busy[j, : len(pmf)]) / share
            largest_of = float(np.flatnonzero(batches)[-1] + 1) * share / float(batches @ np.arange(1, len(pmf) + 1))
            meet = (1 - apart.batches) * of.fill_in_time(largest, pmf[None], holds, busy, functions == j)
            known = ([1 / (invocations * share)], [mean], [largest_of], *apart, meet, [starts.seconds[j]])
            asked.append(Invocations(*map(np.asarray, known)))
        cold = zip(*of.of_invocations(Invocations.all_of(asked)), strict=True)
        return {j: Share(float(batches), float(requests)) for j, (batches, requests) in zip(serving, cold, strict=True)}

    def whole(self, assignment: Assignment) -> Policy:
        """The rows of all functions as one table, which leaves open who serves."""
        return self.whole_of(self.holds(assignment))

    def whole_of(self, holds: Array) -> Policy:
        """The same where 1, 2, ... wait so long for one more (s)."""
        hold = (np.inf, *holds.tolist(), 0.0)
        return Policy(hold, range(len(hold)), kind=KIND, parameters=self._parameters(len(holds) + 1))

    def tables(self, assignment: Assignment) -> list[tuple[int, Policy]]:
        """A table for each function, in the order in which they are read; finite in the rows that are its own."""
        return self.tables_of(assignment, self.holds(assignment))

    def tables_of(self, assignment: Assignment, holds: Array) -> list[tuple[int, Policy]]:
        """The same where 1, 2, ... wait so long for one more (s).

        The first has the last row, so that its hold of 0 is read before that of the others, which end there as well: a longer queue
        than the largest batch is theirs where that function takes no more.
        """
        whole, largest = self.whole_of(holds), len(assignment)
        own = {j: [n for n, at in enumerate(assignment, 1) if at == j] for j in set(assignment)}
        found = []
        for j, sizes in sorted(own.items(), key=lambda rows: -rows[1][-1]):
            hold, take = [np.inf] * (largest + 1), [0] * (largest + 1)
            for n in sizes:
                hold[n], take[n] = whole.hold[n], n
            hold[largest], take[largest] = 0.0, sizes[-1]
            found.append((j, Policy(hold, take, kind=KIND, parameters=self._parameters(sizes[-1]))))
        return found

    def _sizes_of_batches(self, assignment: Assignment, filling: float) -> Array:
        return self._law.batch_size_pmf(self.holds(assignment), filling)

    def _filling(self, factor: float) -> float:
        """The multiple of the rate at which batches are taken to fill as at this one."""
        return min(float(factor), self._fullest)

    def _parameters(self, largest: int) -> dict[str, float | int | str]:
        return {"slo": min(slo.latency for slo in self.question.promised), "max_batch_size": largest}

    def _objective(self, assignment: Assignment) -> float:
        return self._weighed(self.relative(assignment), assignment)

    def _at_least(self, assignment: Assignment) -> float:
        """What the objective would be if nothing started cold, which is known ten times as quickly."""
        usd = [self._usd_warm(self.batch_size_pmf(assignment, factor), assignment) for factor in self.factors]
        return self._weighed(np.asarray(usd / self.least), assignment)

    def _weighed(self, relative: Array, assignment: Assignment) -> float:
        lost = float(relative[self.factors == 1.0].max()) - 1 - HERE
        return float(relative.mean()) + WORTH * (len(set(assignment)) - 1) + _MUCH * max(0.0, lost)

    def _usd(self, pmf: Array, assignment: Assignment, factor: float) -> float:
        cold, functions = 0.0, np.array(assignment)
        if self.settings.starts.matter:
            for j, share in self.cold_starts(pmf, assignment, factor).items():
                cold += float(pmf[functions == j].sum()) * share.batches * self.settings.starts.usd[j]
        return self._usd_warm(pmf, assignment) + cold / _mean(pmf)

    def _usd_warm(self, pmf: Array, assignment: Assignment) -> float:
        return float(pmf @ self.cost[list(assignment), np.arange(len(assignment))]) / _mean(pmf)

    @property
    def _in_time(self) -> list[int]:
        """The functions that answer one request in time."""
        return [j for j in range(len(self.cost)) if self.left[j, 0] >= 0]

    def _alone(self, j: int) -> Assignment:
        """One function for all sizes."""
        return (j,) * _cheapest_full(np.where(self.left[j] >= 0, self.cost[j], np.inf))

    def _filled(self, j: int) -> Assignment:
        """One function for all sizes of which it is in time, and the cheapest that is for the others."""
        cost = np.where(self.left >= 0, self.cost, np.inf)
        cheapest = cost.argmin(axis=0)
        return tuple(j if self.left[j, n] >= 0 else int(cheapest[n]) for n in range(_cheapest_full(cost.min(axis=0))))

    def _improved(self, assignment: Assignment, *wider: Callable[[Assignment], Iterator[tuple[int, int]]]) -> Assignment:
        """The end of the search that begins here and gives stretches of sizes to other functions."""
        moved = True
        while moved:
            moved = False
            for stretches in (*wider, _shifts):
                for first, last in stretches(assignment):
                    for j in self._of_use(first, last):
                        other = (*assignment[:first], *(j,) * (last - first), *assignment[last:])
                        goal = self.objective(assignment) - _SAME
                        if self._allowed(other) and self._at_least(other) < goal and self.objective(other) < goal:
                            assignment, moved = other, True
        return assignment

    def _of_use(self, first: int, last: int) -> list[int]:
        """Functions that no other is better than, in cost, cold starts and time, at every one of these sizes."""
        cost, left = self.cost[:, first:last], self.left[:, first:last]
        starts = self.settings.starts.usd if self.settings.starts.matter else np.zeros(len(cost))
        as_good = (cost[None] <= cost[:, None]) & (left[None] >= left[:, None]) & (starts[None, :, None] <= starts[:, None, None])
        better = as_good & ((cost[None] < cost[:, None]) | (left[None] > left[:, None]))
        return [j for j in self._in_time if (left[j] >= 0).all() and not better[j].any(axis=0).all()]

    def _allowed(self, assignment: Assignment) -> bool:
        return len(set(assignment)) <= MAX_BESIDE + 1


def _least(found: Iterable[T], at_least: Callable[[T], float], value: Callable[[T], float]) -> tuple[T, float]:
    """That of the least value, and this: where it cannot be lower it is not worked out."""
    best, *others = sorted(found, key=at_least)
    least = value(best)
    for other in others:
        if at_least(other) < least and (of_other := value(other)) < least:
            best, least = other, of_other
    return best, least


def _factors(low: float, high: float) -> Array:
    """Multiples of the rate, evenly spaced in their logarithm, with 1 among them."""
    n = 1 + int(np.ceil(LOADS_A_TENFOLD * np.log10(high / low) - _SAME))
    return np.unique(np.round([*np.geomspace(low, high, n), 1.0], 12))


def _mean(pmf: Array) -> float:
    return float(pmf @ np.arange(1, len(pmf) + 1))


def _cheapest_full(cost: Array) -> int:
    """The smallest batch that, full, costs least a request."""
    each = cost / np.arange(1, len(cost) + 1)
    return int(np.argmax(each <= each.min() * (1 + _SAME))) + 1


def _stretches(assignment: Assignment) -> Iterator[tuple[int, int]]:
    """From a size to another, of a grid: all up to 4, then two to a doubling, and those before the last."""
    largest = len(assignment)
    ends = {n for power in range(largest.bit_length() + 1) for n in (1 << power, 3 << power)}
    grid = sorted({0, *(n for n in ends if n <= largest), max(largest - 1, 0), largest})
    return ((first, last) for i, first in enumerate(grid) for last in grid[i + 1 :])


def _shifts(assignment: Assignment) -> Iterator[tuple[int, int]]:
    """Up to four sizes on either side of where the function changes."""
    changes = [n for n, (here, there) in enumerate(pairwise(assignment), 1) if here != there]
    for change, by in ((change, by) for change in changes for by in (1, 2, 4)):
        yield max(0, change - by), change
        yield change, min(len(assignment), change + by)
