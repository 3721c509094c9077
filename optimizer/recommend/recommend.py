"""The cheapest setting that keeps its promises, or the quickest within a budget (docs/model.md, 3.3).

The problems of BATCH, eqs (2) and (3), over memory size x batch size x timeout; ``search`` does the searching. Several percentiles
may be promised at once. No batching is the point of batch size 1; no other setting answers sooner, which is how infeasibility is
known. No timeout beyond twice the longest latency promised is considered unless ``max_timeout`` says so: a percentile alone would
let the few per cent beyond it wait for ever.

Beside size-or-timeout, tables that wait to the last moment compete (``last_moment``): they keep the SLOs whatever the arrivals do
and have a hold for every number waiting, but do not use up what a percentile leaves. Where both cost the same it is
size-or-timeout; but the table is taken if it costs no more than a ``premium`` beyond, since its promise rests on no fit.

Workers paid by the hour compete with the function: for each offer the cheapest pool that keeps the same promises (``workers``).

The answer comes with what it is to be compared with: no batching, the next best settings, the least cost by latency (frontier), the
same setting under 20 % fewer and more arrivals, and the arrival rate from which on a buffer earns what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sluice.batching.documents import ServiceProfile, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.break_even import HIGHEST, LOWEST, solve_break_even
from sluice.optimizer.billing.cost import BatchCost, Billing, invocation_costs
from sluice.optimizer.billing.prices import Prices, default_prices
from sluice.optimizer.function.falling_holds import FallingHolds, predict_falling_holds
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.function.waiting_time import predict_batch_size_pmf
from sluice.optimizer.recommend.answer import FrontierPoint, Recommendation, Sensitivity, Setting
from sluice.optimizer.recommend.last_moment import cheapest_last_moments
from sluice.optimizer.recommend.search import SAME, Choice, Promise, Search
from sluice.optimizer.recommend.workers import WorkerOffer, WorkerSetting, choose_workers
from sluice.optimizer.service.times import ServiceTimes, service_times_up_to

N_TIMEOUTS = 64
LONGEST_TIMEOUT = 2.0  # of the longest latency promised
N_RUNNERS_UP = 5
N_FRONTIER = 12
LATENCY_TOLERANCE = 1e-6  # of the latency asked for
FRONTIER_TOLERANCE = 0.005  # of the cost
DISTINCT = 0.01  # of the cost; a runner-up that costs less than this more says nothing new
MAX_BATCH_SIZE = 128
SENSITIVITY = (0.8, 1.2)
POLICIES = ("all", "size-or-timeout")
PREMIUM = 0.01  # of the cost: what fits are off by, and more than that, on the traces of docs/policy-zoo.md
MOST_JUMPS = 4000.0  # of the phases within a timeout, for the break-even rate; more would take seconds


def recommend(
    arrivals: ArrivalProcess,
    profile: ServiceProfile,
    slo: Slo | Sequence[Slo],
    *,
    objective: str = "cost",
    max_cost: float | None = None,
    memory_sizes: Sequence[int] | None = None,
    max_batch_size: int = MAX_BATCH_SIZE,
    timeouts: Sequence[float] | None = None,
    max_timeout: float | None = None,
    payload_bytes: int | None = None,
    answer_bytes: int = 0,
    headroom: float = 0.0,
    prices: Prices | None = None,
    architecture: str = "x86_64",
    granularity: float | None = None,
    cold_start_probability: float = 0.0,
    snap_start: bool = False,
    workers: Sequence[WorkerOffer] = (),
    policies: str = "all",
    premium: float = PREMIUM,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Recommendation:
    """Best memory size and table.

    Parameters
    ----------
    slo : Slo or sequence of Slo
        All are kept; the first is the one that the frontier and ``objective="latency"`` speak of.
    objective : {"cost", "latency"}
        ``cost``: least cost per request with the SLOs kept (and ``max_cost``, where given). ``latency``: least latency at the first
        SLO's percentile with at most ``max_cost``; the SLOs bound the search.
    max_cost : float, optional
        USD per request of the function's bill.
    memory_sizes : sequence of int, optional
        By default all the profile's; needed for a linear profile.
    max_batch_size : int
        Cut to what the profile measured and to what fits into one invocation.
    timeouts : sequence of float, optional
        Seconds; by default a grid up to ``max_timeout``, refined until the answer's ``gap`` is small.
    max_timeout : float, optional
        Seconds; by default twice the longest latency promised.
    payload_bytes : int, optional
        Bytes of one request; a batch must fit into the payload limit of the price list (6 MB on Lambda), and so must its answer.
    answer_bytes : int
        Bytes of one answer. Both price what stands beside the function's bill: network, load balancer, metered cache.
    headroom : float
        Part of the SLOs' latencies kept free for what the model does not know: the search keeps ``(1 - headroom) * slo.latency``.
    cold_start_probability : float
        Share of the invocations that start cold; what the profile's INIT then costs is part of the bill.
    snap_start : bool
        Whether a cold start restores a snapshot, which is kept and restored for a price.
    workers : sequence of WorkerOffer
        Machines or provisioned concurrency that compete with the function; their latencies are found by simulation.
    policies : {"all", "size-or-timeout"}
        Whether tables that wait to the last moment compete; they do not where ``timeouts`` are given.
    premium : float
        Part of the cost that such a table may cost more than the best size-or-timeout and still be taken, as it keeps the SLOs
        whatever the arrivals do; for objective ``cost``.
    on_progress : callable
        Told the fraction done.

    Raises
    ------
    Infeasible
        No setting and no pool of workers keeps the SLOs, or the budget; carries the nearest setting.
    InvalidInput
    """
    if not 0 <= headroom < 1:
        raise InvalidInput("headroom", headroom, "a fraction of the SLO, 0 <= headroom < 1")
    if objective not in ("cost", "latency"):
        raise InvalidInput("objective", objective, "cost or latency")
    if objective == "latency" and max_cost is None:
        raise InvalidInput("max_cost", None, "USD per request, for objective latency")
    if max_cost is not None and not 0 < max_cost < np.inf:
        raise InvalidInput("max_cost", max_cost, "USD per request > 0")
    if max_timeout is not None and not 0 <= max_timeout < np.inf:
        raise InvalidInput("max_timeout", max_timeout, "a number of seconds >= 0")
    if max_timeout is not None and timeouts is not None:
        raise InvalidInput("max_timeout", max_timeout, "only without timeouts, which name those considered")
    if policies not in POLICIES:
        raise InvalidInput("policies", policies, " or ".join(POLICIES))
    if not 0 <= premium < np.inf:
        raise InvalidInput("premium", premium, "a part of the cost >= 0")
    slos = (slo,) if isinstance(slo, Slo) else tuple(slo)
    if not slos:
        raise InvalidInput("slo", slos, "at least one latency and percentile")
    promises = tuple(Promise(s.latency * (1 - headroom), s.percentile / 100) for s in slos)
    grid = _grid(promises, max_timeout) if timeouts is None else np.unique(np.asarray(timeouts, dtype=float))
    if not len(grid) or not (np.isfinite(grid) & (grid >= 0)).all():
        raise InvalidInput("timeouts", grid.tolist(), "seconds >= 0, at least one")
    prices = prices or default_prices()
    functions = _functions(profile, memory_sizes, max_batch_size, payload_bytes, answer_bytes, prices)
    billing = Billing(prices, architecture, granularity, cold_start_probability, payload_bytes, answer_bytes, snap_start)
    bill = _Bill(billing, profile)
    budget = np.inf if max_cost is None else max_cost
    tables = policies == "all" and timeouts is None
    worth = premium if max_timeout is None else 0.0  # a capped hold has lost what a table is preferred for
    question = _Question(arrivals, functions, promises, bill, float(grid.max()), tables, worth)
    pools, refused = _pools(arrivals, workers, promises, bill, budget)
    try:
        answer = question.answer(slos, grid, timeouts is None, objective, budget, on_progress)
    except Infeasible:
        if not pools:
            raise
        answer = question.quickest(slos)
    return replace(answer, workers=tuple(pools), refused_workers=refused, objective=objective)


def _pools(
    arrivals: ArrivalProcess, offers: Sequence[WorkerOffer], promises: Sequence[Promise], bill: _Bill, budget: float
) -> tuple[list[WorkerSetting], dict[str, str]]:
    """The cheapest pool of every offer that keeps promises and budget, cheapest first; and why the others do not."""
    slos = [Slo(promise.latency, 100 * promise.quantile) for promise in promises]
    found, refused = [], {}
    for offer in offers:
        try:
            pool = choose_workers(arrivals, offer, slos, fixed_terms=bill.billing.prices.fixed_terms())
        except Infeasible as error:
            refused[offer.name] = str(error)
            continue
        if pool.cost_per_request <= budget:
            found.append(replace(pool, cost=bill.beside(pool.cost, offer, pool.mean_batch_size)))
        else:
            refused[offer.name] = f"the cheapest pool costs {pool.cost_per_request:.4g} USD per request"
    return sorted(found, key=lambda pool: pool.cost.in_all(pool.arrival_rate)), refused


def _grid(promises: Sequence[Promise], max_timeout: float | None) -> Array:
    """Timeouts (s) up to the longest, evenly spaced on the scale of every promise."""
    longest = LONGEST_TIMEOUT * max(p.latency for p in promises) if max_timeout is None else max_timeout
    scales = {min(LONGEST_TIMEOUT * p.latency, longest) for p in promises} | {longest}
    return np.unique(np.concatenate([np.linspace(0, scale, N_TIMEOUTS + 1) for scale in scales]))


def _functions(
    profile: ServiceProfile,
    memory_sizes: Sequence[int] | None,
    max_batch_size: int,
    payload_bytes: int | None,
    answer_bytes: int,
    prices: Prices,
) -> list[ServiceTimes]:
    """The service times at every memory size considered, up to the largest batch allowed."""
    sizes = sorted(set(memory_sizes)) if memory_sizes else profile.memory_sizes
    if not sizes:
        raise InvalidInput("memory_sizes", memory_sizes, "at least one memory size (MB), as a linear profile names none")
    if max_batch_size < 1:
        raise InvalidInput("max_batch_size", max_batch_size, "an integer >= 1")
    limit = prices.function.payload_limit_bytes
    if payload_bytes is not None and not 1 <= payload_bytes <= limit:
        raise InvalidInput("payload_bytes", payload_bytes, f"1 to {limit}, what one invocation takes")
    if not 0 <= answer_bytes <= limit:
        raise InvalidInput("answer_bytes", answer_bytes, f"0 to {limit}, what one invocation answers")
    max_batch_size = min(max_batch_size, limit // max(payload_bytes or 1, answer_bytes))
    return [service_times_up_to(profile, memory_mb, max_batch_size) for memory_mb in sizes]


@dataclass(frozen=True)
class _Bill:
    """What an invocation is charged by."""

    billing: Billing
    profile: ServiceProfile

    def cost(self, batch_size_pmf: Array, function: ServiceTimes) -> BatchCost:
        """Of a request whose batch has the sizes of ``batch_size_pmf``."""
        return self.billing.cost(batch_size_pmf, function, self.profile)

    def beside(self, cost: BatchCost, offer: WorkerOffer, mean_batch_size: float) -> BatchCost:
        """The cost of a pool with what a request costs beside it: only a function's batches are logged and leave the network."""
        prices, moved = self.billing.prices, (self.billing.payload_bytes or 0, self.billing.answer_bytes)
        return replace(
            cost,
            logs=prices.logs_per_invocation / mean_batch_size if offer.provisioned else 0.0,
            cache=prices.cache_per_request(*moved),
            load_balancer=prices.load_balancer_per_request(*moved),
            network=prices.network_per_request(*moved) if offer.provisioned else 0.0,
        )

    def by_batch(self, function: ServiceTimes) -> tuple[Array, float]:
        """USD of compute for a batch of 1, 2, ..., and USD of an invocation whatever its batch."""
        compute, _ = invocation_costs(function, self.billing)
        alone = self.cost(np.ones(1), function)
        return compute, alone.per_request - alone.compute


@dataclass
class _Question:
    arrivals: ArrivalProcess
    functions: Sequence[ServiceTimes]
    promises: tuple[Promise, ...]
    bill: _Bill
    longest: float
    tables: bool  # whether those compete that wait to the last moment
    premium: float

    def __post_init__(self) -> None:
        largest = max(function.max_batch_size for function in self.functions)
        compute = np.zeros((len(self.functions), largest))
        per_invocation = np.zeros(len(self.functions))
        for j, function in enumerate(self.functions):
            compute[j, : function.max_batch_size], per_invocation[j] = self.bill.by_batch(function)
        self.search = Search(self.arrivals, self.functions, compute, per_invocation, self.longest)

    def answer(
        self,
        slos: tuple[Slo, ...],
        grid: Array,
        refine: bool,
        objective: str,
        budget: float,
        on_progress: Callable[[float], None],
    ) -> Recommendation:
        unbatched = [self._setting(j, 1, 0.0) for j in range(len(self.functions))]
        self._refuse_infeasible(unbatched)
        table, n_tables = self._last_moment(objective, budget)
        gap: float | None
        try:
            settings, gap, n_settings = self._size_or_timeout(grid, refine, objective, budget, lambda done: on_progress(0.6 * done))
        except Infeasible:
            if table is None:
                raise
            settings, gap, n_settings = [], None, 0
        if table is not None:
            settings = self._with(table, settings, objective)
        best = settings[0]
        on_progress(0.7)
        kept = [s for s in unbatched if s.keeps(self.promises)]
        none = min(kept, key=lambda s: s.cost.per_request) if kept else min(unbatched, key=self._percentile)
        frontier = self._frontier(grid, best, none, lambda done: on_progress(0.7 + 0.3 * done))
        return Recommendation(
            best=best,
            slos=slos,
            no_batching=none,
            no_batching_keeps_slo=bool(kept),
            runners_up=tuple(settings[1:]),
            frontier=frontier,
            sensitivity=tuple(self._sensitivity(best, slos, factor) for factor in SENSITIVITY),
            break_even_arrival_rate=self._break_even(best, none),
            gap=gap,
            at_longest_timeout=best.table is None and best.batch_size > 1 and best.timeout >= self.longest * (1 - 1e-9),
            n_settings=n_settings + n_tables,
        )

    def _size_or_timeout(
        self, grid: Array, refine: bool, objective: str, budget: float, on_progress: Callable[[float], None]
    ) -> tuple[list[Setting], float | None, int]:
        """The best setting with a timeout and its runners-up, the gap that the search left, and how many were compared."""
        promises = self.promises
        if objective == "latency":
            first, grid = self._least_latency(grid, refine, budget)
            promises = (first, *promises[1:])
        n_best = min(N_RUNNERS_UP + 1, len(self.functions))
        land, gap = self.search.landscape(promises, grid, budget=budget, n_best=n_best, refine=refine, on_progress=on_progress)
        ranked = land.ranked(budget)
        if not ranked:
            self._refuse_budget(grid, budget)
        return self._verified(ranked, promises, budget), gap, land.n_settings

    def _last_moment(self, objective: str, budget: float) -> tuple[Setting | None, int]:
        """The best table that waits to the last moment within the budget, and how many were compared."""
        if not self.tables:
            return None, 0
        found, compared = cheapest_last_moments(self.search, self.promises)
        if not found or found[0].cost > budget or found[0].policy.max_batch_size == 1:
            return None, compared
        best, first = found[0], self.promises[0]
        low, high = 0.0, first.latency
        while objective == "latency" and high - low > LATENCY_TOLERANCE * first.latency:
            middle = (low + high) / 2
            found, more = cheapest_last_moments(self.search, (Promise(middle, first.quantile), *self.promises[1:]))
            compared += more
            if found and found[0].cost <= budget:
                best, high = found[0], middle
            else:
                low = middle
        return self._held(best.service, best.policy), compared

    def _with(self, table: Setting, settings: Sequence[Setting], objective: str) -> list[Setting]:
        """The best settings with the table among them: first where it is better, or costs no more than the premium beyond."""
        if not settings:
            return [table]
        best, *others = settings
        if objective == "latency":
            first = self._percentile(table) < self._percentile(best) * (1 - SAME)
        else:
            first = table.cost.per_request < best.cost.per_request * (1 - SAME + self.premium)
        if first:
            return [table, *settings][: N_RUNNERS_UP + 1]
        if table.cost.per_request <= best.cost.per_request:
            return [*settings]
        return [best, *sorted([*others, table], key=lambda setting: setting.cost.per_request)][: N_RUNNERS_UP + 1]

    def quickest(self, slos: tuple[Slo, ...]) -> Recommendation:
        """The answer where no setting of the function keeps the promises: no batching at the memory size that is quickest."""
        best = min((self._setting(j, 1, 0.0) for j in range(len(self.functions))), key=self._percentile)
        return Recommendation(
            best=best,
            slos=slos,
            no_batching=best,
            no_batching_keeps_slo=False,
            runners_up=(),
            frontier=(),
            sensitivity=tuple(self._sensitivity(best, slos, factor) for factor in SENSITIVITY),
            break_even_arrival_rate=None,
            gap=None,
            at_longest_timeout=False,
            n_settings=0,
            feasible=False,
        )

    def _setting(self, j: int, batch_size: int, timeout: float, arrivals: ArrivalProcess | None = None) -> Setting:
        function = self.functions[j]
        latency = predict_latency(arrivals or self.arrivals, function, batch_size, timeout)
        return Setting(function.memory_mb, batch_size, timeout, latency, self.bill.cost(latency.batch_size_pmf, function))

    def _held(self, j: int, table: Policy, arrivals: ArrivalProcess | None = None) -> Setting:
        """A table that waits to the last moment."""
        function = self.functions[j]
        counting = self.search.counting if arrivals is None else None
        latency = predict_falling_holds(arrivals or self.arrivals, function, table, counting)
        cost = self.bill.cost(latency.batch_size_pmf, function)
        return Setting(function.memory_mb, latency.batch_size, latency.timeout, latency, cost, table)

    def _verified(self, ranked: Sequence[Choice], promises: Sequence[Promise], budget: float) -> list[Setting]:
        """The best setting and the runners-up, those of other functions first, as predictions of their own, each checked again."""
        settings: list[Setting] = []
        for choice in [*_of_each_function(ranked), *_distinct(ranked)]:
            setting = self._setting(choice.service, choice.batch_size, choice.timeout)
            known = any((s.memory_mb, s.batch_size) == (setting.memory_mb, setting.batch_size) for s in settings)
            if not known and setting.keeps(promises) and setting.cost.per_request <= budget * (1 + 1e-9):
                settings.append(setting)
            if len(settings) > N_RUNNERS_UP:
                break
        return sorted(settings, key=lambda setting: setting.cost.per_request)

    def _percentile(self, setting: Setting) -> float:
        return setting.latency.quantile(self.promises[0].quantile)

    def _best_reachable(self, setting: Setting) -> dict[str, float]:
        return {
            "latency": self._percentile(setting),
            "memory_mb": setting.memory_mb,
            "batch_size": setting.batch_size,
            "timeout": setting.timeout,
        }

    def _refuse_infeasible(self, unbatched: Sequence[Setting]) -> None:
        alone, _ = self.search.landscape(self.promises, np.zeros(1), n_best=len(self.functions) + 1, refine=False)
        if alone.ranked():
            return
        for promise in self.promises:
            quickest = min(unbatched, key=lambda setting: setting.latency.quantile(promise.quantile))
            if not quickest.keeps([promise]):
                raise Infeasible(
                    f"no setting keeps p{100 * promise.quantile:g} within {promise.latency:g} s: the best reachable is "
                    f"{quickest.latency.quantile(promise.quantile):.4g} s at {quickest.memory_mb} MB without batching",
                    self._best_reachable(quickest) | {"latency": quickest.latency.quantile(promise.quantile)},
                )
        quickest = min(unbatched, key=self._percentile)
        raise Infeasible("no memory size keeps all the SLOs at once", self._best_reachable(quickest))

    def _refuse_budget(self, grid: Array, budget: float) -> None:
        choice = self.search.landscape(self.promises, grid)[0].ranked()[0]
        cheapest = self._setting(choice.service, choice.batch_size, choice.timeout)
        table, _ = self._last_moment("cost", np.inf)
        if table is not None and table.cost.per_request < cheapest.cost.per_request:
            cheapest = table
        promised = " and ".join(f"p{100 * p.quantile:g} within {p.latency:g} s" for p in self.promises)
        raise Infeasible(
            f"no setting keeps {promised} for {budget:.4g} USD per request: the cheapest costs {cheapest.cost.per_request:.4g} USD",
            self._best_reachable(cheapest) | {"cost_per_request": cheapest.cost.per_request},
        )

    def _least_latency(self, grid: Array, refine: bool, budget: float) -> tuple[Promise, Array]:
        """The first promise at the least latency (s) that the budget allows, and timeouts that tell."""
        first, others = self.promises[0], self.promises[1:]
        land, _ = self.search.landscape(self.promises, grid, budget=budget, refine=refine)
        if not land.ranked(budget):
            self._refuse_budget(grid, budget)
        low, high = 0.0, first.latency
        timeouts = land.timeouts
        while high - low > LATENCY_TOLERANCE * first.latency:
            middle = Promise((low + high) / 2, first.quantile)
            land, _ = self.search.landscape((middle, *others), timeouts, budget=budget, refine=refine)
            if land.ranked(budget):
                high, timeouts = middle.latency, land.timeouts
            else:
                low = middle.latency
        return Promise(high, first.quantile), timeouts

    def _frontier(
        self, grid: Array, best: Setting, none: Setting, on_progress: Callable[[float], None]
    ) -> tuple[FrontierPoint, ...]:
        """Cheapest setting by latency level, from the quickest reachable to the first SLO, on a quarter of the timeouts."""
        quantile, latest = self.promises[0].quantile, self.promises[0].latency
        quickest = min(float(function.quantile(quantile)[0]) for function in self.functions)
        timeouts = np.union1d(grid[:: max(1, len(grid) // (N_TIMEOUTS // 16))], [best.timeout])
        points: list[FrontierPoint] = []
        levels = np.union1d(np.geomspace(max(quickest, latest / 1000), latest, N_FRONTIER), min(self._percentile(none), latest))
        for k, level in enumerate(levels * (1 + 1e-9)):
            land, _ = self.search.landscape([Promise(float(level), quantile)], timeouts, tolerance=FRONTIER_TOLERANCE)
            points += self._cheaper(points, Promise(float(level), quantile), land.ranked()[:1])
            on_progress((k + 1) / len(levels))
        return tuple(points)

    def _cheaper(self, points: Sequence[FrontierPoint], promise: Promise, choices: Sequence[Choice]) -> list[FrontierPoint]:
        """The point of the frontier at a promise, from the cheapest choice and the tables; none where the last one is as cheap."""
        found = [
            FrontierPoint(promise.latency, c.cost, self.functions[c.service].memory_mb, c.batch_size, c.timeout) for c in choices
        ]
        for table in cheapest_last_moments(self.search, [promise])[0][: int(self.tables)]:
            size, hold = table.policy.max_batch_size, table.policy.hold[1]
            memory_mb = self.functions[table.service].memory_mb
            if not found or table.cost < found[0].cost_per_request * (1 - SAME):
                found = [FrontierPoint(promise.latency, table.cost, memory_mb, size, hold, table.policy.kind)]
        return [point for point in found if not points or point.cost_per_request < points[-1].cost_per_request * (1 - 1e-9)]

    def _index(self, setting: Setting) -> int:
        return [function.memory_mb for function in self.functions].index(setting.memory_mb)

    def _sensitivity(self, best: Setting, slos: Sequence[Slo], factor: float) -> Sensitivity:
        arrivals = self.arrivals.sped_up(factor)
        if best.table is not None:
            setting = self._held(self._index(best), best.table, arrivals)
        else:
            setting = self._setting(self._index(best), best.batch_size, best.timeout, arrivals)
        return Sensitivity(
            factor,
            arrivals.arrival_rate,
            {slo.name: setting.latency.percentile(slo.percentile) for slo in slos},
            setting.mean_batch_size,
            setting.cost.per_request,
            setting.keeps([Promise(slo.latency, slo.percentile / 100) for slo in slos]),
        )

    def _break_even(self, best: Setting, none: Setting) -> float | None:
        if best.batch_size == 1:
            return None
        here = self.arrivals.arrival_rate
        jumps = float(-self.arrivals.D0.diagonal().min()) * best.timeout
        fullest = here * max(1.0, MOST_JUMPS / jumps)  # beyond it batches, which only grow with the rate, are taken to be as there

        @cache
        def batch_sizes(rate: float) -> Array:
            arrivals = self.arrivals.sped_up(rate / here)
            if best.table is not None:
                return np.asarray(FallingHolds(arrivals, np.array(best.table.hold[1:-1])).batch_size_pmf[-1])
            return predict_batch_size_pmf(arrivals, best.batch_size, best.timeout)

        def saving(rate: float) -> float:
            pmf = batch_sizes(min(rate, fullest))
            batched = self.bill.cost(pmf, self.functions[self._index(best)])
            return (none.cost.per_request + none.cost.beside) - (batched.per_request + batched.beside)

        fixed = best.cost.fixed_per_month - none.cost.fixed_per_month
        return solve_break_even(saving, fixed, start=here, lowest=min(LOWEST, here), highest=max(HIGHEST, here))


def _of_each_function(ranked: Sequence[Choice]) -> list[Choice]:
    """The cheapest choice of every function."""
    found: dict[int, Choice] = {}
    for choice in ranked:
        found.setdefault(choice.service, choice)
    return list(found.values())


def _distinct(ranked: Sequence[Choice]) -> list[Choice]:
    """The cheapest choice of every step of ``DISTINCT`` in cost, as neighbouring batch sizes may cost the same."""
    found = list(ranked[:1])
    for choice in ranked:
        if choice.cost > found[-1].cost * (1 + DISTINCT):
            found.append(choice)
    return found
