"""Workers that applications share: the cheapest for a group of them, by simulation (docs/model.md, 3.7 and 7).

The tables are those of workers in front of requests that are alike, with a slack for each class: with ``left_c(n)`` what the
promise of ``c`` leaves a batch of ``n`` of a worker to wait,

    slack_c = min_n { left_c(n) - min_d left_d(n) },

so that the request whose time is over first is first in a batch. Each promise must surely be kept by the requests of its own class.
No group is simulated that cannot cost less than the function serves it for: so many workers as keep up with it, however they are
used, have their hours, and a group is taken to need no less than any part of it that was simulated. All of it ends after
``MOST_SIMULATED`` requests. Workers with a function beside them are asked for by group, within ``MOST_BESIDE``: what bounds their
cost from below is too far off for the grouping to be found with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, prod

import numpy as np

from sluice.batching.errors import Infeasible
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.superposition import MOST_PHASES
from sluice.optimizer.recommend.application import Application
from sluice.optimizer.recommend.demand import SharedDemand
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.overflow_choice import choose_overflow
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.worker_number import cheapest_workers
from sluice.optimizer.recommend.worker_queue import WorkerQueue
from sluice.optimizer.recommend.worker_trials import WorkerTrials

MOST_BESIDE = 1 << 22  # requests, in search of workers with a function beside them for one group
MOST_SIMULATED = 1 << 26  # requests in the search of all groups, some ten seconds
_SAME = 1e-9  # of a cost
Group = tuple[int, ...]


class SharedWorkers:
    """The workers that groups of applications may share, each group asked for once.

    Parameters
    ----------
    applications : sequence of Application
        In the order in which groups name them.
    question : Question
        Of which offers, functions, bill and premium are taken.
    """

    def __init__(self, applications: Sequence[Application], question: Question) -> None:
        self._applications, self._question, self._offers = tuple(applications), question, question.offers
        self._rates = np.array([of.arrivals.arrival_rate for of in applications])
        # by offer how large a batch is in time for each application
        self._in_time = [
            np.array([int((seconds_left(offer.service, [of.slo]) >= 0).sum()) for of in applications]) for offer in question.offers
        ]
        self.simulated = 0
        # those found, or USD per request below which there are none
        self._found: dict[Group, WorkerQueue | float] = {}
        self._per_second: dict[frozenset[int], float] = {}  # USD that groups which were simulated cost at the least

    @property
    def spent(self) -> bool:
        """Whether no more requests are to be simulated."""
        return self.simulated >= MOST_SIMULATED

    def least(self, group: Group) -> float:
        """USD per request that the group costs at the least; inf where no worker is in time for it, or none is tried any more."""
        found = self._found.get(group, 0.0)
        if isinstance(found, WorkerQueue):
            return found.usd
        if self.spent:
            return np.inf
        rate = float(self._rates[list(group)].sum())
        part = max((usd for part, usd in self._per_second.items() if part <= set(group)), default=0.0)
        return max(found, part / rate, min((self._least_of(i, group, rate) for i in range(len(self._offers))), default=np.inf))

    def least_of_neighbours(self) -> Array:
        """USD per second that neighbours from ``i`` on and before ``j`` cost at the least, (n + 1, n + 1)."""
        n = len(self._applications)
        least = np.full((n + 1, n + 1), np.inf)
        for i in range(n):
            rates = np.cumsum(self._rates[i:])
            for offer, in_time in zip(self._offers, self._in_time, strict=True):
                sizes = np.minimum.accumulate(in_time[i:])
                there = sizes > 0
                each = offer.throughput[sizes[there] - 1]
                hours = (np.floor(rates[there] / each) + 1) * offer.price_per_hour / 3600
                usage = rates[there] * _usage(offer)[sizes[there] - 1]
                least[i, i + 1 :][there] = np.minimum(least[i, i + 1 :][there], hours + usage)
        return least

    def cheapest(self, group: Group, cheaper_than: float) -> WorkerQueue | None:
        """The cheapest workers of any offer for the applications at these places, which keep every promise.

        ``None`` where there are none that cost less than so many USD per request, or none is tried any more.
        """
        found = self._found.get(group, 0.0)
        if not isinstance(found, WorkerQueue) and found < cheaper_than and not self.spent:
            self._found[group] = found = self._cheapest(group, cheaper_than) or cheaper_than
            usd = found.usd if isinstance(found, WorkerQueue) else found
            self._per_second[frozenset(group)] = usd * float(self._rates[list(group)].sum())
        return found if isinstance(found, WorkerQueue) and found.usd < cheaper_than else None

    @property
    def premium(self) -> float:
        """Part of the cost that what rests on no fit may cost more and still be taken."""
        return self._question.premium

    def beside(self, group: Group, cheaper_than: float) -> WorkerQueue | None:
        """The cheapest workers with a function beside them, in the same way; not more workers than are found to do alone."""
        if prod(self._applications[k].arrivals.n_phases for k in group) > MOST_PHASES:
            return None
        demand = SharedDemand(tuple(self._applications[k] for k in group))
        alone = self._found.get(group)
        workers = {alone.setting.offer.name: alone.setting.workers} if isinstance(alone, WorkerQueue) else {}
        try:
            setting = choose_overflow(
                self._question,
                workers,
                cheaper_than=cheaper_than,
                demand=demand,
                most=MOST_BESIDE,
            )
        except Infeasible:
            return None
        return WorkerQueue(demand.applications, setting)

    def _cheapest(self, group: Group, cheaper_than: float) -> WorkerQueue | None:
        applications = tuple(self._applications[k] for k in group)
        if prod(of.arrivals.n_phases for of in applications) > MOST_PHASES:
            return None
        demand = SharedDemand(applications)
        rate = demand.arrivals.arrival_rate
        best: WorkerQueue | None = None
        for least, i in sorted((self._least_of(i, group, rate), i) for i in range(len(self._offers))):
            limit = cheaper_than if best is None else best.usd
            if not least < limit * (1 - _SAME):
                break
            offer = self._offers[i]
            try:
                trials = WorkerTrials(demand, offer)
            except Infeasible:
                continue
            setting = cheapest_workers(trials, _most(offer, rate, limit), billing=self._question.billing)
            self.simulated += trials.simulated
            if setting is not None and setting.cost.per_request < limit * (1 - _SAME):
                best = WorkerQueue(applications, setting)
        return best

    def _least_of(self, i: int, group: Group, rate: float) -> float:
        """USD per request of an offer."""
        offer, size = self._offers[i], int(self._in_time[i][list(group)].min())
        if size == 0:
            return np.inf
        fewest = floor(rate / float(offer.throughput[size - 1])) + 1
        return np.inf if fewest > offer.max_workers else offer.hours(fewest, rate) + float(_usage(offer)[size - 1])


def _usage(offer: WorkerOffer) -> Array:
    """USD per request that a worker costs at the least beside its hours, with batches up to each size, (max_batch_size,)."""
    return np.asarray(np.minimum.accumulate(offer.usage / np.arange(1, len(offer.usage) + 1)))


def _most(offer: WorkerOffer, rate: float, limit: float) -> int:
    """Workers that do not cost more than so many USD per request by their hours alone."""
    each = offer.hours(1, rate)
    return offer.max_workers if each == 0 or limit == np.inf else min(offer.max_workers, ceil(limit / each))
