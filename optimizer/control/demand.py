"""Demand as a controller sees it: counts up to now, what it makes of them, and what it kept of them (docs/model.md, section 5).

The forecast is a level (exponential smoothing), slow for placements, and for shares, which cost nothing to change, the highest of
that, of a quick one, and of what the last step brought beyond chance. What came is kept beside what had been forecast for it, when
the plan was made that it met and when its shares were: so a plan for the demand of now can be rehearsed on what the demand did,
time being stretched such that the forecast of then becomes that of now (``remembered``). That contains the bursts as well as what
the forecast misses, ramps among it, which to a plan is the same thing. (A trend beside the level makes what it misses larger where
demand jumps from second to second.) Demand that goes up and down within a minute will not stay as it is now: it is remembered as it
came, too, and that counts for as much as the forecast did worse than the mean (``comes_again``). Until enough has been seen, drawn
arrivals stand in: Poisson, at a rate that is drawn anew at every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array

PRIOR_SPREAD = 0.3  # standard deviation of the rate of a second, in parts of the forecast, before any was seen
TRUSTED = 30.0  # seconds seen after which these stand alone
RARE = 0.1  # requests/s; below, a forecast is taken for this
CHANCE = 2.0  # standard deviations of Poisson arrivals by which a count may be above its mean
SEED = 5


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
    level, quick : float
        Time constants of the smoothing, s: of what placements are made for, and of what shares follow at once.
    memory : float
        Seconds of the past that are kept.
    """

    level: float = 4.0
    quick: float = 1.0
    memory: float = 120.0

    def __post_init__(self) -> None:
        for name in ("level", "quick", "memory"):
            value = getattr(self, name)
            require(0 < value < np.inf, name, value, "a number of seconds > 0")


class Remembered(NamedTuple):
    """What a family's demand did: as if it had been forecast at the rate of now, or as it came.

    Parameters
    ----------
    arrival_times : array, shape (n_requests,)
        s from the beginning, ascending.
    ends : array, shape (n_steps,)
        When each step of it ended, s.
    followed : array, shape (n_steps,)
        The rate that shares followed in each step, requests/s.
    """

    arrival_times: Array
    ends: Array
    followed: Array


class _Step(NamedTuple):
    counts: Array  # (n_parts, n_families)
    planned: Array  # the forecast when the plan in force was made, requests/s
    usual: Array  # the mean of what was remembered then
    followed: Array  # that of the step before


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
        self._level = self._quick = np.array(expected, dtype=np.float64)
        self._surely = np.zeros(len(self._level))  # requests/s that the last step brought, beyond chance
        self._n_seen = 0
        # forecasts, and means of what was remembered: the oldest are those of the plan
        self._made: deque[tuple[Array, Array]] = deque(maxlen=ceil(horizon / step - 1e-9))
        self._total = np.zeros(len(self._level))  # requests that are remembered
        self._followed = self._level
        self._seen: deque[_Step] = deque(maxlen=max(1, round(self.settings.memory / step)))

    def see(self, counts: Array) -> None:
        """Requests of each family in the step that has just ended, (n_families,), or in parts of it, (n_parts, n_families)."""
        parts = np.array(counts, dtype=np.float64, ndmin=2)
        if self._made:  # before, nothing had been forecast for it but what was expected
            lost = self._seen[0].counts.sum(axis=0) if len(self._seen) == self._seen.maxlen else 0.0
            self._total = self._total + parts.sum(axis=0) - lost
            self._seen.append(_Step(parts, *self._made[0], self._followed))
        self._n_seen += 1
        came = parts.sum(axis=0)
        rate, self._surely = came / self._step, (came - CHANCE * np.sqrt(came)) / self._step
        self._level = self._level + self._gain(self.settings.level) * (rate - self._level)
        self._quick = self._quick + self._gain(self.settings.quick) * (rate - self._quick)
        usual = self._total / (self._step * len(self._seen)) if self._seen else self.rate
        self._made.append((self.rate, usual))
        self._followed = self.followed

    def _gain(self, constant: float) -> float:
        """The first steps are plain means: a constant longer than what was seen would keep the expected demand alive."""
        return max(-float(np.expm1(-self._step / constant)), 1 / self._n_seen)

    def snapshot(self) -> DemandForecast:
        """What it knows now, which what it sees later does not change."""
        taken = copy(self)
        taken._made, taken._seen = self._made.copy(), self._seen.copy()
        return taken

    @property
    def n_seen(self) -> int:
        """Steps."""
        return self._n_seen

    @property
    def quick(self) -> Array:
        """Requests/s of each family that the last moments brought, (n_families,)."""
        return self._quick

    @property
    def followed(self) -> Array:
        """Requests/s of each family that shares are made for now, (n_families,), (5.2a) of docs/model.md."""
        return np.maximum(np.maximum(self.rate, self._quick), self._surely)

    @property
    def rate(self) -> Array:
        """Requests/s of each family that the next seconds are forecast to bring, (n_families,)."""
        return np.maximum(self._level, RARE)

    def comes_again(self, family: int) -> float:
        """How likely the next minutes bring what the last ones did, rather than more of now: from 0 to 1, (5.2b) of docs/model.md.

        Where it was further from what had been forecast than from the mean of the minutes before, as where it goes up and down
        within a minute, the forecast of now says the least. What arrivals differ by from one step to the next is taken out of both.
        """
        came = np.array([step.counts[:, family].sum() for step in self._seen]) / self._step
        if len(came) < 2:
            return 0.0
        said = np.array([(step.planned[family], step.usual[family]) for step in self._seen]).T
        noise = np.mean(np.diff(came) ** 2) / 2
        of_forecast, of_mean = np.maximum(0.0, np.mean((came - said) ** 2, axis=1) - noise).tolist()
        return of_forecast**2 / (of_forecast**2 + of_mean**2) if of_forecast else 0.0

    def remembered(self, family: int, rate: float, n_parts: int, *, stretched: bool = True) -> Remembered:
        """What the demand of a family did, stretched to a rate (requests/s), or as it came; ``n_parts`` of a step that is drawn."""
        drawn = self._drawn(rate, ceil(TRUSTED / self._step) - len(self._seen), n_parts, family)
        counts = [*drawn, *(step.counts[:, family] for step in self._seen)]
        planned = np.array([1.0] * len(drawn) + [step.planned[family] / rate if stretched else 1.0 for step in self._seen])
        followed = np.array([1.0] * len(drawn) + [step.followed[family] / rate for step in self._seen])
        lengths = self._step * planned
        begins = np.concatenate([[0.0], np.cumsum(lengths)])
        n_of = np.array([len(step) for step in counts])
        step_of = np.repeat(np.arange(len(counts)), n_of)  # of each part
        part = np.arange(len(step_of)) - (np.cumsum(n_of) - n_of)[step_of]
        came = np.concatenate(counts).astype(np.int64)
        first = np.repeat(np.cumsum(came) - came, came)  # of the requests of the same part
        at = np.repeat(part, came) + (np.arange(len(first)) - first + 0.5) / np.repeat(came, came)
        of = np.repeat(step_of, came)
        return Remembered(begins[of] + lengths[of] * at / n_of[of], begins[1:], rate * followed / planned)

    def _drawn(self, rate: float, n: int, n_parts: int, family: int) -> list[Array]:
        """Counts of so many steps that were not seen, which came as they were forecast."""
        if n <= 0:
            return []
        rng = np.random.default_rng([SEED, family])
        rates = rate * rng.gamma(PRIOR_SPREAD**-2, PRIOR_SPREAD**2, n)
        return list(rng.poisson(np.repeat(rates[:, None] * self._step / n_parts, n_parts, axis=1)).astype(np.float64))
