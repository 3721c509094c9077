"""Workers for the load that is forecast, a function for what they cannot serve in time."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.baselines.autoscaling import as_schedule, rates_by_period
from sluice.optimizer.baselines.in_time import largest_throughput, seconds_in_time
from sluice.optimizer.recommend import WorkerOffer
from sluice.optimizer.recommend.last_moment import last_moment_beside
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function


@dataclass(frozen=True)
class Forecasting:
    """When the number of workers is chosen, and from what.

    Parameters
    ----------
    period : float
        Seconds from one choice to the next.
    memory : int
        Periods whose mean rate is the forecast.
    lag : float
        Seconds from the choice until a new worker serves.
    """

    period: float = 60.0
    memory: int = 5
    lag: float = 180.0

    def __post_init__(self) -> None:
        require(0 < self.period < np.inf, "period", self.period, "a number of seconds > 0")
        require(self.memory >= 1, "memory", self.memory, "an integer >= 1")
        require(0 <= self.lag < np.inf, "lag", self.lag, "a number of seconds >= 0")


def with_overflow(
    offer: WorkerOffer,
    function: Function,
    slo: Slo,
    arrival_times: Array,
    forecasting: Forecasting | None = None,
    first_rate: float = 0.0,
) -> Deployment:
    """Workers where they are cheaper than the function for the forecast load, and the function for the rest.

    MArk (Zhang et al., ATC'19). Kept: a number of workers chosen ahead from a forecast and from prices, batches in front of both,
    and functions for what cannot be served in time otherwise. Left out: the recurrent network that forecasts (here the mean of the
    last periods), several machine types and spot machines, the hour for which a machine was then paid.

    The function takes the oldest at the last moment at which it would still be in time; until then a worker that gets free takes
    them.

    Parameters
    ----------
    first_rate : float
        Requests/s that the workers at the start are chosen for.
    """
    forecasting = forecasting or Forecasting()
    first = worth_having(offer, function, slo, first_rate)
    rates = rates_by_period(arrival_times, forecasting.period)
    changes: list[tuple[float, int]] = []
    expected = first
    for i in range(len(rates)):
        forecast = float(rates[max(0, i + 1 - forecasting.memory) : i + 1].mean())
        wanted = worth_having(offer, function, slo, forecast)
        now = (i + 1) * forecasting.period
        if wanted > expected:
            changes.append((now + forecasting.lag, wanted - expected))
        elif wanted < expected:
            wanted = max(wanted, expected - _running(first, changes, now))
            changes.append((now, wanted - expected))
        expected = wanted
    table = policies.greedy(len(seconds_in_time(offer.service, slo)), 1)
    schedule = as_schedule(table, float(arrival_times[0]), first, changes)
    largest = min(len(seconds_in_time(function.service, slo, cycles=1)), offer.service.max_batch_size)
    # Full batches wait as well: a worker that gets free meanwhile costs nothing more.
    rest = last_moment_beside(function.service, offer.service, [slo], largest, largest)
    return offer.under(schedule, beside=[function.beside(rest)], billing=function.billing)


def worth_having(offer: WorkerOffer, function: Function, slo: Slo, arrival_rate: float) -> int:
    """The workers that pay for themselves: each serves for less than the function would serve its requests."""
    served = largest_throughput(offer.service, slo)
    size = min(1 + floor(arrival_rate * slo.latency / 2), function.service.max_batch_size)
    by_function = float(function.cost_by_batch[size - 1]) / size  # USD per request in batches of the half SLO
    full = floor(arrival_rate / served)
    rest = arrival_rate - full * served
    worth = by_function - _usage(offer, slo)
    per_second = offer.price_per_hour / 3600
    return (full if worth * served > per_second else 0) + (1 if worth * rest > per_second else 0)


def _usage(offer: WorkerOffer, slo: Slo) -> float:
    """USD per request that a worker costs beside its hours, in full batches."""
    size = len(seconds_in_time(offer.service, slo))
    return float(offer.usage[size - 1]) / size


def _running(first: int, changes: list[tuple[float, int]], now: float) -> int:
    return first + sum(by for at, by in changes if at <= now)
