"""Promises kept surely: the share of requests in time that the fit predicts, less what it may be wrong by (docs/model.md, 3.5).

A size-or-timeout uses up what an SLO allows to be late, so that its promise is only as good as the fit. Were the arrivals those of
the fit without one block of its trace (``Question.without``), the share in time would be ``p_k``; the block jackknife makes of
these the standard error of the share. The arrivals to come, for as long as those that were seen, stray as much again from the
process as the fit does, so that what is kept free of the SLO's percentile is

    doubt = t(confidence, K - 1) sqrt( 2 (K - 1) / K  sum_k (p_k - mean)^2 )                                         (3.3)

with Student's t, as the error itself is seen in ``K`` blocks. A setting whose timeout lets every batch of it be in time at the
SLO's quantile (``last_moment``) keeps the SLO whatever arrives: nothing is doubted there, nor of a table that waits to the last
moment, but how many start cold: where these are ``FEW`` of what an SLO allows to be late or more, what (3.3) makes of calling the
function for each request is kept free of every setting. The cheapest setting is found, its doubt is kept free of all that need the
fit, and so on until the cheapest keeps its own; after ``ROUNDS`` nothing that needs the fit is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.search import ROUNDING
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

FEW = 0.1  # of what an SLO allows to be late; fewer cold starts than that are in doubt by less still
ROUNDS = 4  # of search; the last keeps only what needs no fit


@dataclass(frozen=True, eq=False)
class Doubt:
    """What is kept free of every SLO's percentile, as a probability, by settings held beyond ``safe``.

    Parameters
    ----------
    shares : array, shape (n_slos,)
    safe : array, shape (n_services, max_batch_size)
        The longest timeout (s) at which a batch size needs no fit; negative where none is.
    cold : array, shape (n_slos,)
        What is kept free by all, for how many start cold.
    """

    shares: Array
    safe: Array
    cold: Array

    def at(self, timeout: float, services: NDArray[np.intp]) -> Array:
        """What is kept free at a timeout: (len(services), max_batch_size, n_slos)."""
        return np.asarray(np.maximum((timeout > self.safe[services])[..., None] * self.shares, self.cold))

    def of(self, share: Array) -> Doubt:
        """The same with at least ``share`` kept free."""
        return replace(self, shares=np.maximum(self.shares, share))


def jackknife_doubt(shares: Array, confidence: float) -> Array:
    """(3.3) of the shares in time without each block, (n_blocks, n_slos): (n_slos,)."""
    k = len(shares)
    error = np.sqrt(2 * (k - 1) / k * ((shares - shares.mean(axis=0)) ** 2).sum(axis=0))
    return np.asarray(special.stdtrit(k - 1, confidence) * error)


class Confidence:
    """How surely settings keep SLOs, given the uncertainty of the fit that a question has."""

    def __init__(self, settings: FunctionSettings, slos: Sequence[Slo]) -> None:
        self.settings, self.slos = settings, slos
        largest = settings.search.max_batch_size
        self._safe = np.full((len(settings.services), largest), -1.0)
        for j, service in enumerate(settings.services):
            left = seconds_left(service, slos)[:largest]
            self._safe[j, : len(left)] = left
        self._safe[:, 0] = np.inf  # who leaves at once waits for nobody

    @property
    def none(self) -> Doubt:
        """Nothing is kept free yet."""
        return Doubt(np.zeros(len(self.slos)), self._safe, self.of_cold_starts)

    @property
    def whole(self) -> Doubt:
        """Nothing rests on the fit."""
        return Doubt(np.ones(len(self.slos)), self._safe, self.of_cold_starts)

    @cached_property
    def of_cold_starts(self) -> Array:
        """(3.3) of every SLO where nobody is held, (n_slos,): what is not known of how many find no environment."""
        settings, nothing = self.settings, np.zeros(len(self.slos))
        if not (settings.starts.matter and self._doubts):
            return nothing
        unbatched = settings.unbatched()[0]
        few = unbatched.cold_starts < FEW * min(slo.error_budget for slo in self.slos)
        return nothing if few else self._jackknifed(unbatched)

    def share_in_doubt(self, setting: FunctionSetting) -> Array:
        """(3.3) of every SLO, at one setting: (n_slos,); where it needs no fit that of cold starts alone."""
        j = self.settings.index(setting)
        if setting.table is not None or setting.timeout <= self._safe[j, setting.batch_size - 1] or not self._doubts:
            return self.of_cold_starts
        return np.maximum(self._jackknifed(setting), self.of_cold_starts)

    @property
    def _doubts(self) -> bool:
        question = self.settings.question
        return len(question.without) > 0 and question.goal.objective != "latency"

    def _jackknifed(self, setting: FunctionSetting) -> Array:
        try:
            others = self.settings.without_each_block(setting)
        except InvalidInput:  # without a block the arrivals are beyond prediction
            return np.ones(len(self.slos))
        shares = np.array([[law.probability_within(slo.latency) for slo in self.slos] for law in others])
        return jackknife_doubt(shares, self.settings.question.goal.confidence)

    def keeps(self, setting: FunctionSetting, doubt: Array) -> bool:
        """Whether it keeps every SLO with so much in doubt."""
        within = np.array([setting.latency.probability_within(slo.latency) - slo.quantile for slo in self.slos])
        return bool((within - doubt >= -2 * ROUNDING).all())
