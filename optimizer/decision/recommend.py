"""The cheapest setting that keeps a percentile SLO, or the quickest within a budget: exhaustive search (docs/model.md, 3.3).

The problems of BATCH, eqs (2) and (3), over memory size x batch size x timeout. For one timeout the batching law of every batch
size comes at once (``SizeOrTimeout``) and is shared by all memory sizes; an SLO needs one point of each latency CDF, not the CDF.
Over a grid of timeouts, then over finer grids around the best, as cost falls and latency grows with the timeout and the optimum
lies where the SLO is just kept. No batching is the point of batch size 1; no other setting answers sooner, which is how
infeasibility is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from batching import policy as policies
from batching.documents import ArrivalDocument, Plan, PolicyDocument, Prediction, ServiceProfile, Slo
from batching.errors import Infeasible, InvalidInput
from optimizer.analysis.cost import (
    BatchCost,
    Prices,
    break_even_arrival_rate,
    default_prices,
    invocation_costs,
    predict_cost,
)
from optimizer.analysis.counting import CountingProcess
from optimizer.analysis.latency import LatencyPrediction, predict_latency
from optimizer.analysis.service import ServiceTimes, service_times
from optimizer.analysis.waiting_time import SizeOrTimeout, counting_from_arrivals
from optimizer.arrivals.map import Array, ArrivalProcess

N_TIMEOUTS = 40
N_REFINED = 9
N_RUNNERS_UP = 5
N_FRONTIER = 8
MAX_BATCH_SIZE = 64


@dataclass(frozen=True, eq=False)
class Setting:
    """One point of the search with its prediction; ``batch_size`` 1 is no batching."""

    memory_mb: int
    batch_size: int
    timeout: float
    latency: LatencyPrediction
    cost: BatchCost

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.latency.mean_batch_size

    def policy(self) -> policies.Policy:
        """The table that carries it out."""
        if self.batch_size == 1:
            return policies.no_batching()
        return policies.size_or_timeout(self.batch_size, self.timeout)

    def prediction(self, percentiles: Sequence[float] = (50, 90, 95, 99)) -> Prediction:
        """Latency percentiles and cost as a plan carries them."""
        latency = {f"p{percentile:g}": self.latency.percentile(percentile) for percentile in percentiles}
        return Prediction(latency, self.cost.per_request, self.mean_batch_size)


@dataclass(frozen=True)
class FrontierPoint:
    """The cheapest setting found whose latency percentile is at most ``latency`` (s); USD per request."""

    latency: float
    cost_per_request: float
    memory_mb: int
    batch_size: int
    timeout: float


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The answer, beside what it is to be compared with.

    ``no_batching`` is that at its own cheapest memory size that keeps the SLO, or the quickest one where none does, then
    ``no_batching_keeps_slo`` is false; ``runners_up`` are the next best of other memory or batch sizes; ``break_even_arrival_rate``
    (requests/s) is where the buffer's fixed cost is earned, ``None`` where batching saves nothing.
    """

    best: Setting
    slo: Slo
    no_batching: Setting
    no_batching_keeps_slo: bool
    runners_up: tuple[Setting, ...]
    frontier: tuple[FrontierPoint, ...]
    break_even_arrival_rate: float | None
    n_settings: int

    def plan(
        self, profile: ServiceProfile, model: str, arrivals: ArrivalDocument | None = None, made_at: datetime | None = None
    ) -> Plan:
        """The plan for the buffer; ``{memory_mb}`` in the profile's function name is filled in."""
        percentiles = sorted({50.0, 90.0, 95.0, 99.0, self.slo.percentile})
        return Plan(
            model=model,
            function=profile.function.replace("{memory_mb}", str(self.best.memory_mb)),
            policy=PolicyDocument.of(self.best.policy()),
            slo=self.slo,
            memory_mb=self.best.memory_mb,
            predicted=self.best.prediction(percentiles),
            arrivals=arrivals,
            made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        )


def recommend(
    arrivals: ArrivalProcess,
    profile: ServiceProfile,
    slo: Slo,
    *,
    objective: str = "cost",
    max_cost: float | None = None,
    memory_sizes: Sequence[int] | None = None,
    max_batch_size: int = MAX_BATCH_SIZE,
    timeouts: Sequence[float] | None = None,
    payload_bytes: int | None = None,
    headroom: float = 0.0,
    prices: Prices | None = None,
    architecture: str = "x86_64",
    granularity: float | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Recommendation:
    """Best memory size, batch size and timeout.

    Parameters
    ----------
    objective : {"cost", "latency"}
        ``cost``: least cost per request with the SLO kept (and ``max_cost``, where given). ``latency``: least latency at the SLO's
        percentile with at most ``max_cost``; the SLO's latency bounds the search.
    max_cost : float, optional
        USD per request of the function's bill.
    memory_sizes : sequence of int, optional
        By default all the profile's; needed for a linear profile.
    max_batch_size : int
        Cut to what the profile measured and to what fits into one invocation.
    timeouts : sequence of float, optional
        Seconds; by default a grid up to the SLO, refined around the best.
    payload_bytes : int, optional
        Bytes of one request; a batch must fit into the payload limit of the price list (6 MB on Lambda).
    headroom : float
        Part of the SLO's latency kept free for what the model does not know: the search keeps ``(1 - headroom) * slo.latency``.
    on_progress : callable, optional
        Told the fraction done.

    Raises
    ------
    Infeasible
        No setting keeps the SLO, or the budget; carries the nearest one.
    InvalidInput
    """
    if not 0 <= headroom < 1:
        raise InvalidInput("headroom", headroom, "a fraction of the SLO, 0 <= headroom < 1")
    search = _Search(
        arrivals,
        profile,
        slo,
        headroom,
        memory_sizes,
        max_batch_size,
        payload_bytes,
        prices or default_prices(),
        architecture,
        granularity,
    )
    if objective not in ("cost", "latency"):
        raise InvalidInput("objective", objective, "cost or latency")
    if objective == "latency" and max_cost is None:
        raise InvalidInput("max_cost", None, "USD per request, for objective latency")
    if max_cost is not None and not 0 < max_cost < np.inf:
        raise InvalidInput("max_cost", max_cost, "USD per request > 0")
    return search.solve(objective, max_cost, timeouts, on_progress or (lambda fraction: None))


class _Grid:
    """Probability of keeping each latency level, and cost, over (timeout, memory, batch size)."""

    def __init__(self, timeouts: Array, within: Array, cost: Array) -> None:
        self.timeouts = timeouts
        self.within = within  # (n_timeouts, n_memory, max_batch_size, n_levels)
        self.cost = cost  # (n_timeouts, n_memory, max_batch_size)


class _Search:
    def __init__(
        self,
        arrivals: ArrivalProcess,
        profile: ServiceProfile,
        slo: Slo,
        headroom: float,
        memory_sizes: Sequence[int] | None,
        max_batch_size: int,
        payload_bytes: int | None,
        prices: Prices,
        architecture: str,
        granularity: float | None,
    ) -> None:
        self.arrivals, self.slo, self.prices = arrivals, slo, prices
        self.architecture, self.granularity = architecture, granularity
        sizes = list(memory_sizes) if memory_sizes else profile.memory_sizes
        if not sizes:
            raise InvalidInput("memory_sizes", memory_sizes, "at least one memory size (MB), as a linear profile names none")
        if max_batch_size < 1:
            raise InvalidInput("max_batch_size", max_batch_size, "an integer >= 1")
        if payload_bytes is not None:
            limit = prices.function.payload_limit_bytes
            if not 1 <= payload_bytes <= limit:
                raise InvalidInput("payload_bytes", payload_bytes, f"1 to {limit}, what one invocation takes")
            max_batch_size = min(max_batch_size, limit // payload_bytes)
        linear_end = max_batch_size if profile.service_time is not None and profile.max_batch_size is None else None
        services = [service_times(profile, memory_mb, linear_end) for memory_mb in sizes]
        self.services = [s.up_to(min(max_batch_size, s.max_batch_size)) for s in services]
        self.max_batch_size = max(s.max_batch_size for s in self.services)
        self.quantile = slo.percentile / 100
        self.level = slo.latency * (1 - headroom)  # s, what the search keeps
        self._counting: CountingProcess | None = None
        self._laws: dict[float, SizeOrTimeout] = {}

    def solve(
        self, objective: str, max_cost: float | None, timeouts: Sequence[float] | None, on_progress: Callable[[float], None]
    ) -> Recommendation:
        unbatched = [self._setting(service, 1, 0.0) for service in self.services]
        self._refuse_infeasible(unbatched, max_cost)
        coarse = np.unique(timeouts) if timeouts is not None else np.linspace(0, self.level, N_TIMEOUTS + 1)
        if not len(coarse) or not (np.isfinite(coarse) & (coarse >= 0)).all():
            raise InvalidInput("timeouts", list(coarse), "seconds >= 0")
        self._counting = counting_from_arrivals(self.arrivals, self.max_batch_size, float(coarse.max()))
        level = np.array([self.level])
        budget = np.inf if max_cost is None else max_cost
        if objective == "latency":
            level = np.array([self._least_latency(coarse, budget, unbatched)])
        grid = self._evaluate(coarse, level, lambda f: on_progress(0.6 * f))
        n_settings = grid.cost.size
        best = self._cheapest(grid, budget)
        if best is None:
            self._refuse_budget(grid, budget)
        grids = [grid]
        if timeouts is None:
            for turn in range(2):
                grid = self._evaluate(self._around(grids, budget), level)
                n_settings += grid.cost.size
                grids.append(grid)
                on_progress(0.75 + 0.1 * turn)
        ranked = self._ranked(grids, budget)
        verified = self._verified(ranked, level[0], budget)
        frontier = self._frontier(coarse)
        on_progress(1.0)
        kept = [s for s in unbatched if s.latency.probability_within(self.level) >= self.quantile - 1e-9]
        none = min(kept, key=lambda s: s.cost.per_request) if kept else min(unbatched, key=self._percentile)
        return Recommendation(
            best=verified[0],
            slo=self.slo,
            no_batching=none,
            no_batching_keeps_slo=bool(kept),
            runners_up=tuple(verified[1:]),
            frontier=frontier,
            break_even_arrival_rate=break_even_arrival_rate(verified[0].cost, none.cost),
            n_settings=n_settings,
        )

    def _evaluate(self, timeouts: Array, levels: Array, on_progress: Callable[[float], None] | None = None) -> _Grid:
        shape = (len(timeouts), len(self.services), self.max_batch_size)
        within, cost = np.zeros((*shape, len(levels))), np.full(shape, np.inf)
        for i, timeout in enumerate(timeouts):
            law = self._law(float(timeout))
            for j, service in enumerate(self.services):
                largest = service.max_batch_size
                waits = np.full((self.max_batch_size, len(levels), service.response.shape[1]), -1.0)
                waits[:largest] = levels[None, :, None] - service.response[:, None, :]
                within[i, j, :largest] = law.fraction_within(waits)[:largest]
                compute, fee = invocation_costs(service, self.prices, self.architecture, self.granularity)
                pmf = law.batch_size_pmf[:largest, :largest]
                cost[i, j, :largest] = (pmf @ compute + fee) / law.mean_batch_size[:largest]
            if on_progress:
                on_progress((i + 1) / len(timeouts))
        return _Grid(timeouts, within, cost)

    def _law(self, timeout: float) -> SizeOrTimeout:
        if timeout not in self._laws:
            self._laws[timeout] = SizeOrTimeout(self.arrivals, self.max_batch_size, timeout, self._counting)
        return self._laws[timeout]

    def _masked(self, grid: _Grid, budget: float, level: int = 0) -> Array:
        """Cost where the level and the budget are kept, infinite elsewhere."""
        keeps = (grid.within[..., level] >= self.quantile - 1e-12) & (grid.cost <= budget)
        return np.where(keeps, grid.cost, np.inf)

    def _cheapest(self, grid: _Grid, budget: float) -> tuple[int, int, int] | None:
        masked = self._masked(grid, budget)
        i, j, b = np.unravel_index(int(np.argmin(masked)), masked.shape)
        return (int(i), int(j), int(b)) if np.isfinite(masked[i, j, b]) else None

    def _around(self, grids: list[_Grid], budget: float) -> Array:
        """Timeouts between the neighbours of the best so far."""
        grid = min(grids, key=lambda g: self._masked(g, budget).min())
        best = self._cheapest(grid, budget)
        timeout = grid.timeouts[best[0]] if best else 0.0
        known = np.unique(np.concatenate([g.timeouts for g in grids]))
        at = int(np.searchsorted(known, timeout))
        low, high = known[max(0, at - 1)], known[min(len(known) - 1, at + 1)]
        return np.linspace(low, high, N_REFINED + 2)[1:-1]

    def _ranked(self, grids: list[_Grid], budget: float) -> list[tuple[float, int, int, float]]:
        """(cost, memory index, batch size, timeout) of the cheapest timeout of each memory and batch size, cheapest first."""
        best: dict[tuple[int, int], tuple[float, int, int, float]] = {}
        for grid in grids:
            masked = self._masked(grid, budget)
            at = masked.argmin(axis=0)
            for j in range(masked.shape[1]):
                for b in range(masked.shape[2]):
                    cost = float(masked[at[j, b], j, b])
                    if np.isfinite(cost) and ((j, b) not in best or cost < best[j, b][0] * (1 - 1e-12)):
                        best[j, b] = (cost, j, b + 1, 0.0 if b == 0 else float(grid.timeouts[at[j, b]]))
        # of equally cheap settings the one with less memory, then the smaller batch
        return sorted(best.values(), key=lambda c: (float(f"{c[0]:.9e}"), c[1], c[2]))

    def _verified(self, ranked: list[tuple[float, int, int, float]], level: float, budget: float) -> list[Setting]:
        """The best settings as predictions of their own, each checked again by its own quantile."""
        settings: list[Setting] = []
        for _, j, batch_size, timeout in ranked:
            setting = self._setting(self.services[j], batch_size, timeout)
            if setting.latency.probability_within(level) >= self.quantile - 1e-7 and setting.cost.per_request <= budget * (
                1 + 1e-9
            ):
                settings.append(setting)
            if len(settings) > N_RUNNERS_UP:
                break
        return settings

    def _setting(self, service: ServiceTimes, batch_size: int, timeout: float) -> Setting:
        latency = predict_latency(self.arrivals, service, batch_size, timeout)
        cost = predict_cost(
            latency.batch_size_pmf,
            service,
            self.prices,
            architecture=self.architecture,
            granularity=self.granularity,
            buffered=batch_size > 1,
        )
        return Setting(service.memory_mb, batch_size, timeout, latency, cost)

    def _percentile(self, setting: Setting) -> float:
        return setting.latency.percentile(self.slo.percentile)

    def _best_reachable(self, setting: Setting) -> dict[str, float]:
        return {
            "latency": self._percentile(setting),
            "memory_mb": setting.memory_mb,
            "batch_size": setting.batch_size,
            "timeout": setting.timeout,
        }

    def _refuse_infeasible(self, unbatched: list[Setting], max_cost: float | None) -> None:
        quickest = min(unbatched, key=self._percentile)
        reachable = self._percentile(quickest)
        if quickest.latency.probability_within(self.level) < self.quantile - 1e-9:
            raise Infeasible(
                f"no setting keeps p{self.slo.percentile:g} within {self.level:g} s: the best reachable is {reachable:.4g} s "
                f"at {quickest.memory_mb} MB without batching",
                self._best_reachable(quickest),
            )

    def _refuse_budget(self, grid: _Grid, budget: float) -> None:
        masked = self._masked(grid, np.inf)
        i, j, b = np.unravel_index(int(np.argmin(masked)), masked.shape)
        cheapest = self._setting(self.services[j], int(b) + 1, float(grid.timeouts[i]) if b else 0.0)
        raise Infeasible(
            f"no setting keeps p{self.slo.percentile:g} within {self.level:g} s for {budget:.4g} USD per request: "
            f"the cheapest costs {cheapest.cost.per_request:.4g} USD",
            self._best_reachable(cheapest) | {"cost_per_request": cheapest.cost.per_request},
        )

    def _least_latency(self, timeouts: Array, budget: float, unbatched: list[Setting]) -> float:
        """The least level (s) at which some setting on the grid keeps percentile and budget; to 1e-4 of the SLO."""
        low, high = 0.0, self.level
        found = False
        while high - low > 1e-4 * self.level:
            levels = np.linspace(low, high, 8)[1:]
            grid = self._evaluate(timeouts, levels)
            feasible = [bool(np.isfinite(self._masked(grid, budget, k)).any()) for k in range(len(levels))]
            if True not in feasible:
                if not found:
                    self._refuse_budget(self._evaluate(timeouts, np.array([self.level])), budget)
                low = high
                break
            found = True
            k = feasible.index(True)
            low, high = float(levels[k - 1]) if k else low, float(levels[k])
        return high

    def _frontier(self, coarse: Array) -> tuple[FrontierPoint, ...]:
        """Cheapest cost by latency level, from the quickest reachable to the SLO, on a quarter of the timeouts."""
        timeouts = coarse[:: max(1, len(coarse) // 10)]
        quickest = min(float(np.quantile(s.response[0], self.quantile, method="higher")) for s in self.services)
        levels = np.linspace(quickest, self.level, N_FRONTIER) * (1 + 1e-9)
        grid = self._evaluate(timeouts, levels)
        points: list[FrontierPoint] = []
        for k, level in enumerate(levels):
            masked = self._masked(grid, np.inf, k)
            i, j, b = np.unravel_index(int(np.argmin(masked)), masked.shape)
            cost = float(masked[i, j, b])
            if np.isfinite(cost) and (not points or cost < points[-1].cost_per_request * (1 - 1e-9)):
                timeout = float(timeouts[i]) if b else 0.0
                points.append(FrontierPoint(float(level), cost, self.services[j].memory_mb, int(b) + 1, timeout))
        return tuple(points)
