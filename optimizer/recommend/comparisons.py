"""What a recommended setting of the function is compared with (docs/model.md, 3.2 and 3.3).

The least cost by latency (the frontier), the same setting under 20 % fewer and more arrivals, and the arrival rate from which on a
buffer earns what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.break_even import HIGHEST, LOWEST, solve_break_even
from sluice.optimizer.billing.cold_starts import NONE_COLD
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.function.batching_law import SEARCH, basis_of, falling_holds_law
from sluice.optimizer.recommend.confidence import ROUNDS, Confidence
from sluice.optimizer.recommend.every_load import EveryLoad
from sluice.optimizer.recommend.function_choice import first_percentile
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.last_moment import LastMoment, cheapest_last_moments
from sluice.optimizer.recommend.question import N_TIMEOUTS
from sluice.optimizer.recommend.search import SAME, Choice

N_FRONTIER = 12
FRONTIER_TOLERANCE = 0.005  # of the cost
SENSITIVITY = (0.8, 1.2)
MOST_JUMPS = 4000.0  # of the phases within a timeout, for the break-even rate; more would take seconds


@dataclass(frozen=True)
class FrontierPoint:
    """The cheapest setting found whose latency percentile is at most ``latency`` (s); USD per request.

    ``kind`` is its policy's; of ``deadline`` the ``timeout`` is the longest hold.
    """

    latency: float
    cost_per_request: float
    memory_mb: int
    batch_size: int
    timeout: float
    kind: str = "size_or_timeout"


@dataclass(frozen=True)
class Sensitivity:
    """The recommended setting when requests come ``factor`` times as fast; percentiles (s) of the SLOs, USD per request."""

    factor: float
    arrival_rate: float
    latency: dict[str, float]
    mean_batch_size: float
    cost_per_request: float
    keeps_slos: bool


def frontier(settings: FunctionSettings, best: FunctionSetting, none: FunctionSetting) -> tuple[FrontierPoint, ...]:
    """Cheapest setting by latency level, from the quickest reachable to the first SLO, on a quarter of the timeouts.

    Parameters
    ----------
    best, none : FunctionSetting
        Whose timeout, and whose latency, is among those looked at: the recommended setting, and no batching.
    """
    slo, grid = settings.question.promised[0], settings.question.timeouts
    latest = slo.latency
    quickest = min(float(service.quantile(slo.quantile)[0]) for service in settings.services)
    timeouts = np.union1d(grid[:: max(1, len(grid) // (N_TIMEOUTS // 16))], [best.timeout])
    points: list[FrontierPoint] = []
    unbatched = min(first_percentile(settings, none), latest)
    levels = np.union1d(np.geomspace(max(quickest, latest / 1000), latest, N_FRONTIER), unbatched)
    for level in levels * (1 + 1e-9):
        at = Slo(float(level), slo.percentile)
        tables = cheapest_last_moments(settings.search, [at])[0][:1] if settings.question.considers_tables else []
        points += _cheaper(settings, points, at, _surely(settings, at, timeouts, tables), tables)
    return tuple(points)


def _surely(settings: FunctionSettings, slo: Slo, timeouts: Array, tables: Sequence[LastMoment]) -> Sequence[Choice]:
    """The cheapest size-or-timeout that keeps an SLO whatever the fit may be wrong by (3.3), unless a table is cheaper."""
    confidence = Confidence(settings, [slo])
    doubt = confidence.none
    for turn in range(ROUNDS):
        land, _ = settings.search.landscape(
            [slo], timeouts, refine=settings.search.exact, tolerance=FRONTIER_TOLERANCE, kept_free=doubt.at
        )
        choices = land.ranked()[:1]
        if not choices or (tables and tables[0].cost < choices[0].cost * (1 - SAME)):
            return choices
        (choice,) = choices
        setting = settings.size_or_timeout(choice.service, choice.batch_size, choice.timeout)
        in_doubt = confidence.share_in_doubt(setting)
        if not in_doubt.any() or confidence.keeps(setting, in_doubt):
            return choices
        doubt = doubt.of(in_doubt) if turn < ROUNDS - 2 else confidence.whole
    return choices


def _cheaper(
    settings: FunctionSettings,
    points: Sequence[FrontierPoint],
    slo: Slo,
    choices: Sequence[Choice],
    tables: Sequence[LastMoment],
) -> list[FrontierPoint]:
    """The point of the frontier at an SLO, from the cheapest choice and the tables; none where the last one is as cheap."""
    moving = sum(settings.question.billing.moving.values())
    found = [
        FrontierPoint(
            slo.latency,
            c.cost + (moving if c.batch_size > 1 else 0.0),  # who is not batched needs no buffer
            settings.services[c.service].memory_mb,
            c.batch_size,
            c.timeout,
        )
        for c in choices
    ]
    for table in tables:
        size, hold = table.policy.max_batch_size, table.policy.hold[1]
        memory_mb = settings.services[table.service].memory_mb
        cost = table.cost + (moving if size > 1 else 0.0)
        if not found or cost < found[0].cost_per_request * (1 - SAME):
            found = [FrontierPoint(slo.latency, cost, memory_mb, size, hold, table.policy.kind)]
    return [point for point in found if not points or point.cost_per_request < points[-1].cost_per_request * (1 - 1e-9)]


def sensitivity(settings: FunctionSettings, best: FunctionSetting) -> tuple[Sensitivity, ...]:
    """The setting when requests come more slowly or faster in the same pattern."""
    return tuple(_at(settings, best, factor) for factor in SENSITIVITY)


def _at(settings: FunctionSettings, best: FunctionSetting, factor: float) -> Sensitivity:
    slos, arrivals = settings.question.slos, settings.question.arrivals.sped_up(factor)
    setting = settings.under(best, arrivals)
    return Sensitivity(
        factor,
        arrivals.arrival_rate,
        {slo.name: setting.latency.percentile(slo.percentile) for slo in slos},
        setting.mean_batch_size,
        setting.cost.by_request,
        setting.keeps(slos),
    )


def break_even(settings: FunctionSettings, best: FunctionSetting, none: FunctionSetting) -> float | None:
    """Requests/s from which on the setting ``best`` earns its buffer, against ``none``; ``None`` where it never does."""
    if best.batch_size == 1:
        return None
    here = settings.question.arrival_rate
    usd = usd_by_rate(bill_by_rate(settings, best), here, best.cost, best.fitted is not None)
    return earned_from(usd, unbatched_by_rate(settings, none), _fixed(best, none), here)


def break_even_of(plan: EveryLoad, settings: FunctionSettings, none: FunctionSetting) -> float | None:
    """The same of a plan for every load."""
    if plan.batch_size == 1:
        return None
    here, fitted = settings.question.arrival_rate, plan.sizes.question.arrivals.arrival_rate
    usd = usd_by_rate(lambda rate: plan.cost_at(rate / fitted), here, plan.cost, plan.fitted is not None)
    return earned_from(usd, unbatched_by_rate(settings, none), _fixed(plan, none), here)


def _fixed(best: FunctionSetting | EveryLoad, none: FunctionSetting) -> float:
    return best.cost.fixed_per_month - none.cost.fixed_per_month


def bill_by_rate(settings: FunctionSettings, setting: FunctionSetting) -> Callable[[float], BatchCost]:
    """From an arrival rate (requests/s) to what a request costs there, by a ``setting`` for another."""
    process, here = settings.question.arrivals, settings.question.arrivals.arrival_rate
    holds = np.array(setting.policy.hold[1:-1])
    jumps = float(-process.D0.diagonal().min()) * setting.timeout
    fullest = here * max(1.0, MOST_JUMPS / max(jumps, 1e-300))  # beyond it batches, which only grow, are taken to be as there

    @cache
    def batch_sizes(rate: float) -> Array:
        if setting.batch_size == 1:
            return np.ones(1)
        basis = basis_of(process.sped_up(rate / here), setting.batch_size, setting.timeout, SEARCH)
        return np.asarray(falling_holds_law(basis, holds).batch_size_pmf[-1])

    def bill(rate: float) -> BatchCost:
        sizes, starts, cold = batch_sizes(min(rate, fullest)), settings.starts, NONE_COLD
        if starts.matter:
            cold = starts.share(settings.index(setting), sizes, holds, process.sped_up(rate / here))
        return settings.bill(sizes, settings.service_of(setting), cold.batches)

    return bill


def unbatched_by_rate(settings: FunctionSettings, none: FunctionSetting) -> Callable[[float], float]:
    """From an arrival rate (requests/s) to USD of a request that calls the function directly: seldom, and most start cold."""
    return usd_by_rate(bill_by_rate(settings, none), settings.question.arrival_rate, none.cost, none.fitted is not None)


def usd_by_rate(bill: Callable[[float], BatchCost], here: float, billed: BatchCost, recorded: bool) -> Callable[[float], float]:
    """From an arrival rate (requests/s) to USD of a request, by a bill that is predicted at every rate.

    Where what is ``billed`` at the rate ``here`` was ``recorded``, in proportion to that; moving costs the same at any rate.
    """
    beyond = billed.per_request / bill(here).per_request if recorded else 1.0

    return lambda rate: beyond * bill(rate).per_request + billed.moving


def earned_from(usd: Callable[[float], float], unbatched: Callable[[float], float], fixed: float, here: float) -> float | None:
    """Requests/s from which on what costs ``usd`` earns ``fixed`` USD a month, against ``unbatched``; sought from ``here`` on."""
    lowest, highest = min(LOWEST, here), max(HIGHEST, here)
    return solve_break_even(
        lambda rate: unbatched(rate) - usd(rate),
        fixed,
        start=here,
        lowest=lowest,
        highest=highest,
        largest=unbatched(lowest),  # where all start cold
    )
