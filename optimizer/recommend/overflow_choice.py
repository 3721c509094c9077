"""How many workers for the base load, under which table, and when the function takes the rest (docs/model.md, section 7).

For every number of workers there is a cost that no table goes below: their hours, and the cheapest bill for what they could not
serve if they were never idle. The numbers of all offers are tried in the order of that bound, until it is beyond the best that was
found: what is left out costs more, whatever the shape of the cost between.

For a number of workers the tables of ``WorkerTrials`` are tried with one largest batch of the function, then all largest batches
(powers of two) with the best of them, then the tables once more where that changed. The function's memory size is the cheapest with
the first number tried, and chosen again with the best; where workers leave it nothing to do, no other is tried. All of it ends
after ``MOST_SIMULATED`` requests, in runs of ``SEARCHED`` at most: tables that meet the same arrivals are told apart sooner than a
cost is known. So the best few are run again, long enough to show the equilibrium, over arrivals that the search did not see; the
cheapest there that keeps the SLOs is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sluice.batching.errors import Infeasible
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost, invocation_costs
from sluice.optimizer.recommend.demand import Demand, Drawn
from sluice.optimizer.recommend.horizon import MOST_REQUESTS, UNSEEN, Horizon
from sluice.optimizer.recommend.last_moment import last_moment_beside, left_beside, seconds_to_spare
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.overflow_setting import OverflowSetting, overflow_cost, simulate_overflow
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.simulated_doubt import with_doubt
from sluice.optimizer.recommend.worker_trials import WorkerTrials
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.deployment import Beside
from sluice.optimizer.simulation.latency_statistics import surely_keeps

MOST_SIMULATED = 1 << 25  # requests in all, some seconds
SEARCHED = 1 << 17  # requests of a run
CONFIRMED = 3  # of the best, that are run again


def choose_overflow(
    question: Question,
    alone: Mapping[str, int] | None = None,
    *,
    cheaper_than: float = np.inf,
    demand: Demand | None = None,
    most: int = MOST_SIMULATED,
    confidence: float = 0.95,
    seed: int = 0,
) -> OverflowSetting:
    """The cheapest workers, of the offers of a question, with the function beside them that surely keep every SLO.

    Parameters
    ----------
    alone : mapping of str to int, optional
        Workers that keep the SLOs by themselves, by the name of the offer; fewer are tried, else all that can be had.
    cheaper_than : float
        USD per request, as the demand compares them, that something else costs.
    demand : Demand, optional
        By default the requests of the question, which are alike.
    most : int
        Requests simulated in the search.
    confidence : float
        Of the two-sided intervals; the SLOs must hold at the upper end.
    seed : int
        The same seed gives the same answer.

    Raises
    ------
    Infeasible
        When a single request takes too long for the workers or for the function, one worker does alone, or nothing is cheaper.
    """
    demand = Demand(question.arrivals, question.promised) if demand is None else demand
    search = _Search(question, demand, most, confidence, seed)
    sides, refused = [], []
    for offer in question.offers:
        fewer = min(offer.max_workers, (alone or {}).get(offer.name, offer.max_workers + 1) - 1)
        try:
            trials = WorkerTrials(demand, offer, confidence, seed)
        except Infeasible as error:
            refused.append(str(error))
            continue
        if fewer < 1:
            refused.append(f"one worker ({offer.name}) keeps the SLOs alone")
        elif not search.beside(offer):
            refused.append(f"no memory size of another function than {offer.function or offer.name} answers a request in time")
        else:
            sides += search.sides(trials, fewer)
    if not sides:
        raise Infeasible("; ".join(refused) or "there are no workers")
    settings = [search.again(trial) for trial in search.best(sides, cheaper_than)[:CONFIRMED]]
    kept = [setting for setting in settings if setting.keeps_slos and demand.price(setting.cost) < cheaper_than]
    for setting in sorted(kept, key=lambda setting: demand.price(setting.cost)):
        surely = with_doubt(setting, question, partial(_under, question, setting))
        if surely.keeps_slos:
            return surely
    if kept:
        sure = f"{100 * question.goal.confidence:g} % confidence"
        raise Infeasible(f"with {sure} none of the cheapest keeps the SLOs, whatever the fit is wrong by")
    if settings and not any(setting.settled for setting in settings):
        raise Infeasible(f"no run of {MOST_REQUESTS} requests shows what they do: {UNSEEN}")
    least = min(side.least for side in sides)
    raise Infeasible(
        f"none was found that costs less; no table with any number of them goes below {1e6 * least:.4g} USD per million requests "
        "in all",
        {"cost_per_request": least},
    )


def _under(question: Question, setting: OverflowSetting, arrivals: ArrivalProcess) -> OverflowSetting:
    asked = replace(question, arrivals=arrivals, without=())
    of = setting.offer, setting.policy, setting.overflow
    return simulate_overflow(asked, *of, confidence=setting.confidence, seed=setting.seed)


@dataclass(frozen=True, eq=False)
class _Side:
    """So many workers of an offer, and what they and the function cost at least (USD per request), whatever the tables."""

    least: float
    workers: int
    trials: WorkerTrials

    @property
    def offer(self) -> WorkerOffer:
        """The workers."""
        return self.trials.offer


@dataclass(frozen=True, eq=False)
class _Trial:
    """What tables came to in the search; ``cost`` is USD per request as compared, inf where the SLOs are not surely kept.

    ``idle``: the function was left nothing to do.
    """

    offer: WorkerOffer
    policy: Policy
    overflow: Beside
    cost: float
    slacks: tuple[float, ...] = ()
    idle: bool = False

    @property
    def batch_size(self) -> int:
        """The function's largest."""
        return self.overflow.policy.max_batch_size


class _Search:
    """Trials under one question, within a number of requests simulated."""

    def __init__(self, question: Question, demand: Demand, most: int, confidence: float, seed: int) -> None:
        self.question, self.demand, self.confidence, self.seed = question, demand, confidence, seed
        self.rate = demand.arrivals.arrival_rate
        in_time = [len(seconds_to_spare(service, demand.slos)) for service in question.services]
        self._functions = [service.up_to(n) for service, n in zip(question.services, in_time, strict=True) if n]
        prices, moved = question.billing.prices, question.billing.moved
        before = BatchCost(  # what stands before both
            cache=prices.cache_per_request(*moved),
            load_balancer=prices.load_balancer_per_request(*moved),
            fixed_terms=dict(prices.fixed_terms()),
        )
        self._before = demand.price(before)
        self._left = most
        self._drawn: dict[tuple[int, int], Drawn] = {}

    def beside(self, offer: WorkerOffer) -> list[ServiceTimes]:
        """The function at every memory size at which it answers in time, and is not what the workers are called themselves."""
        return [service for service in self._functions if self.question.function_at(service.memory_mb) != offer.function]

    def sides(self, trials: WorkerTrials, most: int) -> list[_Side]:
        """From one worker to ``most``."""
        offer, largest = trials.offer, trials.max_batch_size
        each = float(offer.throughput[largest - 1]) / self.rate
        by_function = min(map(self._per_request, self.beside(offer)))
        by_worker = min(by_function, self._usage(offer, largest))

        def least(workers: int) -> float:
            served = min(1.0, workers * each)
            return offer.hours(workers, self.rate) + served * by_worker + (1 - served) * by_function + self._before

        return [_Side(least(workers), workers, trials) for workers in range(1, most + 1)]

    def best(self, sides: Iterable[_Side], cheaper_than: float) -> list[_Trial]:
        """Those that keep the SLOs and cost less, the cheapest of each number of workers, the cheapest first."""
        found: list[_Trial] = []
        limit, start = cheaper_than, dict[str, tuple[ServiceTimes, int]]()
        for side in sorted(sides, key=lambda side: side.least):
            if side.least >= limit or self._left <= 0:
                break
            offer = side.offer
            if offer.name not in start:
                first = self._with_functions(offer, side.trials.candidates(side.workers)[0], self.beside(offer))
                start[offer.name] = first.overflow.service, first.batch_size
            trial = self._with_tables(side, *start[offer.name])
            start[offer.name] = trial.overflow.service, trial.batch_size
            if trial.cost < cheaper_than:
                found.append(trial)
                limit = min(limit, trial.cost)
        found.sort(key=lambda trial: trial.cost)
        if found and len(self._functions) > 1:
            again = self._with_functions(found[0].offer, found[0].policy, self.beside(found[0].offer))
            found = [again, *found] if again.cost < limit else found
        return found

    def again(self, trial: _Trial) -> OverflowSetting:
        """A trial in a run of its own, over arrivals that the search did not see."""
        return simulate_overflow(
            self.question,
            trial.offer,
            trial.policy,
            trial.overflow,
            demand=self.demand,
            slacks=trial.slacks,
            confidence=self.confidence,
            seed=self.seed,
        )

    def _per_request(self, service: ServiceTimes) -> float:
        compute, fee = invocation_costs(service, self.question.billing)
        return float(((compute + fee) / np.arange(1, len(compute) + 1)).min())

    def _usage(self, offer: WorkerOffer, largest: int) -> float:
        """USD per request that a worker costs at least beside its hours."""
        return float((offer.usage[:largest] / np.arange(1, largest + 1)).min())

    def _with_tables(self, side: _Side, function: ServiceTimes, size: int) -> _Trial:
        """The best tables for a number of workers, from a largest batch of the function that was good for another."""
        offer, tables = side.offer, side.trials.candidates(side.workers)
        best = _cheapest(self._try(offer, table, function, size) for table in tables)
        again = self._with_functions(offer, best.policy, [function])
        if again.batch_size == size:
            return best
        return _cheapest([again, *(self._try(offer, table, function, again.batch_size) for table in tables)])

    def _with_functions(self, offer: WorkerOffer, policy: Policy, functions: Iterable[ServiceTimes]) -> _Trial:
        """The best memory size and largest batch of the function beside workers under a table.

        None costs less than one that is left nothing to do, by workers that serve everything as cheaply as they can.
        """
        sizes = [(service, size) for service in functions for size in _powers_of_two(service.max_batch_size)]
        served = offer.hours(policy.servers or 0, self.rate) + self._usage(offer, policy.max_batch_size) + self._before
        trials: list[_Trial] = []
        for service, size in sizes:
            trials.append(self._try(offer, policy, service, size))
            if trials[-1].idle and trials[-1].cost <= served * (1 + 1e-9):
                break
        return _cheapest(trials)

    def _try(self, offer: WorkerOffer, policy: Policy, function: ServiceTimes, size: int) -> _Trial:
        question, demand, largest = self.question, self.demand, policy.max_batch_size
        table = last_moment_beside(function, offer.service, demand.slos, size, largest, demand.longest_wait)
        left = [left_beside(function, offer.service, [slo], size, largest) for slo in demand.slos]
        slacks = demand.slacks(np.array(left))
        overflow = Beside(table, function, question.environments_at(function.memory_mb))
        horizon = Horizon.beside(demand.arrivals, offer, policy, table, overflow.environments, demand.longer(slacks))
        if self._left <= 0 or not demand.shown(horizon):
            return _Trial(offer, policy, overflow, np.inf)
        n = int(min(horizon.settled, SEARCHED))
        self._left -= n
        dealt = n, horizon.pieces(n)
        if dealt not in self._drawn:
            self._drawn[dealt] = demand.drawn(horizon, n, np.random.default_rng([self.seed, n]))
        drawn, rng = self._drawn[dealt], np.random.default_rng([self.seed, n, 1])
        run = demand.run(offer.under(policy, beside=[overflow]), drawn, slacks, rng)
        late = demand.violations(run, drawn, self.confidence, horizon.blocks(n), run_again=True)
        kept = all(surely_keeps(*judged) is True for judged in zip(late, demand.slos, strict=True))
        cost = demand.price(overflow_cost(run, offer, policy, overflow, self.rate, question.billing))
        return _Trial(offer, policy, overflow, cost if kept else np.inf, slacks, not run.by_function.any())


def _cheapest(trials: Iterable[_Trial]) -> _Trial:
    return min(trials, key=lambda trial: trial.cost)


def _powers_of_two(largest: int) -> list[int]:
    """Up to the largest, which is among them."""
    return sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})
