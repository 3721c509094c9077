"""Demand as a controller sees it: counts per second up to now, and what it makes of them (docs/model.md, section 5).

The forecast is a level (exponential smoothing), held against what came of it: for every part of a second that was forecast, the
ratio of the demand to its forecast is kept. These ratios are the distribution of bursts, learnt while running; a plan is judged by
it. They contain what the forecast misses, ramps among it, which to a plan is the same thing. (A trend beside the level makes the
ratios wider where demand jumps from second to second.) Until enough of them are there, those of a gamma distribution stand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.special import gammaincinv

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array

PRIOR_SPREAD = 0.3  # standard deviation of the ratio beyond Poisson, before any was seen
TRUSTED = 30.0  # seconds seen after which the learnt ratios stand alone
RARE = 0.1  # requests/s; below, a forecast is taken for this


def count_arrivals(arrivals: Sequence[Array], n_steps: int, step: float = 1.0) -> Array:
    """Requests of each family (arrival times ascending, s) in each of ``n_steps`` of ``step`` s from 0: (n_steps, n_families)."""
    require(0 < step < np.inf, "step", step, "a number of seconds > 0")
    edges = step * np.arange(n_steps + 1)
    return np.column_stack([np.diff(np.searchsorted(times, edges)) for times in arrivals]).astype(np.float64)


@dataclass(frozen=True)
class ForecastSettings:
    """How demand is forecast.

    Parameters
    ----------
    level : float
        Time constant of the smoothing, s.
    memory : float
        Seconds of the past whose ratios are kept.
    """

    level: float = 4.0
    memory: float = 120.0

    def __post_init__(self) -> None:
        for name in ("level", "memory"):
            value = getattr(self, name)
            require(0 < value < np.inf, name, value, "a number of seconds > 0")


class DemandForecast:
    """Sees the counts one step after another and forecasts the next ones.

    Parameters
    ----------
    expected : array, shape (n_families,)
        Requests/s before anything was seen.
    horizon : float
        Seconds ahead for which a plan must do: so long each forecast is held against what comes.
    settings : ForecastSettings
    step : float
        Seconds between two counts.
    """

    def __init__(self, expected: Array, horizon: float, settings: ForecastSettings | None = None, step: float = 1.0) -> None:
        require(0 < horizon < np.inf, "horizon", horizon, "a number of seconds > 0")
        self.settings = settings or ForecastSettings()
        self._step = step
        self._expected = np.array(expected, dtype=np.float64)
        self._level = self._expected.copy()
        self._seen = 0
        self._ahead = ceil(horizon / step - 1e-9)
        self._made: list[Array] = []  # forecasts, (n_families,), one per step seen
        self._ratios: list[Array] = []

    def see(self, counts: Array) -> None:
        """Requests of each family in the step that has just ended, (n_families,), or in parts of it, (n_parts, n_families)."""
        parts = np.array(counts, dtype=np.float64, ndmin=2)
        rates = parts * (len(parts) / self._step)
        rate = rates.mean(axis=0)
        for made in self._made[-self._ahead :]:
            self._ratios.append(rates / made)
        kept = round(self.settings.memory / self._step) * self._ahead
        del self._ratios[:-kept]
        self._seen += 1
        # The first steps are plain means: a constant longer than what was seen would keep the expected demand alive.
        gain = max(-np.expm1(-self._step / self.settings.level), 1 / self._seen)
        self._level = self._level + gain * (rate - self._level)
        self._made.append(self.rate)
        del self._made[: -self._ahead]

    @property
    def rate(self) -> Array:
        """Requests/s of each family that the next seconds are forecast to bring, (n_families,)."""
        return np.maximum(self._level, RARE)

    def ratios(self, n: int = 60) -> Array:
        """Equally likely ratios of the demand of a part to its forecast, (n, n_families): quantiles of those learnt."""
        levels = (np.arange(n) + 0.5) / n
        shape = 1 / (PRIOR_SPREAD**2 + 1 / (self.rate * self._step))
        prior = gammaincinv(shape, levels[:, None]) / shape
        if not self._ratios:
            return np.asarray(prior)
        learnt = np.quantile(np.concatenate(self._ratios), levels, axis=0)
        weight = min(1.0, self._seen * self._step / TRUSTED)
        return np.asarray(weight * learnt + (1 - weight) * prior)
